"""The common format of kvsim: the events of a run, as columns.

A simulation and a captured run produce the same `Recording`; all rooms above this one treat both alike. `read` and
`write` move a recording to and from disk. `RecordingBuilder` builds one during a run, in memory or with a
`RecordingWriter` on disk. `kvsim.replay` plays one.

Every name here is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.on_demand import names_of

if TYPE_CHECKING:
    from kvsim.recording.allocator import AllocatorHistory, read_allocator, write_allocator
    from kvsim.recording.builder import RecordingBuilder
    from kvsim.recording.files import RecordedRequests, read, read_requests, write
    from kvsim.recording.model import Meta, Pool, Recording
    from kvsim.recording.shipped import find, shipped_names
    from kvsim.recording.tables import Memory, MemoryKind, Requests, RequestStatus, Schedule, Steps
    from kvsim.recording.writer import RecordingWriter

_HOME = {
    "AllocatorHistory": "kvsim.recording.allocator",
    "Memory": "kvsim.recording.tables",
    "MemoryKind": "kvsim.recording.tables",
    "Meta": "kvsim.recording.model",
    "Pool": "kvsim.recording.model",
    "RecordedRequests": "kvsim.recording.files",
    "Recording": "kvsim.recording.model",
    "RecordingBuilder": "kvsim.recording.builder",
    "RecordingWriter": "kvsim.recording.writer",
    "RequestStatus": "kvsim.recording.tables",
    "Requests": "kvsim.recording.tables",
    "Schedule": "kvsim.recording.tables",
    "Steps": "kvsim.recording.tables",
    "find": "kvsim.recording.shipped",
    "read": "kvsim.recording.files",
    "read_allocator": "kvsim.recording.allocator",
    "read_requests": "kvsim.recording.files",
    "shipped_names": "kvsim.recording.shipped",
    "write": "kvsim.recording.files",
    "write_allocator": "kvsim.recording.allocator",
}
"""The module that each name lives in."""

__all__ = [
    "AllocatorHistory",
    "Memory",
    "MemoryKind",
    "Meta",
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
    "read_requests",
    "shipped_names",
    "write",
    "write_allocator",
]

__getattr__ = names_of(__name__, _HOME)
