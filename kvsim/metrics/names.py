"""Names of policies and slot states as shown on the screen, in tables and in figures.

Columns of files and fields of the library keep the names of `SlotState`.
"""

from __future__ import annotations

from typing import Final

from kvsim.memory.waste import SlotState

STATIC_BATCHES: Final = "static batches"
"""Shown name of the policy `static`."""
STATE_NAMES: Final[dict[SlotState, str]] = {
    SlotState.TOKEN: "tokens",
    SlotState.RESERVED: "reserved",
    SlotState.INTERNAL: "never written",
    SlotState.PADDING: "padding",
    SlotState.EXPIRED: "expired",
    SlotState.CACHED: "cached",
    SlotState.EXTERNAL: "external",
    SlotState.FREE: "free",
}


def policy_name(name: str) -> str:
    """Return the shown name of a policy; most names, and custom rules, are shown unchanged."""
    return STATIC_BATCHES if name == "static" else name
