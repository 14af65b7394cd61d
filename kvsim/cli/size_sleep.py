"""Memory of a sleeping server, for `kvsim size --enable-sleep-mode`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.cli.show import size

if TYPE_CHECKING:
    from kvsim.sizing.budget import Budget

_WEIGHTS = ("weights", "tower for images", "draft weights", "adapters")
"""Terms of a budget that are loaded with the model. Sleep level 1 moves them to host memory, level 2 drops them."""
_STAYS = ("outside PyTorch", "captured graphs")
"""Terms that the allocator of sleep mode does not manage, so that they remain on the GPU."""


def asleep_of(budget: Budget) -> dict[str, dict[str, int | None]]:
    """Return the bytes that leave a GPU, go to host memory, and remain, by the level of sleep.

    With a pool of a stated size, the remaining bytes are None, because the other terms are not estimated then.
    """
    terms = {term.label: -term.size_bytes for term in budget.terms}
    weights = sum(terms.get(label, 0) for label in _WEIGHTS)
    stays = sum(terms.get(label, 0) for label in _STAYS) if "weights" in terms else None
    return {
        "1": {"leaves_bytes": budget.kv_bytes + weights, "host_bytes": weights, "stays_bytes": stays},
        "2": {"leaves_bytes": budget.kv_bytes + weights, "host_bytes": 0, "stays_bytes": stays},
    }


def sleep_rows(budget: Budget, on_one: str) -> list[tuple[str, str, str, str]]:
    """Return a row for each level of sleep."""
    rows = []
    for level, found in asleep_of(budget).items():
        host, stays = found["host_bytes"] or 0, found["stays_bytes"]
        weights = f"the weights wait in {size(host)} of host memory" if host else "the weights are loaded again to wake"
        left = f"; {size(stays)} stays: {' and '.join(_STAYS)}" if stays is not None else ""
        why = f"leaves: the KV cache is dropped, {weights}{left}. Not measured; wakes with as many blocks"
        rows.append((f"asleep, level {level}", size(found["leaves_bytes"] or 0), on_one, why))
    return rows
