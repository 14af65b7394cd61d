"""Base of the dialogs."""

from __future__ import annotations

from typing import TypeVar

from textual.screen import ModalScreen

Answer = TypeVar("Answer")


class Modal(ModalScreen[Answer | None]):
    """Dialog that closes once, even if more keys arrive."""

    def answer(self, answer: Answer | None) -> None:
        """Close, and return `answer` to the screen that asked."""
        if self.is_current:
            self.dismiss(answer)

    def action_close(self) -> None:
        """Close without an answer."""
        self.answer(None)
