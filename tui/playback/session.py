"""One recording opened for watching: the data that all panels draw, and what the user has selected."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from kvsim.display.text import printable, printable_values
from kvsim.memory.waste import HELD, SlotState
from kvsim.metrics import Waste, waste
from kvsim.policies import Radix
from kvsim.recording.tables import RequestStatus
from kvsim.replay.encoder_contents import EncoderContents
from kvsim.replay.host_memory import HostMemory, host_memory
from kvsim.replay.replay import Replay
from kvsim.replay.unfolding import NO_OWNER

from ..look.wording import plural
from .charts import Before, Charts, IdleSpans
from .history import Stay, stays
from .player import Player
from .run_events import NOTABLE, EventFilter, EventKind, Events, events_of
from .served import tokens_served

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.diagnosis import Diagnosis
    from kvsim.recording.model import Recording
    from kvsim.recording.tables import FloatArray, IntArray

_KINDS = {
    EventFilter.SHORTAGES: NOTABLE,
    EventFilter.EVICTIONS: (EventKind.EVICTED,),
    EventFilter.FINISHES: (EventKind.FINISHED, EventKind.IDLE),
}
"""Kinds of events that an event filter selects. `ALL` and `FOLLOWED` are not here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The moment at which a run should begin to play, and a headline about the whole run."""

    frame: int
    parts: tuple[str, ...]
    """Parts of the headline, the most important first."""
    shorter: tuple[str, ...] = ()
    """Other headlines, from long to short, for narrow screens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsNow:
    """Sequences and padding in the rows of a training batch at one frame."""

    row_tokens: int
    num_rows: int
    """Number of rows with at least one sequence."""
    num_placed: int
    """Number of sequences that are in a row by now."""
    num_sequences: int
    num_tokens: int
    num_padding: int

    def __str__(self) -> str:
        return f"{plural(self.num_placed, 'sequence')} in {self._rows_and_padding}"

    @property
    def in_short(self) -> str:
        """Description like that of `str`, but without the word "sequences"."""
        return f"{self.num_placed:,} in {self._rows_and_padding}"

    @property
    def _rows_and_padding(self) -> str:
        return f"{plural(self.num_rows, 'row')}, {plural(self.num_padding, 'slot')} of padding"


class Session:
    """A recording with its replay and player, and the state of the screen that shows it.

    Only `show` moves the replay, to the player's frame.

    Raises:
        RecordingError: the recording has no steps.
    """

    def __init__(
        self,
        recording: Recording,
        *,
        at_s: float | None = None,
        count_later: bool = False,
        before: Before | None = None,
    ) -> None:
        """Begin playback at `at_s` recorded seconds, or with the first frame if that is None.

        `before` has the totals of the time before the first frame; None if nothing came before. If `count_later`, slots
        are not counted yet: call `add_up` after the first picture has been drawn.
        """
        self.replay = Replay(_printable(recording))
        self.recording = self.replay.recording
        self.before = before if before is not None else Before(first_step=0)
        self.slots = np.zeros((0, len(SlotState)), np.int64)
        """Number of slots of the pool in each state: shape (num_frames, 8). Without rows until `add_up`."""
        self.times_s = np.append(self.recording.steps.start_s, self.recording.duration_s)
        """Times in seconds at which the frames begin."""
        self.events = events_of(self.replay)
        self.idle = IdleSpans.none()
        """Idle spans, which lie between the frames; none until `add_up`."""
        self.charts = self._charts()
        """Series of the charts over time: frames before the session if they are known, then the session's frames."""
        self.player = Player(self.times_s, self.events.notable.frame)
        self.waste: Waste | None = None
        """Number of slots in each state over time: useful, wasted and free memory; None until `add_up`."""
        if not count_later:
            self.add_up()
        self.event_filter = EventFilter.ALL
        self.listed_events = self.events
        """Events that `event_filter` selects."""
        if at_s is not None:
            self.player.go_to_time(at_s)
        self.server = ""
        """Name of the server in its fleet, such as `decode-0`; empty for a server alone."""
        self.followed: int | None = None
        """Row of the request that the user follows; None if none is followed."""
        self.marked: int | None = None
        """Row of the one request that has its own colour if there are too few hues for all; None if there is none."""
        self.diagnosis: Diagnosis | None = None
        """Diagnosis of the run; None until the user asks for it."""
        self.story: Story | None = None
        """Story that the screen shows; None if it shows none."""
        self.selected: int | None = None
        """Index of the unit under the cursor, in address order from 0; None without a cursor."""
        self.hovered: int | None = None
        """Index of the unit under the mouse, in address order from 0; None if the mouse is elsewhere."""
        self._stays: tuple[int, list[Stay]] = (-1, [])
        self._breakdown = (-1, self.slots)
        self.show()

    def add_up(self) -> None:
        """Count the slots in each state at every frame, for the charts.

        This takes about as long as opening the recording. Thread-safe.
        """
        self.replay.warm_up()
        self.waste = waste(self.replay)
        assert self.waste.in_gaps is not None
        self.slots, self.idle = self.waste.slots, IdleSpans.of(self.recording, self.waste.in_gaps)
        self.charts = self._charts()
        self.player.gap_begins_s, self.player.gap_ends_s = self.idle.begin_s, self.idle.end_s

    def step_number(self, frame: int) -> int:
        """Return the number of the step that `frame` shows, from 0. A live server counts its steps itself."""
        return self.before.first_step - self.before.num_summary_frames + frame

    @property
    def end_step(self) -> int:
        """Number of the last step, plus one."""
        return self.step_number(len(self.recording.steps))

    @property
    def num_frames_before(self) -> int:
        """Number of rows in `charts` before the session's first frame."""
        return 0 if self.before.charts is None else len(self.before.charts) - self.before.num_summary_frames

    def _charts(self) -> Charts:
        charts = Charts(
            times_s=self.times_s,
            slots=self.slots,
            running=self.step_column("running") - self._num_held_rows(),
            waiting=self.step_column("waiting"),
            events=self.events,
        )
        if self.before.charts is None:
            return charts
        return self.before.charts.followed_by(charts.rows(self.before.num_summary_frames))

    @property
    def mean_slots(self) -> FloatArray:
        """Mean number of slots in each state over the time of the run: shape (8,). Needs `add_up`."""
        assert self.waste is not None
        return self.waste.mean_slots()

    @property
    def added_up(self) -> bool:
        """True if `add_up` has counted the slots."""
        return len(self.slots) > 0

    def filter_events(self, which: EventFilter) -> None:
        """Restrict the event list and the jumps to the events that `which` selects.

        If `which` is `ALL`, jumps stop at notable events only.
        """
        self.event_filter = which
        self.listed_events = self.events_through(which)
        jumps = self.events.notable if which is EventFilter.ALL else self.listed_events
        self.player.notable = jumps.frame

    def events_through(self, which: EventFilter) -> Events:
        """Return the events that `which` selects. `FOLLOWED` selects none if no request is followed."""
        if which is EventFilter.ALL:
            return self.events
        if which is EventFilter.FOLLOWED and self.followed is not None:
            return self.events.of_request(self.followed)
        return self.events.of_kinds(_KINDS.get(which, ()))

    @property
    def capacity(self) -> int:
        """Number of slots in the pool."""
        return self.replay.num_units * self.replay.unit_slots

    @property
    def rows(self) -> RowsNow | None:
        """Rows of a training batch at the current frame; None for a serving run."""
        policy = self.recording.meta.policy
        if "row_tokens" not in policy:
            return None
        row_tokens = int(policy["row_tokens"])
        return RowsNow(
            row_tokens=row_tokens,
            num_rows=len(np.unique(np.flatnonzero(self.replay.owner != NO_OWNER) // row_tokens)),
            num_placed=int(self.served[min(self.player.frame + 1, self.player.last_frame)]),
            num_sequences=int(self.served[-1]),
            num_tokens=int(self.breakdown[SlotState.TOKEN]),
            num_padding=int(self.breakdown[SlotState.PADDING]),
        )

    @property
    def unit_name(self) -> str:
        """Name of a unit of the pool: "block" if it has room for several tokens, otherwise "slot"."""
        return "block" if self.replay.unit_tokens > 1 else "slot"

    @property
    def breakdown(self) -> npt.NDArray[np.int64]:
        """Number of slots of the pool in each state at the player's clock: shape (8,)."""
        frame, gap = self.player.frame, self.player.gap
        if gap is not None:
            return np.asarray(self.idle.slots[gap])
        if self.added_up:
            slots: npt.NDArray[np.int64] = self.slots[frame]
            return slots
        if self._breakdown[0] != frame:
            occupied = self.replay.occupied()
            slots = self.replay.slots(occupied).sum(axis=0)
            slots[SlotState.FREE] += self.capacity - int(slots.sum())
            self._breakdown = (frame, slots)
        return self._breakdown[1]

    @cached_property
    def served(self) -> npt.NDArray[np.int64]:
        """Number of output tokens sampled before each frame: int64[num_frames]."""
        return self.before.tokens_served + tokens_served(self.replay)

    @property
    def num_held_slots(self) -> int:
        """Number of slots that requests hold at the player's clock."""
        return int(self.breakdown[list(HELD)].sum())

    @cached_property
    def finish_times_s(self) -> npt.NDArray[np.float64]:
        """Times in seconds at which requests finished, ascending."""
        finished_s = self.recording.requests.finished_s
        return np.sort(finished_s[~np.isnan(finished_s)])

    @property
    def num_finished(self) -> int:
        """Number of requests that have finished by the player's clock."""
        finished = int(np.searchsorted(self.finish_times_s, self.player.clock_s, side="right"))
        return self.before.num_finished + finished

    def _num_held_rows(self) -> IntArray:
        """Return, for each frame, the number of rows of a static batch that are held after their answer is complete."""
        idle, finished = (self.events.of_kinds((kind,)) for kind in (EventKind.IDLE, EventKind.FINISHED))
        released_frame = finished.frame[np.isin(finished.request, idle.request)]
        begun, ended = (np.bincount(frames, minlength=len(self.times_s)) for frames in (idle.frame, released_frame))
        return np.cumsum(begun - ended)

    @property
    def num_complete_rows(self) -> int:
        """Number of rows of a static batch that are held at the current frame although their answer is complete.

        It is 0 for other policies, and for training batches.
        """
        live = self.replay.live_requests()
        if not len(live) or self.recording.meta.policy_name != "static" or self.rows is not None:
            return 0
        return int((self.replay.computed(live) > self.replay.full[live]).sum())

    @property
    def num_held_back(self) -> int:
        """Number of waiting requests whose blocks in the pool are not free; 0 without host memory.

        Either the blocks are still being loaded from host memory, or the request has released them, but the current
        step still uses them.
        """
        steps, step = self.recording.steps, self.replay.frame
        if self.recording.copies is None or not 0 <= step < len(steps):
            return 0
        return max(len(self.replay.live_requests()) - int(steps.running[step]), 0)

    @property
    def is_copying(self) -> bool:
        """True if blocks are being copied to or from host memory."""
        host, replay = self.host, self.replay
        return host is not None and any(host.copying_at(replay.frame, after_output=replay.after_output))

    @property
    def loads_in_step(self) -> bool:
        """True if requests run while their blocks come from the host, as in SGLang. In vLLM, they wait."""
        return self.recording.meta.policy_name == Radix.name

    @property
    def num_refused(self) -> int:
        """Number of requests that have been refused by the player's clock."""
        requests = self.recording.requests
        refused = (requests.status == RequestStatus.REFUSED) & (requests.arrival_s <= self.player.clock_s)
        return self.before.num_refused + int(refused.sum())

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions up to the current frame."""
        return self.before.num_preemptions + int(self.recording.steps.preempted[: self.player.frame + 1].sum())

    @cached_property
    def host(self) -> HostMemory | None:
        """Contents of host memory, step by step; None without offloading."""
        return host_memory(self.recording)

    @cached_property
    def encoder(self) -> EncoderContents | None:
        """Contents of the encoder cache, step by step; None without images."""
        return EncoderContents.of(self.recording)

    def num_output_tokens(self, request: int) -> int:
        """Return the number of output tokens of `request` up to the current frame. A preemption does not reduce it."""
        requests, replay = self.recording.requests, self.replay
        reached = replay.progress.most_tokens(request, replay.frame - 1) - int(replay.pad[request])
        # The step that computes the last prompt token puts out the first new one, at its end.
        first = int(requests.prompt_tokens[request])
        return min(max(reached - first + 1, 0), int(requests.output_tokens[request]))

    def show(self) -> None:
        """Move the replay to the player's frame. In a gap, the replay moves to the state after the frame's output."""
        self.replay.seek(self.player.frame, after_output=self.player.gap is not None)

    def num_requests(self, state: str) -> int:
        """Return the number of requests in `state`, "running" or "waiting", at the player's clock."""
        gap = self.player.gap
        return int(self.step_column(state)[self.player.frame] if gap is None else getattr(self.idle, state)[gap])

    def step_column(self, column: str) -> IntArray:
        """Return a column of the steps, one value per frame. The frame after the last step has 0."""
        steps: IntArray = getattr(self.recording.steps, column)
        return np.append(steps, np.zeros(1, steps.dtype))

    def residencies(self, request: int) -> list[tuple[int, int]]:
        """Return the spans [first frame, end frame) in which `request` holds memory."""
        held = self.replay.ledger.tables.residencies
        rows = held.request == request
        births, deaths = held.birth_seq[rows], held.death_seq[rows]
        frames = np.minimum(np.searchsorted(self.replay.frame_seq, (births, deaths)), self.replay.num_frames - 1)
        return list(zip(*frames.tolist(), strict=True))

    def stays(self, unit: int) -> list[Stay]:
        """Return all stays in `unit`, in order of time."""
        if self._stays[0] != unit:
            self._stays = (unit, stays(self.replay, unit))
        return self._stays[1]

    def request_name(self, request: int) -> str:
        """Return the id of a request."""
        return str(self.recording.requests.id[request])


def printable_ids(ids: npt.NDArray[np.str_]) -> npt.NDArray[np.str_]:
    """Return request ids with control characters escaped."""
    letters = np.ascontiguousarray(ids).view(np.uint32)
    if (((letters > 0) & (letters < 32)) | (letters >= 127)).any():
        return np.array([printable(name) for name in ids.tolist()])
    return ids


def _printable(recording: Recording) -> Recording:
    meta, requests = recording.meta, recording.requests
    return replace(
        recording,
        name=printable(recording.name),
        requests=replace(requests, id=printable_ids(requests.id)),
        meta=replace(
            meta,
            gpu=printable(meta.gpu),
            notes=printable(meta.notes),
            engine=printable_values(meta.engine),
            model=printable_values(meta.model),
            policy=printable_values(meta.policy),
        ),
    )
