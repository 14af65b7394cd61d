"""Data classes of a lesson: the scenario to simulate, and the captions that explain it."""

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
    """A policy with one server for all requests of the lesson, or one server of a fleet that shares the requests."""

    label: str
    policy: Policy | TrainingRows
    fleet: str = ""
    """Label of the fleet; empty if one server serves all requests."""
    route: str = ""
    """Router in front of the fleet."""
    server: int = 0
    """Number of the server in its fleet."""
    num_servers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionSpec:
    """A caption as it is in the file: its moment is a phrase, and its figures are names in braces."""

    key: str
    """Place in the file, for error messages."""
    at: str
    """Phrase that names the moment, as `caption_moments` lists these."""
    title: str
    text: str
    run: int
    """Index of the run in which the moment is looked up, and from which the figures are computed."""
    follow: str | None
    """Id of the request that is followed until the next caption; None for no request."""
    draws: Drawing | None
    """Drawing that is shown until the next caption; None for no drawing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """A caption of a simulated lesson, with the frame of its moment, and with figures instead of names."""

    frame: int
    """Frame of the player that plays the lesson."""
    title: str
    text: str
    follow: str | None = None
    """Id of the followed request; None for no request."""
    draws: Drawing | None = None
    """Drawing that is shown; None for no drawing."""


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
    """True if steps are launched as captured graphs."""
    runs: tuple[LessonRun, ...]
    workload: Workload
    try_this: str
    """Exercise for the reader, at the end; may be empty."""
    color_by: ColorBy | None
    """Property of the units that colours show at first; None for the default."""
    captions: tuple[CaptionSpec, ...]

    @property
    def heading(self) -> str:
        """Return the number and the title."""
        return f"Lesson {self.number}: {self.title}"
