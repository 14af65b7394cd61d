"""Types of the arrays behind the pictures of a pool."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IndexArray: TypeAlias = npt.NDArray[np.int64]
"""Units or cells from 0 in address order, or places in a picture."""
PaintArray: TypeAlias = npt.NDArray[np.uint8]
"""Paints of units or cells, or numbers of eighths."""
KeyArray: TypeAlias = npt.NDArray[np.int32]
"""Keys of characters."""
MaskArray: TypeAlias = npt.NDArray[np.bool_]
