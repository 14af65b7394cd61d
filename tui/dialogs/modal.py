"""Base classes of the dialogs: a dialog closes exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, TypeVar

from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

if TYPE_CHECKING:
    from rich.console import Group
    from textual.app import ComposeResult

Answer = TypeVar("Answer")


class Modal(ModalScreen[Answer | None]):
    """Dialog that closes once. After it has closed, it ignores keys that still arrive."""

    def answer(self, answer: Answer | None) -> None:
        """Close, and return `answer` to the code that opened the dialog; None if the user chose nothing."""
        if self.is_current:
            self.dismiss(answer)

    def action_close(self) -> None:
        self.answer(None)


class Page(Modal[None]):
    """Dialog with a page of text, which the arrow keys scroll."""

    PAGE_ID: ClassVar[str]
    """Id of the page in the style sheet."""

    def compose(self) -> ComposeResult:
        with VerticalScroll(id=self.PAGE_ID, classes="page"):
            yield Static(self._page())

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
        self.call_after_refresh(self._show_keys)

    # Whether keys for scrolling are needed depends on the size.
    def on_resize(self) -> None:
        self.call_after_refresh(self._show_keys)

    def _show_keys(self) -> None:
        for page in self.query(VerticalScroll):
            scrolls = "up and down scroll, " if page.max_scroll_y > 0 else ""
            page.border_subtitle = f"{scrolls}esc closes"

    def _page(self) -> Group:
        raise NotImplementedError
