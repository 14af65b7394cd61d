"""Drawings of one step: what it reads and how long its parts take, and host and GPU while it is launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.memory.waste import SlotState

from ..look.wording import bytes_text, plural
from .pen import Lines, Pen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.segment import Segment

    from kvsim.steptime import StepTime

    from ..facts.step_cost import StepCost
    from ..look.states import Symbols

_LABEL: Final = 17
_CLOCK_NAME_WIDTH: Final = 8
_THICKEST: Final = 5
_PARTS: Final = ("weights", "keys and values", "other GPU work", "host")


def reads(costs: Sequence[StepCost], width: int, symbols: Symbols, height: int) -> Lines:
    """Draw the bytes that the last step of `costs` reads, and the parts of the time of every step, on one axis of time.

    Bars are thick if `height` has room.
    """
    pen, cost = Pen(symbols), costs[-1]
    num_bars = 2 + len(costs)
    thick = min(max((height - 5) // num_bars, 1), _THICKEST)
    rows = (
        ("weights", cost.weight_bytes, cost.weights_s, symbols.palette.kinds[0]),
        ("keys and values", cost.kv_bytes, cost.kv_s, symbols.palette.states[SlotState.TOKEN]),
    )
    most = max(num_bytes for _, num_bytes, _, _ in rows)
    room = max(width - _LABEL - 21, 8)
    lines: Lines = []
    for label, num_bytes, time_s, color in rows:
        words = f" {bytes_text(round(num_bytes)):>8} in {_ms(time_s)}"
        bar = pen.bar(num_bytes / max(most, 1), room, color)
        lines += pen.thick([pen.text(label.ljust(_LABEL)), bar, pen.text(words)], thick)
    tokens = f"{cost.num_sequences}, one for {plural(cost.num_sequences, 'running request')}"
    lines += [[pen.text("tokens computed".ljust(_LABEL)), pen.text(tokens, weak=True)], []]
    return [*lines, _key(pen), *_step_time_bars(costs, width, thick, pen), _whole(cost, pen)]


def _step_time_bars(costs: Sequence[StepCost], width: int, thick: int, pen: Pen) -> Lines:
    colors, most_s = _colors(pen), max(1e-9, *(cost.captured.alone_s for cost in costs))
    room = max(width - _LABEL - 24, 8)
    lines: Lines = []
    for cost in costs:
        parts_s = (cost.weights_s, cost.kv_s, cost.gpu_s - cost.reading_s, cost.captured.alone_s - cost.gpu_s)
        ends = [round(sum(parts_s[: part + 1]) / most_s * room) for part in range(len(parts_s))]
        begins = [0, *ends[:-1]]
        bar = [pen.part(part, ends[part] - begins[part], colors[part]) for part in range(len(parts_s))]
        rate = f"{cost.num_sequences / cost.captured.alone_s:,.0f}" if cost.captured.alone_s else "0"
        words = f"{' ' * (room - ends[-1])} {_ms(cost.captured.alone_s):>7}{rate:>7} tokens/s"
        label = plural(cost.num_sequences, "request").rjust(_LABEL - 2) + "  "
        lines += pen.thick([pen.text(label), *bar, pen.text(words)], thick)
    return lines


def _colors(pen: Pen) -> tuple[str, ...]:
    palette = pen.symbols.palette
    return palette.kinds[0], palette.states[SlotState.TOKEN], palette.kinds[1], palette.free_glyph_color


def _key(pen: Pen) -> list[Segment]:
    entries = [pen.text("time of a step".ljust(_LABEL))]
    for part, (words, color) in enumerate(zip(_PARTS, _colors(pen), strict=True)):
        entries += [pen.part(part, 1, color), pen.text(f" {words}  ", weak=True)]
    return entries


def _whole(cost: StepCost, pen: Pen) -> list[Segment]:
    words = (
        f"{_ms(cost.captured.alone_s)}: reading {_ms(cost.reading_s)}, other GPU work "
        f"{_ms(cost.gpu_s - cost.reading_s)}, host {_ms(cost.captured.alone_s - cost.gpu_s)}"
    )
    return [pen.text("the whole step".ljust(_LABEL)), pen.text(words, weak=True)]


def _ms(time_s: float) -> str:
    return "<0.1 ms" if 0 < time_s < 5e-5 else f"{time_s * 1e3:.1f} ms"


def launches(cost: StepCost, width: int, symbols: Symbols, height: int) -> Lines:
    """Draw the host and the GPU during one step on one axis of time: launched kernel by kernel, and as a graph.

    If `height` has room, bars are thick, and the axis has numbers.
    """
    pen = Pen(symbols)
    room = max(width - _CLOCK_NAME_WIDTH, 8)
    thick = min(max((height - 4) // 4, 1), _THICKEST)
    most_s = max(cost.eager.alone_s, cost.captured.alone_s, 1e-9)
    lines: Lines = []
    for words, time in (("kernel by kernel", cost.eager), ("captured graph", cost.captured)):
        gap_s = max(time.alone_s - time.gpu_s, 0.0)
        idle = f"the GPU works {time.gpu_s * 1e3:.1f} ms and waits {gap_s * 1e3:.1f} ms"
        if lines and thick > 1:
            lines.append([])
        lines.append([pen.text(f"{words}: {time.alone_s * 1e3:.1f} ms a step; "), pen.text(idle, weak=True)])
        lines += [line for clock in _busy_bars(time, most_s, room, pen) for line in pen.thick(clock, thick)]
    if thick > 1:
        end = f"{most_s * 1e3:.1f} ms"
        lines.append([pen.text(" " * _CLOCK_NAME_WIDTH + "0 ms" + end.rjust(max(room - 4, 0)), weak=True)])
    return lines


def _busy_bars(time: StepTime, most_s: float, room: int, pen: Pen) -> Lines:
    """Draw the busy times of host and GPU during a step, without the host's few microseconds after it, on an axis of
    `most_s` seconds.

    Only the sum of the GPU's busy time between its first and last kernel is known, so busy columns are spread evenly.
    """
    palette = pen.symbols.palette
    column_s = most_s / room
    columns_s = [(column + 0.5) * column_s for column in range(room)]
    done_s = time.alone_s - time.turnaround_s
    host = [at_s < time.launch_s for at_s in columns_s]
    begin, end = round(time.prepare_s / column_s), round(done_s / column_s)
    share = min(time.gpu_s / max(done_s - time.prepare_s, 1e-9), 1.0)
    gpu = [begin <= at < end and round((at - begin + 1) * share) > round((at - begin) * share) for at in range(room)]
    return [
        [pen.text("  host".ljust(_CLOCK_NAME_WIDTH)), pen.pieces(host, palette.free_glyph_color)],
        [pen.text("  GPU".ljust(_CLOCK_NAME_WIDTH)), pen.pieces(gpu, palette.kinds[0])],
    ]
