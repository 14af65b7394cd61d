"""Bytes that one decode step reads, and its duration with a captured CUDA graph or with kernels launched one by one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsim.steptime import NO_TIME, StepShape, StepTime

if TYPE_CHECKING:
    from kvsim.models import Model
    from kvsim.steptime import Roofline

    from ..playback.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Cost of a decode step at the current frame: one new token per sequence."""

    num_sequences: int = 0
    context_tokens: int = 0
    """Number of tokens whose keys and values the step reads."""
    weight_bytes: float = 0.0
    """Bytes of weights that the step reads. They do not depend on the number of sequences."""
    kv_bytes: int = 0
    weights_s: float = 0.0
    """Seconds to read the weights at the measured memory bandwidth."""
    kv_s: float = 0.0
    reading_s: float = 0.0
    """Seconds to read weights, keys and values."""
    gpu_s: float = 0.0
    """Seconds for which the GPU is busy."""
    captured: StepTime = NO_TIME
    """Times of the step if it is launched as a captured graph."""
    eager: StepTime = NO_TIME
    """Times of the step if the host launches every kernel."""

    @classmethod
    def of(cls, session: Session, model: Model, machine: Roofline) -> StepCost:
        """Return the cost of a step of vLLM on `machine` at the session's frame.

        All values are 0 if no request runs.
        """
        live = session.replay.live_requests()
        return cls.of_batch(len(live), int(session.replay.computed(live).sum()), model, machine)

    @classmethod
    def of_batch(cls, num_sequences: int, context_tokens: int, model: Model, machine: Roofline) -> StepCost:
        """Return the cost of a step in which `num_sequences` read `context_tokens` in total.

        All values are 0 without sequences.
        """
        if not num_sequences:
            return cls()
        shape = StepShape(num_sequences, num_sequences, 0, context_tokens, 0)
        captured = machine.step_time(shape)
        eager = replace(machine, max_captured_tokens=0).step_time(shape)
        kv_s = machine.context_token_s * context_tokens
        return cls(
            num_sequences=num_sequences,
            context_tokens=context_tokens,
            weight_bytes=model.weight_bytes_on_gpu,
            kv_bytes=context_tokens * model.kv_bytes_per_token,
            weights_s=machine.weights_s,
            kv_s=kv_s,
            reading_s=machine.weights_s + kv_s,
            gpu_s=captured.gpu_s,
            captured=captured,
            eager=eager,
        )
