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
from .colors import paint_of
from .layer_kinds import layer_kinds
from .paint import (
    AGE,
    AGES,
    DIM,
    FOLLOWED,
    FOLLOWED_SHARED,
    HOLDERS,
    NEXT,
    OWNER,
    PARTLY,
    SHARED,
    ColorBy,
    hue_of,
)
from .swatches import paint_swatch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..look.states import Symbols
    from ..playback.session import Session

_MOST_OWNERS: Final = 8

LegendEntry: TypeAlias = tuple[tuple[int, ...], str]
"""Paints of an entry of the legend, and their meaning in words."""

_MARKS: Final = (FOLLOWED, FOLLOWED_SHARED, PARTLY, NEXT)
"""Paints that occur only in pools with more requests than hues."""
_UNWRITTEN: Final = int(SlotState.RESERVED) + DIM
"""Grey paint of unwritten slots, while one request is in colour and all others are grey."""
_SHORTER: Final = (
    ("sliding window", "window"),
    ("full attention", "full"),
    (" alone in colour", " in colour"),
    ("tokens of others", "others"),
    ("its shared blocks", "its shared"),
    ("next to be allocated", "allocated next"),
    ("partly reserved", "partly"),
    ("allocated next", "next"),
)
"""Words of entries, each with a shorter form. Narrow legends shorten as many as they must, from the first on."""


def legend_entries(
    by: ColorBy,
    sessions: Sequence[Session],
    symbols: Symbols,
    style: Style,
    room: int,
    *,
    lit: str | None = None,
    marked: str | None = None,
    num_lines: int = 1,
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
        room: number of characters in a line; texts are shortened if the legend does not fit into its lines.
        lit: id of the request that alone is in colour.
        marked: words about the request that has a colour of its own, if there are too few hues for all requests.
        num_lines: number of lines.
        bars: True if bars of states are beside the pools; tokens then get an entry, even if `by` does not colour them.
        shows: tells whether the paint of a state or a mark is in the picture; None if each state that occurs is.
        counts_holders: True if the number of holders is written on shared units.
    """
    entries = [entry for entry in legend(by, sessions, lit, marked) if _is_shown(entry[0], sessions, lit, shows)]
    if counts_holders:
        entries = [(paints, text.replace("shared,", "shared (digit: holders, + from 10),", 1))
                   if paints == (SHARED,) else (paints, text) for paints, text in entries]  # fmt: skip
    tokens = (int(SlotState.TOKEN),)
    if bars and all(paints != tokens for paints, _ in entries) and _is_shown(tokens, sessions):
        entries.append((tokens, "tokens, in bars"))
    return _segments(entries, symbols, style, room, num_lines)


def owner_entries(
    session: Session, symbols: Symbols, style: Style, room: int, shows: Callable[[int], bool], scale: str
) -> list[list[Segment]]:
    """Return the legend of owners: states in bars, shared units, the followed request, then `scale` in words.

    Texts are shortened if the legend does not fit into `room` characters.
    """
    caches = session.recording.meta.prefix_caching
    states = [_state(SlotState.TOKEN), *_waste_entries([session]), _state(SlotState.RESERVED)]
    states += [((SHARED,), _shared_words(session))] if caches else []
    entries = [
        (paints, text)
        for paints, text in states
        if (_is_shown(paints, [session]) if paints == (SHARED,) else shows(paints[0]))
    ]
    if session.followed is not None and len(session.replay.block_table(session.followed)[1]):
        entries.append(((paint_of(session, session.followed),), session.request_name(session.followed)))
    return _segments([*entries, ((), scale)], symbols, style, room, 1)


def _segments(
    entries: list[LegendEntry], symbols: Symbols, style: Style, room: int, num_lines: int
) -> list[list[Segment]]:
    """Return the segments of each entry. Texts and gaps are as short as `num_lines` lines of `room` characters need."""
    entries = _shortened(entries, room, num_lines)
    gap, found = "  " if _fit_into_lines(entries, room, num_lines) else " ", list[list[Segment]]()
    for paints, text in entries:
        segments = [Segment(gap, style)] if found else []
        for paint in paints:
            sample = paint_swatch(paint, symbols)
            segments.append(Segment(sample.text, style + (sample.style or Style())))
        found.append([*segments, Segment(" " * bool(paints) + text, style)])
    return found


def _is_shown(
    paints: tuple[int, ...],
    sessions: Sequence[Session],
    lit: str | None = None,
    shows: Callable[[int], bool] | None = None,
) -> bool:
    """Tell whether a pool shows the paints of an entry now. `lit` and `shows` are those of `legend_entries`.

    True for entries of owners, kinds and ages, which are not checked.
    """
    if len(paints) == 1 and paints[0] in _MARKS:
        return shows is not None and shows(paints[0])
    if paints == (SHARED,):
        return any(bool((session.replay.refs > 1).any()) for session in sessions)
    if paints and paints[0] >= DIM:  # a grey of the requests beside the only lit one
        unwritten = [SlotState.RESERVED, SlotState.INTERNAL]
        written = paints != (_UNWRITTEN,)
        others = (session for session in sessions if len(session.replay.live_requests()) > 1)
        return any(written or bool(session.breakdown[unwritten].any()) for session in others)
    if len(paints) != 1 or paints[0] >= len(SlotState):
        return True
    if lit is not None and len(sessions) == 1 and paints[0] in HELD:  # the pool shows those of the others in grey
        replay = sessions[0].replay
        _, addresses = replay.block_table(sessions[0].recording.row_of(lit))
        return bool(replay.slots(addresses - replay.first_unit)[:, paints[0]].any())
    return any(bool(session.breakdown[paints[0]]) for session in sessions) and (shows is None or shows(paints[0]))


def _shortened(entries: list[LegendEntry], room: int, num_lines: int) -> list[LegendEntry]:
    """Return `entries` with words left out, one after the other, until the legend fits into its lines."""
    for words in (", which holds most", ", saves ", ", with "):
        if not _fit_into_lines(entries, room, num_lines):
            entries = [(paints, text.partition(words)[0]) for paints, text in entries]
    if not _fit_into_lines(entries, room, num_lines):
        entries = [(paints[:1], text.removesuffix(", in bars")) for paints, text in entries]
    for words, fewer in _SHORTER:
        if not _fit_into_lines(entries, room, num_lines):
            entries = [(paints, text.replace(words, fewer)) for paints, text in entries]
    return entries


def _fit_into_lines(entries: list[LegendEntry], room: int, num_lines: int) -> bool:
    lines, end = 1, -2
    for paints, text in entries:
        width = len(paints) + bool(paints) + len(text)
        fits = end + 2 + width <= room
        lines, end = (lines, end + 2 + width) if fits else (lines + 1, width)
    return lines <= num_lines


def legend(
    by: ColorBy, sessions: Sequence[Session], lit: str | None = None, marked: str | None = None
) -> list[LegendEntry]:
    """Return all entries of the legend; the arguments are those of `legend_entries`."""
    # The run with the most kinds of layers, and with prefix caching, needs the most entries.
    session = max(sessions, key=lambda each: (len(each.replay.groups), each.recording.meta.prefix_caching))
    caches = session.recording.meta.prefix_caching
    kept = [_state(SlotState.CACHED)] if caches else []
    reserved, free = _state(SlotState.RESERVED), _state(SlotState.FREE)
    match by:
        case ColorBy.OWNER:
            sharing_too = [((SHARED,), _shared_words(session)), *kept] if caches else []
            owners = _owner_hue_entries(sessions, lit)
            if not all(tells_owners(each.recording) for each in sessions):
                marks: list[LegendEntry] = [((PARTLY,), "partly reserved"), reserved, *_waste_entries(sessions)]
                after: list[LegendEntry] = [*kept, ((NEXT,), "next to be allocated"), free]
                return [*owners, *_token_entries(marked), *sharing_too[:1], *marks, *after]
            return [*owners, *_waste_entries(sessions), reserved, *sharing_too, free]
        case ColorBy.STATE:
            followed = [] if lit is None else _lit_and_others(lit)
            return [*followed, _state(SlotState.TOKEN), *_waste_entries(sessions), reserved, *kept, free]
        case ColorBy.LAYERS:
            kinds = layer_kinds(session.replay)
            followed = [] if lit is None else _lit_and_others(lit)
            entries: list[LegendEntry] = [((kind.paint,), kind.words) for kind in kinds]
            return [*followed, *entries, *_waste_entries(sessions), reserved, *kept, free]
        case ColorBy.SHARING:
            degrees = (HOLDERS, HOLDERS + 1, HOLDERS + 3, HOLDERS + 5)
            followed = [] if lit is None else _lit_and_others(lit)
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
                *([] if lit is None else _lit_and_others(lit)),
                ((AGE + AGES - 1,), "just taken"),
                (ages, ""),
                ((AGE,), f"held for {seconds(oldest_s / 2, oldest_s / 100)} and more"),
                free,
            ]


def _owner_hue_entries(sessions: Sequence[Session], lit: str | None) -> list[LegendEntry]:
    """Return the entries for the hues of owners.

    If only request `lit` is in colour, return its entry and those of the grey others.
    """
    hues = tuple(range(OWNER, OWNER + 4))
    if lit is not None:
        known = next(session.recording for session in sessions if lit in session.recording.requests.id)
        return _lit_and_others(lit, OWNER + hue_of(known.row_of(lit)))
    if not any(tells_owners(session.recording) for session in sessions):
        return []
    few = len(sessions[0].recording.requests) <= NUM_HUES
    named = _named_owners(sessions) if few else None
    return [(hues, "one request each" if few else "requests")] if named is None else named


def _token_entries(words: str | None) -> list[LegendEntry]:
    """Return the entries for tokens if there are too few hues.

    `words` describe the request with its own colour, if any.
    """
    tokens = (int(SlotState.TOKEN),)
    if words is None:
        return [(tokens, "tokens")]
    return [((FOLLOWED,), words), ((FOLLOWED_SHARED,), "its shared blocks"), (tokens, "tokens of others")]


def _named_owners(sessions: Sequence[Session]) -> list[LegendEntry] | None:
    owners = {}
    for session in sessions:
        for request in session.replay.live_requests().tolist():
            if session.recording.requests.prompt_tokens[request]:  # not the padding at the end of a row
                owners[session.request_name(request)] = OWNER + hue_of(request)
    return [((owners[name],), name) for name in sorted(owners)] if len(owners) <= _MOST_OWNERS else None


def _lit_and_others(name: str, *paints: int) -> list[LegendEntry]:
    """Return the legend's entries while only `name` is in colour: one with its `paints`, two for the grey others."""
    return [
        (paints, name if paints else f"{name} alone in colour"),
        ((int(SlotState.TOKEN) + DIM,), "all others"),
        ((_UNWRITTEN,), "others, unwritten"),
    ]


def _waste_entries(sessions: Sequence[Session]) -> list[LegendEntry]:
    """Return the entries for the states of waste that can occur in the recordings, in the order of the bars."""
    static = [session.recording.meta.policy_name == "static" for session in sessions]
    windows = any(len(session.replay.groups) > 1 for session in sessions)
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
    """Describe what is saved now: `sharing ×2.4, with 1,587 blocks in place of 3,763`. Empty if nothing is shared."""
    held, stands_for = _num_held_and_entries(session)
    if stands_for <= held:
        return ""
    return f"sharing ×{stands_for / held:.1f}, with {plural(held, session.unit_name)} in place of {stands_for:,}"


def _shared_words(session: Session) -> str:
    held, stands_for = _num_held_and_entries(session)
    return f"shared, saves {plural(stands_for - held, session.unit_name)}"


def _num_held_and_entries(session: Session) -> tuple[int, int]:
    """Return the number of held units, and the number of entries in all block tables (a shared unit has several)."""
    refs = session.replay.refs
    return int((refs > 0).sum()), int(refs.sum())
