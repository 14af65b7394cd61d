"""Throughput that does not come back after a retraction of SGLang: when, what admission expects, the cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.calibration.prior import vllm_prior
from kvsim.cli import cli
from kvsim.cli.diagnose_sglang import advice
from kvsim.diagnosis import retractions_of, try_remedies
from kvsim.diagnosis.retractions import RemedyRun, new_token_ratios, policy_of
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import Paged, Radix, SGLangSettings
from kvsim.recording import Recording, write
from kvsim.simulation import Machine, simulate, step_check
from kvsim.workload import Workload

GPU, MODEL = find_gpu("H200"), find_model("Llama-3-8B")
SCHEDULING = SGLangSettings(
    context_length=600, max_running_requests=32, chunked_prefill_size=256, max_prefill_tokens=512,
    schedule_conservativeness=0.1, new_token_ratio_decay_steps=100, retract_decode_steps=2,
)  # fmt: skip


def machine_of(num_tokens: int) -> Machine:
    kv_bytes = num_tokens * MODEL.kv_bytes_per_token
    return Machine(gpu=GPU, model=MODEL, kv_bytes=kv_bytes, step_time=vllm_prior(GPU, MODEL))


def workload() -> Workload:
    """Short prompts, long answers: admission expects too little, and a pause in which everything ends."""
    random = np.random.default_rng(3)
    arrival_s = np.concatenate((np.linspace(0, 1, 60), [30.0, 30.1, 30.2]))
    return Workload(
        arrival_s=arrival_s, prompt_tokens=random.integers(5, 40, 63), output_tokens=random.integers(60, 200, 63),
        max_tokens=[200] * 63,
    )  # fmt: skip


def record(scheduling: SGLangSettings = SCHEDULING, num_tokens: int = 1500) -> Recording:
    return simulate(workload(), Radix(scheduler=scheduling), machine_of(num_tokens), engine="interpreted")


@pytest.mark.parametrize("is_overlapped", [True, False])
def test_the_share_is_what_the_engine_keeps(monkeypatch: pytest.MonkeyPatch, is_overlapped: bool) -> None:
    kept: dict[int, float] = {}

    def note(self: step_check.Checks) -> None:
        engine = self.driver.engine
        if engine.state.num_in_batch:
            kept[engine.state.num_steps - 1] = engine.radix.state.ratio

    monkeypatch.setattr(step_check.Checks, "step", note)
    monkeypatch.setattr(step_check.Checks, "finish", Mock())
    policy = Radix(scheduler=replace(SCHEDULING, disable_overlap_schedule=not is_overlapped))
    recording = simulate(workload(), policy, machine_of(1500), engine="interpreted", check=True)
    assert recording.num_preemptions > 3
    ratios = new_token_ratios(recording)
    np.testing.assert_allclose(ratios, [kept[step] for step in range(len(ratios))], rtol=1e-9)


def test_moments_and_costs() -> None:
    recording = record()
    found = retractions_of(recording)
    assert sum(len(each.losses) for each in found) == recording.num_preemptions
    for each in found:
        assert each.back_s > each.at_s
        assert each.lost_tokens > 0
        assert each.ratio >= policy_of(recording).scheduler.least_ratio
    assert any(each.ratio > each.ratio_before for each in found)


def test_the_command_names_the_moment_and_what_was_tried(tmp_path: Path) -> None:
    recording = record()
    folder = str(write(recording, tmp_path / "rec"))
    text = CliRunner().invoke(cli, ["diagnose", folder, "--points", "1"])
    assert text.exit_code == 0, text.output
    assert f"at {retractions_of(recording)[0].at_s:,.2f} s" in text.output
    assert "% of running answers from then on" in text.output
    assert "--schedule-conservativeness" in text.output
    assert "10 % more memory brings" in text.output
    document = json.loads(CliRunner().invoke(cli, ["diagnose", folder, "--points", "0", "--json"]).stdout)
    assert len(document["retractions"]) == len(retractions_of(recording))
    assert document["tried"] == []


def test_more_memory_is_tried_with_the_same_requests() -> None:
    tried = try_remedies(record(), Mock())
    assert tried[0].flags == "as it is"
    assert tried[0].num_retractions == record().num_preemptions
    assert {each.flags for each in tried} > {"--schedule-conservativeness 0.03", "10 % more memory"}


def test_only_sglang_retracts() -> None:
    recording = simulate(workload(), Paged(), machine_of(1600), engine="interpreted")
    with pytest.raises(UsageError, match="only radix retracts"):
        retractions_of(recording)


def tried_values(lower: float, higher: float) -> list[RemedyRun]:
    """Return four simulations, of 100 tokens/s as it is, and of these with other values."""
    rows = (("as it is", 1.0, 100.0), ("--schedule-conservativeness 0.3", 0.3, lower),
            ("--schedule-conservativeness 3", 3.0, higher), ("10 % more memory", 1.0, 120.0))  # fmt: skip
    return [
        RemedyRun(flags=flags, factor=factor, tokens_per_s=output, ttft_p99_s=2.0, num_retractions=4)
        for flags, factor, output in rows
    ]


@pytest.mark.parametrize(
    ("lower", "higher", "said"),
    [
        (110.0, 90.0, "Take --schedule-conservativeness 0.3, a lower value: 110 tokens/s instead of 100 (+10.0 %)"),
        (90.0, 110.0, "Take --schedule-conservativeness 3, a higher value: 110 tokens/s instead of 100 (+10.0 %)"),
        (90.0, 100.5, "Keep --schedule-conservativeness"),
    ],
)
def test_the_direction_that_helps_is_advised_with_figures(lower: float, higher: float, said: str) -> None:
    sentences = advice(tried_values(lower, higher))
    assert sentences[0].startswith(said)
    assert f"{min(lower, higher):,.0f} tokens/s" in " ".join(sentences)
    assert "+20.0 %" in sentences[-1]
