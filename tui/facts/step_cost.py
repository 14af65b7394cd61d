"""What one step reads and how long it takes, launched from a captured graph or kernel by kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvsim.steptime import StepShape

if TYPE_CHECKING:
    from kvsim.models import Model
    from kvsim.steptime import Roofline

    from ..playback.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """One step at the current frame of a session, taken for one that generates a token per sequence."""

    num_sequences: int
    context_tokens: int
    """Tokens whose keys and values the step reads."""
    weight_bytes: float
    """Weights that the step reads, however many sequences it has."""
    kv_bytes: int
    """Keys and values that it reads."""
    weights_s: float
    """Seconds to read the weights at the rate that memory is really read at."""
    kv_s: float
    """Seconds to read the keys and values."""
    reading_s: float
    """Seconds to read both at the rate that memory is really read at."""
    gpu_s: float
    """Seconds on the GPU alone."""
    captured_s: float
    """Seconds from one decision to the next, with the whole step launched at once from a captured graph."""
    eager_s: float
    """Seconds from one decision to the next, with every kernel launched by the host."""

    @classmethod
    def of(cls, session: Session, model: Model, machine: Roofline) -> StepCost:
        """The cost of the step at the session's frame with vLLM on `machine`; all zero where no request runs."""
        live = session.replay.live_requests()
        num_sequences, context_tokens = len(live), int(session.replay.computed(live).sum())
        if not num_sequences:
            return _NOTHING
        shape = StepShape(num_sequences, num_sequences, 0, context_tokens, 0)
        captured = machine.step_time(shape)
        eager = replace(machine, max_captured_tokens=0).step_time(shape)
        return cls(
            num_sequences=num_sequences,
            context_tokens=context_tokens,
            weight_bytes=model.weight_bytes_on_gpu,
            kv_bytes=context_tokens * model.kv_bytes_per_token,
            weights_s=machine.weights_s,
            kv_s=machine.context_token_s * context_tokens,
            reading_s=machine.weights_s + machine.context_token_s * context_tokens,
            gpu_s=captured.gpu_s,
            captured_s=captured.alone_s,
            eager_s=eager.alone_s,
        )


_NOTHING = StepCost(
    num_sequences=0,
    context_tokens=0,
    weight_bytes=0,
    kv_bytes=0,
    weights_s=0.0,
    kv_s=0.0,
    reading_s=0.0,
    gpu_s=0.0,
    captured_s=0.0,
    eager_s=0.0,
)
