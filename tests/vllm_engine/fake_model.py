"""The driver's model, with drafts, and with the copies of an offload in the order in which vLLM hears of them.

Imported by processes that have vLLM's files on their path (`engine_process`).
"""

from __future__ import annotations

from typing import Any

from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput

from kvsim.conformance import vllm_driver

_FIRST_DRAFT = 400_000_000


class FakeModel(vllm_driver.FakeModel):
    """A model that verifies drafts, and whose steps report copies, if the workload has some."""

    def _init_executor(self) -> None:
        super()._init_executor()
        self._copies = _Copies(self._workload["offload"]) if "offload" in self._workload else None
        self._copied = None
        self._requests = {request["id"]: request for request in self._workload["requests"]}
        if "kv" in self._workload:
            self._copies = _Transfers(self._requests)
        self._admitted: set[str] = set()

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        if self._copies is not None:
            self._copied = self._copies.step(scheduler_output.kv_connector_metadata)
        self._admitted = {each.req_id for each in scheduler_output.scheduled_new_reqs}
        self._admitted |= set(scheduler_output.scheduled_cached_reqs.resumed_req_ids)
        return super().execute_model(scheduler_output, non_block)

    def take_draft_token_ids(self) -> DraftTokenIds:
        """The drafts behind the last step of a synchronous engine: as many as the workload says."""
        requests, most = self.scheduler.requests, self._workload["spec"]["k"]
        most = getattr(self._step, "num_spec_tokens_to_schedule", most)
        names = [name for name in self._step.num_scheduled_tokens if name in requests]
        proposed = {name: self._told(name, "propose", requests[name].num_output_tokens, most) for name in names}
        return DraftTokenIds(names, [list(range(_FIRST_DRAFT, _FIRST_DRAFT + number)) for number in proposed.values()])

    def _sampled(self, name: str) -> list[int]:
        """The model's own token, behind the drafts that are right; those of a request that is admitted are not."""
        drafts = len(self._step.scheduled_spec_decode_tokens.get(name, ())) if "spec" in self._workload else 0
        is_first = name in self._admitted
        right = 0 if is_first else min(self._told(name, "accept", self._num_answers[name], drafts), drafts)
        return [token for _ in range(right + 1) for token in super(FakeModel, self)._sampled(name)]

    def _told(self, name: str, field: str, outputs: int, usual: int) -> int:
        """A number of drafts that the workload says for a request with so many outputs."""
        numbers = self._requests[name].get(field)
        return min(numbers[outputs % len(numbers)], usual) if numbers else usual

    def _output(self, names: list[str]) -> Any:
        output = super()._output(names)
        output.kv_connector_output = self._copied
        return output


class _Transfers:
    """Transfers with another server that take so many steps, and blocks of the first load of a request that fail."""

    def __init__(self, requests: dict[str, Any]) -> None:
        self._requests, self._now = requests, 0
        self._loads: dict[str, tuple[int, set[int]]] = {}
        self._sends: dict[str, int] = {}

    def step(self, metadata: Any) -> KVConnectorOutput:
        """One step: what it reports."""
        for name, load in metadata.reqs_to_recv.items():
            groups = load.local_block_ids
            blocks = list(groups[0] if groups and isinstance(groups[0], list | tuple) else groups)
            if blocks:  # otherwise the other server is told alone
                places = self._requests[name].pop("bad", ())
                bad = {blocks[place] for place in places if place < len(blocks)}
                self._loads[name] = self._now + self._requests[name].get("load", 1) - 1, bad
        self._sends |= {name: self._now + self._requests[name].get("send", 1) - 1 for name in metadata.reqs_to_send}
        received = {name for name, (last, _) in self._loads.items() if last <= self._now}
        sent = {name for name, last in self._sends.items() if last <= self._now}
        bad = set().union(*(self._loads.pop(name)[1] for name in received))
        for name in sent:
            del self._sends[name]
        self._now += 1
        return KVConnectorOutput(
            finished_recving=received or None, finished_sending=sent or None, invalid_block_ids=bad
        )


class _Copies:
    """Copies to and from host memory that take so many steps. vLLM begins a load in its step and a store in the next,
    and a step waits for the copies that it has to.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._load_steps, self._store_steps = settings.get("load_delay", 1), settings.get("store_delay", 1)
        self._now = 0
        self._due: dict[int, int] = {}
        """The step with whose output each copy is reported."""
        self._loading: dict[int, str] = {}
        self._stores_to_begin: list[int] = []

    def step(self, metadata: Any) -> KVConnectorOutput:
        """One step: what it reports."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        self._due |= dict.fromkeys(self._stores_to_begin, self._now + self._store_steps - 1)
        self._due |= {number: self._now for number in metadata.jobs_to_flush if number in self._due}
        self._due |= dict.fromkeys(metadata.load_jobs, self._now + self._load_steps - 1)
        self._loading |= {number: job.req_id for number, job in metadata.load_jobs.items()}
        self._stores_to_begin = list(metadata.store_jobs)
        ended = [number for number, due in self._due.items() if due <= self._now]
        reported = OffloadingWorkerMetadata()
        for number in ended:
            del self._due[number]
            reported.mark_completed(number)
        loaded = {self._loading.pop(number) for number in ended if number in self._loading}
        self._now += 1
        return KVConnectorOutput(finished_recving=loaded or None, kv_connector_worker_meta=reported if ended else None)
