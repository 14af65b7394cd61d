"""Data classes of a lesson: a scenario and its captions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.policies import Policy
    from kvsim.workload import Workload

    from ..pool.paint import ColorBy
    from .drawings import Drawing
    from .training_rows import TrainingRows


@dataclass(frozen=True, slots=True, kw_only=True)
class LessonRun:
    """One policy that serves the lesson's requests, or one server of a fleet that does."""

    label: str
    policy: Policy | TrainingRows
    fleet: str = ""
    """Label of the fleet; empty where one server serves all requests."""
    route: str = ""
    """Router in front of the fleet."""
    server: int = 0
    """Number of the server in its fleet."""
    num_servers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionSpec:
    """A caption as the file states it: its moment is a phrase, its figures are names."""

    key: str
    """Place in the file, for error messages."""
    at: str
    title: str
    text: str
    run: int
    """Index of the run that supplies the moment and the figures."""
    follow: str | None
    """Id of the request whose memory stays lit until the next caption; None lights all memory."""
    draws: Drawing | None
    """Drawing beside the pool, until the next caption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """A caption whose moment has been found in the run, with its figures in place."""

    frame: int
    """The frame of the player that plays the lesson."""
    title: str
    text: str
    follow: str | None = None
    """The id of the followed request; None lights the whole pool."""
    draws: Drawing | None = None
    """Drawing beside the pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A scenario and its captions."""

    number: int
    file: Path
    title: str
    summary: str
    gpu: Gpu
    model: Model
    kv_bytes: int
    captured_graphs: bool
    """Whether steps are launched as captured graphs."""
    runs: tuple[LessonRun, ...]
    workload: Workload
    try_this: str
    """Exercise at the end; may be empty."""
    color_by: ColorBy | None
    """First meaning of colour; None for the default."""
    captions: tuple[CaptionSpec, ...]

    @property
    def heading(self) -> str:
        """Return the number and the title."""
        return f"Lesson {self.number}: {self.title}"
