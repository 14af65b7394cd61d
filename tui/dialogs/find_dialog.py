"""Ask for a request or a block by name."""

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
    """Return the thing that `text` names: `("request", row)` or `("unit", number from 0)`; None if there is none.

    `#17` is a unit by its address. Everything else is a request's id, or the only one that begins so,
    or a row number.
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
    """One line to type in."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close")]

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session

    def compose(self) -> ComposeResult:
        """Compose the question, the input and a line for complaints."""
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
        """Focus the input."""
        self.query_one(Input).focus()

    def on_input_changed(self) -> None:
        """Clear the complaint about the earlier text."""
        self.query_one("#find-answer", Label).update("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Close with the request or unit that was found; complain if there is none."""
        found = look_up(self._session, event.value)
        if found is None:
            self.query_one("#find-answer", Label).update("There is no such request or place in the pool.")
        else:
            self.answer(found)
