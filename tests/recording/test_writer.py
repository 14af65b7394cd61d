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
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.errors import IntegrityError, RecordingError
from kvsim.policies import Contiguous, Paged, Policy, Static
from kvsim.policies.settings import ContinuousSettings, PagedSettings, StaticSettings
from kvsim.recording import (
    Recording,
    RecordingBuilder,
    RecordingWriter,
    read,
    row_sinks,
    write,
    writer,
)  # fmt: skip
from kvsim.recording.parquet import TableFile
from kvsim.recording.row_sinks import RowsInMemory
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
    monkeypatch.setattr(row_sinks, "_PARTS_JOINED", 2)
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
    append = RecordingWriter.append

    def count(writer: RecordingWriter, table: ColumnTable) -> None:
        portions.setdefault(table.name, []).append(len(table))
        append(writer, table)

    monkeypatch.setattr(RecordingWriter, "append", count)
    simulation_run.record(workload, policy, make_machine(160), tmp_path / "as it goes", engine="interpreted")
    assert contents(tmp_path / "as it goes") == contents(tmp_path / "at once")
    for name in ("steps", "schedule", "memory"):
        assert len(portions[name]) > 3, name
        groups = pq.ParquetFile(tmp_path / "as it goes" / f"{name}.parquet").metadata
        assert groups.num_row_groups == -(-groups.num_rows // ROWS_PER_GROUP) > 1
    assert max(portions["steps"]) < len(at_once.steps) / 2


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_however_rows_are_handed_over_the_bytes_are_the_same(
    recorded: Recording, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In memory and on disk."""
    folder = tmp_path_factory.mktemp("portions")
    portions = []
    for table in tables_of(recorded):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(table)), max_size=5)))
        portions.append([part(table, *ends) for ends in zip([0, *cuts], [*cuts, len(table)], strict=True)])
    in_memory = RowsInMemory()
    with RecordingWriter(folder / "writer") as writer:
        for each in (portion for table in portions for portion in table):
            writer.append(each)
            in_memory.append(each)
        writer.commit(recorded.meta)
    write(in_memory.finish(recorded.meta), folder / "at once")
    assert contents(folder / "writer") == contents(folder / "at once")
    assert pq.ParquetFile(folder / "writer" / "steps.parquet").metadata.num_row_groups > 1


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_columns_of_a_simulation_have_the_types_of_those_in_a_file(
    policy: Policy, workload: Workload, make_machine: Callable[[int], Any], tmp_path: Path
) -> None:
    recording = simulation_run.simulate(workload, policy, make_machine(160), engine="interpreted")
    again = read(write(recording, tmp_path / "rec"))
    assert [types_of(table) for table in recording.tables] == [types_of(table) for table in again.tables]


def types_of(table: ColumnTable) -> dict[str, np.dtype[Any]]:
    columns = {name: getattr(table, name) for name, spec in table.columns() if not spec.is_text}
    return {name: column.dtype for name, column in columns.items() if isinstance(column, np.ndarray)}


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


def test_memory_does_not_grow_with_the_rows(recorded: Recording, tmp_path: Path) -> None:
    file, row = TableFile(tmp_path / "steps.parquet"), part(recorded.steps, 3, 4)

    def held_bytes() -> int:
        """What kvsim holds: other threads of the tests come and go."""
        ours = tracemalloc.Filter(inclusive=True, filename_pattern=f"{Path(kvsim.__file__).parent}/*")
        held = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([ours]).traces)
        return held + pa.total_allocated_bytes()

    def append(num_rows: int) -> None:
        for _ in range(num_rows):
            file.append(row)

    tracemalloc.start()
    try:
        append(2 * ROWS_PER_GROUP)
        before = held_bytes()
        append(60 * ROWS_PER_GROUP)
        after = held_bytes()
    finally:
        tracemalloc.stop()
        file.abandon()
    assert after - before < 60 * ROWS_PER_GROUP, "thirty times as many rows, and not a byte a row more"


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
