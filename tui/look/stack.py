"""Bars made of characters: proportions in eighths of a cell."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

EIGHTHS: Final = 8
"""Number of parts that characters can show of a cell, by height or by width."""


def stacked(
    parts: npt.NDArray[Any], length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Draw `parts`, shape (bars, layers), as bars of `length` cells with the layers piled up in order.

    A cell shows at most two layers. Returns three arrays of shape (bars, length): the layer at the cell's beginning,
    the layer at its end, and how many eighths the first takes (8 where there is one layer only). A bar whose parts
    are all 0 is all last layer.
    """
    total = parts.sum(axis=1, keepdims=True)
    parts = np.where(total > 0, parts, np.eye(parts.shape[1])[-1])
    total = np.where(total > 0, total, 1)
    ends = np.rint(np.cumsum(parts, axis=1) / total * length * EIGHTHS).astype(np.int64)
    begins = np.concatenate((np.zeros((len(parts), 1), np.int64), ends[:, :-1]), axis=1)
    low = np.arange(length) * EIGHTHS
    cover = np.minimum(ends[:, None, :], low[:, None] + EIGHTHS) - np.maximum(begins[:, None, :], low[:, None])
    cover = np.maximum(cover, 0)
    best_two = np.sort(np.argsort(-cover, axis=2, kind="stable")[:, :, :2], axis=2)
    first, second = best_two[..., 0], best_two[..., 1]
    covers = np.take_along_axis(cover, best_two, axis=2)
    eighths = np.rint(covers[..., 0] * EIGHTHS / covers.sum(axis=2)).astype(np.int64)
    first, second = np.where(eighths == 0, second, first), np.where(eighths == EIGHTHS, first, second)
    return first, second, np.where(eighths == 0, EIGHTHS, eighths)


def columns(values: npt.NDArray[Any], most: float, height: int) -> npt.NDArray[np.int64]:
    """Draw `values` as columns of `height` cells, with `most` at full height: shape (height, values), top row first, in
    eighths.

    A value above 0 is drawn with at least one eighth.
    """
    eighths = np.rint(np.asarray(values) / max(most, 1e-300) * height * EIGHTHS)
    eighths = np.maximum(eighths, np.asarray(values) > 0)
    rows = np.arange(height - 1, -1, -1)[:, None]
    return np.clip(eighths - rows * EIGHTHS, 0, EIGHTHS).astype(np.int64)
