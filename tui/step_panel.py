"""What one step reads, and how long it takes either way: bars on two scales, bytes and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip

from .panels import Panel
from .words import gigabytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .session import Session
    from .states import Symbols
    from .step_cost import StepCost

_LABEL_WIDTH = 15


class StepPanel(Panel):
    """A decode step with the sequences of the current frame; bytes and times are each drawn to one scale and in one
    colour.
    """

    def __init__(self, session: Session, symbols: Symbols, cost: Callable[[Session], StepCost]) -> None:
        super().__init__(session, symbols, id="step")
        self._cost = cost
        self.border_title = "one step: what it reads, how long it takes"

    def write(self) -> list[Strip]:
        """Bytes, then times."""
        cost = self._cost(self.session)
        most_bytes = max(cost.weight_bytes, cost.kv_bytes, 1)
        most_s = max(cost.eager_s, 1e-9)
        return [
            self._bar("reads weights", cost.weight_bytes / most_bytes, gigabytes(cost.weight_bytes), "strong"),
            self._bar("and keys, values", cost.kv_bytes / most_bytes, gigabytes(cost.kv_bytes), "strong"),
            self._bar("takes, captured", cost.captured_s / most_s, f"{cost.captured_s * 1e3:.1f} ms", "label"),
            self._bar("kernel by kernel", cost.eager_s / most_s, f"{cost.eager_s * 1e3:.1f} ms", "label"),
        ]

    def _bar(self, label: str, share: float, value: str, kind: str) -> Strip:
        glyphs = self.symbols.right or self.symbols.up
        room = max(self.size.width - _LABEL_WIDTH - 14, 4)
        whole, part = divmod(max(round(share * room * 8), share > 0), 8)
        bar = glyphs[8] * whole + (glyphs[part] if part else "")
        return Strip(
            [
                self.text(f"{label:<{_LABEL_WIDTH + 2}}", "label"),
                Segment(bar, self.get_component_rich_style(f"panel--{kind}")),
                self.text(f" {value}", "strong"),
            ]
        )
