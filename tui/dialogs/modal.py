"""A question or a page that lies on top of what is played."""

from __future__ import annotations

from typing import TypeVar

from textual.screen import ModalScreen

Answer = TypeVar("Answer")


class Modal(ModalScreen[Answer | None]):
    """Closes once, whatever keys still arrive that were pressed in a hurry."""

    def answer(self, answer: Answer | None) -> None:
        """Close, and hand `answer` to the screen that asked."""
        if self.is_current:
            self.dismiss(answer)

    def action_close(self) -> None:
        """Close without an answer."""
        self.answer(None)
