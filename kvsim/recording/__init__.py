"""The common format of simulated and captured runs: the events of a run, as tables of columns.

Simulations and captures produce a `Recording`, and all code that uses recordings treats simulated and captured ones
alike. `read` and `write` load a recording from disk and save it. While a run goes on, `RecordingBuilder` makes a
recording from the events that an engine reports, and `RecordingWriter` saves rows that no later event changes.
`kvsim.replay` shows the memory of a recorded run at any step.

Every name here is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.on_demand import by_name, names_of

if TYPE_CHECKING:
    from kvsim.recording.allocator import AllocatorHistory, read_allocator, write_allocator
    from kvsim.recording.builder import RecordingBuilder
    from kvsim.recording.files import RecordedRequests, read, read_outlines, read_requests, server_folders, write
    from kvsim.recording.model import Meta, Outline, Pool, Recording
    from kvsim.recording.shipped import find, shipped_names
    from kvsim.recording.tables import Memory, MemoryKind, Requests, RequestStatus, Schedule, Steps
    from kvsim.recording.writer import RecordingWriter

_HOME = by_name({
    "kvsim.recording.allocator": "AllocatorHistory read_allocator write_allocator",
    "kvsim.recording.builder": "RecordingBuilder",
    "kvsim.recording.files": "RecordedRequests read read_outlines read_requests server_folders write",
    "kvsim.recording.model": "Meta Outline Pool Recording",
    "kvsim.recording.shipped": "find shipped_names",
    "kvsim.recording.tables": "Memory MemoryKind RequestStatus Requests Schedule Steps",
    "kvsim.recording.writer": "RecordingWriter",
})  # fmt: skip

__all__ = [
    "AllocatorHistory",
    "Memory",
    "MemoryKind",
    "Meta",
    "Outline",
    "Pool",
    "RecordedRequests",
    "Recording",
    "RecordingBuilder",
    "RecordingWriter",
    "RequestStatus",
    "Requests",
    "Schedule",
    "Steps",
    "find",
    "read",
    "read_allocator",
    "read_outlines",
    "read_requests",
    "server_folders",
    "shipped_names",
    "write",
    "write_allocator",
]

__getattr__ = names_of(__name__, _HOME)
