"""Find the changes of single settings with which a server starts that has too little memory for its cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.errors import BudgetError, UsageError
from kvsim.sizing.budget import Budget

Plan = Callable[[Mapping[str, Any]], Budget]
"""Return the budget with some settings changed.

`max_model_len` is among them, or `find_max_model_len`, for the longest sequence that fits.
"""
_LADDERS: Mapping[str, tuple[Any, ...]] = {
    "gpu_memory_utilization": (0.9, 0.94, 0.96, 0.98),
    "max_num_batched_tokens": (8192, 4096, 2048),
    "max_num_seqs": (256, 64, 16),
    "kv_cache_dtype": ("fp8",),
    "quantization": ("fp8",),
    "tensor_parallel_size": (2, 4, 8, 16),
}
"""Values to try of each setting, mildest first."""
_SHORTEST = 1024
"""Tokens from which on a shorter `max_model_len` is an answer: with less, hardly anything is served."""


@dataclass(frozen=True, slots=True)
class StartingSettings:
    """Settings, by name, with which the server starts."""

    settings: Mapping[str, Any]
    budget: Budget

    @property
    def flags(self) -> str:
        """The settings as flags of vLLM."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.settings.items())


def changes_that_start(plan: Plan, now: Mapping[str, Any]) -> list[StartingSettings]:
    """Return the mildest change of each setting with which `plan` succeeds.

    Where a setting alone is not enough for `max_model_len`, the longest sequence that fits is part of the change.

    Args:
        plan: Budget with some settings changed; raises BudgetError or UsageError where there is none.
        now: Present values of the settings; one that is not better than its present value is not tried.
    """
    found = [_shorter(plan, {})]
    for name, values in _LADDERS.items():
        tried = [{name: value} for value in values if _is_beyond(name, value, now.get(name))]
        longer = (change for settings in tried if (change := _whole(plan, settings)) is not None)
        shorter = (change for settings in reversed(tried) if (change := _shorter(plan, settings)) is not None)
        found.append(next(longer, None) or (next(shorter, None) if found[0] is None else None))
    return [change for change in found if change is not None]


def _is_beyond(name: str, value: Any, now: Any) -> bool:
    if now is None or isinstance(value, str):
        return now is None
    return bool(value < now if name.startswith("max_num") else value > now)


def _whole(plan: Plan, settings: Mapping[str, Any]) -> StartingSettings | None:
    try:
        return StartingSettings(settings, plan(settings))
    except (BudgetError, UsageError):
        return None


def _shorter(plan: Plan, settings: Mapping[str, Any]) -> StartingSettings | None:
    found = _whole(plan, {**settings, "find_max_model_len": True})
    if found is None or found.budget.plan.settings.max_model_len < _SHORTEST:
        return None
    return StartingSettings({**settings, "max_model_len": found.budget.plan.settings.max_model_len}, found.budget)
