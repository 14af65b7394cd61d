"""Recordings that are written while they are made: the same bytes as at once, in bounded memory, or nothing at all."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.errors import IntegrityError, RecordingError
from kvsim.policies import Contiguous, Paged, Policy, Static
from kvsim.policies.settings import ContinuousSettings, PagedSettings, StaticSettings
from kvsim.recording import (
    Meta,
    Recording,
    RecordingBuilder,
    RecordingWriter,
    RequestStatus,
    growing,
    read,
    write,
    writer,
)  # fmt: skip
from kvsim.recording.parquet import TableFile
from kvsim.recording.tables import ColumnTable, Memory, Requests, Schedule, Steps
from kvsim.simulation import simulation_run
from kvsim.workload import Poisson, Ragged, SharedPrefixes, Uniform, Workload, generate

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS_PER_GROUP = 40
POLICIES: dict[str, Policy] = {
    "paged": Paged(cache=PagedSettings(block_size=4), scheduler=ContinuousSettings(max_model_len=64)),
    "paged, sync": Paged(
        cache=PagedSettings(block_size=4, swap_gib=0.001),
        scheduler=ContinuousSettings(max_model_len=64, async_scheduling=False),
    ),
    "contiguous": Contiguous(scheduler=ContinuousSettings(max_model_len=64)),
    "static": Static(scheduler=StaticSettings(batch_size=3, max_model_len=64)),
}


@pytest.fixture(autouse=True)
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand rows over soon, and in other portions than those in which they are written."""
    monkeypatch.setattr(growing, "_ROWS_HELD", 7)
    monkeypatch.setattr(TableFile, "rows_per_group", ROWS_PER_GROUP)


@pytest.fixture(scope="module")
def workload() -> Workload:
    return generate(
        60,
        arrivals=Poisson(rate_per_s=400),
        prompt=Uniform(low=1, high=16),
        output=Uniform(low=1, high=20),
        prefixes=SharedPrefixes(num_groups=2, tokens=9),
        seed=3,
    )


@pytest.fixture(scope="module")
def recorded(workload: Workload, make_machine: Callable[[int], Any]) -> Recording:
    return simulation_run.simulate(workload, POLICIES["paged"], make_machine(160), engine="interpreted")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def tables_of(recording: Recording) -> tuple[ColumnTable, ...]:
    return (recording.requests, recording.steps, recording.schedule, recording.memory)


def part(table: Any, begin: int, end: int) -> Any:
    """Some rows of a table."""

    def of(column: Any) -> Any:
        if isinstance(column, Ragged):
            return column.take(np.arange(begin, end))
        return None if column is None else column[begin:end]

    return type(table)(**{name: of(getattr(table, name)) for name, _ in table.columns()})


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_as_it_goes_and_at_once_give_the_same_bytes(
    policy: Policy, workload: Workload, make_machine: Callable[[int], Any],
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    at_once = simulation_run.simulate(workload, policy, make_machine(160), engine="interpreted")
    monkeypatch.setattr("kvsim.engine.initialization.STEPS_PER_SLICE", 50)
    monkeypatch.setattr("kvsim.engine.initialization.FIRST_ROWS", 10)
    write(at_once, tmp_path / "at once")
    portions: dict[str, list[int]] = {}
    with RecordingWriter(tmp_path / "as it goes") as writer:
        builder = RecordingBuilder(writer)
        append = writer.append

        def count(table: ColumnTable) -> None:
            portions.setdefault(table.name, []).append(len(table))
            append(table)

        def finish(meta: Meta, **_: str) -> None:
            builder.close()
            writer.commit(meta)

        monkeypatch.setattr(writer, "append", count)
        monkeypatch.setattr(builder, "finish", finish)
        monkeypatch.setattr(simulation_run, "RecordingBuilder", lambda: builder)
        simulation_run.simulate(workload, policy, make_machine(160), engine="interpreted")
    assert contents(tmp_path / "as it goes") == contents(tmp_path / "at once")
    for name in ("steps", "schedule", "memory"):
        assert len(portions[name]) > 3, name
        groups = pq.ParquetFile(tmp_path / "as it goes" / f"{name}.parquet").metadata
        assert groups.num_row_groups == -(-groups.num_rows // ROWS_PER_GROUP) > 1
    assert max(portions["steps"]) < len(at_once.steps) / 2


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_however_rows_are_handed_over_the_bytes_are_the_same(
    recorded: Recording, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In bulk, as a compiled engine does: to the writer, and to builders with and without one."""
    folder = tmp_path_factory.mktemp("portions")
    portions = []
    for table in tables_of(recorded):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(table)), max_size=5)))
        portions.append([part(table, *ends) for ends in zip([0, *cuts], [*cuts, len(table)], strict=True)])
    builder = RecordingBuilder()
    with RecordingWriter(folder / "writer") as writer, RecordingWriter(folder / "builder") as other:
        through = RecordingBuilder(other)
        for each in (portion for table in portions for portion in table):
            writer.append(each)
            through.append(each)
            builder.append(each)
        writer.commit(recorded.meta)
        through.close()
        other.commit(recorded.meta)
    assert through.num_steps == builder.num_steps == len(recorded.steps)
    write(builder.finish(recorded.meta), folder / "at once")
    assert contents(folder / "writer") == contents(folder / "at once")
    assert contents(folder / "builder") == contents(folder / "at once")
    assert pq.ParquetFile(folder / "writer" / "steps.parquet").metadata.num_row_groups > 1


def test_a_request_that_goes_on_keeps_its_row_and_those_after_it(
    make_meta: Callable[..., Meta], tmp_path: Path
) -> None:
    """One sequence decodes all the time, others come and go: nothing after its row is final before it ends."""
    with RecordingWriter(tmp_path / "rec") as writer:
        builder = RecordingBuilder(writer)
        report(builder, 100, long_until=50)
        builder.close()
        writer.commit(make_meta(101))
    plain = RecordingBuilder()
    report(plain, 100, long_until=50)
    write(plain.finish(make_meta(101)), tmp_path / "at once")
    assert contents(tmp_path / "rec") == contents(tmp_path / "at once")
    schedule = read(tmp_path / "rec").schedule
    assert schedule.repeats[0] == 50
    assert len(schedule) == 101


def test_columns_that_count_up_take_almost_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TableFile, "rows_per_group", 1 << 17)
    count = np.arange(20_000)
    file = TableFile(tmp_path / "schedule.parquet")
    drawn = np.random.default_rng(0).integers(0, 1 << 30, len(count)).astype(np.int32)
    file.append(Schedule(step=count.astype(np.int32), request=drawn, computed_before=drawn, tokens=drawn))
    file.finish()
    file.close("")
    group = pq.read_metadata(tmp_path / "schedule.parquet").row_group(0)
    size_of = {group.column(nth).path_in_schema: group.column(nth).total_compressed_size for nth in range(4)}
    assert size_of["step"] < 1_000 < 4 * len(count) < size_of["request"]
    assert (pq.read_table(tmp_path / "schedule.parquet")["step"].to_numpy() == count).all()


def report(builder: RecordingBuilder, num_steps: int, long_until: int) -> None:
    """In each step a new request comes, decodes a token and leaves; the first decodes in `long_until` steps."""
    first = builder.arrived("long", 0.0, 1, num_steps)
    builder.next_seq()
    builder.append_blocks(first, 0, range(num_steps))
    for step in range(num_steps):
        row = builder.arrived(f"r{step}", float(step), 1, 1)
        builder.next_seq()
        if step < long_until:
            builder.scheduled(first, step, 1, float(step))
        builder.append_blocks(row, 0, [num_steps])
        builder.scheduled(row, 0, 1, float(step))
        goes_on = step < long_until
        free_units = 0 if goes_on else num_steps
        close_step(builder, num_scheduled=1 + goes_on, free_units=free_units, prefill_tokens=1 + (step == 0))
        builder.emitted(row, step + 0.5)
        builder.release(row, 1, 0)
        builder.ended(row, RequestStatus.FINISHED, step + 0.5)
        if step < long_until:
            builder.emitted(first, step + 0.5)
        if step + 1 == long_until:
            builder.ended(first, RequestStatus.FINISHED, step + 0.5)
            builder.release(first, num_steps, 0)


def close_step(builder: RecordingBuilder, num_scheduled: int = 1, free_units: int = 0, prefill_tokens: int = 0) -> None:
    step = builder.num_steps
    number = builder.step(
        start_s=float(step), prefill_tokens=prefill_tokens, decode_tokens=num_scheduled - prefill_tokens,
        num_scheduled=num_scheduled,
        running=num_scheduled, waiting=0, preempted=0, free_units=free_units,
    )  # fmt: skip
    builder.next_seq()
    builder.output(number, step + 0.5)


def test_memory_does_not_grow_with_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nowhere:
        def append(self, table: ColumnTable) -> None:
            pass

    def take_and_lose(num_steps: int) -> None:
        for step in range(num_steps):
            builder.next_seq()
            builder.append_blocks(0, 0, [1])
            builder.scheduled(0, 0, 1, float(step))
            close_step(builder)
            builder.release(0, 1, 0)

    def held_bytes() -> int:
        """What kvsim holds: other threads of the tests come and go."""
        ours = tracemalloc.Filter(inclusive=True, filename_pattern=f"{Path(kvsim.__file__).parent}/*")
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces)

    monkeypatch.setattr(growing, "_ROWS_HELD", 100)
    builder = RecordingBuilder(Nowhere())
    builder.arrived("r0", 0.0, 1, 1)
    tracemalloc.start()
    try:
        take_and_lose(500)
        before = held_bytes()
        take_and_lose(20_000)
        after = held_bytes()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000, "forty times as many steps, and not a byte a step more"


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ValueError("defect")], ids=repr
)
@pytest.mark.parametrize("moment", ["first rows", "later rows", "the end"])
@pytest.mark.parametrize("was_there", [True, False], ids=["replacing", "new"])
def test_what_breaks_off_leaves_nothing(
    recorded: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    error: BaseException, moment: str, was_there: bool,
) -> None:  # fmt: skip
    target = tmp_path / "rec"
    if was_there:
        write(recorded, target)
    before = contents(target) if was_there else {}
    method, nth = {"first rows": ("append", 1), "later rows": ("append", 30), "the end": ("close", 3)}[moment]
    whole, calls = getattr(TableFile, method), []

    def break_off(file: TableFile, *rows: ColumnTable) -> None:
        calls.append(1)
        if len(calls) == nth:
            raise error
        whole(file, *rows)

    monkeypatch.setattr(TableFile, method, break_off)
    expected = RecordingError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected) as raised:
        write_in_portions(recorded, target)
    if isinstance(error, OSError):
        assert str(raised.value) == f"cannot write {target}: No space left on device."
    assert [entry.name for entry in tmp_path.iterdir()] == ["rec"] * was_there
    assert (contents(target) if was_there else {}) == before


def write_in_portions(recording: Recording, target: Path) -> None:
    with RecordingWriter(target) as writer:
        for begin in range(0, len(recording.steps), 8):
            for table in tables_of(recording):
                writer.append(part(table, min(begin, len(table)), min(begin + 8, len(table))))
        writer.commit(recording.meta)


def test_what_does_not_agree_is_not_written_over_what_does(recorded: Recording, tmp_path: Path) -> None:
    target = write(recorded, tmp_path / "r")
    before = contents(target)
    wrong = replace(recorded, steps=replace(recorded.steps, running=recorded.steps.running + 1))
    with pytest.raises(IntegrityError, match=r"r/steps\.parquet, row \d+: .*; what was recorded does not agree"):
        write(wrong, target)
    assert contents(target) == before
    assert [*tmp_path.iterdir()] == [target]


def test_rows_that_change_behind_their_engine_are_noticed_however_many_there_are(
    recorded: Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is too long to be read back is looked at on its way to disk, where one row group follows another."""
    monkeypatch.setattr(writer, "_MOST_ROWS_CHECKED", 0)
    write(recorded, tmp_path / "r")
    seq = recorded.memory.seq.copy()
    with RecordingWriter(tmp_path / "wrong") as file:
        file.append(part(recorded.memory, 0, ROWS_PER_GROUP))
        handed_over = replace(part(recorded.memory, ROWS_PER_GROUP, len(seq)), seq=seq[ROWS_PER_GROUP:])
        file._files["memory"].rows_per_group = len(seq)
        file.append(handed_over)
        seq[:] = 0
        with pytest.raises(IntegrityError, match=r"seq falls in memory\.parquet"):
            file.commit(recorded.meta)
    assert [*tmp_path.iterdir()] == [tmp_path / "r"]


def test_left_without_a_commit_it_leaves_nothing(recorded: Recording, tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "rec") as writer:
        for table in tables_of(recorded):
            writer.append(table)
        assert [entry.name for entry in tmp_path.iterdir()] != ["rec"]
    assert not list(tmp_path.iterdir())


KILLED = """
import os, signal, sys
from kvsim.recording import RecordingWriter
with RecordingWriter(sys.argv[1]) as writer:
    if len(sys.argv) > 2:
        os.rename(sys.argv[1], writer._scratch / "replaced")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert done.returncode == -signal.SIGKILL


def test_what_a_killed_run_has_left_is_taken_away_by_the_next(recorded: Recording, tmp_path: Path) -> None:
    killed(str(tmp_path / "rec"))
    killed(str(tmp_path / "other"))
    (tmp_path / ".rec-mine").mkdir()
    left = {entry.name for entry in tmp_path.iterdir()}
    assert len(left) == 3
    write(recorded, tmp_path / "rec")
    assert {entry.name for entry in tmp_path.iterdir()} == {"rec", ".rec-mine"} | {
        name for name in left if name.startswith(".other-")
    }


def test_what_a_run_in_progress_has_made_is_left_alone(recorded: Recording, tmp_path: Path) -> None:
    with RecordingWriter(tmp_path / "rec") as writer:
        write(recorded, tmp_path / "rec")
        for table in tables_of(recorded):
            writer.append(table)
        writer.commit(recorded.meta)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rec"]
    assert len(read(tmp_path / "rec").steps) == len(recorded.steps)


def test_a_recording_that_a_killed_run_was_about_to_replace_is_put_back(recorded: Recording, tmp_path: Path) -> None:
    target = tmp_path / "rec"
    write(recorded, target)
    before = contents(target)
    killed(str(target), "while it replaces")
    assert not target.exists()
    with RecordingWriter(target):
        pass
    assert contents(target) == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["rec"]


def test_what_is_in_the_way_is_said_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    with pytest.raises(RecordingError, match="exists and is not a recording"), RecordingWriter(tmp_path / "thesis"):
        pytest.fail("it began")


def test_what_came_to_be_in_the_way_meanwhile_is_not_overwritten(recorded: Recording, tmp_path: Path) -> None:
    target = tmp_path / "rec"
    with RecordingWriter(target) as writer:
        target.write_text("thesis")
        with pytest.raises(RecordingError, match="exists and is not a recording"):
            writer.commit(recorded.meta)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rec"]
    assert target.read_text() == "thesis"


@pytest.mark.parametrize("table", [Requests, Steps, Schedule, Memory], ids=lambda table: table.name)
def test_empty_portions_decide_on_no_column(recorded: Recording, tmp_path: Path, table: type[Any]) -> None:
    """An empty table of a builder has no optional columns; the rows that follow may have them."""
    rows = getattr(recorded, table.name)
    empty = getattr(RecordingBuilder().finish(recorded.meta), table.name)
    with RecordingWriter(tmp_path / "rec") as writer:
        for each in tables_of(recorded):
            for portion in (empty, empty, rows, empty) if type(each) is table else (each,):
                writer.append(portion)
        writer.commit(recorded.meta)
    write(recorded, tmp_path / "at once")
    assert contents(tmp_path / "rec") == contents(tmp_path / "at once")
