"""Dialog that offers the lessons."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Label, OptionList
from textual.widgets.option_list import Option

from .modal import Modal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from textual.app import ComposeResult

    from ..lessons import Lesson


class LessonsScreen(Modal["Lesson"]):
    """A list of the lessons with a sentence about each. A digit, enter or a click plays a lesson."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,l,q", "close", "Close"),
        Binding("j", "down", "Down", show=False),
        Binding("k", "up", "Up", show=False),
    ]

    def __init__(self, lessons: Sequence[Lesson]) -> None:
        super().__init__()
        self._lessons = lessons

    def compose(self) -> ComposeResult:
        with Vertical(id="lessons"):
            yield Label("Lessons: enter plays one, escape closes")
            yield OptionList(*(self._option(lesson) for lesson in self._lessons), compact=True)

    def on_mount(self) -> None:
        self.query_one(OptionList).focus()

    def on_key(self, event: object) -> None:
        """Play one of the first ten lessons if its digit is pressed. 0 plays lesson 10."""
        character = getattr(event, "character", None)
        for lesson in self._lessons:
            if character == str(lesson.number % 10):
                self.answer(lesson)
                return

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.answer(self._lessons[event.option_index])

    def action_down(self) -> None:
        self.query_one(OptionList).action_cursor_down()

    def action_up(self) -> None:
        self.query_one(OptionList).action_cursor_up()

    @staticmethod
    def _option(lesson: Lesson) -> Option:
        return Option(Text.assemble((f"{lesson.number}  {lesson.title}\n", "bold"), (f"   {lesson.summary}", "dim")))
