"""Names for the types of the arrays from which the pictures of a pool are made."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

IndexArray: TypeAlias = npt.NDArray[np.int64]
"""Indices of units (from 0 in address order), of cells, or of lines and columns of a picture."""
PaintArray: TypeAlias = npt.NDArray[np.uint8]
"""Paints of units or cells, or eighths of a cell. A paint is the number of a colour (`paint.py`)."""
KeyArray: TypeAlias = npt.NDArray[np.int32]
"""Character keys (`brush.py`): integers that encode a character and its paints."""
MaskArray: TypeAlias = npt.NDArray[np.bool_]
