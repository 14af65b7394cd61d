"""A lesson that has been simulated: its runs, and its captions with their frames and figures."""

from __future__ import annotations

from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from kvsim import profiles
from kvsim.errors import KvsimError
from kvsim.experiments.rungs import climb, rungs
from kvsim.machines import card_of, from_card, host_link
from kvsim.policies import Paged, Static
from kvsim.simulation import Machine, Replicas, measure, simulate, simulate_fleet
from kvsim.steptime import Roofline

from ..facts.step_cost import StepCost
from ..facts.tree_nodes import has_tree
from ..playback.compared_runs import ComparedRuns
from ..playback.session import Session
from ..pool.colors import default_color
from ..pool.paint import ColorBy
from . import cache_drawings, drawings, run_drawings, step_drawings
from .beside_figures import image_tokens, with_drafts
from .caption_figures import Figures, UnknownFigureError
from .caption_moments import UnknownMomentError, frame_of
from .drawings import Drawing
from .lesson import Caption, CaptionSpec, Lesson, LessonRun
from .toml_table import LessonError
from .training_rows import TrainingRows

if TYPE_CHECKING:
    from kvsim.experiments.rungs import RungResult
    from kvsim.metrics.fleet_totals import FleetTotals
    from kvsim.policies import Policy
    from kvsim.recording.model import Recording

    from ..look.states import Symbols
    from .pen import Lines


_frame = attrgetter("frame")
_POOL_FACTOR, _WATERMARK = 1.5, 0.4
"""Settings of two remedies: the factor on the memory, and the share of the pool that an admission leaves free."""
_LEAST_AROUND = 4
"""Least number of lines for the drawing of an eviction: a legend, two bars and a gap."""
_MOST_BAR_LINES = 4
_MEMORY_FACTORS = (0.75, 0.875, 1.0, 1.125, 1.25, 1.5, 2.0)

_TITLES: Final = {
    Drawing.READS: "What one step reads from GPU memory, and its time",
    Drawing.LAUNCHES: "One step, launched in two ways, on one axis of time",
    Drawing.TABLE: "The block table of {follow}",
    Drawing.LADDER: "The ladder: one change on every rung; {times} over the rung above",
    Drawing.MEMORY: "Tokens a second of the three servers; {times} by which paged memory gives more",
    Drawing.HITS: "Prompt tokens found in the cache, by the memory that there is",
    Drawing.REMEDIES: "Time until the last answer, with each remedy",
    Drawing.DRAFTS: "Three runs: steps until the pool runs out, and time until the last answer",
    Drawing.IMAGE: "Another server: one image in its blocks and in the encoder cache, on one scale",
    Drawing.TREE: "The radix tree, node by node",
    Drawing.FLEETS: "Two servers behind each router",
}
"""Title of each drawing. A schedule has the name of its run as title."""


class Guided:
    """The runs of `lesson`, and its captions in order of their frames.

    Raises:
        LessonError: a run fails, a caption's moment never comes, two captions have the same moment, or a figure is
            unknown.
    """

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        self.fleets: dict[str, FleetTotals] = {}
        """Totals over all servers of each fleet, by the fleet's label."""
        self._servers: dict[str, list[Recording]] = {}
        recordings = [self._simulate(run) for run in lesson.runs]
        self.comparison: ComparedRuns | None = None
        """All runs on one clock; None for a lesson with one run."""
        if len(recordings) > 1:
            labels = [run.label for run in lesson.runs]
            self.comparison = ComparedRuns(recordings, labels, fastest_first=False)
            by_label = {lane.label: lane.session for lane in self.comparison.lanes}
            self.sessions = [by_label[run.label] for run in lesson.runs]
        else:
            self.sessions = [Session(recordings[0])]
        self.player = self.comparison.player if self.comparison else self.sessions[0].player
        self._climbed: list[RungResult] = []
        self._tried: list[run_drawings.RemedyResult] = []
        self._found: list[tuple[int, list[float]]] = []
        captions = sorted((self._caption(spec) for spec in lesson.captions), key=lambda caption: caption.frame)
        if lesson.try_this:
            captions[-1] = replace(captions[-1], text=f"{captions[-1].text} Try it: {lesson.try_this}")
        self.captions = captions
        for one, other in zip(self.captions, self.captions[1:], strict=False):
            if one.frame == other.frame:
                raise LessonError(
                    f"{lesson.file}: the captions {one.title!r} and {other.title!r} fall on the same step; "
                    'give one another moment, for example with "+ 1 step".'
                )
        self.show(self.captions[0].frame)

    def show(self, frame: int) -> None:
        """Show `frame` in all sessions."""
        self.player.go_to_frame(frame)
        (self.comparison or self.sessions[0]).show()

    @property
    def color_by(self) -> ColorBy:
        """Initial meaning of colour: the lesson's choice, else the owner in comparisons, else the default."""
        if self.lesson.color_by is not None:
            return self.lesson.color_by
        return ColorBy.OWNER if self.comparison is not None else default_color(self.sessions[0].replay)

    def cost(self, session: Session) -> StepCost:
        """Return the cost of the step at the session's frame on the lesson's machine."""
        return StepCost.of(session, self.lesson.model, self._step_times())

    def costs(self, session: Session) -> list[StepCost]:
        """Return the costs of steps with 1, 2, 4, ... of the running requests, then of the step with all."""
        cost, times = self.cost(session), self._step_times()
        fewer = [1 << power for power in range((max(cost.num_sequences, 1) - 1).bit_length())]
        contexts = [round(number * cost.context_tokens / cost.num_sequences) for number in fewer]
        return [
            *(StepCost.of_batch(*batch, self.lesson.model, times) for batch in zip(fewer, contexts, strict=True)),
            cost,
        ]

    @property
    def draws(self) -> set[str]:
        """Names of the drawings of all captions."""
        return {caption.draws.value for caption in self.captions if caption.draws is not None}

    @property
    def draws_alone(self) -> bool:
        """True if a caption has a drawing in place of the pools."""
        return any(caption.draws is not None and caption.draws.stands_alone for caption in self.captions)

    @property
    def draws_beside(self) -> bool:
        """True if a caption has a drawing beside the pool."""
        return any(caption.draws is not None and not caption.draws.stands_alone for caption in self.captions)

    def caption_at(self, frame: int) -> Caption:
        """Return the latest caption at or before the player's frame `frame`; the first caption if there is none."""
        return max(
            (caption for caption in self.captions if caption.frame <= frame), key=_frame, default=self.captions[0]
        )

    def drawing(self, caption: Caption, width: int, symbols: Symbols, height: int = 20) -> list[tuple[str, Lines]]:
        """Return titles and lines of the drawings of `caption` at the current frame, in about `height` lines.

        There is one drawing, or none; for a schedule, one per run.
        """
        if caption.draws is Drawing.SCHEDULE:
            return [
                (f"{run.label}: who is served when", self.timetable(session, width, symbols))
                for run, session in zip(self.lesson.runs, self.sessions, strict=True)
            ]
        if caption.draws is None:
            return []
        title = _TITLES[caption.draws].format(follow=caption.follow, times=symbols.times)
        return [(title, self._lines(caption, caption.draws, width, symbols, height))]

    def _lines(self, caption: Caption, draws: Drawing, width: int, symbols: Symbols, height: int) -> Lines:
        session, size = self.sessions[0], (width, symbols, height)
        lines: Lines = []
        match draws:
            case Drawing.READS:
                lines = step_drawings.reads(self.costs(session), *size)
            case Drawing.LAUNCHES:
                lines = step_drawings.launches(self.cost(session), *size)
            case Drawing.TABLE if caption.follow is not None:
                lines = drawings.table(session, session.recording.row_of(caption.follow), width, symbols)
            case Drawing.LADDER:
                lines = drawings.ladder(self.climb(), *size)
            case Drawing.MEMORY:
                lines = drawings.memory(self.climb(), self.sessions, *size)
            case Drawing.HITS:
                lines = cache_drawings.hits(self.found(), [run.label for run in self.lesson.runs], *size)
            case Drawing.REMEDIES:
                lines = run_drawings.remedies(self.remedies(), *size)
            case Drawing.DRAFTS:
                lines = run_drawings.drafts(with_drafts(session.recording), *size)
            case Drawing.IMAGE:
                tokens, cache_tokens = image_tokens()
                lines = drawings.image(tokens, cache_tokens, session.replay.unit_tokens, *size)
            case Drawing.TREE:
                lines = self._tree(caption, *size)
            case Drawing.FLEETS:
                lines = drawings.fleets(self.fleets, *size)
        return lines

    def _tree(self, caption: Caption, width: int, symbols: Symbols, height: int) -> Lines:
        """Return the radix tree and, with room, what was found of the followed prompt, or the next eviction."""
        session = next(session for session in self.sessions if has_tree(session))
        if cache_drawings.num_lines(session) + 3 > height:  # the nodes come first
            return cache_drawings.tree(session, width, symbols, height)
        lines = cache_drawings.tree(session, width, symbols, height - 3)
        room = height - len(lines) - 1
        thick = min(room // 2, _MOST_BAR_LINES)
        if caption.follow is None:
            if room < _LEAST_AROUND:
                return lines
            below = cache_drawings.around_eviction(session, width, symbols, min((room - 2) // 2, _MOST_BAR_LINES))
        else:
            labels = [run.label for run in self.lesson.runs]
            below = cache_drawings.found_prompt(self.sessions, labels, caption.follow, width, symbols, thick)
        return [*lines, [], *below]

    def timetable(self, session: Session, width: int, symbols: Symbols) -> Lines:
        """Return the schedule of one run, on a time axis for all runs."""
        end_s = max(other.player.duration_s for other in self.sessions)
        return run_drawings.timetable(session, end_s, self.player.clock_s, width, symbols)

    def _step_times(self) -> Roofline:
        gpu, model = self.lesson.gpu, self.lesson.model
        profile = profiles.match(gpu, model, "vllm")
        return from_card(card_of(gpu), gpu, model, "vllm") if profile is None else profile.times

    def _machine(self, times: Roofline) -> Machine:
        lesson = self.lesson
        return Machine(gpu=lesson.gpu, model=lesson.model, kv_bytes=lesson.kv_bytes, step_time=times)

    def _simulate(self, run: LessonRun) -> Recording:
        lesson = self.lesson
        # One engine's step times for all lessons: runs differ in their memory and schedule.
        times = self._step_times()
        machine = self._machine(times if lesson.captured_graphs else times.uncaptured())
        try:
            if isinstance(run.policy, TrainingRows):
                return run.policy.record(lesson.workload, machine)
            if run.fleet:
                return self._fleet(run, run.policy, machine)[run.server]
            return simulate(lesson.workload, self._linked(run.policy), machine, refuse_misfits=True)
        except KvsimError as error:
            raise LessonError(f"{lesson.file}, run {run.label!r}: {error}") from error

    def _fleet(self, run: LessonRun, policy: Policy, machine: Machine) -> list[Recording]:
        if run.fleet not in self._servers:
            servers = Replicas(number=run.num_servers, route=run.route)
            recordings, fleet = simulate_fleet(self.lesson.workload, policy, machine, servers, refuse_misfits=True)
            self._servers[run.fleet], self.fleets[run.fleet] = recordings, fleet.totals()
        return self._servers[run.fleet]

    def _linked(self, policy: Policy) -> Policy:
        """Return `policy` with the host link of the lesson's GPU, if the policy uses host memory."""
        if not isinstance(policy, Paged) or not policy.cache.kv_offloading_size:
            return policy
        link: dict[str, Any] = dict(host_link(card_of(self.lesson.gpu)))
        return replace(policy, cache=replace(policy.cache, **link))

    def climb(self) -> list[RungResult]:
        """Return the results of servers for the lesson's requests, each with one more optimization than the one before.

        The first call simulates them.
        """
        if not self._climbed:
            policies = [run.policy for run in self.lesson.runs]
            paged = next((policy for policy in policies if isinstance(policy, Paged)), Paged())
            batch = next((policy.scheduler.batch_size for policy in policies if isinstance(policy, Static)), 8)
            times = self._step_times()
            self._climbed = climb(
                self.lesson.workload,
                self._machine(times),
                rungs(paged.scheduler, block_size=paged.cache.block_size, batch_size=batch),
                lambda rung: times if rung.captured else times.uncaptured(),
            )
        return self._climbed

    def found(self) -> list[tuple[int, list[float]]]:
        """Return sizes of the memory in tokens, each with the prefix-hit share of every run.

        The first call simulates every run with every size.
        """
        if not self._found:
            lesson, machine = self.lesson, self._machine(self._step_times())
            for factor in _MEMORY_FACTORS:
                on = replace(machine, kv_bytes=int(machine.kv_bytes * factor))
                shares = []
                for run in lesson.runs:
                    assert not isinstance(run.policy, TrainingRows)
                    requests = measure(lesson.workload, run.policy, on, refuse_misfits=True).requests
                    shares.append(float(requests.cached_tokens.sum() / requests.prompt_tokens.sum()))
                self._found.append((on.kv_bytes // lesson.model.kv_bytes_per_token, shares))
        return self._found

    def remedies(self) -> list[run_drawings.RemedyResult]:
        """Return the results of the lesson's requests with each remedy, and without one."""
        if not self._tried:
            lesson, machine = self.lesson, self._machine(self._step_times())
            paged = lesson.runs[0].policy
            assert isinstance(paged, Paged)
            fewer = replace(paged, scheduler=replace(paged.scheduler, max_num_seqs=len(lesson.workload) - 1))
            careful = replace(paged, cache=replace(paged.cache, watermark=_WATERMARK))
            least = 0  # computed tokens of the first remedy, with memory for all: no token is computed twice
            for name, policy, factor in (
                (f"memory for all, {_POOL_FACTOR:g} times", paged, _POOL_FACTOR),
                ("as it is", paged, 1.0),
                (f"at most {len(lesson.workload) - 1} at a time", fewer, 1.0),
                (f"watermark {_WATERMARK:.0%}", careful, 1.0),
            ):
                on = replace(machine, kv_bytes=int(machine.kv_bytes * factor))
                measured = measure(lesson.workload, policy, on, refuse_misfits=True)
                requests, computed = measured.requests, measured.summary.computed_tokens
                least = least or computed
                waits_s = requests.first_scheduled_s - requests.arrival_s
                last_s, wait_s = float(requests.finished_s.max()), float(waits_s.max())
                session = Session(simulate(lesson.workload, policy, on, refuse_misfits=True))
                self._tried.append(run_drawings.RemedyResult(name, last_s, computed - least, wait_s, factor, session))
        return self._tried

    def _caption(self, spec: CaptionSpec) -> Caption:
        lesson, session = self.lesson, self.sessions[spec.run]
        try:
            frame = frame_of(session, spec.at)
        except UnknownMomentError as error:
            raise LessonError(f"{lesson.file}, {spec.where}.at: {error}.") from error
        if self.comparison is not None:
            frame = int(self.comparison.frames_at(session.times_s[[frame]])[0])
        self.show(frame)
        others = {run.label: session for run, session in zip(lesson.runs, self.sessions, strict=True)}
        figures = Figures(session, others, self.cost(session), self.climb, self.found, self.fleets, self.remedies)
        try:
            title, text = figures.fill(spec.title), figures.fill(spec.text)
        except UnknownFigureError as error:
            raise LessonError(f"{lesson.file}, {spec.where}.text: {error}.") from error
        return Caption(frame=frame, title=title, text=text, follow=spec.follow, draws=spec.draws)
