"""Lessons: short simulated scenarios whose playback pauses at captions, for screens, text and pages."""

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
    """Return the lessons that come with kvsim, in order of their numbers."""
    return sorted(map(read_lesson, _FOLDER.glob("*.toml")), key=lambda lesson: lesson.number)


def find_lesson(name: str) -> Lesson:
    """Return the lesson with the number `name`, or the lesson in the file `name` if `name` ends in `.toml`.

    Raises:
        UnknownNameError: no lesson has this number.
        LessonError: the file cannot be read, or its content is wrong.
    """
    if name.endswith(".toml"):
        return read_lesson(Path(name))
    files = {file.name.partition("-")[0]: file for file in _FOLDER.glob("*.toml")}
    if name not in files:
        raise UnknownNameError("lesson", name, sorted(files, key=int), listed_by="kvsim explain")
    return read_lesson(files[name])
