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
    """A policy on one server for all requests of the lesson, or on one server of a fleet that shares the requests."""

    label: str
    policy: Policy | TrainingRows
    fleet: str = ""
    """Label of the fleet; empty if one server serves all requests."""
    route: str = ""
    """Name of the fleet's router; empty without a fleet."""
    server: int = 0
    """Index, from 0, of the server in its fleet; 0 without a fleet."""
    num_servers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionSpec:
    """Caption as written in the lesson file. Its moment is a phrase, and values replace its names in braces."""

    where: str
    """Place in the file, for error messages."""
    at: str
    """Phrase for the moment, see `caption_moments`."""
    title: str
    text: str
    run: int
    """Index of the run whose moment and figures are meant."""
    follow: str | None
    """Id of the request to follow until the next caption; None to follow none."""
    draws: Drawing | None
    """Drawing to show until the next caption; None for no drawing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caption:
    """A `CaptionSpec` of a simulated lesson: its moment is a frame, and the names in braces are replaced by values."""

    frame: int
    """Frame of the lesson's player: of its run, or of its comparison if it has several."""
    title: str
    text: str
    follow: str | None = None
    """Id of the followed request; None if none is followed."""
    draws: Drawing | None = None


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
    """Exercise for the reader; may be empty."""
    color_by: ColorBy | None
    """Initial meaning of colour; None for the default."""
    captions: tuple[CaptionSpec, ...]

    @property
    def heading(self) -> str:
        """Number and title, such as `Lesson 3: A page at a time`."""
        return f"Lesson {self.number}: {self.title}"
