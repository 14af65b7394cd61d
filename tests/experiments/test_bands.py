"""The band around a run in which many requests are preempted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from kvsim.cli.run import command as run_command
from kvsim.experiments.bands import band_of, figures_of, is_worth_a_band
from kvsim.hardware import find_gpu
from kvsim.machines import interval_in, known_errors, step_times
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.simulation import Machine, measure
from kvsim.simulation.server import ServerProcess
from kvsim.workload import AllAtOnce, Fixed, generate

TIGHT = ("--arrivals", "at-once", "--num-requests", "40", "--prompt-tokens", "60", "--output-tokens", "80")


def machine(num_blocks: int) -> Machine:
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    return Machine(gpu=gpu, model=model, kv_bytes=num_blocks * (2 << 20), step_time=step_times(gpu, model, "vllm"))


def test_the_band_holds_the_run_and_is_as_wide_as_the_error_of_its_times() -> None:
    workload = generate(40, arrivals=AllAtOnce(), prompt=Fixed(tokens=60), output=Fixed(tokens=80), seed=1)
    tight = machine(100)
    summary = measure(workload, Paged(), tight).summary
    assert is_worth_a_band(summary, len(workload))
    band = band_of(workload, Paged(), tight, summary)
    assert band is not None
    known = interval_in(tight.step_time.label)
    assert known is not None
    clocks = known.step_errors
    assert (band.gpu_percent, band.host_percent) == (clocks["gpu"], clocks["host"])
    for name, value in figures_of(summary).items():
        low, high = band.ranges[name]
        assert low <= value <= high
    low, high = band.ranges["e2e_s"]
    assert 2 * band.gpu_percent < 100 * (high - low) / summary.e2e_s.mean < 2 * band.host_percent + 10


def test_hosts_are_known_less_well_than_gpus() -> None:
    for known in known_errors().values():
        if known.tells_an_interval and len(known.step_errors) == 2:
            assert 0 < known.step_errors["gpu"] < known.step_errors["host"]


def test_a_run_with_room_for_everybody_needs_none() -> None:
    workload = generate(40, arrivals=AllAtOnce(), prompt=Fixed(tokens=60), output=Fixed(tokens=80), seed=1)
    assert not is_worth_a_band(measure(workload, Paged(), machine(1000)).summary, len(workload))


def test_a_band_is_printed_and_in_json_unless_it_is_not_wanted() -> None:
    tight = (*TIGHT, "--num-blocks", "100")
    table, document, without = (
        CliRunner().invoke(run_command, [*tight, *flags], catch_exceptions=False).stdout
        for flags in ((), ("--json",), ("--no-band",))
    )
    known = interval_in(machine(100).step_time.label)
    assert known is not None
    clocks = known.step_errors
    words = f"with the GPU's times {clocks['gpu']:.0f} % and the host's {clocks['host']:.0f} % shorter to longer"
    assert f"in brackets: {words}" in " ".join(table.split())
    band = json.loads(document)["band"]
    assert band["ranges" if "ranges" in band else "ttft_s"][0] < json.loads(document)["ttft_s"]["mean"]
    assert "brackets" not in without


def test_a_check_is_of_the_run_that_is_printed_and_not_of_those_of_its_band(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[bool] = []
    begin = ServerProcess.__init__

    def counted(server: ServerProcess, *given: Any, **options: Any) -> None:
        begin(server, *given, **options)
        checked.append(bool(server.driver.engine.settings.checking))

    monkeypatch.setattr(ServerProcess, "__init__", counted)
    flags = (*TIGHT, "--num-blocks", "100", "--engine", "interpreted", "--check")
    table = CliRunner().invoke(run_command, flags, catch_exceptions=False).stdout
    assert "in brackets" in table
    assert checked == [True] + 4 * [False]


def test_there_is_no_band_where_nobody_measured_how_far_off_such_times_are() -> None:
    """A cache in fp8 was recorded too few times, an L40S never."""
    workload = generate(40, arrivals=AllAtOnce(), prompt=Fixed(tokens=60), output=Fixed(tokens=80), seed=1)
    fp8 = find_model("Meta-Llama-3-8B").served(kv_cache_dtype="fp8")
    for gpu, model in ((find_gpu("H200"), fp8), (find_gpu("L40S"), find_model("Meta-Llama-3-8B"))):
        kv_bytes = 1600 * model.kv_bytes_per_token
        tight = Machine(gpu=gpu, model=model, kv_bytes=kv_bytes, step_time=step_times(gpu, model, "vllm"))
        summary = measure(workload, Paged(), tight).summary
        assert is_worth_a_band(summary, len(workload))
        assert band_of(workload, Paged(), tight, summary) is None
    flags = (*TIGHT, "--gpu", "L40S", "--model", "Meta-Llama-3-8B", "--num-blocks", "100", "--max-model-len", "200")
    table = CliRunner().invoke(run_command, flags, catch_exceptions=False).stdout
    assert "no brackets: fewer than three recordings show the error of such times" in table
    assert "tokens/s" in table
    assert "tokens/s (" not in table
