"""Dialog that asks for a request to follow, or a block to select."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Input, Label

from .modal import Modal

if TYPE_CHECKING:
    from textual.app import ComposeResult

    from ..playback.session import Session


def look_up(session: Session, text: str) -> tuple[str, int] | None:
    """Return what `text` names, as `("request", row)` or `("unit", index)`; None if it names nothing.

    `#17` names the unit at address 17 of the pool. The index of a unit counts from 0 at the pool's first address. Any
    other text names a request: by its id, by the beginning of exactly one id, or by its row in the requests table.
    """
    text = text.strip()
    replay, ids = session.replay, session.recording.requests.id
    if text.startswith("#"):
        digits = text[1:].replace(",", "")
        unit = int(digits) - replay.first_unit if digits.isdecimal() else -1
        return ("unit", unit) if 0 <= unit < replay.num_units else None
    if not text:
        return None
    exact = np.flatnonzero(ids == text)
    if not len(exact):
        exact = np.flatnonzero(np.char.startswith(ids, text))
        if len(exact) != 1 and text.isdecimal() and int(text) < len(ids):
            exact = np.array([int(text)])
    return ("request", int(exact[0])) if len(exact) == 1 else None


class FindScreen(Modal[tuple[str, int]]):
    """Dialog with an input line for a request or a unit. It returns the result of `look_up`, or None if cancelled."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close")]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def compose(self) -> ComposeResult:
        with Vertical(id="find"):
            unit = self._session.unit_name
            yield Label(f"Find a request by its id, or a {unit} as #number")
            yield Input(placeholder=self._example(), compact=True)
            yield Label("", id="find-answer")

    def _example(self) -> str:
        number = f"#{self._session.replay.first_unit}"
        ids = self._session.recording.requests.id
        return f"{ids[0]}  or  {number}" if len(ids) else number

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_changed(self) -> None:
        self.query_one("#find-answer", Label).update("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        found = look_up(self._session, event.value)
        if found is None:
            self.query_one("#find-answer", Label).update("There is no such request or place in the pool.")
        else:
            self.answer(found)
