"""A lesson that has been run: its moments found, its figures computed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvsim import profiles
from kvsim.errors import KvsimError
from kvsim.experiments.rungs import climb, rungs
from kvsim.machines import card_of, from_card, host_link
from kvsim.policies import Paged, Static
from kvsim.simulation import Machine, simulate
from kvsim.steptime import Roofline

from ..facts.step_cost import StepCost
from ..playback.compared_runs import ComparedRuns
from ..playback.session import Session
from ..pool.colors import default_color
from ..pool.paint import ColorBy
from .caption_figures import Figures, UnknownFigureError
from .caption_moments import UnknownMomentError, frame_of
from .lesson import Caption, CaptionSpec, Lesson, LessonRun
from .toml_table import LessonError
from .training_rows import TrainingRows

if TYPE_CHECKING:
    from kvsim.experiments.rungs import Climbed
    from kvsim.policies import Policy
    from kvsim.recording.model import Recording


class Guided:
    """The runs of `lesson` and its captions, in order of their moments.

    Raises:
        LessonError: a run fails, a moment does not come, two captions fall on one, or a figure is not there.
    """

    def __init__(self, lesson: Lesson) -> None:
        self.lesson = lesson
        recordings = [self._simulate(run) for run in lesson.runs]
        self.comparison: ComparedRuns | None = None
        """All runs on one clock, where there are several."""
        if len(recordings) > 1:
            self.comparison = ComparedRuns(recordings, [run.label for run in lesson.runs])
            by_label = {lane.label: lane.session for lane in self.comparison.lanes}
            self.sessions = [by_label[run.label] for run in lesson.runs]
        else:
            self.sessions = [Session(recordings[0])]
        self.player = self.comparison.player if self.comparison else self.sessions[0].player
        self._climbed: list[Climbed] = []
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
        """Seek a frame of the player."""
        self.player.go_to_frame(frame)
        (self.comparison or self.sessions[0]).show()

    @property
    def color_by(self) -> ColorBy:
        """Return the first meaning of colour: the lesson's; without one, the owner where runs are compared."""
        if self.lesson.color_by is not None:
            return self.lesson.color_by
        return ColorBy.OWNER if self.comparison is not None else default_color(self.sessions[0].replay)

    def cost(self, session: Session) -> StepCost:
        """Return the cost of the step at the session's frame on this lesson's machine."""
        return StepCost.of(session, self.lesson.model, self._step_times("vllm"))

    def _step_times(self, engine: str) -> Roofline:
        """Return step times: fitted to recordings of the model on the GPU if there are any, or else computed from the
        GPU's hardware profile.
        """
        gpu, model = self.lesson.gpu, self.lesson.model
        profile = profiles.match(gpu, model, engine)
        return from_card(card_of(gpu), gpu, model, engine) if profile is None else profile.times

    def _machine(self, times: Roofline) -> Machine:
        lesson = self.lesson
        return Machine(gpu=lesson.gpu, model=lesson.model, kv_bytes=lesson.kv_bytes, step_time=times)

    def _simulate(self, run: LessonRun) -> Recording:
        lesson = self.lesson
        # Compared runs have the step times of one engine: they differ in what is compared.
        is_alone = len(lesson.runs) == 1
        engine = "hf-dynamic" if isinstance(run.policy, Static) and is_alone else "vllm"
        machine = self._machine(self._step_times(engine))
        try:
            if isinstance(run.policy, TrainingRows):
                return run.policy.record(lesson.workload, machine)
            return simulate(lesson.workload, self._linked(run.policy), machine, refuse_misfits=True)
        except KvsimError as error:
            raise LessonError(f"{lesson.file}, run {run.label!r}: {error}") from error

    def _linked(self, policy: Policy) -> Policy:
        """Return `policy` with the host link of the lesson's GPU, if it uses host memory."""
        if not isinstance(policy, Paged) or not policy.cache.kv_offloading_size:
            return policy
        link: dict[str, Any] = dict(host_link(card_of(self.lesson.gpu)))
        return replace(policy, cache=replace(policy.cache, **link))

    def _climb(self) -> list[Climbed]:
        """Return the ladder with the lesson's requests, machine and limits; compute it once."""
        if not self._climbed:
            policies = [run.policy for run in self.lesson.runs]
            paged = next((policy for policy in policies if isinstance(policy, Paged)), Paged())
            batch = next((policy.scheduler.batch_size for policy in policies if isinstance(policy, Static)), 8)
            times = self._step_times("vllm")
            self._climbed = climb(
                self.lesson.workload,
                self._machine(times),
                rungs(paged.scheduler, block_size=paged.cache.block_size, batch_size=batch),
                lambda rung: times if rung.captured else times.uncaptured(),
            )
        return self._climbed

    def _caption(self, spec: CaptionSpec) -> Caption:
        lesson, session = self.lesson, self.sessions[spec.run]
        try:
            frame = frame_of(session, spec.at)
        except UnknownMomentError as error:
            raise LessonError(f"{lesson.file}, {spec.key}.at: {error}.") from error
        if self.comparison is not None:
            frame = int(self.comparison.frames_at(session.times_s[[frame]])[0])
        self.show(frame)
        others = {run.label: session for run, session in zip(lesson.runs, self.sessions, strict=True)}
        figures = Figures(session, others, self.cost(session), self._climb)
        try:
            title, text = figures.fill(spec.title), figures.fill(spec.text)
        except UnknownFigureError as error:
            raise LessonError(f"{lesson.file}, {spec.key}.text: {error}.") from error
        return Caption(frame=frame, title=title, text=text, follow=spec.follow)
