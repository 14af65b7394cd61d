"""What the compiled engine brought, as the rest of kvsim knows it: sums of its steps, or the tables of a recording."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.recording import Meta, Pool, RecordingBuilder, RequestStatus
from kvsim.recording.tables import Memory, Requests, Schedule, Steps
from kvsim.simulation.compiled.engine import FINISHED, RUNNING, Engine
from kvsim.simulation.compiled.records import Step, array_of, make
from kvsim.simulation.compiled.slices import steps_of
from kvsim.simulation.measured import Frame, Measured
from kvsim.simulation.sums import Sums
from kvsim.workload import Ragged, Workload

NO_ROW = -1
"""What `Sequence.open_row` says where there is none."""


class Totals:
    """Adds up the steps, as `Tally` does."""

    def __init__(self, pool: Pool) -> None:
        assert pool.num_units is not None
        self._unit_tokens = pool.unit_tokens
        self._sums = Sums(pool.num_units * pool.unit_tokens)

    def take(self, engine: Engine) -> None:
        """Add the steps of a slice."""
        steps = steps_of(engine)
        if len(steps):
            nothing, unit_tokens = np.zeros(len(steps), np.int64), self._unit_tokens
            unusable = np.minimum(steps["unusable_units"], steps["free_units"])
            columns: dict[str, Any] = {
                "scheduled": steps["num_scheduled"],
                "waiting": steps["waiting"],
                "written": steps["written"],
                "padding": nothing,
                "requested": steps["requested"],
                "useful": steps["useful"],
                "rounding": nothing,
                "free": steps["free_units"] * unit_tokens,
                "cached": steps["cached_units"] * unit_tokens,
                "unusable": unusable * unit_tokens,
            }
            self._sums.add(np.ascontiguousarray(steps["start_s"]), np.stack(Frame(**columns), dtype=np.float64))
            self._sums.add_fragmented(steps["num_admitted"][steps["unusable_units"] > 0])
        outputs = outputs_of(engine)
        if len(outputs):
            self._sums.end_s = float(outputs["time_s"][-1])

    def take_requests(self, engine: Engine, workload: Workload) -> None:
        """Take what happened to the requests; the run is over."""
        for node in engine.leaving[: engine.state[0].num_leaving]:
            times = engine.times[int(node)]
            times.last_slot_s += self._sums.end_s - times.last_slot_since_s
        held_s = array_of(engine.times)["last_slot_s"]
        self._useless_slot_s = float(held_s[held_s > 0].sum())
        self._requests = _requests(engine, workload)

    def requests(self, hashes: Ragged[np.int64]) -> Requests:
        """The requests, as a recording lists them: with the hashes of their prompts."""
        return replace(self._requests, prompt_hashes=hashes)

    def summarize(self, meta: Meta, name: str) -> Measured:
        """What the run adds up to."""
        requests = replace(self._requests, arrival_seq=self._requests.request)
        return self._sums.summarize(meta, name, requests, useless_slot_s=self._useless_slot_s)


class Tables:
    """Hands the rows of a recording to a builder as they become final."""

    def __init__(self, builder: RecordingBuilder) -> None:
        self._builder = builder
        self._steps = array_of(make(Step, 0))  # those whose output is to come

    def take(self, engine: Engine) -> None:
        """Hand over what will not change any more."""
        self._take_steps(engine)
        self._builder.append(_memory(array_of(engine.memory_rows, engine.state[0].num_memory_rows)))
        self._take_schedule(engine)

    def _take_steps(self, engine: Engine) -> None:
        """Hand over the steps whose output was processed; the last may have to wait for theirs."""
        self._steps = np.concatenate([self._steps, steps_of(engine)])
        outputs = outputs_of(engine)
        steps, self._steps = self._steps[: len(outputs)], self._steps[len(outputs) :]
        self._builder.append(
            Steps(
                step=np.arange(len(steps), dtype=np.int32) + engine.state[0].first_output,
                schedule_seq=steps["seq"].copy(),
                output_seq=outputs["seq"].copy(),
                start_s=steps["start_s"].copy(),
                end_s=outputs["time_s"].copy(),
                prefill_tokens=steps["prefill_tokens"].copy(),
                decode_tokens=steps["num_tokens"] - steps["prefill_tokens"],
                num_scheduled=steps["num_scheduled"].copy(),
                running=steps["running"].copy(),
                waiting=steps["waiting"].copy(),
                preempted=steps["preempted"].copy(),
                free_units=steps["free_units"].astype(np.int32),
                unusable_units=steps["unusable_units"].astype(np.int32),
            )
        )

    def _take_schedule(self, engine: Engine) -> None:
        """Hand over the rows before the first that may still be extended: the last of somebody who runs."""
        num_rows, sequences = engine.state[0].num_schedule_rows, array_of(engine.sequences)
        open_rows = sequences["open_row"]
        may_go_on = open_rows[(sequences["status"] == RUNNING) & (open_rows >= 0)]
        num_final = int(may_go_on.min(initial=num_rows))
        rows = array_of(engine.schedule_rows, num_rows)
        final, left = rows[:num_final], rows[num_final:].copy()
        self._builder.append(Schedule(**{name: final[name].copy() for name in final.dtype.names or ()}))
        rows[: len(left)] = left
        sequences["open_row"] = np.maximum(open_rows - num_final, NO_ROW)
        engine.state[0].num_schedule_rows = len(left)


def _requests(engine: Engine, workload: Workload) -> Requests:
    """What happened to every request of `workload`, in a run that is over."""
    sequences, times = array_of(engine.sequences)[1:], array_of(engine.times)[1:]
    status = np.where(sequences["status"] == FINISHED, RequestStatus.FINISHED, RequestStatus.UNFINISHED)
    return Requests(
        request=np.arange(len(workload), dtype=np.int32),
        id=np.asarray(workload.ids, np.str_),
        arrival_s=times["arrival_s"].copy(),
        arrival_seq=times["arrival_seq"].copy(),
        prompt_tokens=workload.prompt_tokens,
        output_tokens=sequences["num_tokens"] - workload.prompt_tokens,
        max_tokens=workload.max_tokens,
        priority=workload.priority,
        prompt_hashes=Ragged.empty(len(workload), np.int64),
        first_scheduled_s=times["first_scheduled_s"].copy(),
        first_token_s=times["first_token_s"].copy(),
        finished_s=times["finished_s"].copy(),
        status=np.where(sequences["is_refused"], RequestStatus.REFUSED, status).astype(np.uint8),
        preemptions=sequences["preemptions"].copy(),
        cached_tokens=sequences["cached_tokens"].copy(),
    )


def outputs_of(engine: Engine) -> npt.NDArray[np.void]:
    """The outputs that were processed in the slice."""
    return array_of(engine.outputs, engine.state[0].num_outputs - engine.state[0].first_output)


def _memory(rows: npt.NDArray[np.void]) -> Memory:
    return Memory(
        seq=rows["seq"].copy(),
        step=rows["step"].astype(np.int32),
        kind=rows["kind"].astype(np.uint8),
        request=rows["request"].astype(np.int32),
        position=rows["position"].copy(),
        address=rows["address"].copy(),
        length=rows["length"].copy(),
        requested=rows["length"].copy(),
        cached=rows["cached"].astype(np.int32),
    )
