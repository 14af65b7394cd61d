"""The servers of a fleet on one clock: their pools, queues and prefix hits, and the servers that a request visits."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kvsim.display.text import printable
from kvsim.errors import RecordingError
from kvsim.metrics import means_between, waste
from kvsim.metrics.gaps import Gaps

from .handovers import Handovers
from .player import Player
from .session import printable_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvsim.recording.model import Meta, Outline, Recording
    from kvsim.recording.tables import FloatArray, IntArray, Requests, Steps

_MOST_FRAMES = 20_000
"""Largest number of frames of the player. A fleet with more steps has this many frames of equal length."""
_SAMPLES = 400
"""Number of intervals of the run from whose ends the busiest moment is chosen."""


Course: TypeAlias = "tuple[FloatArray, npt.NDArray[Any]]"
"""Times in seconds, and the value from each time to the next. The last value is 0."""


class ServerNow(NamedTuple):
    """State of a server at one time."""

    held_share: float
    """Share of the pool that requests hold, 0 to 1."""
    running: int
    waiting: int
    preempted: int
    """Number of preemptions up to this time."""
    computed: int
    """Number of tokens computed up to this time."""
    prompt_tokens: int
    """Number of prompt tokens of all requests that have been scheduled up to this time."""
    hit_tokens: int
    """Number of `prompt_tokens` that were prefix-cache hits."""


class Visit(NamedTuple):
    """A request's visit to one server. Times are seconds of the fleet's clock."""

    server: int
    """Index in `FleetServers.servers`."""
    arrival_s: float
    begin_s: float
    """Time at which the request was scheduled first; NaN if it never was."""
    end_s: float
    """Time at which the request ended on this server; NaN if it has not ended."""
    prompt_tokens: int
    hit_tokens: int
    """Number of prompt tokens found in the prefix cache or, on a decode server, fetched."""


class FleetServer:
    """The part of a server's recording that the picture of a fleet needs."""

    def __init__(self, recording: Recording | Outline, name: str, reopen: Callable[[], Recording]) -> None:
        """`reopen` reads the whole recording again, to watch this server alone."""
        self.name, self.reopen = name, reopen
        self.meta: Meta = recording.meta
        self.steps: Steps = recording.steps
        self.requests: Requests = recording.requests
        self.kind = next((kind for kind in ("prefill", "decode") if name.startswith(kind)), "")
        """`prefill` or `decode`, from the name. Empty for a server that does both."""
        self.ids = printable_ids(recording.requests.id)
        self.handovers = Handovers(recording.transfers, len(recording.requests))
        self.duration_s = recording.duration_s
        steps, requests = self.steps, self.requests
        self._held, self._running, self.waiting = _courses(recording, reopen)
        self.times_s = self._running[0]
        """Times in seconds at which a step begins, or an output comes while no other step is in flight."""
        self._preempted = np.cumsum(steps.preempted)
        self._computed = np.cumsum(steps.prefill_tokens.astype(np.int64) + steps.decode_tokens)
        begun = np.flatnonzero(~np.isnan(requests.first_scheduled_s))
        order = begun[np.argsort(requests.first_scheduled_s[begun], kind="stable")]
        self._begin_s = requests.first_scheduled_s[order]
        self._prompts = np.append(0, np.cumsum(requests.prompt_tokens[order].astype(np.int64)))
        self._hits = np.append(0, np.cumsum(np.maximum(requests.cached_tokens[order], 0).astype(np.int64)))

    def at(self, time_s: float) -> ServerNow:
        """Return the pool, the queue and the totals at `time_s` seconds.

        Before the first step and after the last, requests hold nothing.
        """
        step = int(np.searchsorted(self.steps.start_s, time_s, side="right")) - 1
        begun = int(np.searchsorted(self._begin_s, time_s, side="right"))
        held, running, waiting = (
            _values_at(course, np.array([time_s]))[0] for course in (self._held, self._running, self.waiting)
        )
        return ServerNow(
            held_share=float(held),
            running=int(running),
            waiting=int(waiting),
            preempted=int(self._preempted[step]) if step >= 0 else 0,
            computed=int(self._computed[step]) if step >= 0 else 0,
            prompt_tokens=int(self._prompts[begun]),
            hit_tokens=int(self._hits[begun]),
        )

    def held_between(self, edges_s: FloatArray) -> FloatArray:
        """Return the mean share of the pool that requests hold, for each interval between consecutive `edges_s`."""
        return means_between(*self._held, edges_s)

    def waiting_at(self, times_s: FloatArray) -> npt.NDArray[np.int64]:
        """Return the number of waiting requests at each of `times_s`."""
        return _values_at(self.waiting, times_s).astype(np.int64)

    def queue(self, time_s: float) -> IntArray:
        """Return the rows of the requests that have arrived by `time_s` and are not scheduled yet, in order of arrival.

        Preempted requests are not among them, because they were scheduled once.
        """
        requests = self.requests
        # Times are NaN for what never happens, and comparisons with NaN are false: "not yet" is ~(time <= now).
        rows = np.flatnonzero(
            (requests.arrival_s <= time_s) & ~(requests.first_scheduled_s <= time_s) & ~(requests.finished_s <= time_s)
        )
        return rows[np.argsort(requests.arrival_s[rows], kind="stable")]

    def step_at(self, time_s: float) -> int | None:
        """Return the index of the last step begun by `time_s`; None before the first step and after the last."""
        step = int(np.searchsorted(self.steps.start_s, time_s, side="right")) - 1
        return step if step >= 0 and time_s < self.duration_s else None

    def visit(self, index: int, row: int) -> Visit:
        """Return the visit of the request in row `row`. `index` is this server's index in `FleetServers.servers`."""
        requests = self.requests
        return Visit(
            server=index,
            arrival_s=float(requests.arrival_s[row]),
            begin_s=float(requests.first_scheduled_s[row]),
            end_s=float(requests.finished_s[row]),
            prompt_tokens=int(requests.prompt_tokens[row]),
            hit_tokens=max(int(requests.cached_tokens[row]), 0),
        )


def _courses(recording: Recording | Outline, reopen: Callable[[], Recording]) -> tuple[Course, Course, Course]:
    """Return the held share of the pool, the number of running and the number of waiting requests over time.

    `reopen` reads the whole recording. It is called only if the table of steps lacks the requests or the free units
    after the output of a step.
    """
    steps, num_units = recording.steps, recording.meta.pool.num_units or 0
    if not len(steps):
        nothing = (np.zeros(2), np.zeros(2))
        return nothing, nothing, nothing
    gaps, free_units = Gaps.stated(steps), steps.free_units_after
    if gaps is None or free_units is None:
        slots = waste(reopen())
        assert slots.in_gaps is not None
        gaps = slots.in_gaps.gaps
        held_share = slots.in_gaps.held / max(slots.capacity, 1)
    else:
        held_share = 1 - free_units[gaps.step] / max(num_units, 1)
    of_steps = 1 - np.maximum(steps.free_units, 0) / num_units if num_units else np.zeros(len(steps))
    held = gaps.joined(steps, of_steps, held_share if num_units else np.zeros(len(gaps.step)))
    return held, gaps.over_time(recording, "running"), gaps.over_time(recording, "waiting")


def _values_at(course: Course, times_s: FloatArray) -> npt.NDArray[Any]:
    """Return the value at each of `times_s`; 0 before the first time of `course`."""
    since_s, values = course
    row = np.searchsorted(since_s, times_s, side="right") - 1
    return np.where(row >= 0, values[np.maximum(row, 0)], 0)


class FleetServers:
    """All servers of a fleet, and the clock that they share.

    Raises:
        RecordingError: no server has steps.
    """

    def __init__(self, servers: Sequence[FleetServer], *, at_s: float | None = None) -> None:
        """Begin playback at `at_s`, or at the busiest moment if that is None."""
        if not any(len(server.steps) for server in servers):
            raise RecordingError("no server of this fleet has a step to show.")
        self.servers = servers
        starts = [server.times_s for server in servers]
        end_s = max(server.duration_s for server in servers)
        begin_s = min((float(each[0]) for each in starts if len(each)), default=0.0)
        if sum(map(len, starts)) > _MOST_FRAMES:
            times_s = np.linspace(begin_s, end_s, _MOST_FRAMES)
        else:
            times_s = np.unique(np.concatenate([*starts, [begin_s, end_s]]))
        preempted_s = [server.steps.start_s[server.steps.preempted > 0] for server in servers]
        notable = np.searchsorted(times_s, np.concatenate(preempted_s)) if preempted_s else np.empty(0, np.int64)
        self.player = Player(times_s, np.minimum(notable, len(times_s) - 1))
        self.followed: str | None = None
        """Id of the followed request; None if none is followed."""
        self._visits: tuple[str | None, list[Visit]] = (None, [])
        self.player.go_to_time(self._busiest_s if at_s is None else at_s)

    @classmethod
    def of(cls, recordings: Iterable[Recording], names: Sequence[str], *, at_s: float | None = None) -> FleetServers:
        """Return a fleet of recordings that are in memory, with a name for each.

        Playback begins at `at_s` seconds, or at the busiest moment if that is None.
        """

        def kept(recording: Recording) -> Callable[[], Recording]:
            return lambda: recording

        return cls(
            [FleetServer(each, name, kept(each)) for each, name in zip(recordings, names, strict=True)], at_s=at_s
        )

    @cached_property
    def most_waiting(self) -> int:
        """Largest number of requests that wait on all servers together at any time."""
        courses = [server.waiting for server in self.servers]
        times_s = np.concatenate([since_s for since_s, _ in courses])
        changes = np.concatenate([np.diff(values.astype(np.int64), prepend=0) for _, values in courses])
        order = np.argsort(times_s, kind="stable")
        waiting = np.cumsum(changes[order])
        # Of changes at one moment, the last one gives the number that waits.
        settled = np.append(np.diff(times_s[order]) > 0, True)
        return int(waiting[settled].max())

    @cached_property
    def _busiest_s(self) -> float:
        """Time in seconds at which most requests wait or, if hardly any ever waits, the pools are fullest."""
        times_s = np.linspace(self.player.begin_s, self.player.duration_s, _SAMPLES + 1)
        waiting = self.waiting_at(times_s)
        if waiting.max() >= len(self.servers):
            return float(times_s[int(waiting.argmax())])
        held = np.sum([server.held_between(times_s) for server in self.servers], axis=0)
        return float(times_s[int(held.argmax())])

    def waiting_at(self, times_s: FloatArray) -> npt.NDArray[np.int64]:
        """Return the number of requests that wait on all servers together, for each of `times_s`."""
        return np.asarray(np.sum([server.waiting_at(times_s) for server in self.servers], axis=0), np.int64)

    def at(self, time_s: float) -> list[ServerNow]:
        """Return one state per server at `time_s` seconds, in the order of `servers`."""
        return [server.at(time_s) for server in self.servers]

    def fullest(self, now: Sequence[ServerNow]) -> list[int]:
        """Return the indices of `servers`, fullest pool first. If pools are equally full, the longer queue is first.

        `now` has one state per server, as `at` returns it.
        """
        return sorted(range(len(now)), key=lambda number: (-now[number].held_share, -now[number].waiting, number))

    def hits(self, now: Sequence[ServerNow]) -> tuple[int, int]:
        """Return the number of prompt tokens that were prefix hits, and the number of all prompt tokens.

        Decode servers do not count.
        """
        states = [state for state, server in zip(now, self.servers, strict=True) if server.kind != "decode"]
        return sum(state.hit_tokens for state in states), sum(state.prompt_tokens for state in states)

    def others_of(self, server: FleetServer) -> list[FleetServer]:
        """Return the servers of the other kind, prefill or decode; empty if `server` does both.

        The index of a server in the result is its number in the `Handovers` of `server`.
        """
        other = {"prefill": "decode", "decode": "prefill"}.get(server.kind)
        return [each for each in self.servers if each.kind == other] if other else []

    def imbalance(self, now: Sequence[ServerNow]) -> tuple[float, str]:
        """Return the largest imbalance of a server, and the kind of that server.

        The imbalance is the number of tokens that a server has computed, divided by the mean of the servers of its
        kind; 1 if no server has computed any. The kind is `prefill`, `decode`, or empty if servers do both.
        """
        computed: dict[str, list[int]] = {}
        for state, server in zip(now, self.servers, strict=True):
            computed.setdefault(server.kind, []).append(state.computed)
        return max(
            ((max(tokens) * len(tokens) / sum(tokens), kind) for kind, tokens in computed.items() if any(tokens)),
            default=(1.0, ""),
        )

    def visits(self, name: str | None) -> list[Visit]:
        """Return the visits of the request with the id `name`, in order of arrival.

        Empty if `name` is None or unknown.
        """
        if self._visits[0] != name:
            found = [
                server.visit(index, int(row))
                for index, server in enumerate(self.servers)
                for row in np.flatnonzero(server.ids == name)[:1]
            ]
            self._visits = (name, sorted(found, key=lambda visit: visit.arrival_s))
        return self._visits[1]

    def present_ids(self, time_s: float) -> list[str]:
        """Return the ids of the requests that wait or run at `time_s`, in order of arrival, without duplicates."""
        arrival_s: dict[str, float] = {}
        for server in self.servers:
            requests = server.requests
            rows = np.flatnonzero((requests.arrival_s <= time_s) & ~(requests.finished_s <= time_s))
            for row in rows.tolist():
                arrival_s.setdefault(str(server.ids[row]), float(requests.arrival_s[row]))
        return sorted(arrival_s, key=lambda name: arrival_s[name])


def shown_name(folder: str) -> str:
    """Return the name of a server from the name of its recording's folder: `3` becomes `server 3`, others stay."""
    return f"server {folder}" if folder.isdecimal() else printable(folder)
