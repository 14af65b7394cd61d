"""The compiled engine is chosen where it can run and where that pays; that it gives the same is in `test_engines`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.errors import BudgetError, MissingExtraError, UsageError
from kvsim.extrapolation import Watched
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import Contiguous, Paged, Policy, Static
from kvsim.profiles import find
from kvsim.recording import write
from kvsim.scheduling.settings import (
    ContiguousSettings,
    ContinuousSettings,
    PagedSettings,
    Reserve,
    StaticSettings,
)
from kvsim.simulation import Machine, choice, measure, record, simulate
from kvsim.simulation.compiled import jit, packing, slices
from kvsim.steptime import Roofline, StepShape, StepTime, StepTimeModel
from kvsim.workload import LogNormal, Poisson, SharedPrefixes, Workload, generate

MODEL = find_model("Meta-Llama-3-8B")


def machine_of(num_tokens: int, step_time: StepTimeModel | None = None) -> Machine:
    """A machine with room for so many tokens, calibrated unless told otherwise."""
    kv_bytes = num_tokens * MODEL.kv_bytes_per_token
    return Machine(
        gpu=find_gpu("H200"),
        model=MODEL,
        kv_bytes=kv_bytes,
        step_time=find("vllm-h200-llama-3-8b") if step_time is None else step_time,
    )


def requests(size: int) -> Workload:
    lengths = LogNormal(mean_tokens=60, sigma=0.8, maximum=300)
    return generate(
        size, arrivals=Poisson(rate_per_s=40.0), prompt=lengths, output=lengths,
        prefixes=SharedPrefixes(num_groups=2, tokens=50), seed=size,
    )  # fmt: skip


def paged(**cache: Any) -> Paged:
    return Paged(
        scheduler=ContinuousSettings(max_num_batched_tokens=256, max_model_len=1024), cache=PagedSettings(**cache)
    )


@pytest.mark.parametrize("engine", ["python", "compiled"])
@pytest.mark.parametrize(
    "policy", [paged(), Static(scheduler=StaticSettings(max_model_len=1024))], ids=["paged", "static"]
)
def test_what_is_recorded_while_it_runs(policy: Policy, engine: Any, tmp_path: Path) -> None:
    """The files are those of a recording that was kept and then written."""
    if isinstance(policy, Static) and engine == "compiled":
        pytest.skip("batches are computed whole")
    workload, machine = requests(60), machine_of(8_000)
    growing = record(workload, policy, machine, tmp_path / "growing", engine=engine)
    kept = write(simulate(workload, policy, machine, engine="python"), tmp_path / "kept")
    for file in kept.iterdir():
        assert (growing / file.name).read_bytes() == file.read_bytes(), file.name


def test_step_times_are_those_of_python_to_the_last_bit() -> None:
    random, times = np.random.default_rng(0), find("vllm-h200-llama-3-8b").times
    compiled = jit.jit(Roofline.step_time)
    step_time = jit.entry_point(lambda coefficients, *shape: compiled(coefficients[0], StepShape(*shape)))
    coefficients = packing.coefficients(times)
    for num_tokens in random.integers(1, 3_000, 200).tolist():
        num_seqs, num_prefill_tokens = random.integers(1, num_tokens + 1, 2).tolist()
        shape = StepShape(num_seqs, num_tokens, num_prefill_tokens, 100 * num_tokens, num_tokens**2, 0, 0, num_tokens)
        assert tuple(step_time(coefficients, *shape)) == tuple(times.step_time(shape))


class Metronome:
    """A step-time model of its own."""

    label, calibrated = "a metronome", True

    def step_time(self, shape: StepShape) -> StepTime:  # noqa: ARG002
        return StepTime(prepare_s=0.0, launch_s=0.25, gpu_s=1.0, turnaround_s=0.0)

    def entry_s(self, prompt_tokens: int) -> float:  # noqa: ARG002
        return 0.0


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (paged(swap_gib=1.0), "swaps"),
        (
            Paged(scheduler=ContinuousSettings(async_scheduling=False), cache=PagedSettings(num_speculative_tokens=2)),
            "drafts tokens",
        ),
        (Contiguous(cache=ContiguousSettings(reserve=Reserve.DOUBLING)), "grow"),
        (Contiguous(cache=ContiguousSettings(compaction=True)), "compacted"),
        (Contiguous(cache=ContiguousSettings(request_level=True)), "by batch"),
        (Contiguous(cache=ContiguousSettings(fit="buddy")), "buddies"),
        (Paged(scheduler=ContinuousSettings(max_model_len=1 << 31)), "too long"),
        (Static(), "static batch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_cannot_do_is_said(policy: Policy, words: str) -> None:
    with pytest.raises(UsageError, match=f"compiled engine cannot do this run: .*{words}"):
        measure(requests(3), policy, machine_of(20_000), engine="compiled")


def test_step_times_of_another_kind_are_asked_for_in_python() -> None:
    with pytest.raises(UsageError, match="a model of its own"):
        measure(requests(3), paged(), machine_of(20_000, Metronome()), engine="compiled")


@pytest.mark.parametrize("options", [{"check": True}, {"leap": False}], ids=str)
def test_the_reference_is_in_python(options: dict[str, bool]) -> None:
    with pytest.raises(UsageError, match="reference engine are in Python"):
        simulate(requests(3), paged(), machine_of(20_000), engine="compiled", **options)  # type: ignore[arg-type]


def test_without_numba_a_run_that_asks_for_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "has_numba", lambda: False)
    with pytest.raises(MissingExtraError, match=r"pip install 'kvsim\[fast\]'"):
        measure(requests(3), paged(), machine_of(20_000), engine="compiled")
    assert not compiles(requests(choice.WORTH_COMPILING))


def compiles(workload: Workload, **options: Any) -> bool:
    """Whether `auto` takes the compiled engine."""
    chosen: dict[str, Any] = {"engine": "auto", "step_by_step": False} | options
    machine = machine_of(20_000)
    return choice.runs_compiled(workload, paged(), machine.pool(paged()), machine.step_time, **chosen)


def test_it_is_chosen_where_it_pays() -> None:
    long = requests(choice.WORTH_COMPILING)
    assert compiles(long)
    assert not compiles(long.head(choice.WORTH_COMPILING - 1))
    assert not compiles(long, step_by_step=True)
    assert not compiles(long, engine="python")


def test_misfits_are_refused_or_an_error_as_in_python() -> None:
    workload = Workload(arrival_s=[0, 1, 2], prompt_tokens=[10, 900, 2_000], output_tokens=[5, 100, 5])
    with pytest.raises(BudgetError, match=r"'r1' \(row 1\)"):
        measure(workload, paged(), machine_of(500), engine="compiled")
    measured = measure(workload, paged(), machine_of(500), engine="compiled", refuse_misfits=True)
    assert measured.summary.num_refused == 2
    assert measured.summary.num_finished == 1


def test_progress_is_reported_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "STEPS_PER_SLICE", 50)
    reports: list[tuple[int, int]] = []
    measure(
        requests(60), paged(), machine_of(8_000), engine="compiled",
        progress=lambda done, total: reports.append((done, total)),
    )  # fmt: skip
    assert len(reports) > 5
    assert reports == sorted(reports)
    assert reports[-1] == (60, 60)


def test_it_can_be_interrupted_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "STEPS_PER_SLICE", 50)

    def interrupt(done: int, total: int) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(requests(60), paged(), machine_of(8_000), engine="compiled", progress=interrupt)


def test_a_watched_profile_is_told_how_large_the_steps_were() -> None:
    """Leaping asks about steps beyond an arrival too, and drops them; so the reference is stepping."""
    profile, said = find("vllm-h200-llama-3-8b"), []
    for options in ({"leap": False}, {"engine": "compiled"}):
        watched = Watched(profile)
        measure(requests(60), paged(), machine_of(8_000, watched), **options)
        said.append(watched._largest)
    assert said[0] == said[1]


def test_where_nothing_can_be_kept_it_is_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only installation without a home directory: numba finds no place, and nobody hears of it."""

    def refuse(*_: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("numba.core.dispatcher.Dispatcher.enable_caching", refuse)

    def double(number: int) -> int:
        return 2 * number

    assert jit.entry_point(double)(21) == 42


def test_a_full_disk_keeps_nobody_from_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.load", lambda *_: None)
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", fail)
    slices.compiled_engine.cache_clear()
    measured = measure(requests(5), paged(), machine_of(8_000), engine="compiled")
    slices.compiled_engine.cache_clear()
    assert measured.summary.num_finished == 5


def test_short_runs_do_not_load_numba(run_python: Callable[..., Any]) -> None:
    code = (
        "import sys, kvsim\n"
        "workload = kvsim.Workload(arrival_s=[0], prompt_tokens=[9], output_tokens=[9])\n"
        "gpu, model = kvsim.find_gpu('H200'), kvsim.find_model('Meta-Llama-3-8B')\n"
        "step_time = kvsim.Roofline.for_gpu(gpu, model)\n"
        "machine = kvsim.Machine(gpu=gpu, model=model, kv_bytes=1 << 30, step_time=step_time)\n"
        "kvsim.simulate(workload, kvsim.Paged(), machine)\n"
        "assert 'kvsim.simulation.choice' in sys.modules\n"
        "assert 'numba' not in sys.modules"
    )
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr
