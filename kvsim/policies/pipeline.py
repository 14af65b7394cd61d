"""Pipeline schedule of vLLM 0.25.1: the number of steps in flight, and the distance between two steps of a sequence.

A pipeline needs as many steps in flight as it has stages. With asynchronous scheduling, the first stage gets the token
that a sequence decodes next from the last stage. vLLM's model runner V2 sends this token while other steps go on. With
N stages, a sequence then decodes in every Nth step, and N + 1 steps may be in flight. Runner V1 waits for the tokens of
every step, so only one stage computes at a time; with more than two stages, a sequence may be scheduled past its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import UsageError
from kvsim.policies.releases import DEFAULT_RELEASE, rules_of

if TYPE_CHECKING:
    from kvsim.models import Model
    from kvsim.policies.settings import ContinuousSettings

_V2_EXPERTS = ("DeepseekV2ForCausalLM", "Qwen2MoeForCausalLM", "GraniteMoeForCausalLM")
"""Architectures of mixtures of experts that vLLM serves with model runner V2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Pipeline stages of a model, and the model runner that serves them."""

    pipeline_parallel_size: int = 1
    """Number of stages; each has consecutive layers."""
    v2_model_runner: bool = True
    """True if vLLM serves the model with model runner V2, False for runner V1."""

    def __post_init__(self) -> None:
        if self.pipeline_parallel_size < 1:
            raise UsageError(f"pipeline_parallel_size should be at least 1, not {self.pipeline_parallel_size}.")

    @classmethod
    def of(cls, model: Model, release: str = DEFAULT_RELEASE) -> Pipeline:
        """Return the pipeline in which vLLM serves `model`.

        The environment variable `VLLM_USE_V2_MODEL_RUNNER` is assumed to be unset.
        """
        has_experts = model.num_experts > 0 and model.architecture not in _V2_EXPERTS
        return cls(
            pipeline_parallel_size=model.pipeline_parallel_size,
            v2_model_runner=rules_of(release).has_v2_runner and not (has_experts or model.recurrent_layers),
        )

    def most_in_flight(self, *, async_scheduling: bool) -> int:
        """Return the largest number of steps that are in flight at once (vLLM's `max_concurrent_batches`)."""
        size = self.pipeline_parallel_size
        if async_scheduling and (self.v2_model_runner or size == 1):
            return size + 1
        return size

    def max_in_flight_tokens(self, scheduler: ContinuousSettings) -> int:
        """Return the number of tokens for which a sliding window holds blocks in addition to its own tokens.

        These are the tokens of one step or, from vLLM 0.26 on, of all steps in flight.
        """
        waits = rules_of(scheduler.vllm).windows_wait
        steps = self.most_in_flight(async_scheduling=scheduler.async_scheduling) if waits else 1
        return steps * scheduler.max_num_batched_tokens

    def decode_interval(self, *, async_scheduling: bool) -> int:
        """Return the number of steps from one decode of a sequence to its next one. Steps without tokens count."""
        return self.pipeline_parallel_size if async_scheduling and self.v2_model_runner else 1

    def tokens_ahead(self, *, async_scheduling: bool) -> int:
        """Return the largest number of tokens that a sequence computes after its end, because its end is seen late.

        vLLM knows in advance that a sequence reaches its limit only if at most one of its tokens is in flight.
        """
        if not async_scheduling:
            return 0
        interval = self.decode_interval(async_scheduling=True)
        return -(-self.most_in_flight(async_scheduling=True) // interval) - 1

    def feedback(self, *, async_scheduling: bool) -> int:
        """Return k such that a step needs the output tokens of the step scheduled k steps before it.

        0 means that it needs none: with one stage, or without asynchronous scheduling.
        """
        if self.pipeline_parallel_size == 1 or not async_scheduling:
            return 0
        return self.decode_interval(async_scheduling=True)
