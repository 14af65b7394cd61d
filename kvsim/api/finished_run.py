"""Run that `kvsim.simulate` and `kvsim.read` return: a recording that can be summarised, drawn and played."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from kvsim.display.text import html_text
from kvsim.errors import KvsimError, UsageError, shortened
from kvsim.metrics import Summary, Waste, summarize, waste
from kvsim.metrics.session_turns import SessionTurns, session_turns
from kvsim.recording import Recording, write
from kvsim.setting_fields import check_instance, is_finite, whole_number

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.plots import Picture, Purpose, Theme

_MOST_CHARACTERS = 1_000
"""Largest width and height of a picture in characters."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Run(Recording):
    """A run of one server, simulated or real, from `kvsim.simulate` or `kvsim.read`.

    The tables `requests`, `steps`, `schedule` and `memory` have one NumPy array per column: `run.requests.arrival_s` or
    `run.requests["ttft_s"]`. The methods `to_arrow()` and `to_pandas()` of a table convert it. Times are in seconds
    from the first event.
    """

    @classmethod
    def of(cls, recording: Recording) -> Run:
        """Return `recording` as a run. No data is copied."""
        if isinstance(recording, Run):
            return recording
        check_instance("the recording", recording, Recording, "one that was read, as kvsim.read returns it")
        return cls(**{field.name: getattr(recording, field.name) for field in fields(Recording)})

    def summary(self) -> Summary:
        """Return throughput, latencies, batch sizes, preemptions, and the shares of the pool in each state of a slot.

        The eight states are those of `SlotState`. Names of figures end in their units.
        """
        return summarize(self)

    @property
    def waste_over_time(self) -> Waste:
        """Number of slots in each of the eight states over time; `to_arrow()` and `to_pandas()` convert it to a table.

        It has a row for each step. A gap is a time between steps in which no step is in flight. A gap has a row, too,
        if its numbers differ from those of the step before it.
        """
        return waste(self).with_gaps()

    @property
    def turns(self) -> SessionTurns:
        """Table with a row per request, which is a turn of a session.

        The columns tell how many tokens its history has, how many history tokens were prefix hits or computed again,
        and which evictions caused the recomputation.

        Raises:
            RecordingError: the requests are no turns of sessions.
        """
        return session_turns(self)

    def plot(
        self,
        kind: str = "waste-bars",
        *others: Recording,
        file: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        purpose: Purpose = "web",
        theme: Theme = "light",
    ) -> Picture:
        """Draw a figure of this run, beside `others` if its kind compares runs, as a matplotlib `Figure`.

        Args:
            kind: a kind that `kvsim plot --help` lists, such as "waste-bars", "occupancy", "latency" or "memory-map".
            others: runs to compare with.
            file: PNG, SVG or PDF to write; a text that describes the figure is written beside it.
            overwrite: True to replace a file that `kvsim plot` did not write.
            purpose: the medium to draw for: "web", "paper" (one column), "paper-wide" (both) or "slide".
            theme: "light" or "dark", for the background of the figure.

        Raises:
            UnknownNameError: there is no such kind.
            UsageError: the kind is for another number of runs, or the file cannot be written.
            RecordingError: a run has no steps, or lacks the data of the figure.
        """
        return draw(kind, (self, *others), file=file, overwrite=overwrite, purpose=purpose, theme=theme)

    def picture(self, at_s: float | None = None, *, width: int = 84, height: int = 10) -> Still:
        """Draw the memory pool at `at_s` seconds.

        If `at_s` is None, the moment is the first of these that the run has: its first preemption, a moment of much
        wasted memory, its first refused request. Any other run is drawn when most requests run.

        Each cell shows one or more units of memory, coloured by their content. `width` and `height` are in characters.
        A notebook displays the result; `str()` returns its SVG.

        Raises:
            RecordingError: the run has no steps, or no pool with addresses.
        """
        from kvsim_tui.export.still_svg import svg_of_stills  # noqa: PLC0415
        from kvsim_tui.facts.telling import begin_story  # noqa: PLC0415
        from kvsim_tui.look.wording import seconds  # noqa: PLC0415
        from kvsim_tui.playback.session import Session  # noqa: PLC0415
        from kvsim_tui.pool.paint import ColorBy  # noqa: PLC0415  the interface is loaded when it is needed

        if at_s is not None and not is_finite(at_s):
            raise UsageError(f"at_s should be a number of seconds, not {shortened(at_s)}.")
        for name, size in (("width", width), ("height", height)):
            if whole_number(name, size) > _MOST_CHARACTERS:
                raise UsageError(f"{name} should be at most {_MOST_CHARACTERS:,} characters, not {shortened(size)}.")
        session = Session(self, at_s=at_s)
        if at_s is None:
            begin_story(session, playing=False)
        session.show()
        title = f"{self.meta.rules_name}, after {seconds(session.player.clock_s)}"
        return Still(svg_of_stills([(title, session)], ColorBy.STATE, width=width, height=height))

    def play(self, *, at_s: float | None = None) -> None:
        """Open the interface on this run, in the terminal in which Python runs. Return when the user quits.

        `at_s` is the time in seconds at which it begins; None: at the beginning of the run.

        Raises:
            UsageError: there is no terminal, as in a notebook, where `picture` works.
            RecordingError: the run has no steps.
        """
        play(self, at_s=at_s)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the run as the folder `path`, which `kvsim.read` and all commands accept; see `kvsim.write`."""
        return write(self, path, overwrite=overwrite)

    def _repr_html_(self) -> str:
        try:
            picture = self.picture()._repr_html_()
        except KvsimError:  # nothing to draw: no steps, or a cache without addresses
            picture = ""
        return f"<p>{html_text(repr(self))}</p>{picture}{self.summary()._repr_html_()}"


@dataclass(frozen=True, slots=True)
class Still:
    """Picture of a memory pool as SVG, which a notebook displays."""

    svg: str

    def __str__(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Still: {len(self.svg):,} letters of SVG>"

    def _repr_html_(self) -> str:
        return self.svg


def draw(
    kind: str,
    runs: tuple[Recording, ...],
    *,
    file: str | os.PathLike[str] | None,
    overwrite: bool,
    purpose: Purpose,
    theme: Theme,
) -> Picture:
    """Draw the figure of `kind` from `runs`, as `Run.plot` does. `file` None writes no file."""
    from kvsim.plots import figure_of, may_save, save  # noqa: PLC0415  matplotlib takes half a second

    check_instance("file", file, str | os.PathLike | None, "the path of a PNG, SVG or PDF")
    for run in runs:
        check_instance("a run", run, Recording, "one that was read, as kvsim.read returns it")
    if file is not None:
        may_save(file, "plot", overwrite=overwrite)
    picture = figure_of(kind, runs, purpose=purpose, theme=theme)
    if file is not None:
        save(picture, file)
    return picture


class RunsFigure:
    """Base class of results with several runs. It draws figures that compare the runs."""

    _runs: tuple[Run, ...]

    def plot(
        self,
        kind: str = "waste-bars",
        *,
        file: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        purpose: Purpose = "web",
        theme: Theme = "light",
    ) -> Picture:
        """Draw a figure that compares the runs, with the arguments and errors of `Run.plot`."""
        return draw(kind, self._runs, file=file, overwrite=overwrite, purpose=purpose, theme=theme)


def play(shown: Any, *, at_s: float | None = None) -> None:
    """Open the interface on `shown`: a run, several runs side by side, or a function that makes what is shown.

    `at_s` is the time in seconds at which it begins; None: at the beginning.
    """
    import sys  # noqa: PLC0415

    if not (sys.stdin.isatty() and sys.stdout.isatty()) and "TEXTUAL_DRIVER" not in os.environ:
        raise UsageError("play() needs a terminal, and there is none here; picture() and plot() show a run anywhere.")
    import kvsim_tui  # noqa: PLC0415

    kvsim_tui.run(shown, at_s=at_s)
