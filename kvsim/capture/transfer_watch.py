"""Recorder of the transfers of vLLM's NixlConnector inside its scheduler: loads, and blocks kept for other servers.

The workers decide when a transfer ends and which blocks fail. Both are recorded with the output that reports them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsim.errors import RecordingError, UsageError
from kvsim.kv_groups import KVCacheLayout
from kvsim.policies.connectors import Connector

_PULL_CONNECTORS = ("NixlConnector", "NixlPullConnector")
"""Connectors of vLLM with which a decode server pulls KV."""
_NONE = -1


def has_transfers(scheduler: Any) -> bool:
    """Tell whether the scheduler has a connector that kvsim simulates. Only such transfers are recorded."""
    return type(getattr(scheduler, "connector", None)).__name__ in _PULL_CONNECTORS


def check_transfers(scheduler: Any, layout: KVCacheLayout, release: str) -> None:
    """Check that kvsim can simulate the KV transfers of an engine.

    Raises:
        RecordingError: it cannot; the message says why.
    """
    extra = scheduler.vllm_config.kv_transfer_config.kv_connector_extra_config or {}
    if extra.get("bidirectional_kv_xfer"):
        raise RecordingError(
            "the engine keeps KV for prefill servers (bidirectional_kv_xfer), and kvsim follows decode servers that "
            "pull it from prefill servers."
        )
    try:
        Connector().check(release, len(layout.groups))
    except UsageError as error:
        raise RecordingError(f"the engine exchanges KV with other servers: {error}") from error


class TransferWatch:
    """Reporter of the transfers of one scheduler as events.

    - `report("transfer", is_send, row, first, num_blocks, num_tokens, time_s)`: a transfer of the request in `row`
      begins, from entry `first` of its table on.
    - `report("transferred", row, time_s, failed)`: it has ended; `failed` is the index of the first entry that failed,
      -1 for none.

    Tables are those of the only group: `check_transfers` refuses several.
    """

    def __init__(self, scheduler: Any, report: Callable[..., None], now: Callable[[], float]) -> None:
        """Watch the connector of `scheduler`, which must have one. `now` returns the recording's time in seconds."""
        self._scheduler, self._report, self._now = scheduler, report, now
        self._rows: dict[str, int] = {}
        self._under_way: set[str] = set()
        self._asking: set[str] = set()
        """Ids of the requests whose prompts are on another server and do not load yet."""
        self._watch_loads()

    def settings(self) -> dict[str, Any]:
        """Return the connector's settings by their names in vLLM, for the engine in a recording's metadata."""
        config = self._scheduler.vllm_config.kv_transfer_config
        return {
            "kv_connector": "NixlConnector",
            "kv_role": str(config.kv_role),
            "kv_load_failure_policy": str(config.kv_load_failure_policy),
        }

    def start(self, rows: dict[str, int]) -> None:
        """Begin a recording. `rows` has the rows of its requests by name."""
        self._rows = rows
        self._under_way.clear()
        self._asking.clear()

    def _watch_loads(self) -> None:
        """Wrap the connector's method that vLLM calls when a request has blocks for its load, to report it."""
        connector, tables = self._scheduler.connector, self._scheduler.kv_cache_manager.coordinator.single_type_managers
        update = connector.update_state_after_alloc

        def watched_update(request: Any, blocks: Any, num_external_tokens: int, *args: Any, **kwargs: Any) -> Any:
            fetches = (request.kv_transfer_params or {}).get("do_remote_prefill")
            if num_external_tokens and fetches and request.request_id in self._rows:
                table = tables[0].req_to_blocks[request.request_id]
                # The load begins after the blocks that the prefix cache holds, which have hashes.
                first = next((place for place, block in enumerate(table) if block.block_hash is None), len(table))
                self._begin(request, False, first, len(table) - first, num_external_tokens)
            return update(request, blocks, num_external_tokens, *args, **kwargs)

        connector.update_state_after_alloc = watched_update

    def arrived(self, request: Any) -> None:
        """Note whether another server has the prompt of a request."""
        if (request.kv_transfer_params or {}).get("do_remote_prefill"):
            self._asking.add(request.request_id)

    def kept(self, request: Any) -> None:
        """Report that a request has ended, and that its blocks are kept until another server has read them."""
        if request.request_id in self._rows:
            table = self._scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
            num_blocks = len(table.get(request.request_id, ()))
            self._begin(request, True, 0, num_blocks, request.num_computed_tokens)

    def ended(self, request: Any) -> None:
        """Report an empty load if a request ends before its prompt, which another server has, begins to load."""
        if request.request_id in self._asking:
            self._begin(request, False, 0, 0, 0)
            self._end(request.request_id)

    def _end(self, name: str, failed: int = _NONE) -> None:
        self._under_way.discard(name)
        self._report("transferred", self._rows[name], self._now(), failed)

    def _begin(self, request: Any, is_send: bool, first: int, num_blocks: int, num_tokens: int) -> None:
        self._under_way.add(request.request_id)
        self._asking.discard(request.request_id)
        row = self._rows[request.request_id]
        self._report("transfer", is_send, row, first, num_blocks, num_tokens, self._now())

    def updating(self, answer: Any) -> None:
        """Report the ends of transfers that the model's output `answer` states, before vLLM processes it."""
        report = getattr(answer, "kv_connector_output", None)
        if report is None:
            return
        bad = set(getattr(report, "invalid_block_ids", None) or ())
        tables = self._scheduler.kv_cache_manager.coordinator.single_type_managers[0].req_to_blocks
        for names, is_load in ((report.finished_recving, True), (report.finished_sending, False)):
            for name in [name for name in names or () if name in self._under_way]:
                table = tables.get(name, ()) if is_load and bad else ()
                failed = next((place for place, block in enumerate(table) if block.block_id in bad), _NONE)
                self._end(name, failed)
