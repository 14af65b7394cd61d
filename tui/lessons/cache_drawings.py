"""Drawings of caches: what is found of a prompt, the nodes of a radix tree, and hits by the size of the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.segment import Segment
from rich.style import Style

from kvsim.memory.waste import SlotState

from ..facts.tree_nodes import ago, tree_at
from ..look.wording import plural
from ..pool.swatches import swatch
from .pen import Lines, Pen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..facts.tree_nodes import RadixTree, TreeNode
    from ..look.states import Symbols
    from ..playback.session import Session

_LABEL: Final = 17
_NODE, _PART = 15, 14
_SIZE: Final = 14
_STATES: Final = (
    (SlotState.TOKEN, "locked, or being written"),
    (SlotState.CACHED, "kept, no request uses it"),
    (SlotState.FREE, "free"),
)
_FREE_COUNT_WIDTH: Final = 18
"""Width in characters of the number of free slots beside a bar of the memory."""


def hits(
    found: Sequence[tuple[int, Sequence[float]]], labels: Sequence[str], width: int, symbols: Symbols, height: int
) -> Lines:
    """Draw the shares of prompt tokens found in the cache: for each size of the memory, a bar for each run.

    An item of `found` is a size in tokens, and the share of each run; `labels` are the labels of the runs. The longest
    bar takes the whole width. An empty line separates sizes if `height` has room.
    """
    pen, lines = Pen(symbols), list[list[Segment]]()
    room, most = max(width - _LABEL - _SIZE - 8, 8), max(max(shares) for _, shares in found) or 1.0
    for num_tokens, shares in found:
        if lines and len(found) * (len(labels) + 1) <= height:
            lines.append([])
        for nth, (label, share) in enumerate(zip(labels, shares, strict=True)):
            size = f"{num_tokens:,} tokens" if nth == 0 else ""
            lines.append(
                [
                    pen.text(size.ljust(_SIZE), weak=True),
                    pen.text(label[: _LABEL - 1].ljust(_LABEL)),
                    pen.bar(share / most, room, symbols.palette.kinds[nth % 2]),
                    pen.text(f" {100 * share:>4.0f}%"),
                ]
            )
    return lines


def tree(session: Session, width: int, symbols: Symbols, height: int) -> Lines:
    """Draw the nodes of the radix tree, indented below their parents: slots, holders, and the order of eviction.

    The last line counts the nodes that do not fit into `height` lines; if all fit, the slots that are in no node. If
    there is room, an empty line precedes each node without a parent, and bars are thick.
    """
    pen, found, states = Pen(symbols), tree_at(session), symbols.palette.states
    most, room = max(node.num_units for node in found.nodes), max(width - _NODE - _PART - 42, 8)
    num_roots = sum(not node.depth for node in found.nodes)
    thick = 2 if 2 * (len(found.nodes) + 1) + num_roots <= height else 1
    gaps = thick * (len(found.nodes) + 1) + num_roots <= height + 1
    lines: Lines = []
    shown = found.nodes[: height - (len(found.nodes) > height)]
    for node in shown:
        if lines and gaps and not node.depth:
            lines.append([])
        lines += pen.thick(_node(session, found, node, most, room, pen), thick)
    if rest := found.nodes[len(shown) :]:
        in_all = plural(sum(node.num_units for node in rest), "slot")
        lines.append([pen.text(f"{len(rest)} more nodes".ljust(_NODE)), pen.text(f"{in_all} together", weak=True)])
    elif (outside := len(session.replay.occupied()) - found.num_units) and len(lines) < height:
        bar = pen.bar(outside / most, room, states[SlotState.TOKEN])
        where = pen.text(" in no node yet: an answer that is being written")
        lines += pen.thick([pen.text(plural(outside, "slot").ljust(_NODE)), bar, where], thick)
    return lines


def num_lines(session: Session) -> int:
    """Return the number of lines of the whole tree without empty lines."""
    found = tree_at(session)
    return len(found.nodes) + (len(session.replay.occupied()) > found.num_units)


def _node(session: Session, found: RadixTree, node: TreeNode, most: int, room: int, pen: Pen) -> list[Segment]:
    symbols = pen.symbols
    name, color = session.request_name(node.last_request), symbols.palette.states[SlotState.CACHED]
    part = "prompt" if node.begin < session.recording.requests.prompt_tokens[node.last_request] else "answer"
    if node.holders:
        color = symbols.palette.states[SlotState.TOKEN]
        words = f"locked by {', '.join(session.request_name(row) for row in node.holders)}"
    elif node in found.leaves:
        place = found.leaves.index(node)
        color = symbols.palette.changes[3] if not place else color
        order = f"can go, as number {place + 1}" if place else "goes first"
        words = f"{order}: used {ago(session, node.used_frame)}"
    else:
        words = "stays while others are below it"
    lead = "  " * node.depth + ("└ " if node.depth and not symbols.ascii else "")
    return [
        pen.text(f"{lead}{plural(node.num_units, 'slot')}".ljust(_NODE)),
        pen.bar(node.num_units / most, room, color),
        pen.text(f" {part} of {name}".ljust(_PART), weak=True),
        Segment(words, Style(color=color)),
    ]


def found_prompt(
    sessions: Sequence[Session], labels: Sequence[str], name: str, width: int, symbols: Symbols, thick: int
) -> Lines:
    """Draw the prompt of the request `name` in each of `sessions`: the part that was found in the cache, and the rest.

    A blank separates blocks. A bar has `thick` lines.
    """
    pen, lines = Pen(symbols), list[list[Segment]]()
    room = max(width - _LABEL - 24, 8)
    cached, token = (symbols.palette.states[state] for state in (SlotState.CACHED, SlotState.TOKEN))
    for label, session in zip(labels, sessions, strict=True):
        requests, row = session.recording.requests, session.recording.row_of(name)
        num_found, size = int(requests.cached_tokens[row]), int(requests.prompt_tokens[row])
        unit = session.replay.unit_tokens
        place = [column * size // room for column in range(room + 1)]
        is_edge = [unit > 1 and place[column] // unit < place[column + 1] // unit for column in range(room - 1)]
        is_edge.append(False)  # bars of the same prompt end at the same column
        split = round(num_found / size * room)
        words = f" {num_found} found, {size - num_found} computed"
        line = [
            pen.text(label[: _LABEL - 1].ljust(_LABEL)),
            pen.pieces([not edge for edge in is_edge[:split]], cached),
            pen.pieces([not edge for edge in is_edge[split:]], token),
            pen.text(words, weak=True),
        ]
        lines += pen.thick(line, thick)
    return lines


def around_eviction(session: Session, width: int, symbols: Symbols, thick: int) -> Lines:
    """Draw the slots of the memory by state, in this step, which evicts a leaf, and in the next.

    A legend precedes two bars of `thick` lines.
    """
    pen = Pen(symbols)
    key = [pen.text("the memory".ljust(_LABEL))]
    for state, words in _STATES:
        key += [swatch(state, symbols), pen.text(f" {words}  ", weak=True)]
    lines: Lines = [key]
    frame = session.player.frame
    for label, at in (("now", frame), ("one step later", min(frame + 1, session.player.last_frame))):
        slots = session.slots[at]
        words = f" {int(slots[SlotState.FREE]):,} slots free"
        bar = pen.states(slots, max(width - _LABEL - _FREE_COUNT_WIDTH, 8))
        line, blank = [pen.text(label.ljust(_LABEL)), *bar, pen.text(words)], [pen.text(" " * _LABEL), *bar]
        lines += [line if nth == (thick - 1) // 2 else blank for nth in range(thick)]
        lines += [[]] * (at == frame)
    return lines
