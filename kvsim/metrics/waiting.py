"""Limits for which requests wait: memory, places in the batch, tokens of the step, or slots of LoRA adapters.

A scheduler admits requests from the head of its queue until a limit stops it. The step shows which limit it was. If the
step runs `max_num_seqs` sequences, the others wait for a place in the batch. If it computes `max_num_batched_tokens`
tokens, they wait for tokens. Otherwise they wait for memory or, in runs with adapters, for a slot of their adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one step of an engine. For a static batch, which admits no request until it ends, all are 0."""

    seqs_setting: ClassVar[str] = "max_num_seqs"
    """Name of the engine's setting that limits the number of sequences."""
    tokens_setting: ClassVar[str] = "max_num_batched_tokens"

    max_num_seqs: int
    max_num_batched_tokens: int
    max_loras: int = 0
    """Maximum number of adapters in use in a step; 0 for an engine without adapters."""

    @classmethod
    def of(cls, policy: Mapping[str, Any], engine: Mapping[str, Any] = MappingProxyType({})) -> Limits | None:
        """Return the limits in the settings of `engine` or, where it lacks one, in those of `policy`.

        Return None if both lack one of the limits.
        """
        if policy.get("name") == "static":
            return cls(max_num_seqs=0, max_num_batched_tokens=0)
        if policy.get("name") == "radix":
            return SGLangLimits.of_settings(policy)
        num_seqs, num_tokens = (_first(name, (engine, policy)) for name in ("max_num_seqs", "max_num_batched_tokens"))
        if num_seqs is None or num_tokens is None:
            return None
        slots = _first("max_loras", (policy,)) if policy.get("enable_lora") else None
        return cls(max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens, max_loras=slots or 0)

    def split(self, waiting: Column, running: Column, tokens: Column) -> tuple[Column, Column, Column]:
        """Return, for each step, how many requests wait for memory, for a place in the batch, and for tokens.

        All arrays have one entry per step: waiting requests, running sequences, computed tokens.
        """
        full = running >= self.max_num_seqs
        for_batch = waiting * full
        for_tokens = (waiting - for_batch) * (tokens >= self.max_num_batched_tokens)
        return waiting - for_batch - for_tokens, for_batch, for_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SGLangLimits(Limits):
    """Limits of one step of SGLang.

    SGLang admits a request only if there is room for its longest answer and for the expected rest of the running
    answers. So requests may wait for memory although some is free.
    """

    seqs_setting: ClassVar[str] = "max_running_requests"
    tokens_setting: ClassVar[str] = "chunked_prefill_size"

    @classmethod
    def of_settings(cls, policy: Mapping[str, Any]) -> SGLangLimits | None:
        """Return the limits in the settings of the policy; None if they are missing."""
        num_seqs, chunk, prompts = (
            _first(name, (policy,)) for name in ("max_running_requests", "chunked_prefill_size", "max_prefill_tokens")
        )
        if num_seqs is None or chunk is None or prompts is None:
            return None
        return cls(max_num_seqs=num_seqs, max_num_batched_tokens=min(chunk, prompts) if chunk > 0 else prompts)


def _first(name: str, settings: Sequence[Mapping[str, Any]]) -> int | None:
    return next((each[name] for each in settings if isinstance(each.get(name), int)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingFor:
    """Number of requests that wait for each limit, mean over time; NaN if unknown."""

    memory: float
    batch: float
    """Number of requests that wait for a place among the running sequences, or for the end of a static batch."""
    tokens: float
    """Number of requests that wait because a step has no tokens left (`max_num_batched_tokens`)."""
    adapters: float = 0.0
    """Number of requests that wait for a slot of their adapter (`max_loras`).

    It is inferred: in runs with adapters, these are the requests that wait for neither batch nor tokens while at least
    a tenth of the pool is free.
    """


UNKNOWN = WaitingFor(memory=np.nan, batch=np.nan, tokens=np.nan)
"""`WaitingFor` of an engine whose limits are unknown, or of a run in which no time passes."""
