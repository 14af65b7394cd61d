"""Format one event of a log as a line of JSON; `kvsim.recording.eventlog` lists the events.

This module imports no other module of kvsim, so that the process that serves viewers beside an engine stays small.
"""

from __future__ import annotations

import json
from typing import Any


def line(*event: Any) -> bytes:
    """Return the kind and the fields of an event, given separately, as a line of JSON with a line break."""
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
