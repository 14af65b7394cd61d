"""Help page: what the picture shows, the states of a slot with their colours, and the keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType

from kvsim.metrics.names import STATE_MEANINGS, STATE_NAMES

from ..look.states import STACK
from ..pool.swatches import swatch
from .modal import Page

if TYPE_CHECKING:
    from collections.abc import Sequence


from ..look.states import Symbols

KEYS: Final = (
    ("space", "play or pause"),
    ("left right", "one engine step back or on; with shift ten"),
    ("[ ]", "the previous or next notable event: preemption, refusal; or finish, if none"),
    ("o", "what colour means: owner, state, kind of layers, sharing, age"),
    ("v", "the pool by owner, largest first, or in physical order"),
    ("n N", "follow the next or the previous request that runs or waits"),
    ("+ -", "faster or slower"),
    ("home end", "the beginning, the end"),
    ("z Z", "more or less detail in the pool, from whole pool to single slots"),
    ("tab", "move to the pool, the queue or the events; there arrows or hjkl move, escape leaves"),
    ("enter", "follow the request under the cursor; without one, the newest"),
    ("/", "find a request by its id, or a place in the pool as #number"),
    ("c", "compare: the same requests under every policy, on one clock"),
    ("d", "what would help: changes of the server, each with its predicted effect"),
    ("l", "lessons: short scenarios that say what there is to see"),
    ("1 2 3 4 5", "show or hide waste, timeline, inspector, queue, events"),
    ("m", "the pool, or the panel that has the keyboard, as large as the screen"),
    ("f", "which events are listed and jumped to: preemptions, evictions, finishes"),
    ("s S x", "save the screen as SVG or PNG, or its numbers as CSV"),
    ("ctrl+p", "all commands by name"),
    ("q ctrl+c", "quit"),
    ("mouse", "click selects, double click follows, the wheel scrolls, dragging the timeline scrubs"),
)


FLEET_KEYS: Final = (
    ("space", "play or pause"),
    ("left right", "one step of any server back or on; with shift ten"),
    ("[ ]", "the previous or next preemption on any server"),
    ("up down", "select the server above or below"),
    ("enter", "watch the selected server alone, at this moment; escape returns"),
    ("n N", "follow the next or the previous request that runs or waits, from server to server"),
    ("+ -", "faster or slower"),
    ("home end", "the beginning, the end"),
    ("s S x", "save the screen as SVG or PNG, or the servers' figures as CSV"),
    ("ctrl+p", "all commands by name"),
    ("q ctrl+c", "quit"),
    ("mouse", "click selects a server, double click opens it, dragging the time line scrubs"),
)
"""Keys of the screen of a fleet, and their actions."""


def idea_of_pool(unit: str) -> str:
    """Return the explanation of the picture of a pool whose units are called `unit`, "block" or "slot"."""
    return (
        f"The picture shows the whole pool; a cell is one {unit} or several, as its title says. "
        "o changes what colour means: whose memory it is, what it is doing, how many share it, how old it is. "
        "The line below the pool says so. The memory of all requests but the followed one is "
        "grey; where each line of the pool has a name, an angle bracket marks the followed one instead. "
        "Where more requests hold memory than there are colours, only the followed one has a colour of its own, "
        f"or else the one that holds most, and the {unit}s that are allocated next are marked."
    )


IDEA_OF_FLEET: Final = (
    "Each strip is the pool of one server over the whole run: its height is the share that requests hold. The line "
    "across all strips is the moment that the figures are of. Servers with the fullest pools come first; those that "
    "do not fit share the last line."
)


class HelpScreen(Page):
    """A page that explains the picture, the states and the keys."""

    PAGE_ID = "help"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "close", "Close")]

    def __init__(self, idea: str, symbols: Symbols, keys: Sequence[tuple[str, str]] = KEYS) -> None:
        """`idea` explains the picture. `keys` are keys and their actions."""
        super().__init__()
        self._idea, self._symbols, self._keys = idea, symbols, keys

    def _page(self) -> Group:
        idea = Text(
            "Every token that a server reads or writes leaves keys and values in GPU memory: one slot each. "
            + self._idea
        )
        states, keys = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
        for state in STACK:
            mark = swatch(state, self._symbols)
            states.add_row(
                Text(mark.text * 2, mark.style or ""), Text(STATE_NAMES[state], "bold"), STATE_MEANINGS[state]
            )
        for key, meaning in self._keys:
            keys.add_row(Text(key, "bold"), meaning)
        title = Text("kvsim plays a recording of the memory of an LLM server's KV cache.", "bold")
        return Group(title, "", idea, "", states, "", keys)
