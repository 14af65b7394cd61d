"""Encode many Protocol Buffers messages with the same fields at once, with NumPy: Perfetto traces have millions.

A value of type `Bytes` has one part, such as a field, of each of n messages. Parts may be concatenated, nested, or
present in only some messages. `joined` returns the bytes message by message. Callers take field numbers from the
schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvsim.recording.tables import IntArray

_VARINT, _LENGTH_DELIMITED = 0, 2
_SEVEN = 7
_MORE = 0x80

Bytes: TypeAlias = list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]]
"""Pieces of the messages, from left to right. Each piece is a pair: uint8[width, n], the bytes of message i in column
i, and int32[n], the number of bytes that count in each column. n is 1 if all messages are equal.
"""


def number(field: int, values: IntArray | int) -> Bytes:
    """Encode integers in `field`: an array with a value for each message, or one value for all messages."""
    return [_tag(field, _VARINT), _varints(np.atleast_1d(np.asarray(values, np.int64)))]


def message(field: int, parts: Sequence[Bytes]) -> Bytes:
    """Encode a nested message of `parts` in `field`."""
    inside = [piece for part in parts for piece in part]
    length = np.zeros(1, np.int64)
    for _, lengths in inside:
        length = length + lengths
    return [_tag(field, _LENGTH_DELIMITED), _varints(length), *inside]


def where(present: npt.NDArray[np.bool_], part: Bytes) -> Bytes:
    """Keep `part` in the messages for which `present` is True, and leave it out of the others. `present` is bool[n]."""
    return [(matrix, lengths * present) for matrix, lengths in part]


def joined(parts: Sequence[Bytes]) -> bytes:
    """Return the bytes of all parts of the first message, then of all parts of the second message, and so on."""
    pieces = [piece for part in parts for piece in part]
    shape = sum(len(matrix) for matrix, _ in pieces), max(lengths.size for _, lengths in pieces)
    bytes_of, counts = np.empty(shape, np.uint8), np.empty(shape, np.bool_)
    end = 0
    for matrix, lengths in pieces:
        begin, end = end, end + len(matrix)
        bytes_of[begin:end] = matrix
        np.less(np.arange(len(matrix), dtype=np.int32)[:, None], lengths, out=counts[begin:end])
    return np.ascontiguousarray(bytes_of.T)[np.ascontiguousarray(counts.T)].tobytes()


def _tag(field: int, kind: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    return _varints(np.array([field << 3 | kind]))


def _varints(values: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Encode `values` as varints: seven bits per byte, low bits first, ten bytes for negative values.

    Return the bytes as uint8[width, n], one column per value, and the number of bytes of each: int32[n].
    """
    rest = values.view(np.uint64)
    width = max(1, -(-int(rest.max(initial=0)).bit_length() // _SEVEN))
    bytes_of, lengths = np.empty((width, len(values)), np.uint8), np.ones(len(values), np.int32)
    for place in range(width):
        bytes_of[place] = rest  # the low eight bits
        rest = rest >> np.uint64(_SEVEN)
        has_more = rest > 0
        lengths += has_more
        bytes_of[place] &= _MORE - 1
        bytes_of[place] |= has_more.view(np.uint8) << np.uint8(_SEVEN)
    return bytes_of, lengths
