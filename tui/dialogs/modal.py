"""Base class of the dialogs: a dialog closes exactly once."""

from __future__ import annotations

from typing import TypeVar

from textual.screen import ModalScreen

Answer = TypeVar("Answer")


class Modal(ModalScreen[Answer | None]):
    """Dialog that ignores further answers after it has closed, because keys may still arrive."""

    def answer(self, answer: Answer | None) -> None:
        """Close, and pass `answer` to the code that opened the dialog."""
        if self.is_current:
            self.dismiss(answer)

    def action_close(self) -> None:
        """Close without an answer."""
        self.answer(None)
