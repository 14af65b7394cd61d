"""What the states of a slot are called wherever people read: on the screen, in tables and in figures.

Columns of files and fields of the library keep the names of `SlotState`.
"""

from __future__ import annotations

from typing import Final

from kvsim.memory.waste import SlotState

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
