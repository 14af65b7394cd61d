"""One event of a growing recording as a line of JSON. It imports nothing else of kvsim, for the process that serves
viewers beside an engine (`kvsim.capture.viewers`); the vocabulary is that of `kvsim.recording.eventlog`.
"""

from __future__ import annotations

import json
from typing import Any


def line(*event: Any) -> bytes:
    """One event as it stands in the log."""
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
