"""Where the engine asks a policy that a user wrote: what it is shown, and what its answers do.

Such an engine is never compiled. `OwnRules` stands in `Engine.rules`; the scheduler asks it for a step and for a
victim, and `own_memory` for units. Answers are checked: a rule that names a request which does not wait, or hands out a
unit twice, ends the run in a sentence that names the policy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

from kvsim.engine import scheduler, waiting_queue
from kvsim.engine.records import Sequence, Times
from kvsim.engine.state import Engine
from kvsim.errors import PolicyError
from kvsim.policies.own import Allocator, OwnPolicy, ServedRequest

_MOST_EMPTY = 3
"""Steps in a row that may be empty: the last tokens of all that run may be under way, in two steps at most."""


class Served:
    """A request as a policy sees it: what its records say now."""

    __slots__ = ("_times", "sequence")

    def __init__(self, sequence: Sequence, times: Times) -> None:
        self.sequence, self._times = sequence, times

    def __repr__(self) -> str:
        return f"<request {self.row}: {self.prompt_tokens} prompt tokens, {self.known_tokens} known>"

    @property
    def row(self) -> int:
        """The request's row in the workload."""
        return self.sequence.number - 1

    @property
    def arrival_s(self) -> float:
        """Time at which the request was sent, in seconds."""
        return self._times.arrival_s

    @property
    def priority(self) -> int:
        """As it was sent."""
        return self.sequence.priority

    @property
    def prompt_tokens(self) -> int:
        """Length of its prompt."""
        return self.sequence.prompt_tokens

    @property
    def max_tokens(self) -> int:
        """Outputs after which it is stopped."""
        return self.sequence.limit_tokens - self.sequence.prompt_tokens

    @property
    def output_tokens(self) -> int:
        """Outputs that it will have in the end."""
        return self.sequence.end_tokens - self.sequence.prompt_tokens

    @property
    def known_tokens(self) -> int:
        """Tokens of its prompt and of its answer so far."""
        return self.sequence.num_tokens

    @property
    def computed_tokens(self) -> int:
        """Tokens computed for it so far."""
        return self.sequence.computed

    @property
    def num_units(self) -> int:
        """Units in its table."""
        return self.sequence.num_units

    @property
    def num_preemptions(self) -> int:
        """How often it gave way."""
        return self.sequence.preemptions


class OwnRules:
    """A policy at work in one engine: the step that it makes, and the units that its allocator handed out."""

    def __init__(self, policy: OwnPolicy, num_units: int) -> None:
        """Ask `policy` for its allocator for a pool of `num_units`."""
        self.policy = policy
        make = policy.allocator
        self.allocator: Allocator | None = None if make is None else make(num_units, policy.unit_tokens)
        self.tables: dict[int, list[int]] = {}
        """The units of each request that has a table, by the number of its record; of an own allocator alone."""
        self.is_taken = bytearray(num_units)
        """Whether a unit is in some table."""
        self._served: dict[int, Served] = {}
        self._engine: Engine | None = None
        self._num_empty = 0
        """Steps in a row in which nothing was computed although requests run."""
        self._alone: int | None = None
        """The request that computes by itself, while it does."""
        self._next: Iterator[ServedRequest] | None = None
        """Requests to admit, where the policy makes the step itself."""

    def served(self, engine: Engine, sequence: Sequence) -> Served:
        """Return the request as the policy sees it: one object for the whole run."""
        number = sequence.number
        if number not in self._served:
            self._served[number] = Served(sequence, engine.times[number])
        return self._served[number]

    def fill_step(self, engine: Engine) -> int:
        """Let the policy make the step; return what is left of its tokens."""
        self._engine, state = engine, engine.state
        self.policy.schedule(self)
        is_empty = state.num_running > 0 and state.num_listed + state.num_preempted == 0
        self._num_empty = self._num_empty + 1 if is_empty else 0
        if self._num_empty > _MOST_EMPTY:
            self.refuse("made a step in which nothing is computed, although requests run: time would stand still")
        return self.tokens_left

    def choose_victim(self, engine: Engine, needs: Sequence) -> int:
        """Return the index, among the running requests, of the one that gives way for `needs`."""
        if self._alone is not None:
            raise _NoRoomError
        return self._place(self.policy.victim(self, self.served(engine, needs)), "victim")

    def choose_next(self, engine: Engine) -> Sequence:
        """Return the request that is admitted next."""
        chosen = self.policy.admit(self) if self._next is None else next(self._next, None)
        if chosen is None:
            raise _NoOtherError
        sequence = self._sequence(chosen)
        if sequence.number not in waiting_queue.in_order(engine):
            self.refuse(f"named {chosen!r} as the next to admit, and it does not wait")
        return sequence

    def refuse(self, what: str) -> NoReturn:
        """Raise: the policy did what it must not."""
        raise PolicyError(f"the policy {self.policy.name!r} {what}.")

    @property
    def engine(self) -> Engine:
        """The engine whose step is being made."""
        assert self._engine is not None
        return self._engine

    @property
    def now_s(self) -> float:
        """The host's clock."""
        return self.engine.state.host_s

    @property
    def waiting(self) -> list[Served]:
        """The requests that wait, the head first."""
        return self._served_all(waiting_queue.in_order(self.engine))

    @property
    def running(self) -> list[Served]:
        """The requests that run, in order of admission."""
        engine = self.engine
        return self._served_all([engine.running[index] for index in range(engine.state.num_running)])

    @property
    def preempted(self) -> list[Served]:
        """The requests that this step preempted."""
        engine = self.engine
        return self._served_all([engine.lists[index].preempted for index in range(engine.state.num_preempted)])

    @property
    def num_free_units(self) -> int:
        """Units that can be handed out."""
        return self.engine.state.num_free

    @property
    def tokens_left(self) -> int:
        """Tokens that this step may still compute."""
        engine = self.engine
        given = sum(engine.batch_tokens[index] for index in range(engine.state.num_listed))
        return engine.settings.max_num_batched_tokens - given

    def serve_running(self) -> None:
        """Apply vLLM's rule to the running requests."""
        if self.engine.state.num_listed:
            self.refuse("let all requests compute after it had let some")
        scheduler.serve_running(self.engine, self.tokens_left)

    def admit_waiting(self) -> None:
        """Apply vLLM's rule to the waiting requests; the policy chooses the next."""
        with suppress(_NoOtherError):
            scheduler.admit_waiting(self.engine, self.tokens_left)

    def compute(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Let a running request compute more by vLLM's rule, as if it ran alone and none could give way."""
        engine, state = self.engine, self.engine.state
        place, number = self._place(request, "request to compute"), self._sequence(request).number
        listed = state.num_listed
        if number in [engine.batch[index] for index in range(listed)]:
            self.refuse(f"let {request!r} compute twice in one step")
        first, num_running = engine.running[0], state.num_running
        self._alone = number
        engine.running[0], engine.running[place], state.num_running = number, first, 1
        try:
            scheduler.serve_running(engine, self._at_most(num_tokens))
        except _NoRoomError:
            pass
        finally:
            engine.running[place], engine.running[0], state.num_running = number, first, num_running
            self._alone = None
        return state.num_listed > listed

    def admit(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Let a waiting request run."""
        listed = self.engine.state.num_listed
        self._next = iter((request,))
        try:
            with suppress(_NoOtherError):
                scheduler.admit_waiting(self.engine, self._at_most(num_tokens))
        finally:
            self._next = None
        return self.engine.state.num_listed > listed

    def preempt(self, request: ServedRequest) -> None:
        """Free all that a running request holds."""
        sequence = scheduler.remove_running(self.engine, self._place(request, "victim"))
        scheduler.take_out_of_batch(self.engine, sequence)
        scheduler.preempt(self.engine, sequence)

    def _place(self, request: ServedRequest, role: str) -> int:
        """Return the index of a request among those that run."""
        engine, number = self.engine, self._sequence(request).number
        running = [engine.running[index] for index in range(engine.state.num_running)]
        if number not in running:
            self.refuse(f"named {request!r} as {role}, and it does not run")
        return running.index(number)

    def _served_all(self, numbers: list[int]) -> list[Served]:
        return [self.served(self.engine, self.engine.sequences[number]) for number in numbers]

    def _sequence(self, request: object) -> Sequence:
        if not isinstance(request, Served):
            self.refuse(f"answered {request!r}, which is no request of the step")
        return request.sequence

    def _at_most(self, num_tokens: int | None) -> int:
        if num_tokens is not None and num_tokens < 1:
            self.refuse(f"asked for {num_tokens} tokens; a step computes 1 or more")
        return self.tokens_left if num_tokens is None else min(self.tokens_left, num_tokens)


class _NoRoomError(Exception):
    """A request that computes by itself has no room, and no other gives way for it."""


class _NoOtherError(Exception):
    """The policy names no other request to admit."""
