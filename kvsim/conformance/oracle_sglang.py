"""Comparison of the radix policy with SGLang's own scheduler, which runs with a fake model and records its decisions.

kvsim serves the same workload and writes the same records, iteration by iteration of the scheduler's loop: batches with
rows and slots, evictions from the radix tree, duplicates, retractions, queues, the new-token ratio and the free lists.
A pass, in names and records, is one iteration of this loop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.conformance.sglang_files import SGLangRequest, SGLangWorkload, expanded
from kvsim.conformance.verdict import Verdict, difference
from kvsim.engine.clock import SCHEDULED, UPDATED
from kvsim.engine.coefficients import no_times
from kvsim.engine.combinations import double_free_error
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.known_requests import BEGIN_TOKENS, Demand
from kvsim.engine.paged.prefix_keys import PrefixKeys
from kvsim.engine.radix import link_copies
from kvsim.engine.radix.token_slots import free_pages_in_order
from kvsim.engine.radix_records import (
    ASKED,
    DECODE,
    DUPLICATE,
    LEAF,
    NO_BATCH,
    NO_PRIORITY,
    REPORTED,
    RETRACTED,
    SLOTS,
    WINDOWS,
)
from kvsim.engine.records import NO_FAILURE, WINDOWS_FREED_TWICE
from kvsim.engine.state import ABORTED, PREEMPTED, RUNNING, WAITING
from kvsim.workload import Ragged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_LIVE = (WAITING, RUNNING, PREEMPTED)
_MODES = ("", "extend", "decode", "mixed")
_STUCK = 1000
"""Number of consecutive passes without a batch or an arrival after which the oracle gives up on waiting requests."""
_LISTED_PAGES = 1024
"""Largest number of pages of a pool whose whole free list is recorded."""
_END_PAGES = 16
"""Number of pages that are recorded from each end of the free list of a larger pool."""


def verify_sglang(
    workload: SGLangWorkload, records: Iterable[tuple[int, Mapping[str, Any]]], *, compiled: bool = False
) -> Verdict:
    """Run `workload` in lockstep with the records of SGLang's scheduler. Return a verdict up to a difference.

    Each record comes with its line number. The first one has the scheduler's settings. With `compiled`, the engine runs
    as machine code.
    """
    listed = list(expanded(records))
    run = SGLangRun(workload, compiled=compiled)
    if any(record.get("tells_copies") for _, record in listed[:1]):
        run.tell_copies(record for _, record in listed if record["kind"] == "copies")
    simulated = run.records()
    verdict = run.equal_so_far()
    for line, record in listed:
        ours = next(simulated, {"kind": "nothing: every request has ended"})
        is_first = ours["kind"] == record["kind"] == "engine"
        # The first record also has fields that nothing here decides, such as versions.
        recorded = {name: record.get(name) for name in ours} if is_first else record
        if ours["kind"] == recorded["kind"] == "failed":
            return verdict
        if ours != recorded:
            moment = f"{recorded['kind']} {recorded.get('step', '')}".rstrip()
            differs = [name for name in {**recorded, **ours} if recorded.get(name) != ours.get(name)]
            theirs, mine = ({name: each.get(name) for name in differs} for each in (recorded, ours))
            return replace(verdict, difference=difference(f"{moment}, line {line}", theirs, mine))
        verdict = run.equal_so_far()
    return verdict


class SGLangRun:
    """Simulated engine that serves a workload, and writes the records that SGLang's scheduler would write."""

    def __init__(self, workload: SGLangWorkload, *, compiled: bool = False) -> None:
        self._workload, self._requests = workload, workload.requests
        self._unit = workload.policy.unit_tokens
        self._num_pages = workload.num_slots // self._unit
        context = min(workload.policy.scheduler.context_length, workload.num_slots) - 1
        self._least_refused_tokens = context - 5
        """Smallest number of prompt tokens with which SGLang refuses a request."""
        self._is_refused = [len(request.prompt) >= self._least_refused_tokens for request in self._requests]
        self._driver = Driver(self._plan(context).build(compiled=compiled), compiled=compiled)
        self._engine, self._radix = self._driver.engine, self._driver.engine.radix
        for row, request in enumerate(self._requests):
            holding = self._radix.holdings[row + 1]
            holding.ignores_eos, holding.is_aborted = request.ignores_eos, self._is_refused[row]
            if self._is_refused[row]:
                self._engine.sequences[row + 1].end_tokens = 0
            holding.priority = self._priority(request)
            holding.rank = sum(each.name < request.name for each in self._requests)
        self._due = deque(sorted(enumerate(self._requests), key=lambda numbered: numbered[1].arrival_pass))
        self._aborts = deque(
            sorted((each.abort_pass, each.name) for each in self._requests if each.abort_pass is not None)
        )
        self._arrived: list[int] = []
        self._left: set[int] = set()
        self._unsampled: set[int] = set()
        """Numbers of requests that were scheduled without room for an output, in a batch without any output."""
        self._has_launched = False
        self._copies: dict[int, Mapping[str, Any]] = {}
        self._num_steps = self._num_pages_taken = self._num_retracted = self._num_evicted = self._num_aborted = 0

    def _plan(self, longest: int) -> EnginePlan:
        workload = self._workload
        num_window_slots = workload.policy.num_window_slots(workload.num_slots, workload.window_tokens)
        return EnginePlan(
            self._demand(longest),
            workload.policy,
            self._num_pages,
            no_times(),
            refused=np.zeros(len(self._requests), np.bool_),
            reports=True,
            window_tokens=workload.window_tokens,
            copies_are_timed=False,
            num_window_units=min(self._num_pages, num_window_slots // self._unit),
        )

    def equal_so_far(self) -> Verdict:
        """Return a verdict without a difference, with the counts up to now."""
        return Verdict(
            num_steps=self._num_steps,
            num_allocations=self._num_pages_taken,
            num_preemptions=self._num_retracted,
            num_evictions=self._num_evicted,
            num_aborts=self._num_aborted,
        )

    def tell_copies(self, records: Iterable[Mapping[str, Any]]) -> None:
        """End copies between GPU and host in the passes that `records` state.

        By default, a copy ends one pass after it begins.
        """
        self._radix.settings.copies_end = REPORTED
        self._copies = {record["pass"]: record for record in records if isinstance(record["pass"], int)}

    def records(self) -> Iterator[dict[str, Any]]:
        """Yield the records that SGLang's scheduler would write, in order."""
        yield self._engine_record()
        number, num_waited, num_rests = -1, 0, 0
        in_flight: deque[tuple[int, list[int]]] = deque()
        while True:
            number += 1
            is_idle = num_rests > 0 and not self._has_launched and not self._has_requests()
            if is_idle and self._due:
                number = max(number, self._due[0][1].arrival_pass)
            come, gone = self._arrive(number), self._abort(number)
            if come or gone:
                waiting = self._names(self._driver.waiting())
                yield {"kind": "arrivals", "pass": number, "arrived": come, "aborted": gone, "waiting": waiting}
            is_over = is_idle and not come and not self._due
            num_waited = 0 if self._has_launched or come else num_waited + 1
            if num_waited > _STUCK:
                yield {"kind": "stuck", "pass": number, "waiting": self._names(self._driver.waiting())}
                is_over = True
            if number in self._copies:
                yield self._end_copies(self._copies.pop(number))
            may_rest = not in_flight
            for record in self._pass(number, in_flight):
                yield record
                if record["kind"] == "failed":
                    return
            num_rests = 0 if self._has_launched else num_rests + int(may_rest)
            if is_over:
                break
        yield {"kind": "end", "pass": number, "forwards": self._num_steps} | self._sizes()

    def _pass(self, number: int, in_flight: deque[tuple[int, list[int]]]) -> Iterator[dict[str, Any]]:
        """Run one scheduler pass, and yield its records. `in_flight` has steps without output, oldest first."""
        driver, state, radix = self._driver, self._engine.state, self._radix
        self._has_launched = False
        while True:
            dropped = self._dropped()
            oldest = in_flight[0][1] if in_flight else ()
            ended_before = {each for each in oldest if not self._is_live(each)} - dropped
            num_in_flight = state.num_in_flight
            moment = driver.next_moment()
            if state.failure == WINDOWS_FREED_TWICE:
                raise double_free_error()
            if state.failure != NO_FAILURE:
                yield {"kind": "failed"}
                return
            if moment == SCHEDULED and state.num_in_flight > num_in_flight:
                self._num_steps += 1
                self._has_launched = True
                in_flight.append((self._num_steps, list(driver.batch())))
                if not radix.state.last_puts_out:
                    self._unsampled.update(each for each in driver.batch() if not self._radix.holdings[each].limit)
                self._move_stops()
                yield {"kind": "step", "pass": number, "step": self._num_steps} | self._step() | self._state_record()
            elif moment == UPDATED:
                step, batch = in_flight.popleft()
                done = self._update([each for each in batch if each not in ended_before], dropped)
                yield {"kind": "update", "pass": number, "step": step} | done | self._state_record()
            if not state.awaiting and radix.state.chosen_mode == NO_BATCH:
                return

    def _end_copies(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """End the oldest stores and loads, at most as many of each as `record` states in `written` and `loaded`.

        Return `record` with the number of stores and of loads that ended in these two fields.
        """
        state, ended = self._radix.state, {}
        for name, under_way in (("written", state.num_storing), ("loaded", state.num_loading)):
            ended[name] = min(max(record[name], 0), int(under_way)) if isinstance(record[name], int) else 0
        link_copies.finish(self._engine, ended["written"], ended["loaded"])
        return {**record, **ended}

    def _move_stops(self) -> None:
        """Move the stop token of each request that SGLang serves without the last tokens of its prompt.

        SGLang drops these tokens if it cuts two prompts in one pass. The fake model counts positions in the sequence to
        find the stop token, so the answer gets longer by the number of dropped tokens.
        """
        for number in self._driver.batch():
            sequence, request = self._driver.sequence(number), self._requests[number - 1]
            missing = int(sequence.prompt_tokens) - int(sequence.computed)
            is_left = missing > 0 and number != int(self._radix.state.chunked) and number not in self._left
            if is_left and request.stop_at is not None and not self._radix.holdings[number].is_aborted:
                self._left.add(number)
                most = int(sequence.prompt_tokens) + int(self._radix.holdings[number].limit)
                self._engine.sequences[number].end_tokens = min(int(sequence.end_tokens) + missing, most)

    def _has_requests(self) -> bool:
        state, radix = self._engine.state, self._radix.state
        awaits_copies = self._copies and (radix.num_storing or radix.num_loading)
        return bool(state.num_running or state.num_waiting or radix.chunked or awaits_copies)

    def _arrive(self, number: int) -> list[str]:
        come = []
        while self._due and self._due[0][1].arrival_pass <= number:
            row, request = self._due.popleft()
            self._arrived.append(row)
            self._driver.add(row + 1)
            come.append(request.name)
        return come

    def _abort(self, number: int) -> list[str]:
        """Process the aborts that are due in pass `number`, and return their names.

        SGLang aborts every request whose name begins with the name of the abort.
        """
        gone = []
        while self._aborts and self._aborts[0][0] <= number:
            name = self._aborts.popleft()[1]
            gone.append(name)
            for row in self._arrived:
                if self._requests[row].name.startswith(name) and self._is_live(row + 1):
                    self._driver.abort(row + 1)
                    self._num_aborted += 1
        return gone

    def _engine_record(self) -> dict[str, Any]:
        scheduler, settings = self._workload.policy.scheduler, self._radix.settings
        return {
            "kind": "engine",
            "slots": self._workload.num_slots,
            "page_size": self._unit,
            "overlap": not scheduler.disable_overlap_schedule,
            "max_running": scheduler.max_running_requests,
            "max_prefill_tokens": scheduler.max_prefill_tokens,
            "max_req_input_len": self._least_refused_tokens,
            "ratio": [float(settings.first_ratio), float(settings.least_ratio), float(settings.ratio_decay)],
        }

    def _step(self) -> dict[str, Any]:
        driver, radix = self._driver, self._radix
        mode = int(radix.state.last_mode)
        scheduled, shared = [], {}
        for number, tokens in driver.batch().items():
            sequence, slots = driver.sequence(number), self._slots(number)
            begin = int(sequence.computed) - tokens
            self._num_pages_taken += len(slots[begin:])
            row = self._workload.policy.scheduler.max_running_requests - int(sequence.place)
            scheduled.append([self._name(number), row, begin, tokens, _runs(slots[begin:])])
            if mode != DECODE and begin:
                shared[self._name(number)] = _runs(slots[:begin])
        chunked = self._name(int(radix.state.chunked)) if mode != DECODE and radix.state.chunked else None
        return (
            {"mode": _MODES[mode], "scheduled": scheduled}
            | ({"shared": shared} if shared else {})
            | ({"chunked": chunked} if chunked else {})
        )

    def _dropped(self) -> set[int]:
        """Return the requests that a retraction has ended since the last record."""
        rows = [self._radix.events[index] for index in range(int(self._radix.state.num_events))]
        retracted = {int(row.subject) for row in rows if row.kind == RETRACTED}
        return {number for number in retracted if not self._is_live(number)}

    def _update(self, batch: list[int], dropped: set[int]) -> dict[str, Any]:
        ended = [number for number in batch if number not in dropped and not self._is_live(number)]
        return {
            "outputs": {self._name(number): self._num_outputs(number) for number in batch},
            "finished": {self._name(number): self._reason(number) for number in ended},
        }

    def _state_record(self) -> dict[str, Any]:
        radix = self._radix
        lists = {
            "running": self._names(self._driver.running()),
            "waiting": self._names(self._driver.waiting()),
            "ratio": round(float(radix.state.ratio), 6),
            "full": bool(radix.state.is_full),
        }
        free = self._free_list(SLOTS, self._num_pages, "")
        if self._workload.window_tokens:
            free |= self._free_list(WINDOWS, int(radix.settings.window_pages), "_windows")
            free |= {
                "free_windows": int(radix.state.num_free_windows) * self._unit,
                "evictable_windows": int(radix.state.num_cached_windows) * self._unit,
            }
        if self._workload.policy.cache.enable_hierarchical_cache:
            free["free_host"] = int(radix.state.num_free_host) * self._unit
        return self._events() | self._sizes() | lists | free

    def _free_list(self, pool: int, num_pages: int, suffix: str) -> dict[str, Any]:
        free = self._free_pages(pool)
        if num_pages > _LISTED_PAGES:
            return {"free_ends" + suffix: [_runs(free[:_END_PAGES]), _runs(free[-_END_PAGES:])]}
        return {"free_pages" + suffix: _runs(free)}

    def _sizes(self) -> dict[str, int]:
        state = self._radix.state
        return {
            "free": int(self._engine.state.num_free) * self._unit,
            "evictable": int(self._engine.state.num_cached) * self._unit,
            "locked": int(state.locked_pages) * self._unit,
        }

    def _events(self) -> dict[str, Any]:
        """Return what was evicted, freed as a duplicate or retracted since the last call."""
        evicted: list[dict[str, Any]] = []
        duplicates: list[list[int]] = []
        retracted: list[dict[str, Any]] = []
        for index in range(int(self._radix.state.num_events)):
            row = self._radix.events[index]
            kind, subject = int(row.kind), int(row.subject)
            if kind == ASKED:
                evicted.append({"asked": subject, "leaves": []})
                if row.length:
                    evicted[-1]["asked_windows"] = int(row.length)
            elif kind == RETRACTED:
                name, outputs = self._name(subject), int(row.length)
                retracted.append({"id": name, "outputs": outputs, "remaining": int(row.num_continuing)})
            else:
                runs: list[list[int]] = duplicates
                if kind != DUPLICATE:
                    runs = evicted[-1].setdefault("leaves" if kind == LEAF else "windows", [])
                if row.is_first:
                    runs.append([])
                runs[-1] += range(subject * self._unit, (subject + 1) * self._unit)
        self._radix.state.num_events = 0
        self._num_retracted += len(retracted)
        for call in evicted:
            self._num_evicted += sum(map(len, call["leaves"])) // self._unit
            for name in ("leaves", "windows"):
                if name in call:
                    call[name] = [_runs(leaf) for leaf in call[name]]
        fields = {"evicted": evicted, "duplicates": [_runs(each) for each in duplicates], "retracted": retracted}
        return {name: events for name, events in fields.items() if events}

    def _slots(self, number: int) -> list[int]:
        sequence, size = self._driver.sequence(number), int(self._radix.settings.row_pages)
        first, num_tokens = int(sequence.place) * size, int(sequence.computed)
        return [
            int(self._radix.rows[first + token // self._unit]) * self._unit + token % self._unit
            for token in range(num_tokens)
        ]

    def _free_pages(self, pool: int) -> list[int]:
        before = self._num_pages if pool == WINDOWS else 0
        return [page - before for page in free_pages_in_order(self._engine, pool)]

    def _is_live(self, number: int) -> bool:
        return self._driver.sequence(number).status in _LIVE

    def _num_outputs(self, number: int) -> int:
        sequence = self._driver.sequence(number)
        return int(sequence.num_tokens) - int(sequence.prompt_tokens)

    def _reason(self, number: int) -> str:
        if self._driver.sequence(number).status == ABORTED:
            return "FINISH_ABORT"
        is_stop = self._requests[number - 1].stop_at == self._num_outputs(number) and number not in self._unsampled
        is_stop |= number in self._left and self._num_outputs(number) < int(self._radix.holdings[number].limit)
        return "FINISH_MATCHED_TOKEN" if is_stop else "FINISH_LENGTH"

    def _name(self, number: int) -> str:
        return self._requests[number - 1].name

    def _names(self, numbers: list[int]) -> list[str]:
        return [self._name(number) for number in numbers]

    def _priority(self, request: SGLangRequest) -> int:
        if request.priority is not None:
            return request.priority
        scheduler = self._workload.policy.scheduler
        if not scheduler.enable_priority_scheduling:
            return 0
        return NO_PRIORITY if scheduler.schedule_low_priority_values_first else -NO_PRIORITY

    def _demand(self, longest: int) -> Demand:
        """Return the requests for the engine.

        Answers are cut so that prompt and answer stay below `longest` tokens and fit the pool, but not below one token.
        A refused prompt is replaced by one token.
        """
        unit, slots = self._unit, self._workload.num_slots
        whole = np.array([len(request.prompt) for request in self._requests], np.int64)
        asked = np.array([request.limit for request in self._requests], np.int64)
        limit = np.clip(np.minimum(longest - whole - 1, slots - -(-whole // unit) * unit - unit - 1), 0, asked)
        stop = np.array([request.stop_at or request.limit for request in self._requests], np.int64)
        keys, rows = PrefixKeys(unit), []
        begin_keys, begins = PrefixKeys(BEGIN_TOKENS), np.full(len(whole), -1, np.int64)
        roots: dict[str | None, list[int]] = {}
        for row, (request, is_refused) in enumerate(zip(self._requests, self._is_refused, strict=True)):
            tokens = [*([0] if is_refused else request.prompt), *request.answer]
            root = roots.setdefault(request.extra_key, [-1 - len(roots)] * unit)
            rows.append(keys.from_tokens([*root, *tokens])[1:])
            begins[row] = next(iter(begin_keys.from_tokens(tokens[:BEGIN_TOKENS], namespace=request.extra_key)), -1)
        return Demand(
            prompt=np.where(self._is_refused, 1, whole),
            output=np.maximum(np.minimum(stop, limit), 1),
            limit=limit,
            priority=np.zeros(len(self._requests), np.int64),
            arrival_s=np.arange(len(self._requests), dtype=np.float64),
            keys=Ragged.from_rows(rows, np.int64),
            begins=begins,
        )


def _runs(numbers: list[int]) -> str:
    """Return numbers as text, with consecutive ones joined: `1-3,7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] + 1 == number:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)
