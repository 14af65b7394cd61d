"""Dialog that offers all commands by name.

It replaces Textual's palette, whose search in a worker continues after the dialog has closed: fast typing ends the
program (`NoMatches` in 8.2.8).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.fuzzy import Matcher
from textual.widgets import Input, OptionList
from textual.widgets.option_list import Option

from .modal import Modal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult, SystemCommand


class PaletteScreen(Modal["SystemCommand"]):
    """An input line, and the commands that match the input, best first. Enter or a click chooses a command."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,ctrl+p", "close", "Close"),
        Binding("down", "move('cursor_down')", "Next", show=False),
        Binding("up", "move('cursor_up')", "Previous", show=False),
        Binding("pagedown", "move('page_down')", "Next page", show=False),
        Binding("pageup", "move('page_up')", "Previous page", show=False),
    ]

    def __init__(self, commands: Sequence[SystemCommand], question: str) -> None:
        super().__init__()
        self._commands = commands
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(id="palette"):
            yield Input(placeholder=self._question, compact=True)
            yield OptionList(*map(self._option, range(len(self._commands))), compact=True)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self.query_one(OptionList).highlighted = 0

    def on_input_changed(self, event: Input.Changed) -> None:
        matcher = Matcher(event.value)
        scores = [matcher.match(command.title) if event.value else 1.0 for command in self._commands]
        matching = sorted((number for number, score in enumerate(scores) if score), key=lambda number: -scores[number])
        options = self.query_one(OptionList)
        options.set_options(map(self._option, matching))
        options.highlighted = 0 if matching else None

    def on_input_submitted(self) -> None:
        self.query_one(OptionList).action_select()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        # The option's id identifies the command. Its position does not, because the list may have changed meanwhile.
        self.answer(self._commands[int(event.option_id or 0)])

    def action_move(self, how: str) -> None:
        """Highlight another command.

        The input keeps the focus; `how` is `cursor_down`, `cursor_up`, `page_down` or `page_up`.
        """
        getattr(self.query_one(OptionList), f"action_{how}")()

    def _option(self, number: int) -> Option:
        command = self._commands[number]
        return Option(Text.assemble((command.title, "bold"), (f"  {command.help}", "dim")), id=str(number))
