"""Format one event of a log as a line of JSON; `kvsim.recording.eventlog` lists the events.

This module imports nothing else of kvsim, for the process that serves viewers beside an engine.
"""

from __future__ import annotations

import json
from typing import Any


def line(*event: Any) -> bytes:
    """Return one event as a line of the log."""
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
