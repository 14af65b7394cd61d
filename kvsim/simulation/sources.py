"""Sources send the requests of a workload to the servers, at given times or in reaction to answers.

They are SimPy processes. A `Dispatcher` chooses the server of each request.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import simpy

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.simulation.dispatch import CachedKeys, Dispatcher
    from kvsim.simulation.server import ServerProcess
    from kvsim.workload import Turns


class Source(Protocol):
    """Sender of the requests of a workload: by the clock, or by users who wait for answers."""

    @property
    def awaits_answers(self) -> bool:
        """True if the source itself waits for answers before it sends."""

    def start(self, environment: simpy.Environment, servers: Sequence[ServerProcess]) -> None:
        """Begin to send to `servers`."""

    def horizon_s(self) -> float:
        """Return the time in seconds until which no event outside a server affects the server."""


class KnownInAdvance:
    """Sends all requests to one server at once, each with its arrival time, because all arrival times are known.

    At the times `sample_s`, in seconds, it appends the keys of the server's cached blocks to `samples`.
    """

    awaits_answers = False

    def __init__(self, sample_s: Sequence[float], samples: list[CachedKeys]) -> None:
        self._sample_s, self._samples = sample_s, samples
        self._next_s = min(sample_s, default=math.inf)

    def start(self, environment: simpy.Environment, servers: Sequence[ServerProcess]) -> None:
        """Send all requests at once, each with its arrival time."""
        [server] = servers
        server.driver.send_all()
        if self._sample_s:
            environment.process(self._sample(environment, server))

    def horizon_s(self) -> float:
        """Return the time in seconds of the next sample of cached keys; infinity after the last."""
        return self._next_s

    def _sample(self, environment: simpy.Environment, server: ServerProcess) -> Generator[simpy.Event, None, None]:
        for at_s in self._sample_s:
            self._next_s = at_s
            if at_s > environment.now:
                yield environment.timeout(at_s - environment.now)
            self._samples.append(server.cached_keys())
        self._next_s = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Users:
    """Users of a closed loop. Each waits for an answer before sending the next request."""

    number: int
    think_s: float = 0.0
    """Seconds from an answer to the next request of the same user."""
    per_s: float = math.inf
    """Number of users that begin per second; infinity: all begin at once."""

    def begin_s(self, user: int) -> float:
        """Return the time in seconds at which user number `user`, counted from 0, sends the first request."""
        return user / self.per_s


class SingleServerUsers:
    """Users of a single server who all begin at once. The engine itself sends their next requests, at each answer."""

    awaits_answers = False

    def __init__(self, users: Users) -> None:
        self._users = users

    def start(self, environment: simpy.Environment, servers: Sequence[ServerProcess]) -> None:  # noqa: ARG002
        """Let the engine send the first request of each user, and the next one at each answer."""
        [server] = servers
        server.driver.send_first(self._users.number, self._users.think_s)

    def horizon_s(self) -> float:
        """Return infinity, because no event outside the server affects the server."""
        return math.inf


class OpenLoop:
    """Sends requests at the arrival times of the workload, regardless of answers."""

    awaits_answers = False

    def __init__(self, arrival_s: npt.NDArray[np.float64], dispatcher: Dispatcher) -> None:
        self._arrival_s: list[float] = arrival_s.tolist()
        self._dispatcher = dispatcher
        self._next_s = 0.0

    def start(self, environment: simpy.Environment, servers: Sequence[ServerProcess]) -> None:
        """Send each request to one of `servers` at its arrival."""
        environment.process(self._run(environment, servers))

    def horizon_s(self) -> float:
        """Return the time in seconds of the next arrival or look-up. Servers must not run past it."""
        return self._next_s

    def _run(
        self, environment: simpy.Environment, servers: Sequence[ServerProcess]
    ) -> Generator[simpy.Event, None, None]:
        for row, at_s, is_look_up in self._moments():
            self._next_s = at_s
            if at_s > environment.now:
                yield environment.timeout(at_s - environment.now)
            if is_look_up:
                self._dispatcher.look_up(row, servers)
            else:
                self._dispatcher.choose(row, at_s, servers).send(row, at_s)
        self._next_s = math.inf

    def _moments(self) -> Iterator[tuple[int, float, bool]]:
        """Yield arrivals and look-ups in order of time: row of the workload, time in seconds, True for a look-up.

        A router may see prefix hits that are `lag_s` seconds old. Then the hits of a request are looked up `lag_s`
        seconds before it arrives, but not before second 0. If `lag_s` is 0, there are no look-ups.
        """
        lag_s, num_looked = self._dispatcher.lag_s, 0
        for row, arrival_s in enumerate(self._arrival_s):
            while lag_s and num_looked < len(self._arrival_s) and self._arrival_s[num_looked] - lag_s <= arrival_s:
                yield num_looked, max(self._arrival_s[num_looked] - lag_s, 0.0), True
                num_looked += 1
            yield row, arrival_s, False


class ClosedLoop:
    """Users who each send a request, wait for its end, think, and send the next unsent request of the workload.

    With `arrival_s`, no request is sent before its time in `arrival_s`. This models clients that limit the number of
    concurrent requests.
    """

    awaits_answers = True

    def __init__(
        self,
        num_requests: int,
        users: Users,
        dispatcher: Dispatcher,
        arrival_s: npt.NDArray[np.float64] | None = None,
    ) -> None:
        self._rows = iter(range(num_requests))
        self._num_requests = num_requests
        self._users = users
        self._dispatcher = dispatcher
        self._arrival_s: list[float] = [0.0] * num_requests if arrival_s is None else arrival_s.tolist()

    def start(self, environment: simpy.Environment, servers: Sequence[ServerProcess]) -> None:
        """Let the users begin."""
        self._environment = environment
        for number in range(min(self._users.number, self._num_requests)):
            environment.process(self._user(environment, servers, self._users.begin_s(number)))

    def horizon_s(self) -> float:
        """Return the time in seconds of SimPy's next event: a user may send, or another server may answer."""
        return float(self._environment.peek())

    def _user(
        self, environment: simpy.Environment, servers: Sequence[ServerProcess], at_s: float
    ) -> Generator[simpy.Event, float, None]:
        if at_s:
            yield environment.timeout(at_s)
        while (row := next(self._rows, None)) is not None:
            if self._arrival_s[row] > at_s:
                at_s = self._arrival_s[row]
                yield environment.timeout(max(at_s - environment.now, 0.0))
            answered_s = yield self._dispatcher.choose(row, at_s, servers).send(row, at_s)
            at_s = answered_s + self._users.think_s
            if self._users.think_s:
                yield environment.timeout(max(at_s - environment.now, 0.0))


class Conversations:
    """Sends the turns of sessions. A turn is sent when the turns before it have ended and its pause is over, but not
    before its arrival time.

    With `users`, arrival times do not count. Each user then has one session after the other, and thinks between them.
    """

    awaits_answers = True

    def __init__(
        self, turns: Turns, arrival_s: npt.NDArray[np.float64], dispatcher: Dispatcher, users: Users | None = None
    ) -> None:
        self._arrival_s: list[float] = (np.zeros_like(arrival_s) if users else arrival_s).tolist()
        self._pause_s: list[float] = turns.pause_s.tolist()
        self._followers = turns.followers()
        self._session: list[int] = turns.session.tolist()
        self._first_turns = np.flatnonzero(turns.after < 0).tolist()
        self._next_session = iter(self._first_turns)
        self._num_awaited = turns.num_awaited()
        """Number of turns that each turn still waits for."""
        self._ready_s = [0.0] * len(turns)
        """Earliest time in seconds at which each turn may be sent: the end of the last ended turn that it waits for,
        plus the pause. It is 0 while none of these turns has ended.
        """
        self._num_left = np.bincount(turns.session).tolist()
        """Number of turns of each session that have not ended."""
        self._dispatcher = dispatcher
        self._users = users

    def start(self, environment: simpy.Environment, servers: Sequence[ServerProcess]) -> None:
        """Begin all sessions; in a closed loop, begin the users instead."""
        self._environment, self._servers = environment, servers
        if self._users is None:
            environment.process(self._arrive())
            return
        for number in range(min(self._users.number, len(self._first_turns))):
            self._begin(self._users.begin_s(number))

    def horizon_s(self) -> float:
        """Return the time in seconds of SimPy's next event: a turn may be sent, or another server may answer."""
        return float(self._environment.peek())

    def _arrive(self) -> Generator[simpy.Event, None, None]:
        """Begin every session at the arrival of its first turn."""
        for row in self._first_turns:
            arrival_s = self._arrival_s[row]
            if arrival_s > self._environment.now:
                yield self._environment.timeout(arrival_s - self._environment.now)
            self._begin(arrival_s)

    def _begin(self, at_s: float) -> None:
        """Begin the next session at `at_s` seconds; do nothing if no session is left."""
        row = next(self._next_session, None)
        if row is not None:
            self._environment.process(self._turn(row, at_s))

    def _turn(self, row: int, at_s: float) -> Generator[simpy.Event, float, None]:
        """Send the turn in `row` at `at_s` seconds. When it ends, start the turns that waited only for this one."""
        if at_s > self._environment.now:
            yield self._environment.timeout(at_s - self._environment.now)
        ended_s = yield self._dispatcher.choose(row, at_s, self._servers).send(row, at_s)
        session = self._session[row]
        self._num_left[session] -= 1
        for later in self._followers[row]:
            self._num_awaited[later] -= 1
            self._ready_s[later] = max(self._ready_s[later], ended_s + self._pause_s[later])
            if not self._num_awaited[later]:
                later_s = max(self._ready_s[later], self._arrival_s[later])
                self._environment.process(self._turn(later, later_s))
        if self._users is not None and not self._num_left[session]:
            self._begin(ended_s + self._users.think_s)
