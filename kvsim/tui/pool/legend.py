"""What the colours of the pool mean, in samples and words; and how much sharing saves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style

from kvsim.memory.waste import SlotState

from ..look.words import plural, seconds
from ..pool.paint import AGE, AGES, HOLDERS, KIND_TINT, OWNER, REUSABLE, SHARED, TINT, ColorBy
from ..pool.swatches import outline_swatch, paint_swatch
from .kinds import layer_kinds

if TYPE_CHECKING:
    from ..look.states import Symbols
    from ..playback.session import Session


def legend_entries(
    by: ColorBy, session: Session, symbols: Symbols, style: Style, room: int, *, outlines: bool
) -> list[list[Segment]]:
    """The legend of the pool's colours, with samples; with one of each kind and shorter words where `room` characters
    are few. With `outlines`, cached units are drawn as such in the pictures.
    """
    entries = legend(by, session)
    if _length(entries) > room:
        entries = [(paints[:1], text) for paints, text in entries]
    if _length(entries) > room:
        entries = [(paints, _in_short(text)) for paints, text in entries]
    found = list[list[Segment]]()
    for paints, text in entries:
        segments = [Segment("  ", style)] if found else []
        for paint in paints:
            is_outline = outlines and symbols.color and paint in (REUSABLE, SlotState.CACHED)
            sample = outline_swatch(symbols) if is_outline else paint_swatch(paint, symbols)
            segments.append(Segment(sample.text, style + (sample.style or Style())))
        found.append([*segments, Segment(f" {text}", style)])
    return found


def _length(entries: list[tuple[tuple[int, ...], str]]) -> int:
    return sum(len(paints) + len(text) + 3 for paints, text in entries) - 2


def _in_short(text: str) -> str:
    for words, fewer in (("sliding window", "window"), ("full attention", "full"), ("not written", "unwritten")):
        text = text.replace(words, fewer)
    return text


def legend(by: ColorBy, session: Session) -> list[tuple[tuple[int, ...], str]]:
    """What the paints of the pool mean: samples, and a few words for each."""
    free, cached = (int(SlotState.FREE),), (int(SlotState.CACHED),)
    caches = session.recording.meta.prefix_caching
    expired = [((int(SlotState.EXPIRED),), "expired")] if any(group.window for group in session.replay.groups) else []
    match by:
        case ColorBy.OWNER:
            entries = [
                (tuple(range(OWNER, OWNER + 4)), "one request each"),
                ((TINT, TINT + 1), "not written"),
                ((int(SlotState.INTERNAL),), "waste"),
            ]
            if caches:
                entries += [((SHARED,), f"shared {factor(session)}".strip()), ((REUSABLE,), "cached")]
            return [*entries, (free, "free")]
        case ColorBy.STATE:
            return [((), "colours as in the bar below")]
        case ColorBy.LAYERS:
            kinds = layer_kinds(session.replay)
            entries = [((kind.paint,), kind.words) for kind in kinds]
            entries += [(tuple(KIND_TINT + kind.place for kind in kinds), "not written")]
            return [
                *entries,
                *expired,
                ((int(SlotState.INTERNAL),), "waste"),
                *([(cached, "cached")] if caches else []),
                (free, "free"),
            ]
        case ColorBy.SHARING:
            return [
                ((HOLDERS,), "one holder"),
                ((HOLDERS + 1, HOLDERS + 3, HOLDERS + 5), "2, 8, more"),
                ((), sharing(session) or "no block is shared"),
                (cached, "cached"),
                (free, "free"),
            ]
        case ColorBy.AGE:
            oldest_s = session.player.duration_s / 4
            return [
                ((AGE + AGES - 1,), "just taken"),
                (tuple(range(AGE + AGES - 2, AGE, -1)), ""),
                ((AGE,), f"{seconds(oldest_s / 2, oldest_s / 100)} and older"),
                (free, "free"),
            ]


def sharing(session: Session) -> str:
    """How much sharing saves now: `1,587 blocks in place of 3,763: 2.4×`; empty where nothing is shared."""
    held, stands_for = _held(session)
    if stands_for <= held:
        return ""
    return f"{plural(held, session.unit_name)} in place of {stands_for:,}: {factor(session)}"


def factor(session: Session) -> str:
    """By how much the tables of all requests exceed the blocks in them; empty where nothing is shared."""
    held, stands_for = _held(session)
    return f"{stands_for / held:.1f}×" if stands_for > held else ""


def _held(session: Session) -> tuple[int, int]:
    """Units that are held, and the entries of all tables."""
    refs = session.replay.refs
    return int((refs > 0).sum()), int(refs.sum())
