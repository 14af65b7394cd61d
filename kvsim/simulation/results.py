"""Collection of an engine's results while it runs: sums over its steps, and the tables of a recording.

The engine writes rows to buffers, which are read and then overwritten. The part of a run between two such readings is a
slice. The time from an output to the next step is a gap, if no step is in flight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from kvsim.engine.arrays import column, copied
from kvsim.engine.radix.hierarchical import HIERARCHICAL
from kvsim.engine.radix.request_rows import RADIX
from kvsim.engine.state import ABORTED, FINISHED, RUNNING, Engine
from kvsim.engine.totals import settle_unsure_slots
from kvsim.memory.waste import SlotTotals
from kvsim.metrics import Limits
from kvsim.metrics.sums import STEPS_TOGETHER, GapFigures, StepFigures, Sums
from kvsim.recording import Meta, Pool, RequestStatus
from kvsim.recording.row_sinks import RowSink
from kvsim.recording.tables import (
    Copies,
    EncoderEvents,
    Memory,
    PromptImages,
    Requests,
    Schedule,
    Steps,
    TransferKind,
    Transfers,
)
from kvsim.simulation.measured import Measured
from kvsim.steptime import StepShape
from kvsim.workload import Ragged, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.engine.arrays import Growing, Records

_STATUS = {FINISHED: RequestStatus.FINISHED, ABORTED: RequestStatus.ABORTED}
NO_ROW = -1
"""Value of `Sequence.open_row` if no later step may extend a schedule row of the sequence."""
_SHAPE_COLUMNS = {
    "num_seqs": "num_scheduled",
    "num_tokens": "num_tokens",
    "num_prefill_tokens": "prefill_tokens",
    "context_tokens": "context_tokens",
    "attention_pairs": "attention_pairs",
    "new_shape": "new_shape",
    "new_kernels": "new_kernels",
    "shared_tokens": "shared_tokens",
    "num_new_seqs": "num_new_seqs",
}
"""Fields of `StepShape` as keys, and the fields of the engine's step record that have their values."""
_SLOT_FIELDS = ("written", "useful", "rounding", "padding", "shared", "expired")
"""Fields of `SlotTotals` that the engine's step record has in slots. The other fields are in units there."""
_SUMMED = (
    "start_s", "num_scheduled", "running", "waiting", "num_tokens", "preempted", "num_admitted", "swapped_out",
    "swapped_in", "free_units", "cached_units", "unusable_units", *_SLOT_FIELDS,
)  # fmt: skip
"""Fields of a step record that a summary needs."""


def largest_shape(engine: Engine) -> StepShape | None:
    """Return a step shape of the largest values, by field, of all steps in the engine's buffer; None without any."""
    if not (num_steps := _num_steps(engine)):
        return None
    steps = engine.steps

    def greatest(name: str) -> Any:
        of_steps = steps[name][:num_steps] if isinstance(steps, np.ndarray) else column(steps, name, num_steps)
        return of_steps.max()

    return StepShape(**{name: greatest(source) for name, source in _SHAPE_COLUMNS.items()})


class Totals:
    """Sums over the steps of a run and over the gaps between them, from which the summary follows."""

    def __init__(self, pool: Pool, limits: Limits | None) -> None:
        assert pool.num_units is not None
        self._pool, self._capacity = pool, pool.num_units * pool.unit_slots
        self._sums = Sums(self._capacity, limits)
        self._kept: list[npt.NDArray[Any]] = []
        self._num_kept = 0
        self._gaps: list[npt.NDArray[Any]] = []  # gaps before steps that are not added yet
        self._end_s, self._num_outputs = 0.0, 0

    def take(self, engine: Engine) -> None:
        """Add the rows in the engine's buffers to the sums. The time of a call does not grow with the run's length."""
        if num_outputs := _num_outputs(engine):
            self._end_s = float(engine.outputs[num_outputs - 1].time_s)
            self._num_outputs += num_outputs
        if num_gaps := engine.state.num_gaps:
            self._gaps.append(copied(engine.gaps, num_gaps))
        if num_steps := _num_steps(engine):
            records: Any = engine.steps
            steps = records[:num_steps] if isinstance(records, np.ndarray) else copied(records, num_steps, _SUMMED)
            begin = min(-self._num_kept % STEPS_TOGETHER, num_steps)
            self._keep(steps[:begin])
            if self._num_kept == STEPS_TOGETHER:
                self._add_kept()
            while begin + STEPS_TOGETHER <= num_steps:
                self._add(steps[begin : begin + STEPS_TOGETHER])
                begin += STEPS_TOGETHER
            self._keep(steps[begin:])

    def _gaps_before(self, num_steps: int) -> GapFigures | None:
        """Return the stored gaps before the next `num_steps` steps, and remove them from the stored ones.

        A gap is a time without a step in flight. The result is None if no gaps are stored.
        """
        if not self._gaps:
            return None
        rows = np.concatenate(self._gaps, dtype=self._gaps[0].dtype)
        num_due = int(np.searchsorted(rows["before"], self._sums.num_steps + num_steps))
        self._gaps = [rows[num_due:]] if num_due < len(rows) else []
        rows = rows[:num_due]
        held, states = self._held_and_states(rows)
        return GapFigures(
            next_step=rows["before"], begin_s=rows["begin_s"], running=rows["running"], waiting=rows["waiting"],
            held=held, states=states,
        )  # fmt: skip

    def _held_and_states(
        self, rows: dict[str, npt.NDArray[Any]] | npt.NDArray[Any]
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return the number of held slots, int[rows], and the number of slots in each state, int[rows, states].

        `rows` are records of steps or of gaps.
        """
        free, cached, unusable = (
            rows[f"{name}_units"] * self._pool.unit_slots for name in ("free", "cached", "unusable")
        )
        totals = SlotTotals(free=free, cached=cached, unusable=unusable, **{name: rows[name] for name in _SLOT_FIELDS})
        return self._capacity - free, totals.states(self._capacity)

    def _keep(self, steps: npt.NDArray[Any]) -> None:
        """Copy records of steps, because the next slice overwrites them, until there are `STEPS_TOGETHER` to add up."""
        if len(steps):
            self._kept.append(steps.copy())
            self._num_kept += len(steps)

    def _add_kept(self) -> None:
        together = self._kept[0]
        if len(self._kept) > 1:
            together = np.concatenate(self._kept, dtype=together.dtype)  # faster with the type given
        self._add(together)
        self._kept, self._num_kept = [], 0

    def _add(self, records: npt.NDArray[Any]) -> None:
        steps = {name: records[name].copy() for name in _SUMMED}  # contiguous columns are faster to read
        held, states = self._held_and_states(steps)
        figures = StepFigures(
            start_s=steps["start_s"],
            scheduled=steps["num_scheduled"],
            running=steps["running"],
            waiting=steps["waiting"],
            tokens=steps["num_tokens"],
            preempted=steps["preempted"],
            held=held,
            states=states,
            is_fragmented=steps["unusable_units"] > 0,
            admitted_before=steps["num_admitted"],
            swapped_out=steps["swapped_out"],
            swapped_in=steps["swapped_in"],
        )
        self._sums.add(figures, self._gaps_before(len(records)))

    def finish(self, engine: Engine, requests: Requests, meta: Meta, name: str) -> Measured:
        """Return the results of the finished run; `name` is that of the summary.

        A slot that was held for a token counts as useful only if the token was computed later.
        """
        if self._num_kept:
            self._add_kept()
        settle_unsure_slots(engine, self._end_s)
        held_s = column(engine.unsure, "slot_s")
        useless_slot_s = float(held_s[held_s > 0].sum())
        summary = self._sums.summary(
            meta,
            name,
            requests,
            self._end_s,
            useless_slot_s=useless_slot_s,
            images_used=int(engine.encoder.state.num_holds),
            images_computed=int(engine.encoder.state.num_encoded),
        )
        # A server that exchanges KV may schedule one more step, without a batch, after its last answer. Its output is
        # never processed, so a recording does not have it.
        summary = replace(summary, num_steps=self._num_outputs)
        return Measured(meta=meta, requests=requests, summary=summary)


class FinalRows:
    """Appends the rows of a recording to a sink as soon as they are final."""

    def __init__(self, sink: RowSink, contents: npt.NDArray[np.int64] | None = None) -> None:
        """Write rows to `sink`. `contents[i]` is the workload's number for the image that the engine numbers `i + 1`;
        if it is None, images are not recorded.
        """
        self._sink, self._contents = sink, contents
        self._waiting: dict[str, npt.NDArray[Any]] = {}  # columns of the steps whose output is not processed yet
        self._copies: dict[str, npt.NDArray[Any]] = {}  # columns of copies whose step is not recorded yet
        self._num_steps = 0
        self._number_of: npt.NDArray[np.int32] | None = None  # None if numbers in the recording are workload rows
        self._num_numbered = 0

    def take(self, engine: Engine) -> None:
        """Append those rows in the engine's buffers that are final; the others wait for a later call.

        The time of a call does not grow with the length of the run.
        """
        self._number(engine)
        self._take_steps(engine)
        self._take_memory(engine)
        self._take_schedule(engine)
        if engine.settings.offloads:
            self._take_copies(engine.host.copy_rows, engine.host.state.num_copy_rows)
        elif engine.memory is HIERARCHICAL:
            self._take_copies(engine.radix.copy_rows, engine.radix.state.num_copy_rows)
        if self._contents is not None:
            self._take_encoder(engine, self._contents)

    def finish(self, requests: Requests, transfers: Transfers | None, images: PromptImages | None) -> None:
        """Append the requests, transfers and images of the finished run. None: the recording lacks the table."""
        self._sink.append(requests)
        for optional in (transfers, images):
            if optional is not None:
                self._sink.append(optional)

    def _number(self, engine: Engine) -> None:
        """Number the requests that were sent since the last call. A recording numbers requests as they are sent."""
        begin = self._num_numbered
        rows = rows_of(engine, begin)
        numbers = np.arange(begin, begin + len(rows), dtype=np.int32)
        if self._number_of is None and (rows != numbers).any():
            self._number_of = np.full(len(engine.lines), -1, np.int32)
            self._number_of[:begin] = np.arange(begin)
        if self._number_of is not None:
            self._number_of[rows] = numbers
        self._num_numbered += len(rows)

    def _numbered(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the numbers in the recording of the requests in `rows` of the workload; -1 stays -1."""
        return rows if self._number_of is None else np.where(rows < 0, rows, self._number_of[rows])

    def _take_steps(self, engine: Engine) -> None:
        """Append the steps with a processed output to the sink. Steps in flight wait in `_waiting`."""
        num_steps, num_outputs = _num_steps(engine), _num_outputs(engine)
        self._num_steps = int(engine.state.num_steps)
        names = ["seq", "start_s", "prefill_tokens", "num_tokens", "num_scheduled", "running", "waiting", "preempted",
                 "free_units", "unusable_units", "free_windows", "cached_windows", "swapped_out",
                 "swapped_in"]  # fmt: skip
        now = {name: column(engine.steps, name, num_steps) for name in names}
        every = {name: np.concatenate((self._waiting.get(name, now[name][:0]), now[name])) for name in names}
        steps = {name: values[:num_outputs] for name, values in every.items()}
        self._waiting = {name: values[num_outputs:] for name, values in every.items()}
        optional: dict[str, str] = {}
        windows: dict[str, str] = {}
        if engine.settings.host_blocks or engine.settings.offloads or engine.memory is HIERARCHICAL:
            optional = {"swapped_out_units": "swapped_out", "swapped_in_units": "swapped_in"}
        if engine.memory is RADIX and engine.radix.settings.window_tokens:
            windows = {"free_window_units": "free_windows", "cached_window_units": "cached_windows"}
        after = self._after_outputs(engine, num_outputs, {"free_units": "free_units"} | windows)
        same = ("start_s", "prefill_tokens", "num_scheduled", "running", "waiting", "preempted")
        self._sink.append(
            Steps(
                step=np.arange(num_outputs, dtype=np.int32) + engine.state.first_output,
                schedule_seq=steps["seq"],
                output_seq=column(engine.outputs, "seq", num_outputs),
                end_s=column(engine.outputs, "time_s", num_outputs),
                decode_tokens=steps["num_tokens"] - steps["prefill_tokens"],
                free_units=steps["free_units"].astype(np.int32),
                unusable_units=steps["unusable_units"].astype(np.int32),
                **dict[str, Any](
                    {name: steps[name] for name in same}
                    | {name: steps[source].astype(np.int32) for name, source in (optional | windows).items()}
                    | after
                ),
            )
        )

    @staticmethod
    def _after_outputs(engine: Engine, num_outputs: int, units: dict[str, str]) -> dict[str, npt.NDArray[np.int32]]:
        """Return the columns `…_after` with the state after the output of each step, -1 if no gap follows the output.

        Keys of `units` are names of columns, without `_after`; values are the fields of the engine's gap record. A
        static batch has no such columns, because the requests that wait for it are not counted between batches.
        """
        if engine.rectangle.stride:
            return {}
        num_gaps = int(engine.state.num_gaps)
        # The gap before step n follows the output of step n - 1. Columns begin with the first output of the slice.
        step = column(engine.gaps, "before", num_gaps) - 1 - engine.state.first_output
        columns = {}
        for name, source in ({"running": "running", "waiting": "waiting"} | units).items():
            columns[f"{name}_after"] = np.full(num_outputs, -1, np.int32)
            columns[f"{name}_after"][step] = column(engine.gaps, source, num_gaps)
        return columns

    def _take_memory(self, engine: Engine) -> None:
        columns = self._columns(Memory, engine.memory_rows, engine.state.num_memory_rows)
        if not engine.rectangle.stride:
            del columns["repeat"]
        if engine.settings.num_groups <= 1:
            del columns["group"]
        self._sink.append(Memory(**columns))

    def _take_copies(self, rows: Records[Any], num_rows: int) -> None:
        """Append the copies between GPU and host that the engine reported since the previous call.

        A copy that began with a step that is not recorded yet waits for a later call.
        """
        new = self._columns(Copies, rows, num_rows)
        every = {name: np.concatenate((self._copies.get(name, values[:0]), values)) for name, values in new.items()}
        is_final = every["begun_step"] < self._num_steps
        self._sink.append(Copies(**{name: values[is_final] for name, values in every.items()}))
        self._copies = {name: values[~is_final] for name, values in every.items()}

    def _take_encoder(self, engine: Engine, contents: npt.NDArray[np.int64]) -> None:
        """Append the events of the encoder cache, with the workload's numbers of the images."""
        columns = self._columns(EncoderEvents, engine.encoder.rows, engine.encoder.state.num_rows)
        self._sink.append(EncoderEvents(**columns | {"image": contents[columns["image"] - 1].astype(np.int32)}))

    def _columns(
        self, table: type[Copies | EncoderEvents | Memory], rows: Records[Any], num_rows: int
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the columns of `table` from the first `num_rows` of `rows`, the engine's buffer. Requests are
        renumbered as in the recording.
        """
        columns = {name: column(rows, name, num_rows).astype(spec.dtype, copy=False) for name, spec in table.columns()}
        return columns | {"request": self._numbered(columns["request"])}

    def _take_schedule(self, engine: Engine) -> None:
        """Append the schedule rows before the first row that may still change.

        A later step may extend the last row of a running sequence. With drafts, the output of a step changes its rows.
        """
        num_rows, rows = engine.state.num_schedule_rows, engine.schedule_rows
        sequences: Any = engine.sequences
        numbers = column(rows, "request", num_rows) + 1  # only rows of these sequences may be extended
        status, open_rows = _field_at(sequences, "status", numbers), _field_at(sequences, "open_row", numbers)
        extensible = open_rows[(status == RUNNING) & (open_rows >= 0)]
        num_final = int(extensible.min(initial=num_rows))
        names = ["step", "request", "computed_before", "tokens", "repeat"]
        if engine.settings.num_drafts:
            names += ["known", "outputs"]
            num_final = int(np.searchsorted(column(rows, "step", num_rows), engine.state.num_outputs))
        final = {name: column(rows, name, num_final) for name in names}
        self._sink.append(Schedule(**final | {"request": self._numbered(final["request"])}))
        # Move the other rows to the front of the buffer, and with these the sequences' indices of their open rows.
        still_open = np.maximum(open_rows - num_final, NO_ROW)
        if isinstance(rows, np.ndarray):
            rows[: num_rows - num_final] = rows[num_final:num_rows].copy()
            sequences["open_row"][numbers] = still_open
        else:
            cast("Growing", rows).drop(num_final)
            for number, row in zip(numbers.tolist(), still_open.tolist(), strict=True):
                sequences[number].open_row = row
        engine.state.num_schedule_rows = num_rows - num_final


def _field_at(records: Records[Any], name: str, indices: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if isinstance(records, np.ndarray):
        return np.asarray(records[name][indices])
    return np.array([getattr(records[index], name) for index in indices.tolist()], np.int64)


def vllm_failures(engine: Engine) -> dict[str, int]:
    """Count how often vLLM would have ended with an error, by cause; the keys are those in `meta.engine`."""
    state = engine.state
    return {
        "vllm_failures": int(state.num_unawaited_outputs),
        "vllm_padding_failures": int(state.num_padding_failures),
        "vllm_adapter_failures": int(state.num_adapter_failures),
        "vllm_left_skipped": int(state.num_left_skipped),
    }


def rows_of(engine: Engine, begin: int = 0) -> npt.NDArray[np.int64]:
    """Return the workload rows of the requests that the engine got, from number `begin` on, in this order."""
    numbers = _field_at(engine.lines, "arrived", np.arange(begin, engine.state.num_submitted))
    return np.asarray(numbers - 1, np.int64)


def requests_of(engine: Engine, workload: Workload, rows: npt.NDArray[np.int64], hashes: Ragged[np.int64]) -> Requests:
    """Return the table of the requests in `rows` of `workload`, with their outcome in a finished run.

    `hashes` are their prompt hashes.
    """

    def of(records: Records[Any], *names: str) -> dict[str, npt.NDArray[Any]]:
        return {name: np.asarray(column(records, name)[1:][rows]) for name in names}

    sequences = of(engine.sequences, "status", "is_refused", "num_tokens")
    status = np.full(len(rows), RequestStatus.UNFINISHED, np.uint8)
    for number, meaning in _STATUS.items():
        status[sequences["status"] == number] = meaning
    status[sequences["is_refused"]] = RequestStatus.REFUSED
    optional: dict[str, npt.NDArray[Any]] = {}
    if workload.turns is not None:
        turns = workload.turns.take(rows)
        optional = {name: getattr(turns, name) for name in ("after", "pause_s", "history_tokens")}
    if workload.adapter.any():
        optional["adapter"] = workload.adapter[rows]
    return Requests(
        request=np.arange(len(rows), dtype=np.int32),
        id=np.asarray(workload.ids, np.str_)[rows],
        output_tokens=sequences["num_tokens"] - workload.prompt_tokens[rows],
        prompt_hashes=hashes,
        status=status,
        **{name: getattr(workload, name)[rows] for name in ("prompt_tokens", "max_tokens", "priority")},
        **of(engine.times, "arrival_s", "arrival_seq", "first_scheduled_s", "first_token_s", "finished_s"),
        **of(engine.sequences, "preemptions", "cached_tokens"),
        **optional,
    )


def transfers_of(
    engine: Engine,
    rows: npt.NDArray[np.int64],
    servers: npt.NDArray[np.int32],
    bad: Sequence[Sequence[int]],
) -> Transfers:
    """Return the transfers of a server in a finished run, in the order in which they began.

    Args:
        engine: the engine of the server.
        rows: workload rows of the requests that the server got.
        servers: for each request of the workload, the number of the server on the other side of its transfer.
        bad: for each request of the workload, the blocks that fail to load, counted from the first transferred block.
    """

    def of(name: str) -> npt.NDArray[Any]:
        return np.asarray(column(engine.connector.transfers, name)[1:][rows])

    begun = np.flatnonzero(of("begun_seq") >= 0)
    begun = begun[np.argsort(of("begun_seq")[begun], kind="stable")]
    is_send = of("is_kept")[begun].astype(bool)
    position, blocks, ended_seq = (of(name)[begun] for name in ("first_entry", "num_blocks", "ended_seq"))
    first_bad = np.array([min(bad[row], default=-1) for row in rows[begun].tolist()], np.int64)
    return Transfers(
        kind=np.where(is_send, TransferKind.SEND, TransferKind.LOAD).astype(np.uint8),
        request=begun.astype(np.int32),
        server=servers[rows[begun]],
        begun_seq=of("begun_seq")[begun].astype(np.int64),
        ended_seq=ended_seq.astype(np.int64),
        begin_s=of("begin_s")[begun],
        end_s=np.where(ended_seq >= 0, of("done_s")[begun], np.nan),
        position=position.astype(np.int32),
        blocks=blocks.astype(np.int32),
        tokens=of("num_tokens")[begun].astype(np.int32),
        failed=np.where((first_bad >= 0) & (first_bad < blocks), position + first_bad, -1).astype(np.int32),
    )


def _num_steps(engine: Engine) -> int:
    return int(engine.state.num_steps - engine.state.first_step)


def _num_outputs(engine: Engine) -> int:
    return int(engine.state.num_outputs - engine.state.first_output)
