"""Sessions that kvsim let wait, through vLLM's own scheduler: the same requests, at the calls at which they came."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.profiles import find
from kvsim.recording import MemoryKind, Recording
from kvsim.simulation import Machine, simulate
from kvsim.workload import LogNormal, Pauses, Poisson, converse

from ..vllm_engine.install import MAIN, missing
from ..vllm_engine.process import EngineProcess
from .fuzz import compare

BLOCK, MODEL = 16, find_model("Meta-Llama-3-8B")


@pytest.fixture(scope="module")
def engine(
    interpreter_with_vllm: Callable[[str], tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineProcess]:
    if reason := missing(MAIN):
        pytest.skip(reason)
    with EngineProcess(MAIN, tmp_path_factory.mktemp("vllm") / "log", interpreter_with_vllm(MAIN)) as process:
        yield process


def served(seed: int, num_blocks: int, *, ahead: bool) -> Recording:
    """Serve sessions with pauses under pressure."""
    new = LogNormal(mean_tokens=40, sigma=0.7)
    workload = converse(
        14, turns=LogNormal(mean_tokens=4, sigma=0.4), pauses=Pauses(mean_s=0.3, sigma=1.0), prompt=new, output=new,
        arrivals=Poisson(rate_per_s=15.0), seed=seed,
    )  # fmt: skip
    policy = Paged(
        scheduler=ContinuousSettings(
            max_num_seqs=6, max_num_batched_tokens=256, max_model_len=BLOCK * (num_blocks - 1), async_scheduling=ahead
        ),
        cache=PagedSettings(block_size=BLOCK),
    )
    kv_bytes = num_blocks * BLOCK * MODEL.kv_bytes_per_token
    machine = Machine(gpu=find_gpu("H200"), model=MODEL, kv_bytes=kv_bytes, step_time=find("vllm-h200-llama-3-8b"))
    return simulate(workload.cut(BLOCK * (num_blocks - 1) - 60), policy, machine, engine="interpreted")


def document(recording: Recording, num_blocks: int, *, ahead: bool) -> dict[str, Any]:
    """The recorded requests as the oracle takes them: prompts go on from what its model answered."""
    requests, turns = recording.requests, recording.requests.turns
    assert turns is not None
    said: list[list[int]] = []
    rows = []
    for row in range(len(requests)):
        first, after = 1_000_000 * (row + 1), int(turns.after[row])
        history = said[after][: int(turns.history_tokens[row])] if after >= 0 else []
        prompt = history + list(range(first, first + int(requests.prompt_tokens[row]) - len(history)))
        num_answers, begun = int(requests.output_tokens[row]), 500_000_000 + first
        said.append(prompt + list(range(begun, begun + num_answers)))
        rows.append(
            {
                "id": str(requests.id[row]), "prompt_len": len(prompt), "prompt_token_ids": prompt,
                "output_len": num_answers,
                "arrival_step": int(np.searchsorted(recording.steps.schedule_seq, requests.arrival_seq[row])),
            }
        )  # fmt: skip
    return {
        "num_blocks": num_blocks, "block_size": BLOCK, "max_num_seqs": 6, "max_num_batched_tokens": 256,
        "max_model_len": BLOCK * (num_blocks - 1), "async_scheduling": ahead, "watermark": 0.0, "requests": rows,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_every_step_is_as_vllm_schedules_it(engine: EngineProcess, seed: int) -> None:
    num_blocks = Random(seed).choice([60, 90])
    recording = served(seed, num_blocks, ahead=False)
    steps, schedule, requests = recording.steps, recording.schedule, recording.requests
    told = [record for _, record in engine.records(document(recording, num_blocks, ahead=False))]
    calls = [record for record in told if record["kind"] == "schedule" and record["total"]]  # others tell of ends
    assert len(calls) == len(steps)
    ours: list[dict[str, int]] = [{} for _ in calls]
    for step, request, tokens, repeat in zip(
        schedule.step.tolist(), schedule.request.tolist(), schedule.tokens.tolist(), schedule.repeats.tolist(),
        strict=True,
    ):  # fmt: skip
        for later in range(repeat):
            ours[step + later][str(requests.id[request])] = tokens
    assert ours == [dict(call["scheduled"]) for call in calls]
    assert steps.free_units.tolist() == [call["free"] for call in calls]
    first_hits: dict[str, int] = {}
    for call in calls:
        for name, computed in call["new_computed"].items():
            first_hits.setdefault(name, computed)
    assert [first_hits[name] for name in requests.id.tolist()] == requests.cached_tokens.tolist()
    assert requests.cached_tokens.sum() > 0
    assert (recording.memory.kind == MemoryKind.EVICT).any()


@pytest.mark.parametrize("ahead", [False, True])
def test_block_ids_are_those_that_vllm_hands_out(engine: EngineProcess, *, ahead: bool) -> None:
    for seed in range(3):
        recording = served(seed, 60, ahead=ahead)
        verdict, failure = compare(engine, document(recording, 60, ahead=ahead))
        assert verdict.equal, verdict
        assert not failure
        assert verdict.num_hits > 0
        assert verdict.num_evictions > 0
