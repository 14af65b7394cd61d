"""Drawings of a lesson: their names, and functions that draw them.

The functions draw the tables of requests, servers that each have one more optimization (`ladder` and `memory`), fleets,
and an image in a prompt.

A drawing is lines of styled characters, the same on the screen, in text and in figures.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np

from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_NAMES
from kvsim.models.image_rules import MARKS

from ..facts.owners import holdings
from ..look.states import STACK
from ..look.wording import bytes_text, milliseconds, percent, plural
from ..pool.colors import paint_of
from ..pool.paint import OWNER, hue_of, paint_colors
from ..pool.swatches import swatch
from .pen import Lines, Pen

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from kvsim.experiments.rungs import RungResult
    from kvsim.metrics.fleet_totals import FleetTotals

    from ..look.states import Symbols
    from ..playback.session import Session


class Drawing(Enum):
    """Drawings that a caption may have. The values are used in lesson files."""

    READS = "reads"
    """Bytes that one step reads, and the parts of its time."""
    LAUNCHES = "launches"
    """Host and GPU during one step, launched kernel by kernel and as a captured graph."""
    TABLE = "table"
    """Block table of the followed request."""
    LADDER = "ladder"
    """Throughput of servers that each have one more optimization than the one before, and what each optimization costs.
    """
    MEMORY = "memory"
    """Throughput of the second to fourth server of `LADDER` with the GPU memory of the lesson and with memory for all
    requests, and how the memory was used.
    """
    HITS = "hits"
    """Share of prompt tokens that each run finds in its cache, by the size of the memory."""
    FLEETS = "fleets"
    """Prefix hits, times and imbalance of each fleet, and the prefixes that it holds twice."""
    REMEDIES = "remedies"
    """Time, tokens computed twice and waits with each remedy against preemptions."""
    DRAFTS = "drafts"
    """Steps until the pool runs out, held blocks and the time, with drafts and without."""
    IMAGE = "image"
    """Slots that one image takes in blocks and in the encoder cache, and for how long."""
    TREE = "tree"
    """Nodes of the radix tree: who locks each, in which order they are evicted, and what was found of a prompt."""
    SCHEDULE = "schedule"
    """Times in which each request waits and runs."""

    @property
    def stands_alone(self) -> bool:
        """True if text output shows the drawing instead of the pool."""
        return self not in (Drawing.TABLE, Drawing.SCHEDULE)


_COSTS: Final = {
    "one by one": "every token reads all weights",
    "static": "all wait for the longest",
    "contiguous": "mostly empty memory",
    "paged": "block tables; preemptions",
    "prefix cache": "a hash of every full block",
    "chunked prefill": "a prompt in pieces ends later",
    "captured graphs": "GPU memory, and time at the start",
    "asynchronous scheduling": "an answer's end is seen a step late",
}
_LABEL: Final = 19
_RUNG: Final = 26
_COUNT: Final = 20
_VALUE: Final = 21
"""Width in characters of the text behind a bar, in the drawing of memory."""
_FIGURE_NAME_WIDTH, _FLEET_NAME_WIDTH = 26, 17
"""Widths in characters of the names of figures and of fleets, in the drawing of fleets."""
_PHASES: Final = ("image encoded", "image read", "text read", "answer")


def table(session: Session, request: int, width: int, symbols: Symbols) -> Lines:
    """Draw the block table of a request: arrows from logical blocks to their places in the pool, and their slots."""
    pen, replay = Pen(symbols), session.replay
    positions, addresses = replay.block_table(request)
    slots, color = replay.slots(), paint_colors(symbols.palette)[OWNER + hue_of(request)]
    arrow = symbols.track * min(max(width - 80, 0), 14) + symbols.arrow
    lines: Lines = []
    for position, address in sorted(zip(positions.tolist(), addresses.tolist(), strict=True)):
        written = int(slots[address - replay.first_unit, SlotState.TOKEN])
        lines.append(
            [
                pen.text(f"logical block {position} {arrow} block {address:<2} "),
                pen.bar(written / replay.unit_tokens, replay.unit_tokens, color),
                pen.text(f" {_written_words(written, replay.unit_tokens)}", weak=True),
            ]
        )
    return lines


def _written_words(written: int, num_slots: int) -> str:
    """Return in words which slots of a block are written: `8 of 16 slots written, not 9 to 16`."""
    rest = f", not {written + 1} to {num_slots}" if written < num_slots else ""
    return f"{written} of {num_slots} slots written{rest}"


def holders(session: Session, width: int, symbols: Symbols, height: int) -> Lines:
    """Draw the share of the pool of each request that holds memory, the largest first, then name waiting requests.

    If there are more than `height` holders, the last line is about all that do not fit.
    """
    pen, replay = Pen(symbols), session.replay
    owners = [owner for group in holdings(session) for owner in group.owners]
    owners.sort(key=lambda owner: -owner.num_units)
    pool = plural(replay.num_units, session.unit_name)
    room = max(width - _LABEL - _COUNT - 1, 8)
    lines: Lines = []
    for owner in owners[: height - (len(owners) > height)]:
        color = paint_colors(symbols.palette)[paint_of(session, owner.request)]
        bar = pen.bar(owner.num_units / replay.num_units, room, color)
        words = f"{owner.num_units:,} of {pool}".rjust(_COUNT)
        name = session.request_name(owner.request)[: _LABEL - 1].ljust(_LABEL)
        lines.append([pen.text(name), pen.text(f"{words} "), bar])
    if rest := owners[len(lines) :]:
        in_all = plural(sum(owner.num_units for owner in rest), session.unit_name)
        lines.append([pen.text(f"{len(rest):,} more".ljust(_LABEL)), pen.text(f"{in_all} together", weak=True)])
    for request in replay.waiting_requests()[: height - len(lines)].tolist():
        name = session.request_name(request)[: _LABEL - 1].ljust(_LABEL)
        lines.append([pen.text(name), pen.text("waits", weak=True)])
    return lines


def ladder(climbed: Sequence[RungResult], width: int, symbols: Symbols, height: int) -> Lines:
    """Draw the throughput of each server of `climbed` as a bar. Each has one more optimization than the one before.

    Beside a bar is its gain over the bar above. If `height` has room, the cost of the optimization follows, and a gap.
    """
    pen, most = Pen(symbols), max(rung.tokens_per_s for rung in climbed)
    room, per_rung = max(width - _RUNG - 26, 8), height // len(climbed)
    lines: Lines = []
    for number, rung in enumerate(climbed):
        gain = f"{symbols.times}{rung.gain:.2f}" if number else ""
        bar = [
            pen.text(f"{number + 1} {_rung_name(rung.name)}".ljust(_RUNG)),
            pen.bar(rung.tokens_per_s / most, room, symbols.palette.kinds[0]),
            pen.text(f" {rung.tokens_per_s:>6,.0f} tokens/s{gain:>8}"),
        ]
        lines += pen.thick(bar, max(per_rung - 2, 1))
        if per_rung > 1:
            cost = f"cost: {_COSTS[rung.name]}"
            texts = (
                f"{rung.change}; {rung.mean_batch:.1f} at a time on average; {cost}",
                f"{rung.change}; {cost}",
                cost,
            )
            words = next((text for text in texts if len(text) + 2 <= width), cost)
            lines.append([pen.text(f"  {words}", weak=True)])
        if per_rung > 2 and number + 1 < len(climbed):
            lines.append([])
    return lines


def _rung_name(rung: str) -> str:
    return {"static": "static batches", "contiguous": "contiguous memory", "paged": "paged memory"}.get(rung, rung)


def memory(
    climbed: Sequence[RungResult], sessions: Sequence[Session], width: int, symbols: Symbols, height: int
) -> Lines:
    """Draw two bars for each of the second to fourth server of `climbed`: tokens a second with the lesson's memory, and
    with memory for all requests.

    The bars of servers 2 and 3 end with the ratio of server 4's throughput to theirs. Below, a bar for each of
    `sessions` shows the mean number of slots in each state. Bars are thick if `height` has room.
    """
    pen, rungs = Pen(symbols), climbed[1:4]
    most, last = max(rung.ample_tokens_per_s for rung in rungs), rungs[-1]
    room = max(width - _LABEL - _COUNT - 1 - _VALUE, 8)
    thick = min(max((height - 7) // (2 * len(rungs)), 1), 3)
    lines: Lines = []
    for rung in rungs:
        if lines and 2 * thick * len(rungs) + 7 <= height:
            lines.append([])
        rates = (
            ("this memory", rung.tokens_per_s, last.tokens_per_s),
            ("memory for all", rung.ample_tokens_per_s, last.ample_tokens_per_s),
        )
        for nth, (label, rate, of_last) in enumerate(rates):
            name = _rung_name(rung.name) if not nth else ""
            factor = f"; {last.name} {symbols.times}{of_last / rate:.2f}" if rung is not last else ""
            bar = [
                pen.text(name.ljust(_LABEL)),
                pen.text(label.ljust(_COUNT + 1), weak=True),
                pen.bar(rate / most, room, symbols.palette.kinds[nth]),
                pen.text(f" {rate:>6,.0f}{factor}"),
            ]
            lines += pen.thick(bar, thick)
    means = [_mean_slots(session) for session in sessions]
    names = [_rung_name(rung.name) for rung in rungs]
    return [*lines, [], *_draw_mean_states(means, names, width, height - len(lines) - 1, pen)]


def _mean_slots(session: Session) -> npt.NDArray[np.float64]:
    """Return the mean number of slots in each state over the time of the run: shape (8,)."""
    times_s = np.append(session.times_s, session.player.duration_s)
    return np.average(session.slots, axis=0, weights=np.maximum(np.diff(times_s), 0.0))


def _draw_mean_states(
    means: Sequence[npt.NDArray[np.float64]], names: Sequence[str], width: int, height: int, pen: Pen
) -> Lines:
    thick = min(max((height - len(means)) // len(means), 1), 3)  # one line less for each bar: the key and the gaps
    gaps = 1 + thick * len(means) + len(means) - 1 <= height
    states = [state for state in STACK if any(slots[state] >= 0.005 * slots.sum() for slots in means)]
    key = [pen.text("memory on average: ", weak=True)]
    for state in states:
        key += [swatch(state, pen.symbols), pen.text(f" {STATE_NAMES[state]}  ", weak=True)]
    lines = [key]
    for name, slots in zip(names, means, strict=True):
        words = f" {percent(int(slots[SlotState.TOKEN]), int(slots.sum()))} tokens"
        bar = pen.states(slots, max(width - _LABEL - _COUNT, 8))
        line = [pen.text(name.ljust(_LABEL)), *bar, pen.text(words)]
        blank = [pen.text(" " * _LABEL), *bar]
        lines += [line if nth == (thick - 1) // 2 else blank for nth in range(thick)]
        lines += [[]] * (gaps and name != names[-1])
    return lines


def fleets(totals: Mapping[str, FleetTotals], width: int, symbols: Symbols, height: int) -> Lines:
    """Draw bars for each fleet: prefix hits, times, imbalance of the work, and prefixes cached on two servers.

    If `height` has room, an empty line separates these figures, and bars are thick.
    """
    pen, room = Pen(symbols), max(width - _FIGURE_NAME_WIDTH - _FLEET_NAME_WIDTH - 12, 8)
    first = next(iter(totals.values()))
    found = {label: one.prefix_hit_rate for label, one in totals.items()}
    one_pool = {"one endless pool": first.one_pool_hit_tokens / max(first.prefix_queried_tokens, 1)}
    parts: tuple[tuple[str, str, Mapping[str, float], Callable[[float], str]], ...] = (
        ("prompt tokens found", "in a cache", found | one_pool, lambda share: f"{100 * share:.0f}%"),
        ("time to first token", "on average", {label: one.ttft_s.mean for label, one in totals.items()}, milliseconds),
        ("time to the last answer", "", {label: one.duration_s for label, one in totals.items()}, milliseconds),
        (
            "busier server computes",
            f"{symbols.times} the mean of both",
            {label: one.imbalance for label, one in totals.items()},
            lambda factor: f"{symbols.times}{factor:.2f}",
        ),
        (
            "cached on both servers",
            "on average",
            {label: one.mean_duplicate_bytes for label, one in totals.items()},
            lambda num_bytes: bytes_text(round(num_bytes)) if num_bytes else "nothing",
        ),
    )
    num_bars = sum(len(values) for _, _, values, _ in parts)
    thick = min(max((height - len(parts) + 1) // num_bars, 1), 3)
    lines: Lines = []
    for title, remark, values, words in parts:
        if lines and num_bars + len(parts) - 1 <= height:
            lines.append([])
        most = max(values.values()) or 1.0
        for nth, (label, value) in enumerate(values.items()):
            color = symbols.palette.kinds[nth % 2] if label in totals else symbols.palette.free_glyph_color
            what = (title, remark, "")[nth]
            bar = [
                pen.text(what.ljust(_FIGURE_NAME_WIDTH), weak=nth > 0),
                pen.text(label[: _FLEET_NAME_WIDTH - 1].ljust(_FLEET_NAME_WIDTH)),
                pen.bar(value / most, room, color),
                pen.text(f" {words(value):>11}"),
            ]
            lines += pen.thick(bar, thick)
    return lines


def image(num_tokens: int, cache_tokens: int, block_slots: int, width: int, symbols: Symbols, height: int) -> Lines:
    """Draw the tokens of an image in KV-cache blocks and in the encoder cache on one scale, and for how long the
    blocks and the cache hold the image.

    Thin strokes show free slots. Bars are thick if `height` has room.
    """
    pen, color = Pen(symbols), symbols.palette.states[SlotState.TOKEN]
    room, thick = max(width - _LABEL, 8), min(max((height - 5) // 4, 1), 4)
    num_slots = -(-(num_tokens + MARKS) // block_slots) * block_slots
    blocks = f"{num_slots // block_slots} blocks: {num_tokens + MARKS:,} of their {num_slots:,} slots"
    rows = (
        ("blocks", num_tokens + MARKS, num_slots, blocks),
        ("encoder cache", num_tokens, cache_tokens, f"{num_tokens:,} tokens; the line has room for {cache_tokens:,}"),
    )
    lines: Lines = []
    for label, written, size, words in rows:
        begin, end = (max(round(slots / max(num_slots, cache_tokens) * room), 1) for slots in (written, size))
        free = pen.text(symbols.track * (end - begin), weak=True)
        lines += pen.thick([pen.text(label.ljust(_LABEL)), pen.bar(1, begin, color), free], thick)
        lines.append([pen.text(" " * _LABEL + words, weak=True)])
    return [*lines, [], *_draw_image_phases(room, thick, pen)]


def _draw_image_phases(room: int, thick: int, pen: Pen) -> Lines:
    """Draw, not to scale, in which phases of a request blocks and encoder cache hold the tokens of its image."""
    each, color = room // len(_PHASES), pen.symbols.palette.states[SlotState.TOKEN]
    names = "".join(phase.ljust(each) for phase in _PHASES)
    lines: Lines = [
        [pen.text("held while (not to scale)", weak=True)],
        [pen.text(" " * _LABEL + names)],
    ]
    for label, phases in (("blocks", len(_PHASES)), ("encoder cache", _PHASES.index("image read") + 1)):
        lines += pen.thick([pen.text(label.ljust(_LABEL)), pen.bar(1, phases * each, color)], thick)
    return lines
