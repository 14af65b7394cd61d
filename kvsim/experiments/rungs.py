"""Ablation: the same requests served in several ways, each with one more feature of an engine than the one before.

A way is called a rung, and all ways together the ladder. Every rung runs twice: with the given memory, and with ample
memory, which is enough for all requests. The gain of a rung is its throughput divided by that of the rung before
it. It is the product of two factors. The speed factor is the ratio of the throughputs with ample memory. The memory
factor is the gain divided by the speed factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.policies import AnyPolicy, Contiguous, Paged, Pipeline, Policy, Radix, Static
from kvsim.policies.custom import CustomPolicy
from kvsim.policies.kinds import most_running
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, PagedSettings, StaticSettings

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.simulation import Machine
    from kvsim.steptime import StepTimeModel
    from kvsim.workload import Workload

KEY: Final = "ladder"
"""Key in the provenance of a recording under which the rung is stored."""
_MORE_THAN_REQUEST = 8
"""Tokens by which SGLang's longest sequence must exceed a request, so that it is neither refused nor cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """One way to serve requests, with one more feature than the rung before it."""

    name: str
    change: str
    """Description of the change from the rung before, in a few words."""
    policy: Policy
    captured: bool
    """True if steps are launched as captured graphs (CUDA graphs)."""


def rungs(
    scheduler: ContinuousSettings, *, block_size: int = 16, batch_size: int = 16, watermark: float = 0.0
) -> tuple[Rung, ...]:
    """Return the eight rungs with the limits of `scheduler`.

    Without chunked prefill, prompts are not split, so a step has room for as many tokens as the longest sequence.
    """
    limits = replace(
        scheduler,
        max_num_batched_tokens=max(scheduler.max_num_batched_tokens, scheduler.max_model_len),
        async_scheduling=False,
        enable_chunked_prefill=False,
    )
    pages = PagedSettings(block_size=block_size, enable_prefix_caching=False, watermark=watermark)
    cached, chunked = replace(pages, enable_prefix_caching=True), replace(limits, enable_chunked_prefill=True)
    one, many = (StaticSettings(batch_size=size, max_model_len=limits.max_model_len) for size in (1, batch_size))
    ahead = replace(chunked, async_scheduling=True)
    paged = Paged(scheduler=limits, cache=pages)
    ways: list[tuple[str, str, Policy, bool]] = [
        ("one by one", "a request at a time", Static(scheduler=one), False),
        ("static", f"{batch_size} requests at a time, padded to the longest", Static(scheduler=many), False),
        (
            "contiguous",
            "continuous batching; each has room for the longest",
            Contiguous(scheduler=limits, cache=ContiguousSettings()),
            False,
        ),
        ("paged", f"blocks of {block_size} tokens instead of whole rows", paged, False),
        ("prefix cache", "equal beginnings are stored once", Paged(scheduler=limits, cache=cached), False),
        ("chunked prefill", "long prompts share their steps", Paged(scheduler=chunked, cache=cached), False),
        ("captured graphs", "a step is launched as a whole", Paged(scheduler=chunked, cache=cached), True),
        ("asynchronous scheduling", "the next step is planned meanwhile", Paged(scheduler=ahead, cache=cached), True),
    ]
    return tuple(Rung(name=name, change=change, policy=policy, captured=on) for name, change, policy, on in ways)


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """Rung with the results of its two runs. Throughputs are in output tokens per second."""

    name: str
    change: str
    tokens_per_s: float
    ample_tokens_per_s: float
    """Throughput with ample memory, in output tokens per second."""
    mean_batch: float
    """Mean number of scheduled sequences over time."""
    duration_s: float
    preemptions: int
    gain: float
    """Throughput divided by the throughput of the rung before; 1 on the first rung."""
    memory_gain: float
    """Factor of the gain from using the memory better: `gain` divided by `time_gain`; 1 on the first rung."""

    @property
    def time_gain(self) -> float:
        """Factor of the gain that comes from shorter times, not from memory: the throughput with ample memory, divided
        by that of the rung before with ample memory; 1 on the first rung.
        """
        return self.gain / self.memory_gain

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        return asdict(self) | {"time_gain": self.time_gain}


def at_once(workload: Workload) -> Workload:
    """Return the requests of a workload with all arrivals at second 0, to measure the server and not the arrivals."""
    description = ", ".join(filter(None, (workload.description, "all at once")))
    return replace(workload, arrival_s=np.zeros(len(workload)), description=description)


def climb(
    workload: Workload,
    machine: Machine,
    ladder: Sequence[Rung],
    times: Callable[[Rung], StepTimeModel],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> list[RungResult]:
    """Run every rung on `machine` with the step times that `times` returns for it.

    Raises:
        WorkloadError: no request can be served on the last rung.
    """
    from kvsim.simulation import measure  # noqa: PLC0415 - loads an engine

    climbed: list[RungResult] = []
    for number, rung in enumerate(ladder):
        if progress is not None:
            progress(number, len(ladder))
        on = replace(machine, step_time=times(rung))
        summary = measure(workload, rung.policy, on, refuse_misfits=True).summary
        roomy, short = with_ample_memory(on, rung.policy, workload)
        ample = measure(workload, short, roomy, refuse_misfits=True).summary
        here, unbounded = summary.output_tokens_per_s, max(ample.output_tokens_per_s, summary.output_tokens_per_s)
        below = climbed[-1] if climbed else None
        climbed.append(
            RungResult(
                name=rung.name,
                change=rung.change,
                tokens_per_s=here,
                ample_tokens_per_s=unbounded,
                mean_batch=summary.mean_batch,
                duration_s=summary.duration_s,
                preemptions=summary.num_preemptions,
                gain=here / below.tokens_per_s if below else 1.0,
                memory_gain=(here / unbounded) / (below.tokens_per_s / below.ample_tokens_per_s) if below else 1.0,
            )
        )
    if math.isnan(climbed[-1].tokens_per_s):
        raise WorkloadError(
            "no request can be served on the ladder: each is longer than max_model_len or than the memory; give "
            "shorter requests, a larger --max-model-len or more memory (--kv-gib)."
        )
    return climbed


def rung_recordings(
    workload: Workload,
    machine: Machine,
    ladder: Sequence[Rung],
    times: Callable[[Rung], StepTimeModel],
    climbed: Sequence[RungResult],
) -> list[Recording]:
    """Return a recording of every rung, whose metadata has the rung's number and results."""
    from kvsim.simulation import simulate  # noqa: PLC0415 - as above

    recordings = []
    for number, (rung, result) in enumerate(zip(ladder, climbed, strict=True), start=1):
        on = replace(machine, step_time=times(rung))
        recording = simulate(workload, rung.policy, on, refuse_misfits=True)
        extra = {**recording.meta.extra, KEY: {"rung": number} | result.as_dict()}
        recordings.append(replace(recording, meta=replace(recording.meta, extra=extra)))
    return recordings


def with_ample_memory(machine: Machine, policy: AnyPolicy, workload: Workload) -> tuple[Machine, AnyPolicy]:
    """Return the machine and the policy with which `workload` runs if memory is ample.

    The machine is `machine` with at least enough memory for all sequences that `policy` may run at once, each at the
    maximum length. The policy is `policy` with a maximum length that is no longer than `workload` needs; with the full
    maximum length, the reserved memory would be far larger.
    """
    limited: Any = machine.limited(policy)
    needed = int((workload.prompt_tokens.astype(np.int64) + workload.max_tokens).max()) + 1
    if isinstance(limited, Paged | Contiguous):  # vLLM refuses a threshold above the longest sequence
        needed = max(needed, limited.scheduler.long_prefill_token_threshold)
    needed += _MORE_THAN_REQUEST if isinstance(limited, Radix) else 0
    longest = min(limited.max_model_len, needed)
    name = "context_length" if isinstance(limited, Radix) else "max_model_len"
    short: Policy = replace(limited, scheduler=replace(limited.scheduler, **{name: longest}))
    num_seqs = most_running(short)
    num_seqs = min(num_seqs, len(workload))
    layout = machine.layout(short)
    if isinstance(short, Paged) and layout is not None:
        most = Pipeline().max_in_flight_tokens(short.scheduler)
        enough = ((num_seqs + 1) * layout.blocks_for(short.max_model_len, most) + 2) * layout.bytes_per_block
    else:
        enough = (num_seqs + 1) * (short.max_model_len + 1) * machine.model.kv_bytes_per_token
    ruled: AnyPolicy = short
    if isinstance(policy, CustomPolicy) and isinstance(short, Paged):
        ruled = copy(policy)
        ruled.scheduler = short.scheduler
    return replace(machine, kv_bytes=max(machine.kv_bytes, enough)), ruled
