"""Memory of a server in sleep mode, for `kvsim size --enable-sleep-mode`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.display.text import size_words

if TYPE_CHECKING:
    from kvsim.sizing.budget import Budget

_WEIGHTS = ("weights", "tower for images", "draft weights", "adapters")
"""Terms of a budget that are loaded with the model. Sleep level 1 moves their bytes to host memory, level 2 drops them.
"""
_STAYS = ("outside PyTorch", "captured graphs")
"""Terms of a budget that the allocator of sleep mode does not manage. Their bytes remain on the GPU."""


def asleep_of(budget: Budget) -> dict[str, dict[str, int | None]]:
    """Return three sizes in bytes for each of the sleep levels "1" and "2".

    `leaves_bytes` leave each GPU, `host_bytes` go to host memory, and `stays_bytes` remain on each GPU. `stays_bytes`
    is None if the flags state the size of the pool, because then no other term is estimated.
    """
    terms = {term.label: -term.size_bytes for term in budget.terms}
    weights = sum(terms.get(label, 0) for label in _WEIGHTS)
    stays = sum(terms.get(label, 0) for label in _STAYS) if "weights" in terms else None
    return {
        "1": {"leaves_bytes": budget.kv_bytes + weights, "host_bytes": weights, "stays_bytes": stays},
        "2": {"leaves_bytes": budget.kv_bytes + weights, "host_bytes": 0, "stays_bytes": stays},
    }


def sleep_rows(budget: Budget, on_one: str) -> list[tuple[str, str, str, str]]:
    """Return a row of the printed table for each level of sleep. `on_one` is the unit "on each GPU" or the like."""
    rows = []
    for level, found in asleep_of(budget).items():
        host, stays = found["host_bytes"] or 0, found["stays_bytes"]
        weights = f"wait in {size_words(host)} of host memory" if host else "are loaded again to wake"
        left = f"; {size_words(stays)} stays: {' and '.join(_STAYS)}" if stays is not None else ""
        why = f"leaves: the KV cache is dropped, the weights {weights}{left}. Not measured; wakes with as many blocks"
        rows.append((f"asleep, level {level}", size_words(found["leaves_bytes"] or 0), on_one, why))
    return rows
