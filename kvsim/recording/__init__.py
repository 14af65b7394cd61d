"""The one vocabulary of kvsim: what happened, as columns.

A simulation and a captured run produce the same `Recording`; everything above this room consumes one and cannot tell
which it was. `read` and `write` move it to and from disk, `RecordingBuilder` makes one as it happens, into memory or
with a `RecordingWriter` onto the disk. `kvsim.replay` plays one.
"""

from kvsim.recording.allocator import AllocatorHistory, read_allocator, write_allocator
from kvsim.recording.builder import RecordingBuilder
from kvsim.recording.files import read, write
from kvsim.recording.model import Meta, Pool, Recording
from kvsim.recording.shipped import find, shipped_names
from kvsim.recording.tables import Memory, MemoryKind, Requests, RequestStatus, Schedule, Steps
from kvsim.recording.writer import RecordingWriter

__all__ = [
    "AllocatorHistory",
    "Memory",
    "MemoryKind",
    "Meta",
    "Pool",
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
    "shipped_names",
    "write",
    "write_allocator",
]
