"""A server as a SimPy process: its engine runs up to the next moment that concerns another part of the simulation."""

from __future__ import annotations

import math
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
    CROWDED,
    FULL,
    IDLE,
    LAUNCHED,
    NEWS,
    REACHED,
    STALLED,
)
from kvsim.engine.custom import custom_memory
from kvsim.engine.driver import Driver
from kvsim.engine.paged import prefix_cache, prefix_hits
from kvsim.engine.radix.request_rows import RADIX
from kvsim.engine.state import Engine
from kvsim.errors import BudgetError, StalledError
from kvsim.simulation.step_check import Checks
from kvsim.steptime.kernels import Batch, KernelsSeen

Slice = Callable[[Engine], None]
"""Takes what a slice of the run brought, before the next begins."""


class Horizon(Protocol):
    """Knows how far a server may run ahead of the others."""

    def __call__(self) -> float:
        """Return the time in seconds until which no event outside the server affects it."""


class Exchanging(Protocol):
    """Servers that fetch KV from each other."""

    def add(self, server: ServerProcess, number: int) -> None:
        """Note that a request was sent to a server."""

    def tell(self, server: ServerProcess) -> None:
        """Take the news of a server: transfers that it has begun."""


class Meeting(Protocol):
    """Servers whose steps wait for each other."""

    def meet(self, rank: ServerProcess) -> Generator[simpy.Event, None, None]:
        """Take part in a step with the batch that `rank` has scheduled."""

    def rest(self, rank: ServerProcess) -> Generator[simpy.Event, None, None]:
        """Take part in a step without a batch, or wait until a request is sent."""


class ServerProcess:
    """One engine, its queue and its clients."""

    def __init__(
        self,
        environment: simpy.Environment,
        driver: Driver,
        *,
        kernels: KernelsSeen | None = None,
        listeners: tuple[Slice, ...] = (),
        horizon: Horizon = lambda: math.inf,
        exchange: Exchanging | None = None,
        lockstep: Meeting | None = None,
        rows: range,
    ) -> None:
        """Serve on the clock of `environment`; the process ends when no event is left.

        `rows` are the rows of the engine's requests in the workload of all servers.
        """
        self.driver = driver
        self._environment = environment
        self._kernels = kernels
        self._listeners = listeners
        self._horizon, self._rows, self._exchange, self._lockstep = horizon, rows, exchange, lockstep
        self._answers: dict[int, simpy.Event] = {}
        self._num_answered = 0
        self._checks = Checks(driver)
        self._sent = environment.event()
        self.process = environment.process(self._run())

    @property
    def num_requests(self) -> int:
        """Requests that are here and have not ended: those that wait and those that run."""
        state = self.driver.engine.state
        return int(state.num_submitted - state.num_ended)

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        return self.num_requests - int(self.driver.engine.state.num_running)

    def num_prefill_tokens(self) -> int:
        """Count the prompt tokens of the requests that are here and are not computed yet."""
        sequences = (self.driver.sequence(number) for number in self._answers)
        return sum(max(int(sequence.prompt_tokens) - int(sequence.computed), 0) for sequence in sequences)

    def hit_tokens(self, row: int) -> int:
        """Return the leading tokens of the prompt in `row` of the workload that the prefix cache holds now."""
        return self.driver.hit_tokens(row + 1)

    def held_tokens(self, row: int) -> int:
        """Return the leading tokens of the prompt in `row` in blocks that requests hold, where there is one group.

        Who holds a block holds all before it.
        """
        engine = self.driver.engine
        if not engine.settings.prefix_caching or engine.settings.num_groups > 1:
            return 0
        sequence = self.driver.sequence(row + 1)
        low, high = 0, self.driver.hit_tokens(row + 1) // int(engine.groups[0].block_size)
        while low < high:
            middle = (low + high + 1) // 2
            with np.errstate(over="ignore"):  # keys are hashed modulo 2**64
                block = prefix_cache.find(engine, prefix_hits.key_of(engine, sequence, 0, middle - 1))
            low, high = (middle, high) if engine.blocks[block].refs > 0 else (low, middle - 1)
        return low * int(engine.groups[0].block_size)

    def cached_keys(self) -> npt.NDArray[np.int64]:
        """Return the keys of the cached blocks whose prefix other requests may have, too; each once, in order."""
        engine = self.driver.engine
        if not engine.settings.prefix_caching:
            return np.empty(0, np.int64)
        keys = custom_memory.keys(engine) if engine.memory is custom_memory.CUSTOM else column(engine.blocks, "key")
        return distinct(keys[keys >= 0])

    def send(self, row: int, at_s: float) -> simpy.Event:
        """Send the request in `row` of the workload; the event says when it has ended, in seconds."""
        self.driver.send(row + 1, at_s)
        if self._exchange is not None:
            self._exchange.add(self, row + 1)
        answer = self._environment.event()
        if self.driver.sequence(row + 1).is_refused:  # its client knows at once, whatever the server computes
            answer.succeed(at_s)
        else:
            self._answers[row + 1] = answer
        self.wake()
        return answer

    def wake(self) -> None:
        """Let a server that has nothing to do look again."""
        if not self._sent.triggered:
            self._sent.succeed()

    def close(self) -> None:
        """Note that no more requests are sent and none is left.

        Raises:
            IntegrityError: steps are checked, and the account is not right in the end.
        """
        if self.driver.engine.settings.checking:
            self._checks.finish()

    def _run(self) -> Generator[simpy.Event, None, None]:
        driver, environment = self.driver, self._environment
        while True:
            if self._horizon() <= environment.now:
                yield environment.timeout(0)  # what happens elsewhere at this very moment comes first, and only once
            until_s = max(self._horizon(), math.nextafter(environment.now, math.inf))
            outcome = driver.advance(until_s)
            self._tell_news()
            if outcome in (CHECK, LAUNCHED):
                if outcome == CHECK:
                    self._checks.step()
                if self._lockstep is not None:
                    yield from self._lockstep.meet(self)
                continue
            if outcome == BATCHED:
                self._say_first_uses()
                continue
            for listener in self._listeners:
                listener(driver.engine)
            if outcome in (FULL, NEWS):
                continue
            if outcome == STALLED:
                number = driver.engine.state.subject
                raise stalled(driver.engine, number, self._rows[number - 1])
            if outcome == CROWDED:
                raise crowded(driver.engine)
            yield from self._wait(outcome, until_s)

    def _wait(self, outcome: int, until_s: float) -> Generator[simpy.Event, None, None]:
        """Wait until the engine, which has run up to `until_s`, goes on."""
        driver, environment = self.driver, self._environment
        if outcome == IDLE:
            yield from self.await_request() if self._lockstep is None else self._lockstep.rest(self)
        elif outcome == REACHED and driver.host_s < until_s:
            # It has nothing to do yet. The next event elsewhere is no time to wait for: it may be such a wait, too.
            self._sent = environment.event()
            yield self._wakes()
        else:
            # Adding differences to SimPy's clock may have rounded it to just beyond the host's.
            yield environment.timeout(max(driver.host_s - environment.now, 0.0))
            if outcome == ANSWERED:
                self._answer()
                yield environment.timeout(0)  # clients come first: what they send now is there when it goes on

    def await_request(self) -> Generator[simpy.Event, None, None]:
        """Wait until something is sent, or until it is time to go on."""
        if not self._sent.triggered:
            yield self._wakes()
        self._sent = self._environment.event()

    def _wakes(self) -> simpy.Event:
        """Return the event with which an engine goes on that has nothing to do: something is sent, or it is time."""
        wake_s = self.driver.wake_s()
        if wake_s == math.inf:
            return self._sent
        return self._sent | self._environment.timeout(max(wake_s - self._environment.now, 0.0))

    def _tell_news(self) -> None:
        """Tell the other servers of a pair what the last slice has begun."""
        if self._exchange is not None:
            self._exchange.tell(self)

    def _answer(self) -> None:
        """Tell the clients of the requests that have ended since the last time."""
        engine = self.driver.engine
        for index in range(self._num_answered, engine.state.num_ended):
            node = int(engine.lines[index].ended)
            if (answer := self._answers.pop(node, None)) is not None:
                answer.succeed(self.driver.host_s)
        self._num_answered = engine.state.num_ended

    def _say_first_uses(self) -> None:
        """Tell the engine which kernels the batch that was formed is the first of its process to need."""
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
    """Return each key once, in order: for integers, several times as fast as `np.unique`."""
    ordered = np.sort(keys)
    return ordered[np.diff(ordered, prepend=-1) > 0]


def stalled(engine: Engine, number: int, row: int) -> StalledError:
    """Return the error for a sequence at the head of the queue, of the request in `row`, that waits for ever."""
    settings, num_tokens = engine.settings, engine.sequences[number].num_tokens
    most = settings.max_num_batched_tokens
    if engine.memory is RADIX:
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


def crowded(engine: Engine) -> BudgetError:
    """Return the error for a step in which more happens than a recording has room for."""
    if engine.memory is RADIX:
        return BudgetError(
            "requests that are admitted in one step share more runs of slots than a recording has room for; run "
            "without -o, or with a larger --page-size."
        )
    return BudgetError(
        "more requests begin to load from host memory in one step than a recording has room for; run "
        "without -o, or with a smaller --kv-offloading-size."
    )
