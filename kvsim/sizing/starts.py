"""Find settings with which a server starts, if its present settings leave too little memory for the KV cache.

The results are printed as advice after vLLM's refusal to start. Each result changes a single setting, and
`max_model_len` if necessary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvsim.errors import BudgetError, UsageError
from kvsim.sizing.budget import Budget

Plan = Callable[[Mapping[str, Any]], Budget]
"""Function that returns the budget after the given settings are changed.

It raises BudgetError or UsageError if the server does not start. If `find_max_model_len` is among the settings, the
budget has the largest `max_model_len` that fits.
"""
_LADDERS: Mapping[str, tuple[Any, ...]] = {
    "gpu_memory_utilization": (0.9, 0.94, 0.96, 0.98),
    "max_num_batched_tokens": (8192, 4096, 2048),
    "max_num_seqs": (256, 64, 16),
    "kv_cache_dtype": ("fp8",),
    "quantization": ("fp8",),
    "tensor_parallel_size": (2, 4, 8, 16),
}
"""Values of each setting to try, in this order. A later value frees more memory, but changes more."""
_SHORTEST = 1024
"""Smallest `max_model_len` that is suggested, in tokens. Few requests fit into a smaller one."""


@dataclass(frozen=True, slots=True)
class StartingSettings:
    """Changed settings, by name, with which the server starts, and its budget with them."""

    settings: Mapping[str, Any]
    budget: Budget

    @property
    def flags(self) -> str:
        """The changed settings as flags of vLLM."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.settings.items())


def changes_that_start(plan: Plan, now: Mapping[str, Any]) -> list[StartingSettings]:
    """Return changes with which the server starts: at most one for each setting.

    If a smaller `max_model_len` alone is enough, this is the first change. The change of any other setting has the
    first value in `_LADDERS` with which the server starts. If no value is enough, the change also reduces
    `max_model_len`; but it is left out if a smaller `max_model_len` alone is enough.

    Args:
        plan: function that plans the budget after some settings are changed.
        now: present values of the settings; values that free no more memory than these are not tried.
    """
    changes = [_shorter(plan, {})]
    for name, values in _LADDERS.items():
        tried = [{name: value} for value in values if _is_beyond(name, value, now.get(name))]
        longer = (change for settings in tried if (change := _whole(plan, settings)) is not None)
        shorter = (change for settings in reversed(tried) if (change := _shorter(plan, settings)) is not None)
        changes.append(next(longer, None) or (next(shorter, None) if changes[0] is None else None))
    return [change for change in changes if change is not None]


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
    change = _whole(plan, {**settings, "find_max_model_len": True})
    if change is None or change.budget.plan.settings.max_model_len < _SHORTEST:
        return None
    return StartingSettings({**settings, "max_model_len": change.budget.plan.settings.max_model_len}, change.budget)
