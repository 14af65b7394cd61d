"""Legend of the pool: samples of its colours with their meanings, and how much memory sharing saves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from rich.segment import Segment
from rich.style import Style

from kvsim.display.palette import NUM_HUES
from kvsim.memory.waste import HELD, SlotState
from kvsim.metrics.names import STATE_NAMES, tells_owners

from ..look.wording import plural, seconds
from ..pool.paint import AGE, AGES, DIM, HOLDERS, OWNER, SHARED, TINT, TINTS, ColorBy, hue_of
from ..pool.swatches import paint_swatch
from .layer_kinds import layer_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..look.states import Symbols
    from ..playback.session import Session

_MOST_OWNERS: Final = 8
"""Largest number of requests that the legend names."""

LegendEntry: TypeAlias = tuple[tuple[int, ...], str]
"""The paints of an entry of the legend, and their meaning."""

_TINTED: Final[LegendEntry] = (
    tuple(range(TINT, TINT + TINTS)),
    "tokens till the request ends; new tint: another",
)
"""Entry for tokens where consecutive requests have different tints."""
_TINTED_IN_SHORT: Final = "tokens; new tint: new request"


def legend_entries(
    by: ColorBy,
    sessions: Sequence[Session],
    symbols: Symbols,
    style: Style,
    room: int,
    *,
    lit: str | None = None,
    bars: bool = False,
    shows: Callable[[int], bool] | None = None,
    counts_holders: bool = False,
) -> list[list[Segment]]:
    """Return the legend of the colours that the pools of `sessions` show now.

    Args:
        by: the meaning of colour.
        sessions: runs whose pools share the legend.
        symbols: characters and colours of the terminal.
        style: style of the text.
        room: number of characters in a line; texts are shortened if the legend is longer.
        lit: id of the request that alone is in colour.
        bars: True if bars of states are beside the pools; tokens then get an entry, even if `by` does not colour them.
        shows: tells whether the paint of a state is in the picture; None if each that occurs is.
        counts_holders: True if shared units have the number of their holders.
    """
    entries = [entry for entry in legend(by, sessions, lit) if _occurs(entry[0], sessions, lit, shows)]
    if counts_holders:
        entries = [(paints, text.replace("shared,", "shared (digit: holders, + from 10),", 1))
                   if paints == (SHARED,) else (paints, text) for paints, text in entries]  # fmt: skip
    tokens = (int(SlotState.TOKEN),)
    if shows is not None and not shows(TINT):
        entries = [(tokens, "tokens, of any request") if entry == _TINTED else entry for entry in entries]
    if bars and all(paints != tokens for paints, _ in entries) and _occurs(tokens, sessions):
        entries.append((tokens, "tokens, in bars"))
    if _length(entries) > room:
        entries = [(paints, _TINTED_IN_SHORT if text == _TINTED[1] else text) for paints, text in entries]
    if _length(entries) > room:
        entries = [(paints[:1], text.removesuffix(", in bars")) for paints, text in entries]
    if _length(entries) > room:
        entries = [(paints, _in_short(text)) for paints, text in entries]
    if _length(entries) > room:
        entries = [(paints, text.partition(", saves ")[0]) for paints, text in entries]
    found = list[list[Segment]]()
    for paints, text in entries:
        segments = [Segment("  ", style)] if found else []
        for paint in paints:
            sample = paint_swatch(paint, symbols)
            segments.append(Segment(sample.text, style + (sample.style or Style())))
        found.append([*segments, Segment(f" {text}", style)])
    return found


def owner_entries(
    session: Session, symbols: Symbols, style: Style, shows: Callable[[int], bool], scale: str
) -> list[list[Segment]]:
    """Return the legend of the pool by owner: states in the bars, shared units, the followed request, and the scale."""
    caches = session.recording.meta.prefix_caching
    states = [_state(SlotState.TOKEN), *_waste([session]), _state(SlotState.RESERVED)]
    states += [((SHARED,), _shared_words(session))] if caches else []
    entries = [
        (paints[0], text)
        for paints, text in states
        if (_occurs(paints, [session]) if paints == (SHARED,) else shows(paints[0]))
    ]
    if session.followed is not None and len(session.replay.block_table(session.followed)[1]):
        entries.append((OWNER + hue_of(session.followed), session.request_name(session.followed)))
    found = list[list[Segment]]()
    for paint, text in entries:
        sample = paint_swatch(paint, symbols)
        gap = [Segment("  ", style)] if found else []
        found.append([*gap, Segment(sample.text, style + (sample.style or Style())), Segment(f" {text}", style)])
    return [*found, [Segment(f"  {scale}", style)]]


def _occurs(
    paints: tuple[int, ...],
    sessions: Sequence[Session],
    lit: str | None = None,
    shows: Callable[[int], bool] | None = None,
) -> bool:
    """Tell whether a pool shows the paints of an entry now; entries other than states and sharing always count."""
    if paints == (SHARED,):
        return any(bool((session.replay.refs > 1).any()) for session in sessions)
    if paints and paints[0] >= DIM:  # the greys of the requests beside the only lit one
        return any(len(session.replay.live_requests()) > 1 for session in sessions)
    if len(paints) != 1 or paints[0] >= len(SlotState):
        return True
    if lit is not None and len(sessions) == 1 and paints[0] in HELD:  # the pool shows those of the others in grey
        replay = sessions[0].replay
        _, addresses = replay.block_table(sessions[0].recording.row_of(lit))
        return bool(replay.slots(addresses - replay.first_unit)[:, paints[0]].any())
    return any(bool(session.breakdown[paints[0]]) for session in sessions) and (shows is None or shows(paints[0]))


def _length(entries: list[LegendEntry]) -> int:
    return sum(len(paints) + len(text) + 3 for paints, text in entries) - 2


def _in_short(text: str) -> str:
    for words, fewer in (("sliding window", "window"), ("full attention", "full"), (" alone in colour", " in colour")):
        text = text.replace(words, fewer)
    return text


def legend(by: ColorBy, sessions: Sequence[Session], lit: str | None = None) -> list[LegendEntry]:
    """Return all entries of the legend: the paints of each entry, and their meaning."""
    # The run with the most kinds of layers, and with prefix caching, needs the most entries.
    session = max(sessions, key=lambda each: (len(each.replay.groups), each.recording.meta.prefix_caching))
    caches = session.recording.meta.prefix_caching
    kept = [_state(SlotState.CACHED)] if caches else []
    reserved, free = _state(SlotState.RESERVED), _state(SlotState.FREE)
    match by:
        case ColorBy.OWNER:
            sharing_too = [((SHARED,), _shared_words(session)), *kept] if caches else []
            return [*_owners(sessions, lit), *_waste(sessions), reserved, *sharing_too, free]
        case ColorBy.STATE:
            followed = [] if lit is None else _lit_and_others(lit, (int(SlotState.TOKEN),))
            return [*followed, _state(SlotState.TOKEN), *_waste(sessions), reserved, *kept, free]
        case ColorBy.LAYERS:
            kinds = layer_kinds(session.replay)
            followed = [] if lit is None else _lit_and_others(lit, tuple(kind.paint for kind in kinds))
            entries: list[LegendEntry] = [((kind.paint,), kind.words) for kind in kinds]
            return [*followed, *entries, *_waste(sessions), reserved, *kept, free]
        case ColorBy.SHARING:
            degrees = (HOLDERS, HOLDERS + 1, HOLDERS + 3, HOLDERS + 5)
            followed = [] if lit is None else _lit_and_others(lit, degrees[:3])
            return [
                *followed,
                ((), sharing(session) or "no block is shared"),
                (degrees[:1], "one holder"),
                (degrees[1:], "2, 8, more holders"),
                _state(SlotState.CACHED),
                free,
            ]
        case ColorBy.AGE:
            oldest_s = session.recording.recorded_s / 4
            ages = tuple(range(AGE + AGES - 2, AGE, -1))
            return [
                *([] if lit is None else _lit_and_others(lit, ages[::2])),
                ((AGE + AGES - 1,), "just taken"),
                (ages, ""),
                ((AGE,), f"held for {seconds(oldest_s / 2, oldest_s / 100)} and more"),
                free,
            ]


def _owners(sessions: Sequence[Session], lit: str | None) -> list[LegendEntry]:
    """Return the entries for the hues of owners; for the request that alone is `lit`, if there is one."""
    hued = {tells_owners(session.recording) for session in sessions}
    hues = tuple(range(OWNER, OWNER + 4)) if True in hued else _TINTED[0]
    entries: list[LegendEntry] = []
    if lit is not None:
        known = next(session.recording for session in sessions if lit in session.recording.requests.id)
        entries = _lit_and_others(lit, hues[:3], OWNER + hue_of(known.row_of(lit)))
    elif True in hued:
        few = len(sessions[0].recording.requests) <= NUM_HUES
        named = _named_owners(sessions) if few else None
        entries = [(hues, "one request each" if few else "requests")] if named is None else named
    if lit is None and False in hued:
        entries.append(_TINTED)
    return entries


def _named_owners(sessions: Sequence[Session]) -> list[LegendEntry] | None:
    """Return an entry for each request that holds memory now; None if these are too many."""
    owners = {}
    for session in sessions:
        for request in session.replay.live_requests().tolist():
            if session.recording.requests.prompt_tokens[request]:  # not the padding at the end of a row
                owners[session.request_name(request)] = OWNER + hue_of(request)
    return [((owners[name],), name) for name in sorted(owners)] if len(owners) <= _MOST_OWNERS else None


def _lit_and_others(name: str, others: tuple[int, ...], *paints: int) -> list[LegendEntry]:
    """Return two entries: the only lit request with its `paints`, and the paints of the `others` in grey."""
    return [
        (paints, name if paints else f"{name} alone in colour"),
        (tuple(other + DIM for other in (*others, SlotState.RESERVED)), "all others"),
    ]


def _waste(sessions: Sequence[Session]) -> list[LegendEntry]:
    """Return the entries for the states of waste that can occur in the recordings, in the order of the bars."""
    static = [session.recording.meta.policy_name == "static" for session in sessions]
    windows = any(group.window for session in sessions for group in session.replay.groups)
    pieces = any(np.any(session.recording.steps.unusable_units) for session in sessions)
    possible = (
        (SlotState.EXPIRED, windows),
        (SlotState.PADDING, any(static)),
        (SlotState.INTERNAL, not all(static)),
        (SlotState.EXTERNAL, pieces),
    )
    return [_state(state) for state, is_possible in possible if is_possible]


def _state(state: SlotState) -> LegendEntry:
    return (int(state),), STATE_NAMES[state]


def sharing(session: Session) -> str:
    """Describe the memory that sharing saves now: `1,587 blocks in place of 3,763: 2.4×`; empty if it saves none."""
    held, stands_for = _held(session)
    if stands_for <= held:
        return ""
    return f"{plural(held, session.unit_name)} in place of {stands_for:,}: {stands_for / held:.1f}×"


def _shared_words(session: Session) -> str:
    """Return the meaning of the paint of shared units: `shared, saves 10 blocks`."""
    held, stands_for = _held(session)
    return f"shared, saves {plural(stands_for - held, session.unit_name)}"


def _held(session: Session) -> tuple[int, int]:
    """Count the held units, and the entries of all block tables."""
    refs = session.replay.refs
    return int((refs > 0).sum()), int(refs.sum())
