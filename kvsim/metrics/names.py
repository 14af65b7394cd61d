"""Names and colours of slot states. They are the same on the screen, in tables and in figures.

Columns of files and fields of the library keep the names of `SlotState`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.display.palette import NUM_HUES
from kvsim.memory.waste import SlotState
from kvsim.policies import Paged, Radix

if TYPE_CHECKING:
    from kvsim.recording import Recording

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
STATE_MEANINGS: Final[dict[SlotState, str]] = {
    SlotState.TOKEN: "written and needed",
    SlotState.RESERVED: "will be written",
    SlotState.INTERNAL: "held for nothing",
    SlotState.PADDING: "only fills the batch",
    SlotState.EXPIRED: "left the window",
    SlotState.CACHED: "free, keeps a prefix",
    SlotState.EXTERNAL: "free, but in pieces",
    SlotState.FREE: "free and empty",
}
"""Meaning of each slot state, in at most 20 characters."""
STATES_ON_DARK: Final[dict[SlotState, str]] = {
    SlotState.TOKEN: "#8ad0f7",
    SlotState.RESERVED: "#1f5fa8",
    SlotState.INTERNAL: "#e2601a",
    SlotState.PADDING: "#f9ec5c",
    SlotState.EXPIRED: "#a57bef",
    SlotState.CACHED: "#31846a",
    SlotState.EXTERNAL: "#d58fb8",
    SlotState.FREE: "#3a424d",
}
"""Colours of slot states on a dark background: light blue, dark blue, orange, yellow, violet, green, pink and grey."""
STATES_ON_LIGHT: Final[dict[SlotState, str]] = {
    SlotState.TOKEN: "#72b8e4",
    SlotState.RESERVED: "#294782",
    SlotState.INTERNAL: "#d4531c",
    SlotState.PADDING: "#fce34d",
    SlotState.EXPIRED: "#37157a",
    SlotState.CACHED: "#26734e",
    SlotState.EXTERNAL: "#d46fad",
    SlotState.FREE: "#c1c7cf",
}
"""Colours of slot states on a light background and in print.

Any two colours differ by at least 8 of 100 steps of CIE L*, and for colour-blind readers by at least 16 in CIELAB.
"""
_SCATTERING: Final = (Paged.name, Radix.name)
"""Policies under which the units of one request may be anywhere in the pool."""


def tells_owners(recording: Recording) -> bool:
    """Tell whether colours can identify requests.

    They cannot if the policy scatters units over the pool and more requests run at once than there are hues.
    """
    running = recording.steps.running
    most = int(running.max()) if len(running) else 0
    return most <= NUM_HUES or recording.meta.policy_name not in _SCATTERING
