"""Bars and columns made of characters, with a resolution of an eighth of a character."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .states import Symbols

EIGHTHS: Final = 8
"""Number of parts into which block characters divide the height or the width of a character."""


def stacked(
    parts: npt.NDArray[Any], length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Divide bars of `length` cells in proportion to `parts`, the sizes of their parts: shape (bars, parts).

    Return three arrays of shape (bars, length): the index of the first part in each cell, that of the second, and how
    many eighths of the cell the first one fills. A cell shows at most two parts. If it shows one part, the eighths are
    8. If all sizes of a bar are 0, the last part fills the bar.
    """
    total = parts.sum(axis=1, keepdims=True)
    parts = np.where(total > 0, parts, np.eye(parts.shape[1])[-1])
    total = np.where(total > 0, total, 1)
    # Ends of the parts in eighths of a cell. A part covers a cell as far as its span and that of the cell overlap.
    ends = np.rint(np.cumsum(parts, axis=1) / total * length * EIGHTHS).astype(np.int64)
    begins = np.concatenate((np.zeros((len(parts), 1), np.int64), ends[:, :-1]), axis=1)
    low = np.arange(length) * EIGHTHS
    cover = np.minimum(ends[:, None, :], low[:, None] + EIGHTHS) - np.maximum(begins[:, None, :], low[:, None])
    cover = np.maximum(cover, 0)
    # A cell shows the two parts that cover most of it, in the order of the parts, and scales both to fill the cell. A
    # part that is rounded to no eighth is left out.
    best_two = np.sort(np.argsort(-cover, axis=2, kind="stable")[:, :, :2], axis=2)
    first, second = best_two[..., 0], best_two[..., 1]
    covers = np.take_along_axis(cover, best_two, axis=2)
    eighths = np.rint(covers[..., 0] * EIGHTHS / covers.sum(axis=2)).astype(np.int64)
    first, second = np.where(eighths == 0, second, first), np.where(eighths == EIGHTHS, first, second)
    return first, second, np.where(eighths == 0, EIGHTHS, eighths)


def columns(values: npt.NDArray[Any], most: float, height: int) -> npt.NDArray[np.int64]:
    """Return how many eighths of each cell are filled if `values` are drawn as columns of `height` cells.

    The shape is (height, values), with the top row first. The value `most` fills a column. Any value above 0 fills at
    least one eighth.
    """
    eighths = np.rint(np.asarray(values) / max(most, 1e-300) * height * EIGHTHS)
    eighths = np.maximum(eighths, np.asarray(values) > 0)
    rows = np.arange(height - 1, -1, -1)[:, None]
    return np.clip(eighths - rows * EIGHTHS, 0, EIGHTHS).astype(np.int64)


def bar_text(share: float, width: int, symbols: Symbols) -> str:
    """Return a bar that fills a `share` of `width` characters, without the blanks after it.

    The bar ends at an eighth of a character if the terminal shows eighths. A share above 0 is visible.
    """
    if not symbols.right:
        return symbols.up[EIGHTHS] * max(round(share * width), int(share > 0))
    whole, part = divmod(max(round(share * width * EIGHTHS), int(share > 0)), EIGHTHS)
    return symbols.right[EIGHTHS] * whole + symbols.right[part] * (part > 0)
