"""Page with the whole radix tree of SGLang's cache at the current frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.binding import Binding, BindingType

from ..facts.tree_nodes import ago, tree_at
from ..look.wording import plural
from .modal import Page

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ..facts.tree_nodes import RadixTree, Retraction, TreeNode
    from ..playback.session import Session

_MOST_NODES_LISTED: Final = 400
_MOST_INDENTED_LEVELS: Final = 12
_MOST_HOLDERS_NAMED: Final = 3


class RadixTreeScreen(Page):
    """A page with a line for each node of the tree, indented below its parent."""

    PAGE_ID = "tree"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,t,q", "close", "Close")]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session, self._tree = session, tree_at(session)

    def _page(self) -> Group:
        tree, session = self._tree, self._session
        parts: list[RenderableType] = [Text(_summary(session, tree), "bold")]
        if (windows := _windows(session)) is not None:
            parts.append(windows)
        if tree.last_retraction is not None:
            parts.append(_retraction(session, tree.last_retraction))
        if not tree.nodes:
            return Group(*parts)
        table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
        for name in ("node", "tokens", "held by", "last used"):
            table.add_column(name, justify="right" if name in ("tokens", "last used") else "left", no_wrap=True)
        first = _next_evicted(session, tree)
        for node in tree.nodes[:_MOST_NODES_LISTED]:
            table.add_row(*_cells(session, node, is_first=node is first))
        parts += ["", table]
        if len(tree.nodes) > _MOST_NODES_LISTED:
            left = tree.nodes[_MOST_NODES_LISTED:]
            parts.append(f"and {plural(len(left), 'node')} more, {sum(node.num_units for node in left):,} slots")
        return Group(*parts)


def _summary(session: Session, tree: RadixTree) -> str:
    if not tree.nodes:
        return "The tree is empty: no prompt has been computed, or all were evicted."
    name, evictable = session.unit_name, tree.num_units - tree.num_locked
    unless = ", unless a copy locks them" if session.is_copying else ""
    return (
        f"The radix tree: {plural(tree.num_units, name)} in {plural(len(tree.nodes), 'node')}; {tree.num_locked:,} "
        f"locked, {evictable:,} can be evicted, from the leaves{unless}."
    )


def _windows(session: Session) -> str | None:
    recording, frame = session.recording, session.player.frame
    windows, steps = recording.meta.pool.windows, recording.steps
    if windows is None or steps.free_window_units is None or steps.cached_window_units is None or not len(steps):
        return None
    step = min(frame, len(steps) - 1)
    # Free windows include those that are still cached.
    free, cached = int(steps.free_window_units[step]), int(steps.cached_window_units[step])
    return (
        f"Layers with windows: {windows.num_units - free:,} of {plural(windows.num_units, session.unit_name)} held, "
        f"{cached:,} can be evicted without their node, {free - cached:,} free."
    )


def _retraction(session: Session, last: Retraction) -> str:
    return (
        f"The last retraction, of {session.request_name(last.request)} {ago(session, last.frame)}, gave up "
        f"{last.num_own:,} of its own and evicted {last.num_evicted:,} of the tree in the same step."
    )


def _next_evicted(session: Session, tree: RadixTree) -> TreeNode | None:
    """Return the leaf that is evicted next; None without leaves, or if the eviction policy is not LRU."""
    is_lru = session.recording.meta.policy.get("radix_eviction_policy", "lru") == "lru"
    return tree.leaves[0] if is_lru and tree.leaves else None


def _cells(session: Session, node: TreeNode, *, is_first: bool) -> tuple[Text, Text, Text, Text]:
    """Return the cells of a node's row: its number of units, its token positions, its holders, its last use.

    They are bold if requests hold the node, dim if nodes below it must be evicted first. `is_first` is true for the
    node that is evicted next.
    """
    size, end = session.replay.unit_tokens, node.begin + node.num_units
    lead = "  " * min(node.depth - 1, _MOST_INDENTED_LEVELS) + "└ " if node.depth else ""
    if node.num_holders:
        names = [session.request_name(row) for row in node.holders[:_MOST_HOLDERS_NAMED]]
        more = node.num_holders - len(names)
        style, held = "bold", f"{node.num_holders}: {', '.join(names)}{f' and {more} more' if more else ''}"
    elif node.is_evictable:
        style, held = "", "none: goes first" if is_first else "none: can go"
    else:
        style, held = "dim", "none: after those below"
    used = "now" if node.num_holders else ago(session, node.used_frame)
    length = plural(node.num_units, session.unit_name)
    cells = (f"{lead}{length}", f"{node.begin * size + 1:,} to {end * size:,}", held, used)
    return tuple(Text(cell, style) for cell in cells)  # type: ignore[return-value]
