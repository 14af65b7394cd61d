"""Read and check the two files of an oracle run: the workload, and the records of the oracle's decisions.

Every error names the file, and the line if the file has lines.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvsim.conformance.connector_fields import connector_of, exchange_of
from kvsim.conformance.oracle_groups import layout_of
from kvsim.conformance.oracle_images import encoding_of, images_of
from kvsim.conformance.sglang_files import SGLANG_FIELDS
from kvsim.errors import RecordingError, UsageError, WorkloadError, reason_of
from kvsim.files.contents import TEXT_BYTES, content_of, unpacked
from kvsim.files.json_text import parse
from kvsim.kv_groups import KVCacheLayout, MambaMode
from kvsim.kv_groups.grouping import hashed_by_mode
from kvsim.policies import releases
from kvsim.policies.connectors import Connector, Exchange, Remote
from kvsim.policies.draft_counts import DraftCounts
from kvsim.policies.drafts import Drafts
from kvsim.policies.encoding import Encoding, ImageInput
from kvsim.policies.pipeline import Pipeline
from kvsim.policies.settings import ContinuousSettings, Eviction, Order, PagedSettings
from kvsim.policies.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

STATE_FIELDS = ("running", "waiting", "skipped", "free", "usage", "cached_keys", "blocks", "computed", "placeholders")
SCHEDULE_FIELDS = (
    "i", "scheduled", "total", "new", "new_computed", "resumed", "new_block_ids", "preempted", "finished_ids_sent",
)  # fmt: skip
UPDATE_FIELDS = ("i", "tokens", "finished", "prev_outputs")
META_FIELDS = (
    "num_blocks", "block_size", "max_num_running_reqs", "max_num_scheduled_tokens", "max_model_len", "watermark_blocks",
    "reserve_full_isl", "free0",
)  # fmt: skip
FIELDS: Mapping[str, tuple[str, ...]] = {
    "meta": META_FIELDS,
    "schedule": SCHEDULE_FIELDS + STATE_FIELDS,
    "update": UPDATE_FIELDS + STATE_FIELDS,
    "end": ("engine_calls",),
}
"""Required fields of each kind of record. The order of the free queue is optional."""
_FIRST: Mapping[str, Mapping[str, tuple[str, ...]]] = {"meta": FIELDS, "engine": SGLANG_FIELDS}
"""Required fields of each kind of record, by the kind of a file's first record: `meta` of vLLM, `engine` of SGLang."""
_ENDS = ("end", "failed")

_RECORDS_BYTES = 1 << 29
"""Limit for the number of decompressed bytes in a file of records. A run of half an hour has some megabytes."""
_BY_GROUP = {"groups", "ncached", "crc"}
"""Fields that only records with several KV-cache groups have."""
_LEFT_OUT = ("block_size", "reserve_full_isl", "blocks", "prev_outputs")
"""Required fields that records with several KV-cache groups may leave out."""
_UNSUPPORTED_SETTINGS: Mapping[str, Any] = {"prefix_match_unit": None, "enable_mamba_shared_prefix_checkpoint": False}
"""Settings of newer releases that kvsim does not simulate, each with the only accepted value, which has no effect."""
_LONGEST_MODEL = 131_072
"""Largest default of `max_model_len`. The default is the number of tokens in the pool if that is smaller."""
OFFLOAD_BLOCK_BYTES = 1 << 20
"""Bytes of a block on the host. It is a power of two, so that sizes in GiB are exact."""
_TOKENS_PER_REQUEST = 1_000_000
_NO_EXCHANGE = Exchange()
_LARGEST = 1 << 24
"""Limit for the number of blocks, tokens or calls in a workload; the oracle would need days for more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleRequest:
    """One request of an oracle's workload."""

    name: str
    prompt: tuple[int, ...]
    output_tokens: int
    """Maximum number of output tokens: vLLM's `max_tokens`."""
    stop_at: int | None
    """Number of output tokens up to and including the stop token; None if the model outputs no stop token."""
    arrival_step: int
    """Index of the engine call before which the request arrives."""
    abort_step: int | None
    """Index of the engine call before which the request is aborted; None if it is not aborted."""
    priority: int
    accepted_drafts: tuple[int, ...] = ()
    """Entry i: number of drafts accepted in the step that begins after i outputs; empty to accept all."""
    images: tuple[ImageInput, ...] = ()
    proposed_drafts: tuple[int, ...] = ()
    """Entry i: number of drafts proposed when the request has i outputs; empty for as many as the settings allow."""
    exchange: Exchange = _NO_EXCHANGE
    load_steps: int = 1
    """Number of steps that a load takes, including the step that begins it."""
    send_steps: int = 1
    """Number of steps from the end of the request until another server has read its blocks."""
    adapter: int = 0
    """Number of the request's adapter (LoRA); 0 for none."""
    salt: str = ""
    """vLLM's cache salt. Requests with different salts share no prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleWorkload:
    """Settings and requests of an oracle run."""

    num_blocks: int
    scheduler: ContinuousSettings
    cache: PagedSettings
    pipeline: Pipeline
    """Number of pipeline stages, and version of the model runner. Version 2 gets resumed requests as new ones."""
    requests: tuple[OracleRequest, ...]
    layout: KVCacheLayout | None = None
    """Layout of the KV-cache groups in blocks; None for one group of full attention."""
    retention_tokens: int | None = None
    """Distance in tokens between positions at which windows and states stay cached; None for every block boundary."""
    encoding: Encoding | None = None
    """Images of the prompts, and the limits of their encoder; None without images."""
    drafting: SpeculativeConfig | None = None
    connector: Connector | None = None
    """Settings of the KV connector; None without one. `OracleRequest.exchange` has the settings of each request."""
    load_steps: int = 1
    """Number of steps that a copy from host memory takes, including the step that begins it."""
    store_steps: int = 1
    """Number of steps that a copy to host memory takes, including the step that begins it."""

    def of_release(self, release: str) -> OracleWorkload:
        """Return the workload with the rules and defaults of a vLLM release.

        Raises:
            RecordingError: kvsim does not know the release, or does not simulate the workload's features under its
                rules.
        """
        try:
            releases.check_known(
                release,
                has_groups=self.layout is not None,
                num_stages=self.pipeline.pipeline_parallel_size,
                offloads=self.cache.kv_offloading_size > 0,
            )
            scheduler = replace(self.scheduler, vllm=release)
            scheduler.check_known_to_release()
            self.drafts(release)
            if self.encoding is not None:
                self.encoding.check(release)
            if self.connector is not None:
                self.connector.check(release, 1 if self.layout is None else len(self.layout.groups))
        except UsageError as error:
            raise RecordingError(f"the oracle's answer cannot be compared: {error}") from error
        rules = releases.rules_of(release)
        groups = () if self.layout is None else self.layout.groups
        has_v2_runner = rules.has_v2_runner and (
            rules.every_state_has_v2_runner or all(group.mamba_mode is not MambaMode.ALL for group in groups)
        )
        if self.drafting is not None:
            has_v2_runner = has_v2_runner and self.drafting.has_v2_runner(release)
        drafts, connector = self.drafts(release), self.connector
        backoff = drafts.prompt_ahead_tokens - 1 if drafts is not None and rules.spares_modules else 0
        if connector is not None:
            connector = replace(
                connector,
                backoff_tokens=0 if connector.is_store else max(backoff, 0),
                exchanges=[request.exchange for request in self.requests],
            )
        return replace(
            self,
            connector=connector,
            requests=tuple(_prefilled(request, connector) for request in self.requests),
            layout=_hashed(self.layout, rules) if self.cache.enable_prefix_caching else self.layout,
            scheduler=scheduler,
            pipeline=replace(self.pipeline, v2_model_runner=self.pipeline.v2_model_runner and has_v2_runner),
        )

    def drafts(self, release: str) -> Drafts | None:
        """Return the settings of speculative decoding under the rules of a vLLM release.

        Return None if the workload has no speculative decoding.
        """
        if self.drafting is None:
            return None
        drafts = Drafts.of(
            self.drafting,
            release,
            caches_prefixes=self.cache.enable_prefix_caching,
            has_connector=self.connector is not None,
            accepted=DraftCounts.from_rows([request.accepted_drafts for request in self.requests]),
            proposed=DraftCounts.from_rows([request.proposed_drafts for request in self.requests]),
        )
        drafts.check_groups(self.layout)
        return drafts


def _hashed(layout: KVCacheLayout | None, rules: releases.ReleaseRules) -> KVCacheLayout | None:
    if layout is None or not rules.hashes_aligned_states:
        return layout
    hashed = hashed_by_mode(layout)
    if any(group.block_size % hashed.hash_block_size for group in hashed.groups):
        sizes = ", ".join(str(group.block_size) for group in hashed.groups)
        raise RecordingError(
            f"vLLM does not start: prompts are hashed {hashed.hash_block_size} tokens at a time, and that does not "
            f"divide the blocks of all groups: {sizes} tokens."
        )
    return hashed


def read_workload(file: Path) -> OracleWorkload:
    """Read an oracle's workload.

    Raises:
        WorkloadError: the file is missing, not JSON, or has an invalid value; the message names the file and request.
    """
    return parse_workload(read_document(file), str(file))


def read_document(file: Path) -> Any:
    """Read the JSON of an oracle's workload.

    Raises:
        WorkloadError: the file is missing or not JSON.
    """
    try:
        text = content_of(file, TEXT_BYTES).decode()
    except FileNotFoundError:
        raise WorkloadError(f"{file} does not exist; give the workload that the oracle was run with.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise WorkloadError(
            f"{file} cannot be read as text: {reason_of(error)}; give the workload that the oracle was run with."
        ) from error
    try:
        return parse(text)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{file}, line {error.lineno}: not JSON: {error.msg}.") from error
    except ValueError as error:  # such as a number with thousands of digits, or nesting thousands deep
        raise WorkloadError(f"{file}: not JSON that can be read: {error}.") from error


def parse_workload(document: Any, where: str) -> OracleWorkload:
    """Build a workload from parsed JSON. `where` begins every error.

    Raises:
        WorkloadError: the document has an invalid value.
    """
    _check_simulated(document, where)
    if not isinstance(document, dict) or not isinstance(document.get("requests"), list):
        raise WorkloadError(f"{where}: an oracle workload is an object with num_blocks and a list of requests.")
    fields = _Fields(document, where)
    num_blocks = fields.integer("num_blocks", None, minimum=2)
    # A block of decode context parallelism has as many tokens of the sequence on each of its ranks.
    block_size = fields.integer("block_size", 16, minimum=1) * fields.integer("dcp", 1, minimum=1)
    longest = min((num_blocks - 1) * block_size, _LONGEST_MODEL)
    offload = _Fields(_object("offload", document.get("offload", {}), where), f"{where}, offload")
    try:
        scheduler = _scheduler_of(fields, where, longest)
        cache = PagedSettings(
            block_size=block_size,
            enable_prefix_caching=fields.flag("enable_prefix_caching", default=True),
            watermark=fields.fraction("watermark", 0.0),
            **_offload(offload, block_size),
        )
    except (UsageError, ValueError) as error:
        raise WorkloadError(f"{where}: {str(error).rstrip('.')}.") from error
    connector = connector_of(document.get("kv") or {}, where)
    layout = layout_of(document, where, scheduler, cache) if "groups" in document else None
    requests = _requests(document["requests"], where, scheduler.max_model_len, connector)
    images = [request.images for request in requests]
    return OracleWorkload(
        num_blocks=num_blocks,
        scheduler=scheduler,
        cache=cache,
        pipeline=Pipeline(
            pipeline_parallel_size=fields.integer("pipeline_parallel_size", 1, minimum=1),
            v2_model_runner=fields.flag("v2_model_runner", default=True),
        ),
        requests=requests,
        encoding=encoding_of(_object("mm", document.get("mm") or {}, where), images, where),
        connector=connector,
        layout=layout,
        retention_tokens=_retention_tokens(fields, layout),
        drafting=_drafting(document.get("spec"), where),
        load_steps=offload.integer("load_delay", 1, minimum=1),
        store_steps=offload.integer("store_delay", 1, minimum=1),
    )


def _scheduler_of(fields: _Fields, where: str, longest: int) -> ContinuousSettings:
    document = fields.document
    adapters = _Fields(_object("lora", document.get("lora") or {}, where), f"{where}, lora")
    return ContinuousSettings(
        max_num_seqs=fields.integer("max_num_seqs", 128),
        max_num_batched_tokens=fields.integer("max_num_batched_tokens", 2048),
        max_model_len=fields.integer("max_model_len", None) if document.get("max_model_len") else longest,
        async_scheduling=fields.flag("async_scheduling", default=True),
        order=Order(document.get("policy", "fcfs")),
        enable_chunked_prefill=fields.flag("enable_chunked_prefill", default=True),
        long_prefill_token_threshold=fields.integer("long_prefill_token_threshold", 0),
        reserve_full_prompt=fields.flag("scheduler_reserve_full_isl", default=True),
        vllm=releases.UNSTATED,  # replaced by the release that the first record states
        max_num_active_seqs=fields.integer_or_none("max_num_active_seqs"),
        long_prefill_token_threshold_adaptive=fields.flag("long_prefill_token_threshold_adaptive", default=False),
        prefill_schedule_interval=fields.integer("prefill_schedule_interval", 1),
        enable_lora=bool(adapters.document),
        max_loras=adapters.integer("max_loras", 1),
    )


def _drafting(document: Any, where: str) -> SpeculativeConfig | None:
    if not document:
        return None
    fields = _Fields(document, where)
    method, num_tokens = document.get("method"), fields.integer("k", 0)
    settings = {
        "method": "mtp" if method == "mtp_multi" else method,
        "model": "a draft model",
        "num_speculative_tokens": num_tokens,
        "num_speculative_tokens_per_batch_size": document.get("per_batch"),
        "parallel_drafting": fields.flag("parallel_drafting", default=False),
        "disable_eagle_block_drop": fields.flag("disable_block_drop", default=False),
        "disable_lookahead_block_hashes": fields.flag("disable_lookahead_hashes", default=False),
    }
    try:
        config = SpeculativeConfig.of(settings)
    except UsageError as error:
        raise WorkloadError(f"{where}: {str(error).rstrip('.')}.") from error
    return replace(config, num_modules=num_tokens if method == "mtp_multi" else 1)


def _check_simulated(document: Any, where: str) -> None:
    if not isinstance(document, dict):
        return
    if document.get("pcp") not in (None, 1, {}):
        raise WorkloadError(f"{where}: kvsim does not follow prefill context parallelism (pcp).")
    for name, known in _UNSUPPORTED_SETTINGS.items():
        if document.get(name, known) not in (known, None):
            raise WorkloadError(f"{where}: kvsim does not know {name}; it should be {json.dumps(known)}.")


def _retention_tokens(fields: _Fields, layout: KVCacheLayout | None) -> int | None:
    tokens: int | None = fields.integer_or_none("retention_interval", minimum=0)
    if tokens is not None and layout is not None and tokens % layout.scheduler_block_size:
        raise WorkloadError(
            f"{fields.where}: retention_interval should be a multiple of the {layout.scheduler_block_size} tokens that "
            f"are hit together, not {tokens}."
        )
    return tokens


def _object(name: str, value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WorkloadError(f"{where}: {name} should be an object, not {value!r}.")
    return value


def _offload(fields: _Fields, block_size: int) -> dict[str, Any]:
    if not fields.document:
        return {}
    if fields.integer("store_threshold", 0) > 1:
        raise WorkloadError(f"{fields.where}: kvsim does not know store_threshold; it should be 0 or 1.")
    factor, host_blocks = fields.integer("factor", 1, minimum=1), fields.integer("host_blocks", None, minimum=1)
    return {
        "kv_offloading_size": host_blocks * factor * OFFLOAD_BLOCK_BYTES / (1 << 30),
        "kv_offloading_block_size": factor * block_size,
        "kv_offloading_eviction": Eviction(fields.document.get("policy", "lru")),
        "kv_offloading_prompt_only": fields.flag("prompt_only", default=True),
    }


def read_records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of an oracle run, each with its line number.

    The kind of the first record tells vLLM's records (`meta`) from SGLang's (`engine`).

    Raises:
        RecordingError: the file is missing or truncated, or a line is not a record; the message names file and line.
    """
    line, fields, kind = 0, None, None
    for line, text in _lines_of(file):
        record = _record(text, f"{file}, line {line}", fields, after_end=kind in _ENDS)
        kind = record["kind"]
        fields = fields or _FIRST[kind]
        yield line, record
    _check_ended(file, line, kind)


def read_pair_records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a prefill and a decode engine, each with its line number. Field `engine` is "P" or "D"."""
    line, kind = 0, None
    for line, text in _lines_of(file):
        record = _object_with(("kind",) if line > 1 else ("kind", "vllm"), text, f"{file}, line {line}")
        kind = record["kind"]
        yield line, record
    _check_ended(file, line, kind)


def read_rank_records(file: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the records of a front end that chooses data-parallel ranks, each with its line number."""
    for line, text in _lines_of(file):
        record = _object_with(("add", "rank", "counts", "start", "inflight"), text, f"{file}, line {line}")
        if not isinstance(record["counts"], list) or not all(isinstance(each, list) for each in record["counts"]):
            raise RecordingError(f"{file}, line {line}: counts should be a list with a list for each rank.")
        yield line, record


def _lines_of(file: Path) -> Iterator[tuple[int, str]]:
    line = 0
    try:
        content = content_of(file, _RECORDS_BYTES)
        content = unpacked(content, _RECORDS_BYTES) if file.suffix == ".gz" else content
        for line, text in enumerate(map(bytes.decode, content.splitlines(keepends=True)), 1):
            yield line, text
    except FileNotFoundError:
        raise RecordingError(f"{file} does not exist; give the records that the oracle printed.") from None
    except (EOFError, OSError, zlib.error, UnicodeDecodeError) as error:
        raise RecordingError(f"{file} is damaged or truncated after line {line}: {error}.") from error


def _check_ended(file: Path, line: int, kind: str | None) -> None:
    if kind not in _ENDS:
        raise RecordingError(f"{file} ends after line {line} without an end record: the oracle did not finish.")


def _parsed(text: str, where: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise RecordingError(f"{where}: not JSON: {getattr(error, 'msg', error)}.") from error


def _object_with(names: tuple[str, ...], text: str, where: str) -> dict[str, Any]:
    record = _parsed(text, where)
    missing = [name for name in names if not isinstance(record, dict) or name not in record]
    if missing:
        raise RecordingError(f"{where}: the record lacks {', '.join(missing)}.")
    return dict(record)


def _record(text: str, where: str, fields: Mapping[str, tuple[str, ...]] | None, *, after_end: bool) -> dict[str, Any]:
    """Parse a record, and check its kind and fields.

    `fields` are the required fields of each kind; None for the first record of a file. `after_end` is True if the end
    of the run was already recorded, so that this record is an error.
    """
    record = _parsed(text, where)
    kind = str(record.get("kind")) if isinstance(record, dict) else "none"
    known = _FIRST if fields is None else [name for name in fields if name not in _FIRST]
    if kind not in known or after_end:
        due = "nothing after the end" if after_end else " or ".join((", ".join([*known][:-1]), [*known][-1]))
        raise RecordingError(f"{where}: expected {due}, not a record of kind {kind!r}.")
    left_out = _LEFT_OUT if _BY_GROUP & record.keys() else ()
    missing = [name for name in (fields or _FIRST[kind])[kind] if name not in record and name not in left_out]
    if missing:
        raise RecordingError(f"{where}: the {kind} record lacks {', '.join(missing)}.")
    return dict(record)


def _requests(
    documents: list[Any], where: str, max_model_len: int, connector: Connector | None
) -> tuple[OracleRequest, ...]:
    requests = tuple(_request(row, item, f"{where}, request {row}") for row, item in enumerate(documents))
    if connector is not None:
        requests = _exchanging(requests, documents, connector)
    if len({request.name for request in requests}) < len(requests):
        raise WorkloadError(f"{where}: two requests have the same id.")
    for row, request in enumerate(requests):
        if len(request.prompt) >= max_model_len:
            raise WorkloadError(
                f"{where}, request {row}: a prompt of {len(request.prompt)} tokens leaves no room for an answer within "
                f"max_model_len {max_model_len}; vLLM's front end refuses it, and its scheduler fails on it."
            )
    return requests


def _exchanging(
    requests: tuple[OracleRequest, ...], documents: Sequence[Mapping[str, Any]], connector: Connector
) -> tuple[OracleRequest, ...]:
    fail_order = {name: index for index, name in enumerate(sorted(request.name for request in requests))}
    return tuple(
        replace(
            request,
            exchange=exchange_of(document, connector, fail_order[request.name]),
            load_steps=int(document.get("load", 1)),
            send_steps=int(document.get("send", 1)),
        )
        for request, document in zip(requests, documents, strict=True)
    )


def _prefilled(request: OracleRequest, connector: Connector | None) -> OracleRequest:
    backoff = 0 if connector is None else connector.backoff_tokens
    if request.exchange.remote is not Remote.READS or not 0 < backoff < len(request.prompt):
        return request
    return replace(request, prompt=request.prompt[:-backoff], output_tokens=1)


def _request(row: int, document: Any, where: str) -> OracleRequest:
    if not isinstance(document, dict) or not isinstance(document.get("id"), str):
        raise WorkloadError(f"{where}: a request is an object with an id, prompt_len and output_len.")
    fields = _Fields(document, where)
    prompt, stop_at = document.get("prompt_token_ids"), fields.integer_or_none("stop_at")
    if prompt is None:
        prompt = _made_up_prompt(row, fields)
    if not isinstance(prompt, list | tuple) or not prompt or not all(type(token) is int for token in prompt):
        raise WorkloadError(f"{where}: prompt_token_ids should be a list of integers, and not be empty.")
    return OracleRequest(
        name=document["id"],
        prompt=tuple(prompt),
        output_tokens=fields.integer("output_len", None, minimum=1),
        # The first output is the earliest that can stop a request.
        stop_at=None if stop_at is None else max(1, stop_at),
        arrival_step=fields.integer("arrival_step", 0),
        abort_step=fields.integer_or_none("abort_step"),
        priority=fields.integer("priority", 0),
        adapter=fields.integer_or_none("lora", minimum=0) or 0,
        salt=str(document.get("salt") or ""),
        accepted_drafts=tuple(document.get("accept") or ()),
        proposed_drafts=tuple(document.get("propose") or ()),
        images=images_of(document.get("mm"), where),
    )


def _made_up_prompt(row: int, fields: _Fields) -> list[int]:
    """Return the token ids that the oracle makes for the prompt of the request in `row`.

    Prompts with equal `prefix_group` begin with the same tokens: with the first `prefix_len` ones of the group.
    """
    # The driver (`vllm_driver.py`) gives every group and every request its own range of token ids.
    group = 0
    num_shared = 0
    if fields.document.get("prefix_group") is not None:
        group = fields.integer("prefix_group", 0)
        num_shared = fields.integer("prefix_len", 0, minimum=0)
    shared = 900_000_000 + _TOKENS_PER_REQUEST * group
    unshared = _TOKENS_PER_REQUEST * (row + 1)
    prompt_len = fields.integer("prompt_len", None, minimum=1)
    return [*range(shared, shared + num_shared), *range(unshared + num_shared, unshared + prompt_len)]


@dataclass(frozen=True, slots=True)
class _Fields:
    document: Mapping[str, Any]
    where: str

    def integer(self, name: str, default: int | None, *, minimum: int | None = None) -> int:
        value = self.document.get(name, default)
        least = -_LARGEST if minimum is None else minimum
        if type(value) is not int or not least <= value <= _LARGEST:
            raise WorkloadError(f"{self.where}: {name} should be an integer from {least} to {_LARGEST}, not {value!r}.")
        return value

    def integer_or_none(self, name: str, *, minimum: int | None = None) -> Any:
        return None if self.document.get(name) is None else self.integer(name, None, minimum=minimum)

    def fraction(self, name: str, default: float) -> float:
        value = self.document.get(name, default)
        if not isinstance(value, int | float):
            raise WorkloadError(f"{self.where}: {name} should be a number, not {value!r}.")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.document.get(name, default)
        if type(value) is not bool:
            raise WorkloadError(f"{self.where}: {name} should be true or false, not {value!r}.")
        return value
