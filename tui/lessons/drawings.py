"""Drawings of a lesson beside the pool: what a step reads and when it runs, a block table, a ladder, a schedule.

A drawing is lines of styled characters, the same on the screen, in text and in figures.
"""

from __future__ import annotations

from enum import Enum
from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from rich.segment import Segment
from rich.style import Style

from kvsim.display.palette import mixed
from kvsim.memory.waste import SlotState
from kvsim.models.image_rules import MARKS

from ..facts.owners import holdings
from ..facts.schedule import Doing, schedule
from ..facts.tree_runs import ago, tree_at
from ..look.wording import gib, milliseconds, plural
from ..pool.colors import paint_of
from ..pool.paint import OWNER, hue_of, paint_colors, paint_glyphs
from ..pool.swatches import swatch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.experiments.rungs import Climbed
    from kvsim.metrics.fleet_totals import FleetTotals
    from kvsim.steptime import StepTime

    from ..facts.step_cost import StepCost
    from ..look.states import Symbols
    from ..playback.session import Session
    from .beside_figures import Drafted

Lines: TypeAlias = "list[list[Segment]]"


class Drawing(Enum):
    """Drawings that a caption may have; the values are used in lesson files."""

    READS = "reads"
    """Bytes that one step reads."""
    LAUNCHES = "launches"
    """Host and GPU during one step, launched kernel by kernel and as a captured graph."""
    TABLE = "table"
    """Block table of the followed request."""
    LADDER = "ladder"
    """Throughput of each rung, and its cost."""
    MEMORY = "memory"
    """Throughput of the lesson's rungs with the given memory, and with memory for all requests at once."""
    HITS = "hits"
    """Share of prompt tokens that each run finds in its cache, by the size of the memory."""
    FLEETS = "fleets"
    """Hits, memory held twice, imbalance and time of each fleet."""
    REMEDIES = "remedies"
    """Time, tokens computed twice and waits with each remedy against preemptions."""
    DRAFTS = "drafts"
    """Steps until the pool runs out and the time, with drafts and without."""
    IMAGE = "image"
    """Slots of the blocks, and of the encoder cache, that one image takes."""
    TREE = "tree"
    """Runs of the radix tree: who locks each, and in which order leaves can go."""
    SCHEDULE = "schedule"
    """Time in which each request waits and runs."""

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
_LABEL: Final = 17
_RUNG: Final = 26
_DRAFTS: Final = 32
_NAME: Final = 3
_RUN, _PART = 15, 14
_SIZE: Final = 14
_BAR: Final = "▆"
"""Character of the bars of a schedule."""


class Pen:
    """Writes texts and bars with `symbols`."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        # Seven eighths of a line, so that the bars of neighbouring lines stay apart.
        self._full = symbols.up[-2] if symbols.right else symbols.up[-1]

    def text(self, words: str, *, weak: bool = False) -> Segment:
        """Return `words` in the colour of text; with `weak`, in a weaker colour."""
        palette = self.symbols.palette
        return Segment(words, Style(color=palette.free_glyph if weak else palette.ink))

    def bar(self, share: float, width: int, color: str) -> Segment:
        """Return a bar that fills a `share` of `width` characters; less than half a character is a thin line."""
        cells = round(share * width)
        bar = self._full * cells if cells or not share else self.symbols.right[1:2] or self.symbols.states[-1]
        return Segment(bar.ljust(width)[:width], Style(color=color))

    def pieces(self, busy: Sequence[bool], color: str) -> Segment:
        """Return a bar with a full character where `busy`, else a blank."""
        return Segment("".join(self._full if is_busy else " " for is_busy in busy), Style(color=color))


def reads(cost: StepCost, width: int, symbols: Symbols) -> Lines:
    """Draw the bytes of weights, keys and values that a decode step reads, on one scale, with the time of each."""
    pen, states = Pen(symbols), symbols.palette.states
    rows = (
        ("weights", cost.weight_bytes, cost.weights_s, symbols.palette.kinds[0]),
        ("keys and values", cost.kv_bytes, cost.kv_s, states[SlotState.TOKEN]),
    )
    most = max(num_bytes for _, num_bytes, _, _ in rows)
    room = max(width - _LABEL - 21, 8)
    return [
        [
            pen.text(label.ljust(_LABEL)),
            pen.bar(num_bytes / max(most, 1), room, color),
            pen.text(f" {gib(round(num_bytes)):>8} in {_ms(time_s)}"),
        ]
        for label, num_bytes, time_s, color in rows
    ] + [
        [
            pen.text("tokens computed".ljust(_LABEL)),
            pen.text(f"{cost.num_sequences}, one for {plural(cost.num_sequences, 'running request')}", weak=True),
        ],
        [
            pen.text("the whole step".ljust(_LABEL)),
            pen.text(
                f"{_ms(cost.captured.alone_s)}: reading {_ms(cost.reading_s)}, other GPU work "
                f"{_ms(cost.gpu_s - cost.reading_s)}, host {_ms(cost.captured.alone_s - cost.gpu_s)}",
                weak=True,
            ),
        ],
    ]


def _ms(time_s: float) -> str:
    return "<0.1 ms" if 0 < time_s < 5e-5 else f"{time_s * 1e3:.1f} ms"


def launches(cost: StepCost, width: int, symbols: Symbols) -> Lines:
    """Draw the host and the GPU during one step on one axis of time, for both ways to launch it."""
    pen = Pen(symbols)
    room = max(width - 8, 8)
    most_s = max(cost.eager.alone_s, cost.captured.alone_s, 1e-9)
    lines: Lines = []
    for words, time in (("kernel by kernel", cost.eager), ("captured graph", cost.captured)):
        gap_s = max(time.alone_s - time.gpu_s, 0.0)
        idle = f"the GPU works {time.gpu_s * 1e3:.1f} ms and waits {gap_s * 1e3:.1f} ms"
        lines.append([pen.text(f"{words}: {time.alone_s * 1e3:.1f} ms a step; "), pen.text(idle, weak=True)])
        lines += _clocks(time, most_s, room, pen)
    return lines


def _clocks(time: StepTime, most_s: float, room: int, pen: Pen) -> Lines:
    """Draw the busy times of host and GPU during a step.

    The GPU is busy for part of the time between its first and last kernel: busy columns are spread evenly over it.
    """
    palette = pen.symbols.palette
    column_s = most_s / room
    columns_s = [(column + 0.5) * column_s for column in range(room)]
    done_s = time.alone_s - time.turnaround_s
    host = [at_s < time.launch_s or done_s <= at_s < time.alone_s for at_s in columns_s]
    begin, end = round(time.prepare_s / column_s), round(done_s / column_s)
    share = min(time.gpu_s / max(done_s - time.prepare_s, 1e-9), 1.0)
    gpu = [begin <= at < end and round((at - begin + 1) * share) > round((at - begin) * share) for at in range(room)]
    return [
        [pen.text("  host  "), pen.pieces(host, palette.free_glyph)],
        [pen.text("  GPU   "), pen.pieces(gpu, palette.kinds[0])],
    ]


def table(session: Session, request: int, width: int, symbols: Symbols) -> Lines:
    """Draw the block table of a request: an arrow from every logical block to its place in the pool, and its slots."""
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
                pen.text(f" {_written(written, replay.unit_tokens)}", weak=True),
            ]
        )
    return lines


def _written(written: int, num_slots: int) -> str:
    """Return which slots of a block are written: `8 of 16 slots written, not 9 to 16`."""
    rest = f", not {written + 1} to {num_slots}" if written < num_slots else ""
    return f"{written} of {num_slots} slots written{rest}"


def holders(session: Session, width: int, symbols: Symbols, height: int) -> Lines:
    """Draw a bar for each request that holds memory, the largest first, as a share of the pool; then waiting requests.

    If there are more than `height` holders, the last line is about all remaining holders.
    """
    pen, replay = Pen(symbols), session.replay
    owners = [owner for group in holdings(session) for owner in group.owners]
    owners.sort(key=lambda owner: -owner.num_units)
    room, lines = max(width - _LABEL - _PART - 1, 8), list[list[Segment]]()
    for owner in owners[: height - (len(owners) > height)]:
        color = paint_colors(symbols.palette)[paint_of(session, owner.request)]
        bar = pen.bar(owner.num_units / replay.num_units, room, color)
        words = plural(owner.num_units, session.unit_name).rjust(_PART)
        name = session.request_name(owner.request)[: _LABEL - 1].ljust(_LABEL)
        lines.append([pen.text(name), pen.text(f"{words} "), bar])
    if rest := owners[len(lines) :]:
        in_all = plural(sum(owner.num_units for owner in rest), session.unit_name)
        lines.append([pen.text(f"{len(rest):,} more".ljust(_LABEL)), pen.text(f"{in_all} together", weak=True)])
    for request in replay.waiting_requests()[: height - len(lines)].tolist():
        name = session.request_name(request)[: _LABEL - 1].ljust(_LABEL)
        lines.append([pen.text(name), pen.text("waits", weak=True)])
    return lines


def ladder(climbed: Sequence[Climbed], width: int, symbols: Symbols, height: int) -> Lines:
    """Draw the throughput of every rung as a bar, with its gain and, if `height` has room, its cost and a gap."""
    pen, most = Pen(symbols), max(rung.tokens_per_s for rung in climbed)
    room = max(width - _RUNG - 26, 8)
    lines: Lines = []
    for number, rung in enumerate(climbed):
        gain = f"{symbols.times}{rung.gain:.2f}" if number else ""
        lines.append(
            [
                pen.text(f"{number + 1} {rung.name}".ljust(_RUNG)),
                pen.bar(rung.tokens_per_s / most, room, symbols.palette.kinds[0]),
                pen.text(f" {rung.tokens_per_s:>6,.0f} tokens/s{gain:>8}"),
            ]
        )
        if 2 * len(climbed) <= height:
            cost = f"cost: {_COSTS[rung.name]}"
            texts = (
                f"{rung.change}; {rung.mean_batch:.1f} at a time on average; {cost}",
                f"{rung.change}; {cost}",
                cost,
            )
            words = next((text for text in texts if len(text) + 2 <= width), cost)
            lines.append([pen.text(f"  {words}", weak=True)])
        if 3 * len(climbed) <= height and number + 1 < len(climbed):
            lines.append([])
    return lines


def memory(climbed: Sequence[Climbed], width: int, symbols: Symbols, height: int) -> Lines:
    """Draw two bars for each of the rungs 2 to 4: tokens a second with this memory, and with memory for all requests.

    At the end of the bars is the factor by which the last of these rungs gives more. An empty line separates rungs if
    `height` has room.
    """
    pen, rungs = Pen(symbols), climbed[1:4]
    most = max(rung.ample_tokens_per_s for rung in rungs)
    room, last = max(width - _LABEL - _PART - 32, 8), rungs[-1]
    lines: Lines = []
    for number, rung in enumerate(rungs, start=2):
        if lines and 3 * len(rungs) <= height:
            lines.append([])
        rates = (
            ("this memory", rung.tokens_per_s, last.tokens_per_s),
            ("memory for all", rung.ample_tokens_per_s, last.ample_tokens_per_s),
        )
        for nth, (label, rate, of_last) in enumerate(rates):
            name = f"{number} {rung.name}" if not nth else ""
            factor = f"; {last.name} {symbols.times}{of_last / rate:.2f}" if rung is not last else ""
            lines.append(
                [
                    pen.text(name.ljust(_LABEL)),
                    pen.text(label.ljust(_PART + 1), weak=True),
                    pen.bar(rate / most, room, symbols.palette.kinds[nth]),
                    pen.text(f" {rate:>6,.0f} tokens/s{factor}"),
                ]
            )
    return lines


def hits(
    found: Sequence[tuple[int, Sequence[float]]], labels: Sequence[str], width: int, symbols: Symbols, height: int
) -> Lines:
    """Draw the shares of prompt tokens `found` in the cache: a bar for each label, for each size of the memory.

    The longest bar takes the whole width. An empty line separates sizes if `height` has room.
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
    """Draw the runs of the radix tree, indented below their parents: slots, holders, and the order of eviction.

    The last line counts the slots that are in no run yet, or the remaining runs if there are more than `height`.
    """
    pen, found, states = Pen(symbols), tree_at(session), symbols.palette.states
    most, room = max(run.num_units for run in found.runs), max(width - _RUN - _PART - 42, 8)
    lines: Lines = []
    for run in found.runs[: height - (len(found.runs) > height)]:
        name, color = session.request_name(run.last_request), states[SlotState.CACHED]
        part = "prompt" if run.begin < session.recording.requests.prompt_tokens[run.last_request] else "answer"
        if run.holders:
            color = states[SlotState.TOKEN]
            words = f"locked by {', '.join(session.request_name(row) for row in run.holders)}"
        elif run in found.leaves:
            place = found.leaves.index(run)
            color = symbols.palette.changes[3] if not place else color
            order = f"can go, as number {place + 1}" if place else "goes first"
            words = f"{order}: used {ago(session, run.used_frame)}"
        else:
            words = "stays while others are below it"
        lead = "  " * run.depth + ("└ " if run.depth and not symbols.ascii else "")
        lines.append(
            [
                pen.text(f"{lead}{plural(run.num_units, 'slot')}".ljust(_RUN)),
                pen.bar(run.num_units / most, room, color),
                pen.text(f" {part} of {name}".ljust(_PART), weak=True),
                Segment(words, Style(color=color)),
            ]
        )
    if rest := found.runs[len(lines) :]:
        in_all = plural(sum(run.num_units for run in rest), "slot")
        lines.append([pen.text(f"{len(rest)} more runs".ljust(_RUN)), pen.text(f"{in_all} together", weak=True)])
    elif (outside := len(session.replay.occupied()) - found.num_units) and len(lines) < height:
        bar = pen.bar(outside / most, room, states[SlotState.TOKEN])
        where = pen.text(" in no run yet: answers that are being written")
        lines.append([pen.text(plural(outside, "slot").ljust(_RUN)), bar, where])
    return lines


def fleets(totals: Mapping[str, FleetTotals], width: int, symbols: Symbols, height: int) -> Lines:
    """Draw bars for each fleet: prefix hits, prefixes cached on two servers, imbalance of the work, and total time.

    An empty line separates these if `height` has room.
    """
    pen, room = Pen(symbols), max(width - _LABEL - 14, 8)
    first = next(iter(totals.values()))
    found = {label: one.prefix_hit_rate for label, one in totals.items()}
    one_pool = {"one endless pool": first.one_pool_hit_tokens / max(first.prefix_queried_tokens, 1)}
    parts: tuple[tuple[str, Mapping[str, float], Callable[[float], str]], ...] = (
        ("prompt tokens found in a cache", found | one_pool, lambda share: f"{100 * share:.0f}%"),
        (
            "cached prefixes that another server holds, too, on average",
            {label: one.mean_duplicate_bytes for label, one in totals.items()},
            lambda num_bytes: gib(round(num_bytes)) if num_bytes else "nothing",
        ),
        (
            "tokens that the busier server computed, as a multiple of the mean of both",
            {label: one.imbalance for label, one in totals.items()},
            lambda factor: f"{symbols.times}{factor:.2f}",
        ),
        ("time until the last answer", {label: one.duration_s for label, one in totals.items()}, milliseconds),
    )
    lines: Lines = []
    num_lines = sum(1 + len(values) for _, values, _ in parts)
    for title, values, words in parts:
        if lines and num_lines + len(parts) - 1 <= height:
            lines.append([])
        lines += [[pen.text(title, weak=True)]]
        most = max(values.values()) or 1.0
        for nth, (label, value) in enumerate(values.items()):
            color = symbols.palette.kinds[nth % 2] if label in totals else symbols.palette.free_glyph
            bar = pen.bar(value / most, room, color)
            lines.append([pen.text(label[: _LABEL - 1].ljust(_LABEL)), bar, pen.text(f" {words(value):>12}")])
    return lines


class Remedied(NamedTuple):
    """The lesson's requests on a changed server."""

    name: str
    duration_s: float
    """Time until the last answer in seconds."""
    tokens_twice: int
    """Tokens that were computed again after a preemption."""
    longest_wait_s: float
    """Longest time from an arrival to the first step, in seconds."""
    memory: float
    """Memory of the pool, as a multiple of the lesson's."""


def remedies(tried: Sequence[Remedied], width: int, symbols: Symbols) -> Lines:
    """Draw the time until the last answer with each remedy as a bar, and the remedy's cost below the bar."""
    pen, most = Pen(symbols), max(remedy.duration_s for remedy in tried)
    room = max(width - _RUNG - 10, 8)
    lines: Lines = []
    for remedy in tried:
        bar = pen.bar(remedy.duration_s / most, room, symbols.palette.kinds[0])
        lines.append([pen.text(remedy.name.ljust(_RUNG)), bar, pen.text(f" {milliseconds(remedy.duration_s):>9}")])
        words = (
            f"  {plural(remedy.tokens_twice, 'token')} computed twice {symbols.dot} longest wait for a start "
            f"{milliseconds(remedy.longest_wait_s)} {symbols.dot} memory {symbols.times}{remedy.memory:g}"
        )
        lines.append([pen.text(words, weak=True)])
    return lines


def drafts(tried: Sequence[Drafted], width: int, symbols: Symbols) -> Lines:
    """Draw the steps before the first preemption with drafts and without, and the times until the last answer."""
    pen, most = Pen(symbols), max(result.steps for result in tried)
    heads = ("pool runs out", "last answer")
    room = max(width - _DRAFTS - sum(len(head) + 2 for head in heads), 8)
    heading = "".join(f"  {head}" for head in heads)
    lines: Lines = [[pen.text(" " * (_DRAFTS + room) + heading, weak=True)]]
    for result in tried:
        bar = pen.bar(result.steps / most, room, symbols.palette.kinds[0])
        cells = (f"at step {result.steps:,}", f"at {milliseconds(result.duration_s)}")
        figures = "".join(f"  {cell:>{len(head)}}" for cell, head in zip(cells, heads, strict=True))
        lines.append([pen.text(result.name.ljust(_DRAFTS)), bar, pen.text(figures)])
    return lines


def image(num_tokens: int, cache_tokens: int, block_slots: int, width: int, symbols: Symbols) -> Lines:
    """Draw the tokens of an image in their blocks and in the encoder cache, on one scale; lines show the free slots."""
    pen, color = Pen(symbols), symbols.palette.states[SlotState.TOKEN]
    room = max(width - _LABEL, 8)
    num_slots = -(-(num_tokens + MARKS) // block_slots) * block_slots
    rows = (
        (
            "blocks",
            num_tokens + MARKS,
            num_slots,
            f"{num_tokens + MARKS:,} of {num_slots:,} slots: stay to the end of the answer",
        ),
        (
            "encoder cache",
            num_tokens,
            cache_tokens,
            f"{num_tokens:,} of {cache_tokens:,} tokens: go once the last is read",
        ),
    )
    lines: Lines = []
    for label, written, size, words in rows:
        begin, end = (max(round(slots / max(num_slots, cache_tokens) * room), 1) for slots in (written, size))
        free = pen.text(symbols.track * (end - begin), weak=True)
        lines += [
            [pen.text(label.ljust(_LABEL)), pen.bar(1, begin, color), free],
            [pen.text(" " * _LABEL + words, weak=True)],
        ]
    return lines


def timetable(session: Session, end_s: float, clock_s: float, width: int, symbols: Symbols) -> Lines:
    """Draw a line for each request from 0 to `end_s` seconds: it waits, runs, or is padding; a line marks the clock."""
    pen, room = Pen(symbols), max(width - _NAME, 1)
    colors, glyphs = paint_colors(symbols.palette), paint_glyphs(symbols)
    clock = min(int(clock_s / end_s * room), room - 1)
    cursor = Segment("│" if not symbols.ascii else symbols.dot, Style(color=symbols.palette.cursor))

    def under_clock(look: Segment) -> Segment:
        color = look.style.color if look.style and symbols.color and look.text == _BAR else None
        tinted = Style(color=mixed(color.get_truecolor().hex, symbols.palette.cursor, 0.6)) if color else None
        return Segment(_BAR, tinted) if tinted else cursor

    lines: Lines = []
    for request, line in enumerate(schedule(session, room, end_s).tolist()):
        looks = {Doing.NOTHING: pen.text(" "), Doing.WAITING: pen.text(symbols.track, weak=True)}
        if symbols.color:
            looks[Doing.RUNNING] = Segment(_BAR, Style(color=colors[OWNER + hue_of(request)]))
            looks[Doing.IDLE] = Segment(_BAR, Style(color=colors[SlotState.PADDING]))
        else:
            looks[Doing.RUNNING] = pen.text(glyphs[OWNER + hue_of(request)])
            looks[Doing.IDLE] = swatch(SlotState.PADDING, symbols)
        parts = [pen.text(session.request_name(request)[:_NAME].ljust(_NAME))]
        marked = [looks[Doing(doing)] for doing in line]
        marked[clock] = under_clock(marked[clock])
        for (text, style), run in groupby(marked, key=lambda segment: segment[:2]):
            parts.append(Segment(text * len(list(run)), style))
        lines.append(parts)
    return lines
