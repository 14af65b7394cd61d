"""The link between an engine and a custom policy, which decides in Python. Such an engine is never compiled.

`CustomRules` is the engine's `rules`. The scheduler calls it to fill a step, to choose the request to preempt and the
one to admit. `block_pool` calls it to choose the block to evict, and `custom_memory` to allocate units. Each answer of
the policy is checked. A wrong answer ends the run with a message that names the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn, TypeVar

from kvsim.engine import scheduler, waiting_queue
from kvsim.engine.custom import step_costs
from kvsim.engine.custom.cached_blocks import CachedBlocks, FreeBlocks
from kvsim.engine.custom.custom_memory import CustomUnits
from kvsim.engine.custom.optimal_eviction import OptimalEviction
from kvsim.engine.paged import block_pool, prefix_hits
from kvsim.engine.records import Sequence
from kvsim.engine.state import PREEMPTED, WAITING, Engine
from kvsim.errors import KvsimError, PolicyError
from kvsim.policies.custom import (
    CachedBlock,
    CustomPolicy,
    ServedRequest,
    check_allocator_names,
    evicts,
    overrides,
    ranks_blocks,
    shares_prefixes,
)

QUEUED = (WAITING, PREEMPTED)
"""Values of `Sequence.status` for a request in the queue."""

_MOST_EMPTY = 3
"""Largest number of consecutive steps that may compute nothing while requests wait or run. A few are normal: a step is
empty if all requests await their last output.
"""
_MOST_PER_KNOWN_TOKEN = 10
"""Largest number of tokens that may be computed without a new output token of any request, as a multiple of the prompt
and output tokens known of all requests. With more, the run ends with an error.
"""

Answer = TypeVar("Answer")


def _reads(path: str) -> Any:
    return property(attrgetter(path))


class _Served:
    """A request as a policy sees it: a `ServedRequest`."""

    __slots__ = ("_engine", "_keys", "sequence", "times")
    arrival_s: float = _reads("times.arrival_s")
    priority: int = _reads("sequence.priority")
    prompt_tokens: int = _reads("sequence.prompt_tokens")
    known_tokens: int = _reads("sequence.num_tokens")
    computed_tokens: int = _reads("sequence.computed")
    num_units: int = _reads("sequence.num_units")
    num_preemptions: int = _reads("sequence.preemptions")

    def __init__(self, engine: Engine, sequence: Sequence) -> None:
        self._keys: list[int] = []
        self._engine, self.sequence, self.times = engine, sequence, engine.times[sequence.number]

    def __repr__(self) -> str:
        return f"<request {self.row}: {self.prompt_tokens} prompt tokens, {self.known_tokens} known>"

    @property
    def row(self) -> int:
        return self.sequence.number - 1

    @property
    def max_tokens(self) -> int:
        return self.sequence.limit_tokens - self.sequence.prompt_tokens

    @property
    def output_tokens(self) -> int:
        return self.sequence.end_tokens - self.sequence.prompt_tokens

    @property
    def hit_tokens(self) -> int:
        return step_costs.cached_prefix(self._engine, self.sequence)[0] if self.sequence.status in QUEUED else 0

    @property
    def prefix_keys(self) -> list[int]:
        num_keys = (self.sequence.num_tokens - 1) // self._engine.settings.unit_tokens
        for index in range(len(self._keys), num_keys):
            self._keys.append(prefix_hits.key_of(self._engine, self.sequence, 0, index))
        return self._keys[:num_keys]


class CustomRules:
    """The rules of a custom policy for one engine. The policy's methods get this object as their argument `step`."""

    def __init__(self, policy: CustomPolicy, num_units: int, eviction: OptimalEviction | None = None) -> None:
        """Create the policy's allocator of `num_units` units, if any. `eviction` replaces the policy's eviction."""
        self.policy = policy
        self._prefixes: dict[int, tuple[int, int]] = {}
        """Values of `step_costs.cached_prefix` by the number of the sequence, found since memory last could change."""
        self.own_units = None if policy.allocator is None else self._create_units(num_units)
        """Units of the policy's allocator; None if it has no allocator."""
        self._eviction = eviction
        self._ranks = ranks_blocks(policy)
        self._cached = (
            CachedBlocks(partial(self.ask, policy.eviction_rank) if self._ranks else None) if evicts(policy) else None
        )
        self._listed: Iterator[CachedBlock] = iter(())
        """Blocks that were not taken yet from the list that the policy's `evict` returned last."""
        self._listed_in = 0
        """Step, counted from 1, in which the policy's `evict` was last called; `_listed` holds blocks of its answer."""
        self._served: dict[int, _Served] = {}
        self._engine: Engine | None = None
        self._num_empty = 0
        """Number of consecutive steps that computed nothing although there were requests."""
        self._has_declined = False
        """True if the policy has chosen to admit no further request in this step."""
        self._tokens_since_output = 0
        """Number of tokens scheduled since the last step that yields an output token, or since there was no request."""
        self._checked_above = 0
        """Last known limit of `_tokens_since_output`. If it is exceeded, the limit is computed again, because it grows
        with the known tokens.
        """
        self._alone: int | None = None
        """Number of the sequence for which `compute` is being called; None at other times."""
        self._next: Iterator[ServedRequest] | None = None
        """Iterator over the one request for which `admit` is being called; None at other times."""

    def _create_units(self, num_units: int) -> CustomUnits:
        make = self.policy.allocator
        assert make is not None
        made = self.ask(make, num_units, self.policy.unit_tokens)
        check_allocator_names(type(made))
        if shares_prefixes(made) and not shares_prefixes(make):
            self.refuse(f"shares prefixes by an allocator of {type(made).__name__}; let `allocator` be that class")
        return CustomUnits.of(made, num_units)

    @property
    def units(self) -> CustomUnits:
        """Units of the policy's allocator. The policy must have one."""
        assert self.own_units is not None
        return self.own_units

    def served(self, engine: Engine, sequence: Sequence) -> _Served:
        """Return the policy's view of a request: the same object in all calls of a run."""
        number = sequence.number
        if number not in self._served:
            self._served[number] = _Served(engine, sequence)
        return self._served[number]

    def fill_step(self, engine: Engine) -> int:
        """Let the policy fill the step. Return the number of tokens of the budget that it leaves unused."""
        self._engine, state = engine, engine.state
        self._has_declined = False
        self.ask(self.policy.schedule, self)
        self._num_empty = 0 if state.num_listed or not scheduler.has_work(engine) else self._num_empty + 1
        if self._num_empty > _MOST_EMPTY and state.num_running:
            self.refuse("made a step in which nothing is computed, although requests run: the clock would not advance")
        if self._num_empty > _MOST_EMPTY and state.num_preempted:
            self.refuse(f"preempts what it has just admitted, for ever: {self._rows(self.preempted)}")
        if self._num_empty and self._has_declined and not (state.num_running or state.num_in_flight):
            self.refuse(f"admits no request, although none runs: {self._rows(self.waiting)}")
        self._check_progress(engine)
        return self.tokens_left

    def _check_progress(self, engine: Engine) -> None:
        state = engine.state
        earlier = (state.next_launched - 1) % engine.settings.most_in_flight  # the step scheduled before this one
        if state.num_running + state.num_waiting == 0 or engine.launched[earlier].num_emitting:
            self._tokens_since_output = 0
        self._tokens_since_output += engine.settings.max_num_batched_tokens - self.tokens_left
        if self._tokens_since_output <= self._checked_above:
            return
        known = sum(request.known_tokens for request in (*self.running, *self.waiting))
        self._checked_above = _MOST_PER_KNOWN_TOKEN * known
        if self._tokens_since_output > self._checked_above:
            self.refuse(
                f"has computed {self._tokens_since_output:,} tokens without a new output token, because it preempts "
                f"requests before they yield one: {self._rows((*self.running, *self.waiting))}"
            )

    def _rows(self, requests: Iterable[_Served]) -> str:
        rows = [str(request.row) for request in requests]
        return f"rows {', '.join(rows[:5])}" + (f" and {len(rows) - 5} more" if len(rows) > 5 else "")

    def choose_victim(self, engine: Engine, needs: Sequence) -> int:
        """Return the index in `Engine.running` of the request to preempt so that `needs` gets memory. It may be `needs`
        itself. During a call of `compute`, which preempts nothing, raise `_NoRoomError` instead.
        """
        if self._alone is not None:
            raise _NoRoomError
        if not overrides(self.policy, "victim"):
            return scheduler.VLLM.choose_victim(engine, needs)
        return self._index_in_running(self.ask(self.policy.victim, self, self.served(engine, needs)), "victim")

    def choose_next(self, engine: Engine) -> Sequence:
        """Return the request to admit next. Requests that earlier steps skipped come first, then the policy's choice;
        if the policy has no rule, vLLM's order holds. Raise `_NoOtherError` if the policy chooses none.
        """
        chooses = self._next is not None or overrides(self.policy, "admit")
        if engine.state.num_looked_at < engine.state.num_skipped or not chooses:
            return waiting_queue.next_in_pass(engine)
        chosen = self.ask(self.policy.admit, self) if self._next is None else next(self._next, None)
        if chosen is None:
            self._has_declined = True
            raise _NoOtherError
        sequence = self._sequence(chosen)
        if sequence.number not in waiting_queue.in_order(engine):
            self.refuse(f"named {chosen!r} as the next to admit, and it does not wait")
        return sequence

    def choose_evicted(self, engine: Engine) -> int:
        """Return the id of the block to evict: by optimal eviction if it is on, else the policy's or vLLM's rule."""
        if self._eviction is not None:
            return self._eviction.choose_evicted(engine)
        if self._cached is None:
            return block_pool.least_recently_freed(engine)
        if self._ranks:
            unit = self._cached.first_ranked().unit
        else:
            unit = self._choose_evicted(engine, FreeBlocks(self._cached)).unit
        self._cached.remove(unit)
        return unit

    def _choose_evicted(self, engine: Engine, candidates: FreeBlocks) -> CachedBlock:
        """Return the next block to evict: the next one in the list that the policy's `evict` returned in this step, if
        such a block is still free, or else the block that a new call of `evict` returns first.
        """
        self._engine, step = engine, engine.state.num_scheduled
        if self._listed_in == step:
            for block in self._listed:
                if block in candidates:
                    return block
        answer = self.ask(self.policy.evict, self, candidates)
        self._listed_in, self._listed = step, iter(answer if isinstance(answer, list) else (answer,))
        chosen = next(self._listed, None)
        if chosen is None or chosen not in candidates:
            self.refuse(f"named {chosen!r} to evict, which is no free block that keeps a prefix")
        return chosen

    def note_cached(self, engine: Engine, sequence: Sequence, group: int, index: int) -> None:
        """Tell the eviction rule that the block in entry `index` of a sequence's table in `group` was cached."""
        if self._eviction is not None:
            self._eviction.note_cached(engine, sequence, group, index)
        if self._cached is not None:
            self._cached.add(engine, sequence, self.served(engine, sequence), group, index)

    def note_hit(self, engine: Engine, sequence: Sequence, block: int) -> None:
        """Tell the eviction rule that a request was admitted with a hit on `block`."""
        if self._cached is not None:
            self._cached.hit(block, self.served(engine, sequence))

    def note_freed(self, engine: Engine, block: int) -> None:
        """Tell the eviction rule that `block` is in no table any longer. The block need not be cached."""
        if self._eviction is not None:
            self._eviction.note_freed(engine, block)
        if self._cached is not None:
            self._cached.free(block, engine.state.host_s)

    def ask(self, hook: Callable[..., Answer], *arguments: Any) -> Answer:
        """Call a method of the policy or of its allocator, and return the answer. If the method fails, the run ends
        with an error that names the policy.
        """
        self._prefixes.clear()
        try:
            return hook(*arguments)
        except (KvsimError, _NoRoomError, _NoOtherError):
            raise
        except Exception as error:
            name = getattr(hook, "__name__", "allocator")  # some objects that make an allocator have no name
            self.refuse(f"failed in {name}: {type(error).__name__}: {error}", error)

    def refuse(self, what: str, error: Exception | None = None) -> NoReturn:
        """End the run with an error: the policy broke a rule, or failed with `error`. `what` is the rest of a sentence
        about the policy, such as "admitted a running request".
        """
        raise PolicyError(f"the policy {self.policy.name!r} {what}.") from error

    @property
    def engine(self) -> Engine:
        """Engine that schedules the current step."""
        assert self._engine is not None
        return self._engine

    @property
    def now_s(self) -> float:
        """Time on the host's clock, in seconds."""
        return self.engine.state.host_s

    @property
    def waiting(self) -> list[_Served]:
        """The waiting requests, the head of the queue first."""
        return self._served_all(waiting_queue.in_order(self.engine))

    @property
    def running(self) -> list[_Served]:
        """The running requests, in order of admission."""
        engine = self.engine
        return self._served_all([engine.running[index] for index in range(engine.state.num_running)])

    @property
    def preempted(self) -> list[_Served]:
        """The requests that this step has preempted until now."""
        engine = self.engine
        return self._served_all([engine.lists[index].preempted for index in range(engine.state.num_preempted)])

    @property
    def num_free_units(self) -> int:
        """Number of units that can be allocated, those in the prefix cache included."""
        return self.engine.state.num_free

    @property
    def tokens_left(self) -> int:
        """Number of tokens of the budget that this step has not assigned to a request."""
        engine = self.engine
        given = sum(engine.batch_tokens[index] for index in range(engine.state.num_listed))
        return engine.settings.max_num_batched_tokens - given

    def cost_s(self, tokens: Mapping[ServedRequest, int] | None = None) -> float:
        """Return the duration of this step in seconds, if it also computed `tokens[request]` tokens of each request in
        `tokens`. If `tokens` is None, count only the tokens that are assigned already.
        """
        numbers = {self._sequence(request).number: self._positive(number) for request, number in (tokens or {}).items()}
        return step_costs.cost_s(self.engine, numbers, self._cached_prefix)

    def _cached_prefix(self, sequence: Sequence) -> tuple[int, int]:
        """Return `step_costs.cached_prefix` of a waiting sequence.

        It is looked up once until memory can change, because a policy may try many steps before it chooses one.
        """
        if self.own_units is not None:  # the policy may change what its allocator finds at any time
            return step_costs.cached_prefix(self.engine, sequence)
        if sequence.number not in self._prefixes:
            self._prefixes[sequence.number] = step_costs.cached_prefix(self.engine, sequence)
        return self._prefixes[sequence.number]

    def serve_running(self) -> None:
        """Assign tokens to the running requests by vLLM's rule."""
        if self.engine.state.num_listed:
            self.refuse("let all requests compute after it had let some")
        scheduler.serve_running(self.engine, self.tokens_left)
        self._prefixes.clear()

    def admit_waiting(self) -> None:
        """Admit waiting requests by vLLM's rule; the policy's `admit` chooses the next one."""
        with suppress(_NoOtherError):
            scheduler.admit_waiting(self.engine, self.tokens_left)
        self._prefixes.clear()

    def compute(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Schedule at most `num_tokens` tokens of a running request, or as many as possible if it is None, without
        preempting any request. Return False if no token is scheduled; see `StepInMaking.compute`.
        """
        engine, state = self.engine, self.engine.state
        place, number = self._index_in_running(request, "request to compute"), self._sequence(request).number
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
        self._prefixes.clear()
        return state.num_listed > listed

    def admit(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Admit a waiting request with at most `num_tokens` tokens, or as many as possible if it is None. Return False
        if it is not admitted; see `StepInMaking.admit`.
        """
        listed = self.engine.state.num_listed
        self._next = iter((request,))
        try:
            with suppress(_NoOtherError):
                scheduler.admit_waiting(self.engine, self._at_most(num_tokens))
        finally:
            self._next = None
        self._prefixes.clear()
        return self.engine.state.num_listed > listed

    def preempt(self, request: ServedRequest) -> None:
        """Preempt a running request, and take back the tokens that this step has assigned to it."""
        sequence = scheduler.remove_running(self.engine, self._index_in_running(request, "victim"))
        scheduler.take_out_of_batch(self.engine, sequence)
        scheduler.preempt(self.engine, sequence)
        self._prefixes.clear()

    def _index_in_running(self, request: ServedRequest, role: str) -> int:
        """Return the index of a request in `Engine.running`. `role` names the request in errors."""
        engine, number = self.engine, self._sequence(request).number
        running = [engine.running[index] for index in range(engine.state.num_running)]
        if number not in running:
            self.refuse(f"named {request!r} as {role}, and it does not run")
        return running.index(number)

    def _served_all(self, numbers: list[int]) -> list[_Served]:
        return [self.served(self.engine, self.engine.sequences[number]) for number in numbers]

    def _sequence(self, request: object) -> Sequence:
        if not isinstance(request, _Served):
            self.refuse(f"returned {request!r}, which is no request of the step")
        return request.sequence

    def _at_most(self, num_tokens: int | None) -> int:
        return self.tokens_left if num_tokens is None else min(self.tokens_left, self._positive(num_tokens))

    def _positive(self, num_tokens: int) -> int:
        if num_tokens < 1:
            self.refuse(f"asked for {num_tokens} tokens; a step computes 1 or more")
        return num_tokens


class _NoRoomError(Exception):
    """Raised if the pool has no room for the request for which `CustomRules.compute` is being called."""


class _NoOtherError(Exception):
    """Raised if the policy chooses no other request to admit in this step."""
