"""What a lesson is: a scenario, and what there is to say about it."""

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
    from .rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One policy that the requests are put through."""

    label: str
    policy: Policy | Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptionSpec:
    """A caption as it stands in the file: its moment is a phrase, its figures are names."""

    key: str
    """The place in the file, for messages."""
    at: str
    title: str
    text: str
    run: int
    """Number of the run whose moment and figures it is about."""
    follow: str | None
    """The request whose memory stays lit until the next caption; all memory where none is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A scenario and what there is to say about it."""

    number: int
    file: Path
    title: str
    summary: str
    gpu: Gpu
    model: Model
    kv_bytes: int
    runs: tuple[Run, ...]
    workload: Workload
    try_this: str
    """A thing to try at the end; empty for nothing."""
    shows_schedule: bool
    """Whether who is served when is drawn below the pools."""
    color_by: ColorBy | None
    """The first meaning of colour, where it is not the usual one."""
    shows_step: bool
    """Whether the cost of a step is drawn beside the pool."""
    captions: tuple[CaptionSpec, ...]

    @property
    def heading(self) -> str:
        """Number and title."""
        return f"Lesson {self.number}: {self.title}"
