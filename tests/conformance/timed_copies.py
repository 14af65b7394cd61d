"""Runs whose copies between device and host end by the clock, and what SGLang would be told of these ends.

`TimedRun` lets an engine run on its clock, as `kvsim run` does. It notes pass by pass which requests came, which copies
were found finished, and what was decided. `replayed` serves the same requests without a clock, in the passes in which
they came, with copies that end in the passes that were noted. Its decisions have to be the same.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from kvsim.calibration.prior import vllm_prior
from kvsim.conformance.oracle_sglang import SGLangRun
from kvsim.conformance.sglang_files import SGLangWorkload
from kvsim.engine import clock
from kvsim.engine.initialization import EnginePlan
from kvsim.engine.radix import link_copies
from kvsim.engine.radix_records import NO_BATCH
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.simulation.full_check import check

GPU, MODEL = find_gpu("H200"), find_model("Llama-3-8B")
STEP_S = 0.0065
"""Seconds that a step of these small batches takes, about."""


class TimedRun(SGLangRun):
    """An engine that serves a workload on its clock: a request comes at its pass times `STEP_S`."""

    def __init__(self, workload: SGLangWorkload) -> None:
        super().__init__(workload)
        self.copies: list[dict[str, int]] = []
        """Copies that were found finished, by pass, as SGLang's driver tells them."""
        self.arrivals: dict[str, int] = {}
        """The pass in which each request came."""
        self._ended = [0, 0]
        self._chooses_again = False

    def _plan(self, longest: int) -> EnginePlan:
        plan = super()._plan(longest)
        arrival_s = np.array([request.arrival_pass * STEP_S for request in self._requests])
        return replace(
            plan, demand=replace(plan.demand, arrival_s=arrival_s), step_time=vllm_prior(GPU, MODEL), checking=True,
            unit_bytes=MODEL.kv_bytes_per_token * self._unit, num_layers=MODEL.num_layers, copies_are_timed=True,
        )  # fmt: skip

    def steps(self) -> list[dict[str, Any]]:
        """Run to the end; return what was decided in each pass that launched a batch, and the state after it."""
        driver, state, found = self._driver, self._engine.state, []
        for row, request in self._due:
            driver.send(row + 1, request.arrival_pass * STEP_S)
        number, num_arrived = -1, 0
        with patch.object(link_copies, "finish", self._finish):
            while (outcome := driver.advance()) == clock.CHECK:
                check(driver)
                number += 0 if self._chooses_again else 1
                self._chooses_again = self._radix.state.chosen_mode != NO_BATCH
                for index in range(num_arrived, state.num_arrived):
                    self.arrivals[self._name(int(self._engine.lines[index].arrived))] = number
                num_arrived = state.num_arrived
                if any(self._ended):
                    self.copies.append({"pass": number, "written": self._ended[0], "loaded": self._ended[1]})
                self._ended = [0, 0]
                if state.num_in_batch:
                    self._move_stops()
                    found.append({"pass": number} | self._step() | self._state_record())
        assert outcome in (clock.IDLE, clock.STALLED)
        return found

    def _finish(self, engine: Any, num_written: int, num_loaded: int) -> None:
        self._ended[0] += num_written
        self._ended[1] += num_loaded
        _FINISH(engine, num_written, num_loaded)


_FINISH = link_copies.finish


def as_served(workload: SGLangWorkload, run: TimedRun) -> SGLangWorkload:
    """Return `workload` with its requests in the order and the passes in which they came in `run`."""
    by_name = {each.name: each for each in workload.requests}
    requests = (replace(by_name[name], arrival_pass=number) for name, number in run.arrivals.items())
    return replace(workload, requests=tuple(requests))


def replayed(workload: SGLangWorkload, copies: list[dict[str, int]]) -> list[dict[str, Any]]:
    """Serve `workload` without a clock; return its steps with the events since the step before, as `TimedRun` does."""
    run = SGLangRun(workload)
    run.tell_copies({"kind": "copies", **record} for record in copies)
    found: list[dict[str, Any]] = []
    events: dict[str, list[Any]] = {}
    for record in run.records():
        if record["kind"] not in ("step", "update"):
            continue
        for name in ("evicted", "duplicates", "retracted"):
            events.setdefault(name, []).extend(record.get(name, ()))
        if record["kind"] == "step":
            step = {name: value for name, value in record.items() if name not in ("kind", "step", *events)}
            found.append(step | {name: values for name, values in events.items() if values})
            events = {}
    return found


def with_link(workload: SGLangWorkload, seed: int) -> SGLangWorkload:
    """Return `workload` with a link on which a page takes from a hundredth of a step to several steps."""
    draw = random.Random(seed)
    page_gb = MODEL.kv_bytes_per_token * workload.policy.unit_tokens / 1e9
    speeds = {f"{way}_gb_per_s": page_gb / (STEP_S * 10 ** draw.uniform(-2.5, 0.3)) for way in ("store", "load")}
    cache = replace(workload.policy.cache, **speeds)  # type: ignore[arg-type]
    return replace(workload, policy=replace(workload.policy, cache=cache))
