"""A server as a SimPy process, which runs its engine for many steps at a time.

The engine returns when another part of the simulation may affect the server. The engine's buffers of results are read
when they are full, and at the end of the run. A slice is the part of a run between two such readings.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Generator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import simpy

from kvsim.engine.arrays import column
from kvsim.engine.clock import (
    ANSWERED,
    BATCHED,
    CHECK,
    FAILED,
    FULL,
    IDLE,
    LAUNCHED,
    NEWS,
    REACHED,
    STALLED,
)
from kvsim.engine.combinations import double_free_error
from kvsim.engine.custom import custom_memory
from kvsim.engine.driver import Driver
from kvsim.engine.paged import prefix_cache, prefix_hits
from kvsim.engine.radix.hierarchical import OF_SGLANG
from kvsim.engine.records import (
    LOADS_UNRECORDED,
    RANGES_UNRECORDED,
    SLOTS_MISSING,
    TWO_CHUNKED,
    WINDOWS_FREED_TWICE,
)
from kvsim.engine.state import Engine
from kvsim.errors import BudgetError, KvsimError, StalledError
from kvsim.simulation.step_check import Checks
from kvsim.steptime.kernels import Batch, KernelsSeen

SliceListener = Callable[[Engine], None]
"""Function that reads the rows in the engine's buffers, each time before the engine overwrites them."""


class Horizon(Protocol):
    """Function that limits how far a server may run ahead of the rest of the simulation."""

    def __call__(self) -> float:
        """Return the time in seconds until which no event outside the server affects the server."""


class Exchanging(Protocol):
    """The other side of a server's KV connector: other servers, or a prefix store."""

    def add(self, server: ServerProcess, number: int) -> None:
        """Record that request `number` (its row in the workload, counted from 1) was sent to `server`."""

    def process_transfers(self, server: ServerProcess) -> None:
        """Process the transfers that `server` has begun since the previous call."""


class Lockstep(Protocol):
    """The data-parallel ranks of one server, whose steps wait for each other."""

    def meet(self, rank: ServerProcess) -> Generator[simpy.Event, None, None]:
        """Take part in a step of all ranks, with the batch that `rank` has scheduled."""

    def rest(self, rank: ServerProcess) -> Generator[simpy.Event, None, None]:
        """Take part in a step of all ranks without a batch. If all ranks sleep, wait until a request is sent to one."""


class ServerProcess:
    """One engine on SimPy's clock, and the events by which clients learn that their requests have ended."""

    def __init__(
        self,
        environment: simpy.Environment,
        driver: Driver,
        *,
        kernels: KernelsSeen | None = None,
        listeners: tuple[SliceListener, ...] = (),
        progress: SliceListener | None = None,
        horizon: Horizon = lambda: math.inf,
        exchange: Exchanging | None = None,
        lockstep: Lockstep | None = None,
        rows: range,
    ) -> None:
        """Start the process on the clock of `environment`.

        Args:
            environment: SimPy's clock and event queue.
            driver: runs the engine.
            kernels: the kernels that the process of `generate()` has loaded; None for other servers.
            listeners: functions that read the engine's results after each slice.
            progress: function that reports how many requests have ended; None for no reports.
            horizon: limit on how far the engine may run ahead.
            exchange: the other side of the server's KV connector; None without one.
            lockstep: the ranks whose steps wait for each other; None for a server by itself.
            rows: `rows[i]` is the row in the fleet's whole workload of request `i` of this server.
        """
        self.driver = driver
        self._environment = environment
        self._kernels = kernels
        self._listeners, self._progress = listeners, progress
        self._horizon, self._rows, self._exchange, self._lockstep = horizon, rows, exchange, lockstep
        self._answers: dict[int, simpy.Event] = {}
        self._num_answered = 0
        self._checks = Checks(driver)
        self._sent = environment.event()
        self.process = environment.process(self._run())

    @property
    def num_requests(self) -> int:
        """Number of requests on the server, waiting and running: sent and not ended."""
        state = self.driver.engine.state
        return int(state.num_submitted - state.num_ended)

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait in the queue."""
        return self.num_requests - int(self.driver.engine.state.num_running)

    def num_prefill_tokens(self) -> int:
        """Return the number of prompt tokens that are not computed yet, over all requests on the server."""
        sequences = (self.driver.sequence(number) for number in self._answers)
        return sum(max(int(sequence.prompt_tokens) - int(sequence.computed), 0) for sequence in sequences)

    def hit_tokens(self, row: int) -> int:
        """Return the number of leading tokens of the prompt in `row` that are in the prefix cache at present."""
        return self.driver.hit_tokens(row + 1)

    def held_tokens(self, row: int) -> int:
        """Return the number of leading tokens of the prompt in `row` whose cached blocks are held by requests.

        The result is 0 without a prefix cache. It is also 0 with several KV-cache groups, for which held blocks are not
        searched. A request that holds a block holds all blocks before it, so a binary search finds the first block that
        no request holds.
        """
        engine = self.driver.engine
        if not engine.settings.prefix_caching or engine.settings.num_groups > 1:
            return 0
        sequence, block_size = self.driver.sequence(row + 1), int(engine.groups[0].block_size)

        def is_free(index: int) -> bool:
            with np.errstate(over="ignore"):  # keys are hashed modulo 2**64
                block = prefix_cache.find(engine, prefix_hits.key_of(engine, sequence, 0, index))
            return bool(engine.blocks[block].refs == 0)

        return bisect_left(range(self.driver.hit_tokens(row + 1) // block_size), True, key=is_free) * block_size

    def cached_keys(self) -> npt.NDArray[np.int64]:
        """Return the distinct keys of all blocks that a prefix hit can use at present, in ascending order."""
        engine = self.driver.engine
        if not engine.settings.prefix_caching:
            return np.empty(0, np.int64)
        keys = custom_memory.keys(engine) if engine.memory is custom_memory.CUSTOM else column(engine.blocks, "key")
        return distinct(keys[keys >= 0])

    def send(self, row: int, at_s: float) -> simpy.Event:
        """Send the request in `row` of the workload at time `at_s`. Return an event for its end.

        The event's value is the time in seconds at which the request ends.
        """
        self.driver.send(row + 1, at_s)
        if self._exchange is not None:
            self._exchange.add(self, row + 1)
        answer = self._environment.event()
        if self.driver.sequence(row + 1).is_refused:  # its client learns that at once, even while the server computes
            answer.succeed(at_s)
        else:
            self._answers[row + 1] = answer
        self.wake()
        return answer

    def wake(self) -> None:
        """Wake the server if it waits, so that it looks for work again."""
        if not self._sent.triggered:
            self._sent.succeed()

    def close(self) -> None:
        """Read the rows that are left in the engine's buffers and, with `--check`, check the memory.

        All requests must have ended.
        """
        self._drain()
        if self.driver.engine.settings.checking:
            self._checks.finish()

    def _drain(self) -> None:
        """Let the listeners read the rows that the engine has written since they last read."""
        for listener in self._listeners:
            listener(self.driver.engine)

    def _run(self) -> Generator[simpy.Event, None, None]:
        """Run the engine until it returns, do what the returned outcome requires, and repeat.

        Outcomes are, for example, a full buffer, an answer that a client awaits, or a step of all ranks.
        """
        driver, environment = self.driver, self._environment
        while True:
            if self._horizon() <= environment.now:
                yield environment.timeout(0)  # events elsewhere at this same time come first
            until_s = max(self._horizon(), math.nextafter(environment.now, math.inf))
            outcome = driver.advance(until_s)
            self._pass_on_transfers()
            if outcome in (CHECK, LAUNCHED):
                if outcome == CHECK:
                    self._checks.step()
                if self._lockstep is not None:
                    yield from self._lockstep.meet(self)
                continue
            if outcome == BATCHED:
                self._set_first_uses()
                continue
            if outcome == FULL:
                self._drain()
            if self._progress is not None:
                self._progress(driver.engine)
            if outcome in (FULL, NEWS):
                continue
            if outcome == STALLED:
                number = driver.engine.state.stalled_sequence
                raise stalled(driver.engine, number, self._rows[number - 1])
            if outcome == FAILED:
                raise failed(driver.engine.state.failure)
            yield from self._wait(outcome, until_s)

    def _wait(self, outcome: int, until_s: float) -> Generator[simpy.Event, None, None]:
        """Wait until the engine can go on. It was allowed to run up to `until_s`; `outcome` says why it returned."""
        driver, environment = self.driver, self._environment
        if outcome == IDLE:
            yield from self.await_request() if self._lockstep is None else self._lockstep.rest(self)
        elif outcome == REACHED and driver.host_s < until_s:
            # The engine has nothing to do yet. It does not wait for the next event elsewhere, since that may belong to
            # another server that waits in the same way.
            self._sent = environment.event()
            yield self._wakes()
        else:
            # Sums of differences may have rounded SimPy's clock to slightly after the clock of the host, hence `max`.
            yield environment.timeout(max(driver.host_s - environment.now, 0.0))
            if outcome == ANSWERED:
                self._answer()
                yield environment.timeout(0)  # clients run first: the engine then sees the requests that they send now

    def await_request(self) -> Generator[simpy.Event, None, None]:
        """Wait until a request is sent, or until the time at which the engine goes on without one."""
        if not self._sent.triggered:
            yield self._wakes()
        self._sent = self._environment.event()

    def _wakes(self) -> simpy.Event:
        """Return the event that an idle engine waits for: a request is sent, or the driver's `wake_s` is reached."""
        wake_s = self.driver.wake_s()
        if wake_s == math.inf:
            return self._sent
        return self._sent | self._environment.timeout(max(wake_s - self._environment.now, 0.0))

    def _pass_on_transfers(self) -> None:
        if self._exchange is not None:
            self._exchange.process_transfers(self)

    def _answer(self) -> None:
        """Signal the events of the requests that have ended since the last call."""
        engine = self.driver.engine
        for index in range(self._num_answered, engine.state.num_ended):
            number = int(engine.lines[index].ended)
            if (answer := self._answers.pop(number, None)) is not None:
                answer.succeed(self.driver.host_s)
        self._num_answered = engine.state.num_ended

    def _set_first_uses(self) -> None:
        """Mark the steps of the new static batch that need a GPU kernel which their process has not loaded yet."""
        engine, kernels = self.driver.engine, self._kernels
        batch = engine.rectangle
        num_steps = int(batch.num_steps)
        if kernels is None or not num_steps:
            return
        first = kernels.run(
            Batch(
                rows=int(batch.num_rows),
                prompt_width=int(batch.prompt_width),
                new_tokens=num_steps,
                padded=int(batch.live_prompt_tokens) < int(batch.num_rows) * int(batch.prompt_width),
                preallocated=bool(engine.settings.preallocated),
            ),
            stride=int(batch.stride),
        )
        uses = np.concatenate(first)
        engine.first_uses[: len(uses)] = uses if isinstance(engine.first_uses, np.ndarray) else uses.tolist()


def distinct(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the distinct keys in ascending order. Keys must be 0 or more. This is faster than `np.unique`."""
    ordered = np.sort(keys)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def stalled(engine: Engine, number: int, row: int) -> StalledError:
    """Return the error for sequence `number`, the request in `row`, which can never be scheduled."""
    settings, num_tokens = engine.settings, engine.sequences[number].num_tokens
    most = settings.max_num_batched_tokens
    if engine.memory in OF_SGLANG:
        why = "its prompt and its whole answer need more than the pool; raise --kv-gib, or lower --page-size."
    elif num_tokens > most and not settings.chunked_prefill:
        why = f"a step computes at most {most}; raise --max-num-batched-tokens, or leave out --no-chunked-prefill."
    elif settings.encoder_tokens > 0 and engine.state.num_running > 0:
        return StalledError(
            f"the request in row {row} and all others that run wait for room in the encoder cache, which they hold "
            f"themselves: it has {settings.encoder_cache_tokens:,} tokens; raise --max-num-batched-tokens, or "
            "leave out --speculative-config, which looks at images ahead."
        )
    else:
        why = "its memory never suffices; raise --num-blocks, --kv-gib or --gpu-memory-utilization."
    which = f"the request in row {row} with {num_tokens} tokens"
    return StalledError(f"{which} can never be scheduled although nothing else runs: {why}")


def failed(reason: int) -> KvsimError:
    """Return the error for a run that ends before its requests do. `reason` is that in `State.failure`."""
    if reason == LOADS_UNRECORDED:
        return BudgetError(
            "more requests begin to load from host memory in one step than a recording has room for; run "
            "without -o, or with a smaller --kv-offloading-size."
        )
    if reason == RANGES_UNRECORDED:
        return BudgetError(
            "requests that are admitted in one step share more runs of slots than a recording has room for; run "
            "without -o, or with a larger --page-size."
        )
    if reason == WINDOWS_FREED_TWICE:
        return double_free_error()
    if reason == SLOTS_MISSING:
        return StalledError(
            "SGLang ends in this run with an out-of-memory error: it admits a batch that needs more slots than are "
            "free or evictable; raise --kv-gib or --schedule-conservativeness, or leave out --enable-mixed-chunk."
        )
    assert reason == TWO_CHUNKED
    return StalledError(
        "SGLang ends in this run with an AssertionError: while a chunked prompt waits for slots of windows, a more "
        "important request is cut into chunks, too; raise --kv-gib, or leave out --enable-priority-scheduling."
    )
