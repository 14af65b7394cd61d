"""The verifier itself: that it calls equal what is equal, and finds whatever is not."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsim.conformance import (
    OracleWorkload,
    Verdict,
    parse_workload,
    read_records,
    read_workload,
    verify_oracle,
    verify_recording,
)
from kvsim.conformance.generated import realistic, small
from kvsim.errors import RecordingError, WorkloadError
from kvsim.importers import workload_of
from kvsim.policies import Contiguous, Paged
from kvsim.policies.settings import ContinuousSettings, Order, PagedSettings
from kvsim.recording import MemoryKind, Meta, Recording, RequestStatus, find, read
from kvsim.simulation import simulate
from kvsim.workload import Fixed, LogNormal, Poisson, Ragged, Workload, generate

from ..thinned import one_of
from .modes import in_every_way
from .recorder import Watch

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.simulation import Machine

GOLDEN = Path(__file__).with_name("golden")
WATCHED = sorted(file for file in GOLDEN.glob("*.json") if file.stem != "047")
"""In 047 the only request is aborted as it arrives: there is no step to record."""


@pytest.fixture(scope="module")
def busy() -> OracleWorkload:
    """A realistic workload under pressure: prefix hits, evictions and preemptions."""
    return read_workload(GOLDEN / "046.json")


@pytest.fixture(scope="module")
def watched(busy: OracleWorkload) -> Recording:
    """A recording of the busy workload."""
    return Watch(busy).recording()


@pytest.fixture(scope="module")
def plainly_watched(busy: OracleWorkload) -> Recording:
    """The same from a recorder that saves no space and knows nothing of our own columns."""
    return Watch(busy).plain_recording()


@in_every_way
def test_the_shipped_recording_under_pressure_is_equal(pressure: Recording, compiled: bool) -> None:
    verdict = verify_recording(pressure, compiled=compiled)
    assert str(verdict) == "all 2,922 steps equal (16,714 allocations, 685 preemptions)"


@in_every_way
def test_a_recording_of_a_warm_engine_is_equal(compiled: bool) -> None:
    recording = read(find("vllm-h200-granite-350m-gsm8k"))
    assert recording.meta.initial_free is not None
    assert recording.meta.initial_free[0] != 1, "requests before the recording have shuffled the queue"
    assert (
        str(verify_recording(recording, compiled=compiled)) == "all 130 steps equal (6,337 allocations, 0 preemptions)"
    )


@pytest.mark.parametrize(
    "told",
    [
        *one_of(2, ((file, True) for file in WATCHED)),
        *one_of(2, ((file, False) for file in WATCHED if "abort_step" in file.read_text()), first=1),
    ],
    ids=lambda told: f"{told[0].stem}-{told[1]}",
)
def test_a_recording_of_every_golden_workload_is_equal(told: tuple[Path, bool]) -> None:
    workload, aborts_have_seq = told
    watch = Watch(read_workload(workload), aborts_have_seq=aborts_have_seq)
    by_oracle = verify_oracle(read_workload(workload), read_records(workload.with_suffix(".jsonl.gz")))
    recording = watch.recording()
    for variant in (recording, watch.plain_recording(), without_release_lengths(recording)):
        verdict = verify_recording(variant)
        assert verdict.equal, verdict
        counts = ("num_allocations", "num_preemptions", "num_hits", "num_evictions", "num_aborts")
        assert [getattr(verdict, name) for name in counts] == [getattr(by_oracle, name) for name in counts]


@pytest.mark.parametrize("number", range(3))
def test_recordings_of_realistic_size_are_equal(number: int) -> None:
    watch = Watch(parse_workload(realistic(Random(number)), "generated"))
    assert len(watch.recording().steps) > 200
    for variant in (watch.recording(), watch.plain_recording()):
        assert verify_recording(variant).equal


def without_release_lengths(recording: Recording) -> Recording:
    memory = recording.memory
    length = np.where(memory.kind == MemoryKind.RELEASE, 0, memory.length)
    return replace(recording, memory=replace(memory, length=length))


def test_evictions_of_prefixes_from_before_the_recording_are_not_expected(busy: OracleWorkload) -> None:
    initial_free = list(range(busy.num_blocks - 1, 0, -1))
    recording = Watch(busy, initial_free=initial_free).recording()
    memory = recording.memory
    assert (memory.kind == MemoryKind.EVICT).any()
    # The first block that anybody gets held a prefix of a request that nobody recorded.
    at = int(np.argmax(memory.kind == MemoryKind.APPEND))
    row = {"kind": MemoryKind.EVICT, "request": -1, "position": 0, "length": 1, "requested": 1, "cached": 0}
    row |= {"seq": memory.seq[at], "step": memory.step[at], "address": memory.address[at]}
    columns = {name: np.insert(getattr(memory, name), at, value) for name, value in row.items()}
    assert verify_recording(replace(recording, memory=type(memory)(**columns))).equal


def test_a_recording_that_somebody_stopped_is_equal_as_far_as_it_goes(plainly_watched: Recording) -> None:
    recording = cut(plainly_watched, num_steps=1000)
    assert (recording.requests.status == RequestStatus.UNFINISHED).any()
    verdict = verify_recording(recording)
    assert (verdict.equal, verdict.num_steps) == (True, 1000)


def cut(recording: Recording, num_steps: int) -> Recording:
    """The first steps of a recording, as a recorder leaves it that was stopped: outputs under way are dated last."""
    steps, requests, memory = recording.steps, recording.requests, recording.memory
    last = int(steps.schedule_seq[num_steps - 1])
    kept = {name: getattr(steps, name)[:num_steps] for name, _ in steps.columns() if getattr(steps, name) is not None}
    under_way = kept["output_seq"] > last
    kept["output_seq"] = np.where(under_way, last + np.cumsum(under_way), kept["output_seq"])
    released = {
        int(memory.request[row]): int(memory.seq[row]) for row in np.flatnonzero(memory.kind == MemoryKind.RELEASE)
    }
    gone = [released.get(row, last + 1) <= last for row in range(len(requests))]
    changes = memory.seq <= last
    scheduled = recording.schedule.step < num_steps
    arrived = requests.arrival_seq <= last
    assert arrived.all()
    return replace(
        recording,
        steps=replace(steps, **kept),
        schedule=replace(
            recording.schedule,
            **{
                name: getattr(recording.schedule, name)[scheduled]
                for name in ("step", "request", "computed_before", "tokens")
            },
        ),
        memory=replace(
            memory,
            **{name: getattr(memory, name)[changes] for name, spec in memory.columns() if not spec.optional},
        ),
        requests=replace(requests, status=np.where(gone, requests.status, RequestStatus.UNFINISHED)),
    )


def test_counts_of_seq_that_nobody_wrote_down_do_not_matter(watched: Recording) -> None:
    requests, steps, memory = watched.requests, watched.steps, watched.memory
    sparse = replace(
        watched,
        requests=replace(requests, arrival_seq=3 * requests.arrival_seq + 7),
        steps=replace(steps, schedule_seq=3 * steps.schedule_seq + 7, output_seq=3 * steps.output_seq + 7),
        memory=replace(memory, seq=3 * memory.seq + 7),
    )
    assert verify_recording(sparse).equal


# What a verifier is for: any single change to any table is found, and where it is.


def first_step_with(recording: Recording, kind: MemoryKind) -> int:
    row = int(np.argmax(recording.memory.kind == kind))
    assert recording.memory.kind[row] == kind
    return row


def changed(recording: Recording, table: str, column: str, row: int, by: int) -> Recording:
    before = getattr(recording, table)
    values = getattr(before, column).copy()
    values[row] += by
    return replace(recording, **{table: replace(before, **{column: values})})


@pytest.mark.parametrize(
    ("table", "column", "row", "label"),
    [
        ("steps", "free_units", 5, "free"),
        ("steps", "running", 6, "running"),
        ("steps", "waiting", 7, "waiting"),
        ("steps", "preempted", 8, "preempted"),
        ("schedule", "tokens", 9, "scheduled["),
        ("schedule", "computed_before", 10, "scheduled["),
        ("schedule", "request", 0, "scheduled[0]"),
        ("memory", "address", MemoryKind.APPEND, "memory["),
        ("memory", "position", MemoryKind.APPEND, "memory["),
        ("memory", "request", MemoryKind.APPEND, "memory["),
        ("memory", "address", MemoryKind.SHARE, "memory["),
        ("memory", "length", MemoryKind.RELEASE, "memory["),
        ("memory", "address", MemoryKind.EVICT, "evicted["),
    ],
)
def test_one_changed_number_is_found(plainly_watched: Recording, table: str, column: str, row: Any, label: str) -> None:
    if isinstance(row, MemoryKind):
        row = first_step_with(plainly_watched, row)
    verdict = verify_recording(changed(plainly_watched, table, column, row, by=1))
    assert verdict.difference is not None
    assert any(line.label.startswith(label) and line.differs for line in verdict.difference.lines)


def test_a_swap_of_two_requests_inside_a_step_is_found(plainly_watched: Recording) -> None:
    schedule = plainly_watched.schedule
    row = int(np.argmax(np.diff(schedule.step) == 0))
    order = np.arange(len(schedule))
    order[[row, row + 1]] = order[[row + 1, row]]
    columns = {name: getattr(schedule, name)[order] for name in ("step", "request", "computed_before", "tokens")}
    verdict = verify_recording(replace(plainly_watched, schedule=replace(schedule, **columns)))
    assert verdict.difference is not None
    assert verdict.difference.moment.startswith(f"step {schedule.step[row]} ")


def test_another_engine_loop_is_found(busy: OracleWorkload, watched: Recording) -> None:
    other = {**watched.meta.engine, "async_scheduling": not busy.scheduler.async_scheduling}
    assert not verify_recording(replace(watched, meta=replace(watched.meta, engine=other))).equal


@pytest.mark.parametrize(
    "setting",
    [
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 7},
        {"long_prefill_token_threshold": 3},
        {"enable_prefix_caching": False},
        {"watermark": 0.5},
    ],
)
def test_another_setting_is_found(watched: Recording, setting: dict[str, Any]) -> None:
    engine = {**watched.meta.engine, **setting}
    assert not verify_recording(replace(watched, meta=replace(watched.meta, engine=engine))).equal


def test_a_request_that_never_ends_here_is_found(pressure: Recording) -> None:
    requests = pressure.requests
    last = int(np.argmax(requests.finished_s))
    longer = changed(pressure, "requests", "output_tokens", last, by=1)
    longer = changed(longer, "requests", "max_tokens", last, by=1)
    assert not verify_recording(longer).equal


# Recordings that kvsim makes verify too: what it decides does not depend on who asks.


@pytest.mark.parametrize(
    "policy",
    [
        Paged(),
        Paged(scheduler=ContinuousSettings(async_scheduling=False, max_num_batched_tokens=512)),
        Paged(scheduler=ContinuousSettings(order=Order.PRIORITY, long_prefill_token_threshold=100)),
        Paged(
            cache=PagedSettings(block_size=32, watermark=0.05), scheduler=ContinuousSettings(reserve_full_prompt=False)
        ),
        Paged(cache=PagedSettings(enable_prefix_caching=False)),
    ],
    ids=["default", "sync", "priority", "block 32", "no prefix cache"],
)
def test_a_simulation_is_equal_to_itself(policy: Paged, make_machine: Callable[[int], Machine]) -> None:
    recording = simulate(_crowd(), policy, make_machine(4096))
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
    assert verdict.num_steps == len(recording.steps)
    assert verdict.num_preemptions == recording.num_preemptions > 0


def _crowd() -> Workload:
    return generate(
        60,
        arrivals=Poisson(rate_per_s=200.0),
        prompt=LogNormal(mean_tokens=150.0, sigma=0.8),
        output=Fixed(tokens=120),
        seed=3,
    )


# Input that cannot be compared, or is damaged.


def test_only_paged_engines_with_block_ids_can_be_compared(
    pressure: Recording, make_machine: Callable[[int], Machine], make_meta: Callable[..., Meta]
) -> None:
    with pytest.raises(RecordingError, match="contiguous cache"):
        verify_recording(simulate(_crowd(), Contiguous(), make_machine(32768)))
    with pytest.raises(RecordingError, match="static cache from hf"):
        verify_recording(read(find("hf-h200-granite-350m-batch500")))
    with pytest.raises(RecordingError, match="begins at block 1"):
        verify_recording(replace(pressure, meta=make_meta(10, unit_tokens=16)))
    with pytest.raises(RecordingError, match=r"no memory\.parquet"):
        verify_recording(replace(pressure, memory=type(pressure.memory).empty()))


def test_what_a_comparison_cannot_do_without_is_named(pressure: Recording, watched: Recording) -> None:
    blind = replace(watched.requests, prompt_hashes=Ragged.empty(len(watched.requests), np.int64))
    with pytest.raises(RecordingError, match=r"no prompt_hashes of request 'r\d+', which shares a prefix"):
        verify_recording(replace(watched, requests=blind))
    longest = int(pressure.requests.prompt_tokens.max())
    engine = {**pressure.meta.engine, "max_model_len": longest}
    with pytest.raises(RecordingError, match=f"a prompt of {longest} tokens would have been refused"):
        verify_recording(replace(pressure, meta=replace(pressure.meta, engine=engine)))
    steps = {name: getattr(pressure.steps, name)[:0] for name, spec in pressure.steps.columns() if not spec.optional}
    with pytest.raises(RecordingError, match="no steps"):
        verify_recording(replace(pressure, steps=type(pressure.steps)(**steps)))


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("max_num_seqs", None, r"does not say engine\.max_num_seqs"),
        ("max_num_batched_tokens", "many", "should be like 16384, not 'many'"),
        ("watermark", 2, "below 1"),
        ("policy", "lottery", "not a valid Order"),
    ],
)
def test_settings_that_cannot_be_right_are_named(pressure: Recording, setting: str, value: object, words: str) -> None:
    engine = {**pressure.meta.engine, setting: value}
    with pytest.raises(RecordingError, match=words):
        verify_recording(replace(pressure, meta=replace(pressure.meta, engine=engine)))


def test_outputs_out_of_turn_are_damage(pressure: Recording) -> None:
    output_seq = pressure.steps.output_seq.copy()
    output_seq[[20, 21]] = output_seq[[21, 20]]
    with pytest.raises(RecordingError, match="out of turn"):
        verify_recording(replace(pressure, steps=replace(pressure.steps, output_seq=output_seq)))


# The oracle's files.


def records_of(name: str) -> list[dict[str, Any]]:
    with gzip.open(GOLDEN / f"{name}.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def compare(records: list[dict[str, Any]], name: str = "009") -> Verdict:
    return verify_oracle(read_workload(GOLDEN / f"{name}.json"), enumerate(records, 1))


@pytest.mark.parametrize("kind", ["schedule", "update", "end"])
def test_every_field_of_an_oracle_record_is_compared(kind: str) -> None:
    records = records_of("009")
    at = next(index for index, record in enumerate(records) if record["kind"] == kind and (index > 60 or kind == "end"))
    for field in records[at].keys() - {"kind"}:
        spoilt = [*records[:at], records[at] | {field: "something else"}, *records[at + 1 :]]
        verdict = compare(spoilt)
        assert verdict.difference is not None, field
        assert verdict.difference.moment.endswith(f"line {at + 1}")
        assert {line.label for line in verdict.difference.lines} == {field}


def test_timings_are_not_compared() -> None:
    records = [record | {"sched_us": 12.5} if record["kind"] == "schedule" else record for record in records_of("009")]
    assert compare(records).equal


def test_records_that_go_on_after_we_ended_differ() -> None:
    records = records_of("009")
    verdict = compare([*records[:-1], records[-2], records[-1]])
    assert verdict.difference is not None
    assert verdict.difference.lines[0].label == "kind"


def test_a_list_is_shown_around_its_first_difference() -> None:
    records = records_of("009")
    at = next(index for index, record in enumerate(records) if len(record.get("free_queue", ())) > 8)
    queue = records[at]["free_queue"]
    spoilt = [*records[:at], records[at] | {"free_queue": [*queue[:4], *queue[:3:-1]]}, *records[at + 1 :]]
    verdict = compare(spoilt)
    assert verdict.difference is not None
    assert [(line.label, line.differs) for line in verdict.difference.lines] == [
        ("free_queue[2]", False),
        ("free_queue[3]", False),
        ("free_queue[4]", True),
        ("free_queue[5]", True),
        ("free_queue[6]", True),
    ]


def test_null_is_a_value_like_any_other() -> None:
    records = records_of("009")
    at = next(index for index, record in enumerate(records) if record.get("running"))
    running = [*records[at]["running"], None]
    computed = {**records[at]["computed"], "nobody": None}
    verdict = compare([*records[:at], records[at] | {"running": running, "computed": computed}, *records[at + 1 :]])
    assert verdict.difference is not None
    shown = {line.label: (line.recorded, line.simulated) for line in verdict.difference.lines if line.differs}
    assert shown == {f"running[{len(running) - 1}]": ("null", "–"), "computed.nobody": ("null", "–")}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "ends after line 0 without an end record"),
        (b"{\n", "line 1: not JSON"),
        (b'{"kind": "update"}\n', "line 1: expected meta"),
        (b'{"kind": ["meta"]}\n', "line 1: expected meta"),
        (b'{"kind": "meta"}\n', "line 1: the meta record lacks num_blocks"),
        (b"\xff\xfe\n", "damaged or truncated after line 0"),
        (b"[1]\n", "line 1: expected meta"),
        (b"[" * 100_000 + b"\n", "line 1: not JSON"),
        (b"1" * 10_000 + b"\n", "line 1: not JSON"),
    ],
)
def test_a_damaged_file_of_records_is_named_with_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_bytes(content)
    with pytest.raises(RecordingError, match=words) as caught:
        list(read_records(file))
    assert str(file) in str(caught.value)


def test_a_truncated_gzip_file_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl.gz"
    file.write_bytes((GOLDEN / "009.jsonl.gz").read_bytes()[:-200])
    with pytest.raises(RecordingError, match=r"steps\.jsonl\.gz is damaged or truncated after line \d+"):
        list(read_records(file))
    file.write_bytes(b"not gzip at all")
    with pytest.raises(RecordingError, match="damaged or truncated after line 0"):
        list(read_records(file))


def test_a_file_that_is_cut_between_two_records_is_damaged(tmp_path: Path) -> None:
    file = tmp_path / "steps.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records_of("009")[:20]))
    with pytest.raises(RecordingError, match="ends after line 20 without an end record"):
        verify_oracle(read_workload(GOLDEN / "009.json"), read_records(file))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_blocks": 1}, "num_blocks should be an integer from 2"),
        ({"num_blocks": 10**12}, "num_blocks should be an integer from 2 to"),
        ({"block_size": "16"}, "block_size should be an integer"),
        ({"policy": "lottery"}, "not a valid Order"),
        ({"watermark": 1.5}, "watermark should be below 1"),
        ({"async_scheduling": 1}, "async_scheduling should be true or false"),
        ({"max_num_seqs": 0}, "max_num_seqs should be at least 1"),
        ({"requests": {}}, "a list of requests"),
        ({"requests": [5]}, "request 0: a request is an object"),
        ({"requests": [{"id": "a", "prompt_len": 0, "output_len": 1}]}, "prompt_len should be an integer from 1"),
        ({"requests": [{"id": "a", "prompt_token_ids": [], "output_len": 1}]}, "should be a list of integers"),
        ({"requests": [{"id": "a", "prompt_len": 5, "output_len": 1}] * 2}, "two requests have the same id"),
        ({"requests": [{"id": "a", "prompt_len": 64, "output_len": 1}]}, "leaves no room for an answer"),
    ],
)
def test_a_workload_that_cannot_be_right_is_named(change: dict[str, Any], words: str) -> None:
    document = {"num_blocks": 20, "block_size": 4, "max_model_len": 64, "requests": []} | change
    with pytest.raises(WorkloadError, match=f"w.json.*{words}"):
        parse_workload(document, "w.json")


def test_a_workload_file_that_is_not_json_is_named_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "w.json"
    file.write_text('{"num_blocks": 20,\n oops}')
    with pytest.raises(WorkloadError, match=r"w\.json, line 2: not JSON"):
        read_workload(file)
    file.write_text("[" * 100_000)
    with pytest.raises(WorkloadError, match=r"w\.json: not JSON that can be read"):
        read_workload(file)
    file.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(WorkloadError, match=r"w\.json cannot be read"):
        read_workload(file)


@in_every_way
@pytest.mark.parametrize("number", range(20))
def test_small_generated_workloads_are_equal_to_their_recordings(number: int, compiled: bool) -> None:
    recording = Watch(parse_workload(small(Random(number)), "generated"), compiled=compiled).recording()
    assert verify_recording(recording, compiled=compiled).equal


def test_what_is_only_modelled_is_not_compared(pressure: Recording) -> None:
    recording = replace(pressure, meta=replace(pressure.meta, policy={**pressure.meta.policy, "swap_gib": 1.0}))
    with pytest.raises(RecordingError, match="swapping, which kvsim models"):
        verify_recording(recording)


@pytest.mark.parametrize("host_gib", [0.0, 0.15])
def test_requests_that_arrive_at_once_are_preempted_as_if_each_came_after_the_one_before(
    host_gib: float, make_machine: Callable[[int], Machine]
) -> None:
    """No server gets two requests at the same time, so the one that was sent last is the least important."""
    size = 24
    workload = Workload(
        arrival_s=np.zeros(size), prompt_tokens=np.full(size, 150), output_tokens=np.full(size, 120),
        priority=np.arange(size) % 2,
    )  # fmt: skip
    scheduler = ContinuousSettings(order=Order.PRIORITY, vllm="0.25.1")
    policy = Paged(scheduler=scheduler, cache=PagedSettings(kv_offloading_size=host_gib))
    recording = simulate(workload, policy, make_machine(1_600))
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
    assert verdict.num_preemptions > 3


def _drafted(machine: Machine, method: str, prefix_tokens: int, **settings: Any) -> Recording:
    """A simulated recording with drafts, whose prompts share `prefix_tokens`."""
    size = 8
    workload = Workload(
        arrival_s=np.arange(size) / 500,
        prompt_tokens=np.full(size, 50),
        output_tokens=3 * np.arange(size) + 9,
        max_tokens=np.full(size, 40),
        prefix_group=np.full(size, 0 if prefix_tokens else -1),
        prefix_tokens=np.full(size, prefix_tokens),
        prefix_names=["a"],
    )
    return simulate(workload, _with_drafts(method, **settings), machine)


def _with_drafts(method: str, **settings: Any) -> Paged:
    config = {"method": method, "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}
    return Paged(scheduler=ContinuousSettings(max_num_seqs=4, max_model_len=128, speculative_config=config, **settings))


@pytest.mark.parametrize("method", ["eagle", "draft_model", "ngram_gpu"])
@pytest.mark.parametrize("acceptance", [0.0, 0.6])
@pytest.mark.parametrize("num_tokens", [320, 2_000])
def test_a_simulation_with_drafts_scheduled_ahead_is_compared(
    method: str, acceptance: float, num_tokens: int, make_machine: Callable[[int], Machine]
) -> None:
    """A request stops while its next step is in flight, whose output is discarded.

    In a small pool, requests are preempted while steps are in flight, and get two outputs between two of their steps.
    """
    recording = _drafted(make_machine(num_tokens), method, 0, acceptance=acceptance)
    verdict = verify_recording(recording)
    assert verdict.equal, verdict
    assert verdict.num_steps == len(recording.steps)
    assert (verdict.num_preemptions > 0) == (num_tokens == 320)
    schedule, requests = recording.schedule, recording.requests
    assert schedule.outputs is not None
    outputs = np.bincount(schedule.request, schedule.outputs, len(requests))
    assert outputs.tolist() == requests.output_tokens.tolist()


def test_the_sum_of_two_outputs_is_not_compared(make_machine: Callable[[int], Machine]) -> None:
    """Recordings of earlier versions have no column of outputs."""
    recording = _drafted(make_machine(144), "ngram_gpu", 0, acceptance=0.6)
    recording = replace(recording, schedule=replace(recording.schedule, outputs=None))
    with pytest.raises(RecordingError, match="got two outputs between two of its steps"):
        verify_recording(recording)


@pytest.mark.parametrize("prefix_tokens", [32, 33, 47])
def test_hashes_of_a_simulation_cover_what_keys_cover(
    prefix_tokens: int, make_machine: Callable[[int], Machine]
) -> None:
    """From vLLM 0.33 on, a block of a prompt is found only if the token after it is equal, too."""
    machine, num_hits = make_machine(2_000), []
    for method, release, ahead in (("eagle", "0.33.0", 1), ("eagle", "0.25.1", 0), ("ngram_gpu", "0.33.0", 0)):
        recording = _drafted(machine, method, prefix_tokens, vllm=release)
        assert recording.meta.hash_ahead_tokens == ahead
        verdict = verify_recording(recording)
        assert verdict.equal, verdict
        num_hits.append(verdict.num_hits)
        # Its requests, served again by the same server, have the same hits.
        again = simulate(workload_of(recording), _with_drafts(method, vllm=release), machine)
        assert again.requests.cached_tokens.tolist() == recording.requests.cached_tokens.tolist()
    assert num_hits[0] == num_hits[2] - (prefix_tokens == 32) * 7


def test_hashes_that_do_not_cover_what_keys_cover_are_not_compared(make_machine: Callable[[int], Machine]) -> None:
    """Recordings of earlier versions have hashes of whole blocks."""
    recording = _drafted(make_machine(2_000), "eagle", 32)
    engine = {name: value for name, value in recording.meta.engine.items() if name != "num_hash_lookahead_tokens"}
    with pytest.raises(RecordingError, match="hashes of whole blocks"):
        verify_recording(replace(recording, meta=replace(recording.meta, engine=engine)))
