"""The engine gives the same bytes interpreted and compiled, and measuring gives what a recording adds up to."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from kvsim.conformance import read_workload
from kvsim.errors import StalledError
from kvsim.hardware import find_gpu
from kvsim.metrics import summarize
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged, Policy, Static
from kvsim.policies.settings import (
    ContiguousSettings,
    ContinuousSettings,
    Growth,
    Order,
    PagedSettings,
    Reserve,
    StaticSettings,
)
from kvsim.profiles import find
from kvsim.recording import MemoryKind, Recording, write
from kvsim.simulation import EngineName, Machine, Measured, measure, record, simulate
from kvsim.workload import LogNormal, Poisson, Ragged, SharedPrefixes, Workload, generate

from ..conformance.modes import FASTEST
from ..thinned import one_of

ENGINES: tuple[EngineName, ...] = ("interpreted",) if FASTEST is False else ("interpreted", "compiled")
MODEL = find_model("Meta-Llama-3-8B")
STEP_TIME = find("vllm-h200-llama-3-8b")


def machine_of(num_tokens: int) -> Machine:
    """A calibrated machine with room for so many tokens."""
    kv_bytes = num_tokens * MODEL.kv_bytes_per_token
    return Machine(gpu=find_gpu("H200"), model=MODEL, kv_bytes=kv_bytes, step_time=STEP_TIME)


def bytes_of(recording: Recording) -> dict[str, bytes]:
    """Every file of a recording, as written."""
    with TemporaryDirectory() as folder:
        return files_of(write(recording, Path(folder, "r")))


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def assert_same(workload: Workload, policy: Policy, machine: Machine, **options: Any) -> Recording:
    """Every way to run gives the same, whether everything is kept or only sums, and whether each step is looked at."""
    recordings = [simulate(workload, policy, machine, engine=engine, **options) for engine in ENGINES]
    otherwise = options | {"check": not options.get("check", False)}
    recordings.append(simulate(workload, policy, machine, engine="interpreted", **otherwise))
    written = [bytes_of(recording) for recording in recordings]
    with TemporaryDirectory() as folder:  # written as it happens
        for engine in ENGINES:
            record(workload, policy, machine, Path(folder, engine), engine=engine, **options)
            written.append(files_of(Path(folder, engine)))
    assert written == [written[0]] * len(written)
    for engine in ENGINES:
        assert_same_summary(measure(workload, policy, machine, engine=engine, **options), recordings[0])
    return recordings[0]


def assert_same_summary(measured: Measured, recording: Recording) -> None:
    """What was measured is what the recording says: exactly for every request, up to rounding in sums over time."""
    for column in ("arrival_s", "first_scheduled_s", "first_token_s", "finished_s", "preemptions", "output_tokens",
                   "cached_tokens", "status"):  # fmt: skip
        np.testing.assert_array_equal(getattr(measured.requests, column), getattr(recording.requests, column), column)
    ours, theirs = dict(flat(measured.summary.as_dict())), dict(flat(summarize(recording).as_dict()))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        same = ours[name] == value or math.isclose(ours[name], value, rel_tol=1e-9, abs_tol=1e-9)
        assert same, f"{name}: {ours[name]} and not {value}"


SCHEDULERS = {
    "max_num_seqs": st.sampled_from([1, 3, 6, 64]),
    "max_num_batched_tokens": st.sampled_from([1, 4, 7, 16, 40, 200]),
    "max_model_len": st.sampled_from([48, 200]),
    "async_scheduling": st.booleans(),
    "order": st.sampled_from(Order),
    "enable_chunked_prefill": st.booleans(),
    "long_prefill_token_threshold": st.sampled_from([0, 0, 3, 10]),
    "reserve_full_prompt": st.booleans(),
}
BLOCKS = {
    "block_size": st.sampled_from([1, 2, 3, 4, 16]),
    "enable_prefix_caching": st.booleans(),
    "watermark": st.sampled_from([0.0, 0.1]),
    "swap_gib": st.sampled_from([0.0, 0.002, 1.0]),
    "swap_gb_per_s": st.sampled_from([0.01, 50.0]),
}
POLICIES = st.one_of(
    st.builds(Paged, scheduler=st.builds(ContinuousSettings, **SCHEDULERS), cache=st.builds(PagedSettings, **BLOCKS)),
    st.builds(
        Paged,
        scheduler=st.builds(
            ContinuousSettings,
            **SCHEDULERS | {"async_scheduling": st.sampled_from([None, False]), "max_num_seqs": st.just(3)},
            vllm=st.sampled_from(["0.25.1", "0.33.0"]),
            speculative_config=st.builds(
                lambda method, num_tokens: {"method": method, "model": "x", "num_speculative_tokens": num_tokens},
                st.sampled_from(["eagle", "mtp", "ngram"]),
                st.integers(1, 5),
            ),
            acceptance=st.sampled_from([0.0, 0.5, 0.8, 1.0, "0.9"]),
            acceptance_seed=st.integers(0, 3),
        ),
        cache=st.builds(PagedSettings, **{name: BLOCKS[name] for name in BLOCKS if not name.startswith("swap")}),
    ),
    st.builds(
        Contiguous,
        scheduler=st.builds(ContinuousSettings, **SCHEDULERS),
        cache=st.builds(
            ContiguousSettings,
            reserve=st.sampled_from(Reserve),
            fit=st.sampled_from(["first", "best", "next", "buddy"]),
            growth=st.sampled_from(Growth),
            compaction=st.booleans(),
            request_level=st.booleans(),
        ),
    ),
    st.builds(
        Static,
        scheduler=st.builds(
            StaticSettings,
            batch_size=st.integers(1, 6),
            preallocated=st.booleans(),
            max_model_len=st.sampled_from([48, 200]),
            timeout_s=st.sampled_from([0.0, 0.02, 0.5]),
            sort_by_length=st.booleans(),
            memory_guard=st.booleans(),
        ),
    ),
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    """Up to thirty requests in bursts and silences, some of which stop early and some of which share a prefix."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    size, longest = draw(st.integers(1, 30)), draw(st.sampled_from([3, 20, 60]))
    output, group = random.integers(1, longest + 1, size), random.integers(-1, 3, size)
    prompt = random.integers(1, 20, size)
    return Workload(
        arrival_s=np.cumsum(random.choice([0, 0, 0.01, 0.05, 0.3], size)),
        prompt_tokens=prompt,
        output_tokens=output,
        max_tokens=output + random.integers(0, draw(st.sampled_from([1, 6])), size),
        priority=random.integers(0, 3, size),
        prefix_group=group,
        prefix_tokens=np.where(group < 0, 0, np.minimum(prompt, 12)),
        prefix_names=("a", "b", "c"),
    )


any_run = given(
    workload=workloads(),
    policy=POLICIES,
    room=st.sampled_from([0.3, 0.6, 1.0, 2.0, 3.0, 20.0]),
    users=st.sampled_from([{}, {}, {"users": 2}, {"users": 7}, {"users": 3, "think_s": 0.03}]),
    stamp_at_entry=st.booleans(),
    check=st.booleans(),
)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@any_run
def test_any_workload_under_any_policy(**run: Any) -> None:
    assert_same_run(**run)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@any_run
def test_many_workloads_under_any_policy(**run: Any) -> None:
    assert_same_run(**run)


def assert_same_run(
    workload: Workload, policy: Policy, room: float, users: dict[str, Any], stamp_at_entry: bool, check: bool
) -> None:
    """Every way to run gives the same, or stalls with the same words."""
    machine = machine_of(int(room * policy.max_model_len) + 40)
    options = {"refuse_misfits": True, "stamp_at_entry": stamp_at_entry, "check": check} | users
    try:
        assert_same(workload, policy, machine, **options)
    except StalledError as error:
        for engine in ENGINES:
            for run in (simulate, measure):
                with pytest.raises(StalledError, match=re.escape(str(error))):
                    run(workload, policy, machine, engine=engine, **options)  # type: ignore[arg-type]
        assume(False)


def test_the_last_token_of_a_prompt_is_no_decode_where_it_comes_alone() -> None:
    """It has room in a block that is there already, as the tokens of an answer have."""
    policy = Paged(scheduler=ContinuousSettings(max_num_batched_tokens=20, async_scheduling=False))
    workload = Workload(arrival_s=[0.0], prompt_tokens=[21], output_tokens=[5], max_tokens=[5])
    recording = assert_same(workload, policy, machine_of(800))
    assert recording.steps.prefill_tokens.tolist() == [20, 1, 0, 0, 0, 0]
    assert recording.steps.decode_tokens.tolist() == [0, 0, 1, 1, 1, 1]


GOLDEN = sorted((Path(__file__).parent.parent / "conformance" / "golden").glob("*.json"))


@pytest.mark.parametrize("file", GOLDEN[::4], ids=lambda file: file.stem)
def test_workloads_like_the_golden_ones(file: Path) -> None:
    """Their settings and requests, each arriving at the time of its step; those that are aborted run to their end."""
    golden = read_workload(file)
    requests = golden.requests
    workload = Workload(
        arrival_s=[0.01 * request.arrival_step for request in requests],
        prompt_tokens=[len(request.prompt) for request in requests],
        prompt_token_ids=Ragged.from_rows([request.prompt for request in requests], np.int32),
        output_tokens=[min(request.stop_at or request.output_tokens, request.output_tokens) for request in requests],
        max_tokens=[request.output_tokens for request in requests],
        priority=[request.priority for request in requests],
    )
    policy = Paged(scheduler=golden.scheduler, cache=golden.cache)
    try:
        simulate(workload, policy, machine_of(golden.num_blocks * policy.unit_tokens), refuse_misfits=True)
    except StalledError:
        pytest.skip("never ends, as in vLLM")
    assert_same(workload, policy, machine_of(golden.num_blocks * policy.unit_tokens), refuse_misfits=True)


@pytest.mark.parametrize(
    "served", one_of(3, product(("starved", "ample"), ("no cache", "prefix cache"), ("ahead", "sync"))), ids="-".join
)
def test_requests_of_realistic_length(served: tuple[str, str, str]) -> None:
    num_blocks, caching, sync = 60 if served[0] == "starved" else 2000, served[1] == "prefix cache", served[2] == "sync"
    workload = generate(
        60,
        arrivals=Poisson(rate_per_s=40.0),
        prompt=LogNormal(mean_tokens=120, sigma=0.8, maximum=400),
        output=LogNormal(mean_tokens=120, sigma=0.8, maximum=400),
        prefixes=SharedPrefixes(num_groups=2, tokens=50),
        seed=3,
    )
    policy = Paged(
        scheduler=ContinuousSettings(max_num_batched_tokens=512, max_model_len=1024, async_scheduling=not sync),
        cache=PagedSettings(enable_prefix_caching=caching),
    )
    recording = assert_same(workload, policy, machine_of(num_blocks * 16))
    assert (recording.num_preemptions > 10) == (num_blocks == 60)


@pytest.mark.parametrize("order", Order)
def test_long_runs_in_many_slices(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps with preemptions, evictions, hits and stops that come as a surprise."""
    monkeypatch.setattr("kvsim.engine.initialization.STEPS_PER_SLICE", 100)
    monkeypatch.setattr("kvsim.engine.initialization.FIRST_ROWS", 10)
    scheduler = ContinuousSettings(max_num_batched_tokens=256, max_model_len=1024, order=order)
    policy = Paged(scheduler=scheduler)
    recording = assert_same(mixed_requests(100), policy, machine_of(800))
    moved = simulate(mixed_requests(100), policy, machine_of(800), engine="auto")  # compiled from the second slice on
    assert bytes_of(moved) == bytes_of(recording)
    assert recording.num_preemptions > 20
    assert {*recording.memory.kind.tolist()} == {int(kind) for kind in MemoryKind}


@pytest.mark.parametrize("fit", ["first", "best", "next", "buddy"])
def test_extents_in_a_fragmented_range(fit: str) -> None:
    policy = Contiguous(
        scheduler=ContinuousSettings(max_model_len=1024), cache=ContiguousSettings(reserve=Reserve.LIMIT, fit=fit)
    )
    recording = assert_same(mixed_requests(100), policy, machine_of(2_500))
    assert summarize(recording).num_fragmented_steps > 50


def mixed_requests(size: int) -> Workload:
    """Requests of different lengths, some of which share a prefix, some of which stop early, some more important."""
    lengths = LogNormal(mean_tokens=60, sigma=0.8, maximum=300)
    drawn = generate(
        size, arrivals=Poisson(rate_per_s=40.0), prompt=lengths, output=lengths,
        prefixes=SharedPrefixes(num_groups=2, tokens=50), seed=size,
    )  # fmt: skip
    return Workload(
        arrival_s=drawn.arrival_s,
        prompt_tokens=drawn.prompt_tokens,
        output_tokens=drawn.output_tokens,
        max_tokens=drawn.output_tokens + np.arange(size) % 3,
        priority=np.arange(size) % 2,
        prefix_group=drawn.prefix_group,
        prefix_tokens=drawn.prefix_tokens,
        prefix_names=drawn.prefix_names,
    )


def test_what_is_measured_does_not_grow_with_the_steps() -> None:
    policy, sizes = Paged(scheduler=ContinuousSettings(max_model_len=16_384)), []
    for num_tokens in (50, 5_000):
        workload = Workload(arrival_s=[0.0] * 3, prompt_tokens=[50] * 3, output_tokens=[num_tokens] * 3)
        measured = measure(workload, policy, machine_of(64_000))
        assert measured.num_steps >= num_tokens
        sizes.append(len(pickle.dumps(measured)))
    assert sizes[1] < sizes[0] + 100
