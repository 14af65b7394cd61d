"""Lessons: short scenarios that pause and explain. Nothing here draws."""

from __future__ import annotations

from pathlib import Path

from kvsim.errors import UnknownNameError

from .guided import Guided
from .lesson import Lesson
from .reader import read_lesson
from .toml_table import LessonError

__all__ = ["Guided", "Lesson", "LessonError", "all_lessons", "find_lesson", "read_lesson"]

_FOLDER = Path(__file__).parent


def all_lessons() -> list[Lesson]:
    """Return the lessons that come with kvsim, by number."""
    return sorted(map(read_lesson, _FOLDER.glob("*.toml")), key=lambda lesson: lesson.number)


def find_lesson(name: str) -> Lesson:
    """Return the lesson with this number, or the one in the TOML file of this name.

    Raises:
        UnknownNameError: there is none.
        LessonError: the file cannot be right.
    """
    if name.endswith(".toml"):
        return read_lesson(Path(name))
    lessons = all_lessons()
    for lesson in lessons:
        if name == str(lesson.number):
            return lesson
    raise UnknownNameError("lesson", name, [str(lesson.number) for lesson in lessons], listed_by="kvsim explain")
