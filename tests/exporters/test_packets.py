"""What is encoded by the column is what the library encodes message by message."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvsim.exporters.packets import joined, message, number, where

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.booleans()), min_size=1, max_size=20), st.integers(0, 2**40))
def test_as_the_library_does(rows: list[tuple[int, int, bool]], value: int) -> None:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import DebugAnnotation, TrackEvent

    def one(note: int, counter: int) -> bytes:
        event = TrackEvent(debug_annotations=[DebugAnnotation(name_iid=value, int_value=note)], counter_value=counter)
        return bytes(event.SerializeToString())

    event = {field.name: field.number for field in TrackEvent.DESCRIPTOR.fields}
    note = {field.name: field.number for field in DebugAnnotation.DESCRIPTOR.fields}
    notes, counters, present = (np.array(column) for column in zip(*rows, strict=True))
    inside = [number(note["name_iid"], value), number(note["int_value"], notes)]
    parts = [message(event["debug_annotations"], inside), number(event["counter_value"], counters)]
    expected = b"".join(one(first, second) if there else b"" for first, second, there in rows)
    assert joined([where(present, part) for part in parts]) == expected
