"""One step as a bar of time: reading weights, reading keys and values, the rest of the GPU's work, and the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from kvsim.memory.waste import SlotState

from ..look.words import gigabytes
from .panel import Panel

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..facts.step_cost import StepCost
    from ..look.states import Symbols
    from ..playback.session import Session

_LABEL_WIDTH = 18
_VALUE_WIDTH = 9


class StepPanel(Panel):
    """A decode step with the sequences of the current frame, launched as a captured graph and kernel by kernel."""

    def __init__(self, session: Session, symbols: Symbols, cost: Callable[[Session], StepCost]) -> None:
        super().__init__(session, symbols, id="step")
        self._cost = cost
        self.border_title = "one step: where its time goes"

    def write(self) -> list[Strip]:
        """Write both ways to launch the step on one scale, then its parts."""
        cost = self._cost(self.session)
        rest_s = max(cost.gpu_s - cost.weights_s - cost.kv_s, 0.0)
        parts = (cost.weights_s, cost.kv_s, rest_s)
        weights, kv = gigabytes(cost.weight_bytes), gigabytes(cost.kv_bytes)
        return [
            self._bar("captured graph", (*parts, cost.captured_s - cost.gpu_s), cost.eager_s),
            self._bar("kernel by kernel", (*parts, cost.eager_s - cost.gpu_s), cost.eager_s),
            self._legend([(0, f"reads {weights} of weights", cost.weights_s), (1, f"reads {kv} of KV", cost.kv_s)]),
            self._legend([(2, "kernels start, compute, end", rest_s), (3, "waits for the host", None)]),
        ]

    def _looks(self, part: int) -> tuple[str, Style]:
        """Return the character and the style of a part of the bar."""
        palette = self.symbols.palette
        color = (
            palette.hues[5],
            palette.states[SlotState.TOKEN],
            palette.states[SlotState.CACHED],
            palette.states[SlotState.INTERNAL],
        )[part]
        return ("\u2588" if self.symbols.color else "WKGH"[part]), Style(color=color)

    def _bar(self, label: str, parts_s: tuple[float, ...], most_s: float) -> Strip:
        room = max(self.size.width - _LABEL_WIDTH - _VALUE_WIDTH, 4)
        segments = [self.text(label.ljust(_LABEL_WIDTH), "label")]
        at_s = 0.0
        for part, part_s in enumerate(parts_s):
            begin, end = (round(time_s / max(most_s, 1e-9) * room) for time_s in (at_s, at_s + max(part_s, 0.0)))
            character, style = self._looks(part)
            segments.append(Segment(character * (end - begin), style))
            at_s += max(part_s, 0.0)
        return Strip([*segments, self.text(f" {at_s * 1e3:.1f} ms", "strong")])

    def _legend(self, entries: list[tuple[int, str, float | None]]) -> Strip:
        segments = []
        for part, words, time_s in entries:
            character, style = self._looks(part)
            segments.append(Segment(character, style))
            segments.append(
                self.text(f" {words}" + ("" if time_s is None else f" {time_s * 1e3:.1f} ms") + "   ", "weak")
            )
        return Strip(segments)
