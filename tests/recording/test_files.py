"""Recordings on disk: what is written comes back; what cannot be right is said in one that names file and row."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.errors import RecordingError, RecordingVersionError, UnknownNameError
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import (
    Memory,
    MemoryKind,
    Meta,
    Recording,
    RecordingBuilder,
    Requests,
    RequestStatus,
    Schedule,
    Steps,
    find,
    parquet,
    read,
    read_outlines,
    shipped_names,
    write,
)
from kvsim.recording.parquet import TableFile
from kvsim.replay import Replay
from kvsim.simulation import simulate
from kvsim.workload import Ragged, Workload

from ..thinned import one_of

if TYPE_CHECKING:
    from pathlib import Path

TABLES = (Requests, Steps, Schedule, Memory)


@pytest.fixture(scope="module")
def recording(make_machine: Callable[[int], Any]) -> Recording:
    """Every kind of event, ragged hashes, preemptions, a refused request."""
    workload = Workload(
        arrival_s=np.zeros(7),
        prompt_tokens=[9, 9, 17, 3, 8, 90, 9],
        output_tokens=[20, 20, 8, 4, 12, 4, 9],
        prompt_hashes=Ragged.from_rows([[1, 2], [1, 2], [1, 2, 3, -4], [], [5], [], [1]], np.int64),
        hash_unit_tokens=4,
        ids=["a", "b", "c", "d", "é", "long", "g"],
    )
    policy = Paged(scheduler=ContinuousSettings(max_model_len=64), cache=PagedSettings(block_size=4))
    return simulate(workload, policy, make_machine(48), refuse_misfits=True, command="kvsim run 'x'")


@pytest.fixture
def folder(recording: Recording, tmp_path: Path) -> Path:
    """A good recording on disk, to be damaged."""
    return write(recording, tmp_path / "good")


def assert_same(one: Recording, other: Recording, *, name: str | None = None) -> None:
    assert other.name == (name or one.name)
    for table in TABLES:
        ours, theirs = getattr(one, table.name), getattr(other, table.name)
        assert len(ours) == len(theirs)
        for column, spec in table.columns():
            mine, yours = getattr(ours, column), getattr(theirs, column)
            if mine is None:
                assert yours is None, column
            elif isinstance(mine, Ragged):
                assert [row.tolist() for row in (mine[i] for i in range(len(mine)))] == [
                    row.tolist() for row in (yours[i] for i in range(len(yours)))
                ]
            else:
                np.testing.assert_array_equal(mine, yours, err_msg=column)
                assert spec.dtype == "str" or mine.dtype == yours.dtype == np.dtype(spec.dtype), column
    for field in Meta.__dataclass_fields__:
        if field == "initial_free":
            continue
        mine, yours = getattr(one.meta, field), getattr(other.meta, field)
        if isinstance(mine, Mapping):  # JSON has lists, and no tuples
            mine = json.loads(json.dumps(dict(mine)))
        assert mine == yours, field


def change_meta(folder: Path, **changes: object) -> Path:
    file = folder / "meta.json"
    document = json.loads(file.read_text(encoding="utf-8")) | changes
    file.write_text(json.dumps({key: value for key, value in document.items() if value is not ...}), encoding="utf-8")
    return folder


def change_table(folder: Path, table: str, **columns: Any) -> Path:
    """Replace columns of a table; `...` drops one, a function changes its values."""
    file = folder / f"{table}.parquet"
    data = pq.read_table(file)
    for name, value in columns.items():
        if value is ...:
            data = data.drop_columns([name])
            continue
        values = value(data[name].to_pylist()) if callable(value) else value
        array = values if isinstance(values, pa.Array) else pa.array(values)
        index = data.schema.get_field_index(name)
        data = data.append_column(name, array) if index < 0 else data.set_column(index, name, array)
    pq.write_table(data, file)
    return folder


def at(row: int, value: object) -> Callable[[list[Any]], list[Any]]:
    """Change one row of a column."""

    def change(values: list[Any]) -> list[Any]:
        return [*values[:row], value, *values[row + 1 :]]

    return change


def message(folder: Path, error: type[RecordingError] = RecordingError) -> str:
    with pytest.raises(RecordingError) as raised:
        read(folder)
    text = str(raised.value)
    assert type(raised.value) is error
    assert str(folder) in text
    assert text.endswith(".")
    assert "\n" not in text
    return text.replace(str(folder) + "/", "").replace(str(folder), "FOLDER")


def test_what_is_written_comes_back(recording: Recording, folder: Path) -> None:
    assert set(recording.memory.kind) == set(MemoryKind)
    assert set(recording.requests.status) == {RequestStatus.FINISHED, RequestStatus.REFUSED}
    assert recording.num_preemptions > 0
    assert_same(recording, read(folder), name="good")


def test_writing_again_changes_no_byte(folder: Path, tmp_path: Path) -> None:
    again = write(read(folder), tmp_path / "again")
    assert sorted(file.name for file in again.iterdir()) == sorted(file.name for file in folder.iterdir())
    for file in folder.iterdir():
        assert file.read_bytes() == (again / file.name).read_bytes(), file.name


@pytest.mark.parametrize("name", one_of(12, shipped_names()))
def test_shipped_recordings_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    shipped = read(find(name))
    again = read(write(shipped, tmp_path / name))
    assert_same(shipped, again)
    np.testing.assert_array_equal(shipped.meta.initial_free, again.meta.initial_free)


def test_the_order_of_the_free_queue_and_unknown_keys_of_meta_survive(recording: Recording, tmp_path: Path) -> None:
    assert recording.meta.pool.num_units is not None
    free = np.arange(recording.meta.pool.num_units, 0, -1)
    meta = replace(recording.meta, initial_free=free, extra={"operator": {"name": "x"}})
    again = read(write(replace(recording, meta=meta), tmp_path / "rec")).meta
    assert again.initial_free is not None
    assert again.initial_free.tolist() == free.tolist()
    assert again.extra == {"operator": {"name": "x"}}


def test_every_optional_column_survives_and_may_be_absent(recording: Recording, tmp_path: Path) -> None:
    num_steps = len(recording.steps)
    everything = replace(
        recording,
        steps=replace(
            recording.steps,
            **{
                name: np.arange(num_steps, dtype=spec.dtype)
                for name, spec in Steps.columns()
                if spec.optional and name != "unusable_units"
            },
        ),
    )
    assert_same(everything, read(write(everything, tmp_path / "full")), name="full")
    nothing = replace(
        recording,
        steps=replace(recording.steps, unusable_units=None),
        memory=replace(recording.memory, requested=None, cached=None),
    )
    again = read(write(nothing, tmp_path / "bare"))
    assert_same(nothing, again, name="bare")
    assert again.memory.cached is None


def test_a_schedule_without_repeats_holds_each_row_for_one_step(folder: Path) -> None:
    file = folder / "schedule.parquet"
    rows = pq.read_table(file).to_pylist()
    unfolded = [
        row | {"step": row["step"] + nth, "computed_before": row["computed_before"] + nth * row["tokens"], "repeat": 1}
        for row in rows
        for nth in range(row["repeat"])
    ]
    pq.write_table(pa.Table.from_pylist(sorted(unfolded, key=itemgetter("step"))), file)
    change_table(folder, "schedule", repeat=...)
    schedule = read(folder).schedule
    assert schedule.repeat is None
    assert schedule.repeats.tolist() == [1] * len(schedule)


def test_empty_tables_survive(make_meta: Callable[..., Meta], tmp_path: Path) -> None:
    empty = RecordingBuilder().finish(make_meta(8), name="empty")
    again = read(write(empty, tmp_path / "empty"))
    assert_same(empty, again)
    assert [len(getattr(again, table.name)) for table in TABLES] == [0, 0, 0, 0]
    assert again.duration_s == 0
    assert again.num_preemptions == 0


def test_a_pool_whose_units_are_unknown_is_refused(folder: Path) -> None:
    """An engine without a pool, such as generate(), leaves the file out; one with a pool has lost it."""
    (folder / "memory.parquet").unlink()
    assert message(folder) == "memory.parquet is missing; the recording is incomplete."


def test_unknown_columns_and_files_are_ignored(recording: Recording, folder: Path) -> None:
    change_table(folder, "steps", temperature=[[20.5]] * len(recording.steps))
    (folder / "notes.txt").write_text("hello")
    assert_same(recording, read(folder), name="good")


def test_other_integer_types_and_dictionaries_are_read(recording: Recording, folder: Path) -> None:
    """Another writer may choose wider integers, and pandas writes words as dictionaries."""
    change_table(
        folder,
        "memory",
        kind=lambda words: pa.array(words).dictionary_encode(),
        step=lambda steps: pa.array(steps, pa.int64()),
        address=lambda values: pa.array(values, pa.int32()),
    )
    change_table(folder, "requests", prompt_hashes=lambda rows: pa.array(rows, pa.large_list(pa.int64())))
    change_table(folder, "steps", start_s=lambda values: pa.array(values, pa.float64()))
    assert_same(recording, read(folder), name="good")


@pytest.mark.parametrize("rows_at_a_time", [1, 3, 1000])
def test_several_row_groups_are_read(
    recording: Recording, folder: Path, rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "_ROWS_READ", rows_at_a_time)
    for table in TABLES:
        file = folder / f"{table.name}.parquet"
        pq.write_table(pq.read_table(file), file, row_group_size=2)
    assert_same(recording, read(folder), name="good")


@pytest.mark.parametrize("kind", [pa.float64(), pa.null(), pa.int64()], ids=str)
def test_a_time_that_did_not_happen_may_be_null(folder: Path, kind: pa.DataType) -> None:
    """Here nothing happened to any request but that it arrived."""
    never = {name: pa.array([None] * len(read(folder).requests), kind)
             for name in ("first_scheduled_s", "first_token_s", "finished_s")}  # fmt: skip
    nothing = dict.fromkeys(("output_tokens", "preemptions", "cached_tokens"), lambda values: [0] * len(values))
    change_table(folder, "requests", **never, **nothing, status=lambda values: ["unfinished"] * len(values))
    for table in ("steps", "schedule", "memory"):
        file = folder / f"{table}.parquet"
        pq.write_table(pq.read_table(file).slice(0, 0), file)
    assert np.isnan(read(folder).requests.first_token_s).all()


NEITHER = " neither a unit nor a pair of units."
NO_UNITS = "meta.json: initial_free should be a list of unit ids, or of pairs [first, last] of consecutive ids;"


class TestWhatCannotBeRead:
    def test_a_folder_that_does_not_exist(self, tmp_path: Path) -> None:
        assert message(tmp_path / "nowhere").startswith("FOLDER does not exist")

    def test_a_file_instead_of_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        assert message(tmp_path / "file").startswith("FOLDER is a file, not a folder")

    def test_a_folder_without_meta(self, tmp_path: Path) -> None:
        assert message(tmp_path).startswith("meta.json is missing")

    @pytest.mark.parametrize("table", ["requests", "steps", "schedule"])
    def test_a_missing_table(self, folder: Path, table: str) -> None:
        (folder / f"{table}.parquet").unlink()
        assert message(folder) == f"{table}.parquet is missing; the recording is incomplete."

    @pytest.mark.parametrize("table", ["requests", "steps", "schedule", "memory"])
    @pytest.mark.parametrize("share", [0.0, 0.3, 0.9])
    def test_a_truncated_table(self, folder: Path, table: str, share: float) -> None:
        file = folder / f"{table}.parquet"
        file.write_bytes(file.read_bytes()[: int(file.stat().st_size * share)])
        assert message(folder).startswith(f"{table}.parquet is damaged or truncated: ")

    def test_a_table_whose_pages_are_damaged(self, folder: Path) -> None:
        file = folder / "steps.parquet"
        data = bytearray(file.read_bytes())
        data[4:400] = b"\xff" * 396
        file.write_bytes(data)
        assert message(folder).startswith("steps.parquet ")

    def test_a_table_that_may_not_be_read(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(file: Path) -> None:  # pyarrow's words; root may read everything
            raise PermissionError(13, f"Failed to open local file '{file}'. Detail: [errno 13] Permission denied")

        monkeypatch.setattr("pyarrow.parquet.read_metadata", refused)
        assert message(folder).partition(" ")[2] == "cannot be read: Permission denied."

    def test_a_folder_instead_of_a_table(self, folder: Path) -> None:
        (folder / "steps.parquet").unlink()
        (folder / "steps.parquet").mkdir()
        assert message(folder).startswith("steps.parquet is damaged or truncated: ")

    @pytest.mark.parametrize(
        "text",
        ["", "{", "[1, 2", '{"format": NaN}', "[" * 100_000, '{"version": ' + "9" * 10_000 + "}", "\x00"],
        ids=["empty", "cut", "cut list", "not a number", "deep", "huge number", "nul"],
    )
    def test_bad_json(self, folder: Path, text: str) -> None:
        (folder / "meta.json").write_text(text)
        assert message(folder).startswith("meta.json cannot be read as JSON: ")

    def test_meta_in_another_encoding(self, folder: Path) -> None:
        (folder / "meta.json").write_bytes('{"gpu": "é"}'.encode("latin-1"))
        assert message(folder).startswith("meta.json cannot be read as JSON: ")

    @pytest.mark.parametrize("text", ["[]", "3", "null", '"kvsim-recording"'])
    def test_json_that_is_no_object(self, folder: Path, text: str) -> None:
        (folder / "meta.json").write_text(text)
        assert message(folder).startswith("meta.json is not a kvsim recording")

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"format": "other"}, 'meta.json is not a kvsim recording: it should say "format": "kvsim-recording".'),
            ({"source": "tgi"}, "meta.json has source 'tgi'; it should be one of vllm, hf, simulation."),
            ({"source": ["vllm"]}, "meta.json has source ['vllm']; it should be one of vllm, hf, simulation."),
            ({"engine": "vllm"}, "meta.json: 'engine' should be an object, not 'vllm'."),
            ({"pool": None}, "meta.json: 'pool' should be an object, not None."),
            ({"pool": {}}, "meta.json: pool.unit_tokens should be an integer of at least 1, not None."),
            (
                {"pool": {"unit_tokens": 0, "num_units": 3, "bytes_per_unit": 1}},
                "meta.json: pool.unit_tokens should be an integer of at least 1, not 0.",
            ),
            (
                {"pool": {"unit_tokens": 16, "num_units": 2.5, "bytes_per_unit": 1}},
                "meta.json: pool.num_units should be an integer of at least 1, not 2.5.",
            ),
            (
                {"pool": {"unit_tokens": 16, "num_units": True, "bytes_per_unit": 1}},
                "meta.json: pool.num_units should be an integer of at least 1, not True.",
            ),
            (
                {"pool": {"unit_tokens": 16, "num_units": 3, "first_unit": -1, "bytes_per_unit": 1}},
                "meta.json: pool.first_unit should be an integer of at least 0, not -1.",
            ),
            ({"initial_free": "all"}, f"{NO_UNITS} 'all' is neither a unit nor a pair of units."),
            ({"initial_free": [1, "2"]}, f"{NO_UNITS} '2' is neither a unit nor a pair of units."),
            ({"initial_free": [10**30]}, f"{NO_UNITS} {10**30} is neither a unit nor a pair of units."),
            ({"initial_free": [[1, 2, 3]]}, f"{NO_UNITS} [1, 2, 3] is neither a unit nor a pair of units."),
            ({"initial_free": [[0, 1 << 61]]}, f"{NO_UNITS} a pool has at most 33,554,432 units."),
            ({"initial_free": [[3, 1], 2]}, "meta.json: initial_free should list each unit of the pool at most once."),
            ({"initial_free": [1, 1]}, "meta.json: initial_free should list each unit of the pool at most once."),
            ({"initial_free": [0]}, "meta.json: initial_free should list each unit of the pool at most once."),
            ({"initial_cached": [1, 1]}, "meta.json: initial_cached should list each unit of the pool at most once."),
            ({"initial_cached": "all"}, f"{NO_UNITS} 'all' is".replace("initial_free", "initial_cached") + NEITHER),
            (
                {"initial_cached": [1]},
                "meta.json: initial_cached is for recordings of a prefix cache that begin in the middle.",
            ),
            (
                {"initial_computed": [1]},
                "meta.json: initial_computed is for requests of a recording that begins in the middle.",
            ),
            (
                {"initial_computed": [1, -1]},
                "meta.json: initial_computed should be a list of numbers of tokens, not [1, -1].",
            ),
        ],
        ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
    )
    def test_meta_that_cannot_be_right(self, folder: Path, changes: dict[str, object], expected: str) -> None:
        assert message(change_meta(folder, **changes)) == expected

    @pytest.mark.parametrize("version", [0, 2, "1", None, 1.5])
    def test_an_unknown_version(self, folder: Path, version: object) -> None:
        text = message(change_meta(folder, version=version), RecordingVersionError)
        assert text == f"meta.json has version {version!r}, and this kvsim reads version 1; a newer kvsim may read it."

    @pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
    def test_a_missing_column(self, folder: Path, table: type[Steps]) -> None:
        for name, spec in table.columns():
            if spec.optional:
                continue
            data = pq.read_table(folder / f"{table.name}.parquet")
            pq.write_table(data.drop_columns([name]), folder / f"{table.name}.parquet")
            assert message(folder) == f"{table.name}.parquet lacks the column {name}."
            pq.write_table(data, folder / f"{table.name}.parquet")

    def test_an_unknown_word(self, folder: Path) -> None:
        change_table(folder, "memory", kind=at(3, "moved"))
        assert message(folder) == "memory.parquet: kind 'moved' is none of append, share, release, evict."

    @pytest.mark.parametrize(
        ("table", "column"),
        [
            ("requests", "id"),
            ("requests", "status"),
            ("requests", "prompt_hashes"),
            ("steps", "running"),
            ("memory", "kind"),
        ],
    )
    @pytest.mark.parametrize("rows_at_a_time", [2, 1000])
    def test_a_null_names_its_row(
        self, folder: Path, table: str, column: str, rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet, "_ROWS_READ", rows_at_a_time)
        change_table(folder, table, **{column: at(2, None)})
        assert message(folder) == f"{table}.parquet, row 2: {column} is empty."

    @pytest.mark.parametrize(
        ("table", "column", "values"),
        [
            ("steps", "running", lambda values: ["many"] * len(values)),
            ("steps", "running", lambda values: [1.5] * len(values)),
            ("steps", "running", lambda values: [2**40] * len(values)),
            ("steps", "start_s", lambda values: ["soon"] * len(values)),
            ("steps", "start_s", lambda values: ["soon", *[None] * (len(values) - 1)]),
            ("memory", "kind", lambda values: [0] * len(values)),
            ("requests", "prompt_hashes", lambda values: [1] * len(values)),
            ("requests", "prompt_hashes", lambda values: [["x"]] * len(values)),
            ("requests", "prompt_hashes", lambda values: [[1.5]] * len(values)),
            ("requests", "prompt_hashes", lambda values: [[1, None]] * len(values)),
            ("schedule", "step", lambda values: [{"a": 1}] * len(values)),
        ],
    )
    def test_a_column_of_another_type(
        self, folder: Path, table: str, column: str, values: Callable[[list[Any]], list[Any]]
    ) -> None:
        change_table(folder, table, **{column: values})
        assert message(folder).startswith(f"{table}.parquet: ")
        assert column in message(folder)

    def test_a_column_that_is_there_twice(self, folder: Path) -> None:
        file = folder / "steps.parquet"
        data = pq.read_table(file)
        pq.write_table(data.append_column("running", data["running"]), file)
        assert message(folder).startswith("steps.parquet ")


NUM_UNITS = 11
INCONSISTENT: list[tuple[str, str, int, object, str]] = [
    ("requests", "request", 2, 5, "request should count the rows from 0"),
    ("requests", "prompt_tokens", 3, 0, "prompt_tokens should be positive"),
    ("requests", "output_tokens", 1, -1, "output_tokens should not be negative"),
    ("requests", "arrival_s", 4, float("inf"), "arrival_s should be a finite time, not negative"),
    ("requests", "arrival_s", 4, None, "arrival_s should be a finite time, not negative"),
    ("steps", "step", 1, 7, "step should count the rows from 0"),
    ("steps", "schedule_seq", 2, 0, "schedule_seq should increase"),
    ("steps", "output_seq", 2, 0, "output_seq should come after schedule_seq"),
    ("requests", "finished_s", 2, float("inf"), "finished_s should be a finite time, or empty"),
    ("steps", "end_s", 3, -1.0, "start_s and end_s should be finite times in this order"),
    ("steps", "end_s", 3, float("inf"), "start_s and end_s should be finite times in this order"),
    ("steps", "start_s", 3, float("nan"), "start_s and end_s should be finite times in this order"),
    ("steps", "start_s", 3, -1.0, "start_s should not decrease"),
    ("steps", "free_units", 0, NUM_UNITS + 1, f"free_units should lie between 0 and the pool's {NUM_UNITS}"),
    ("steps", "free_units", 0, -2, f"free_units should lie between 0 and the pool's {NUM_UNITS}"),
    ("schedule", "request", 1, 7, "request is not a row of requests.parquet"),
    ("schedule", "request", 1, -1, "request is not a row of requests.parquet"),
    ("schedule", "step", 0, -1, "step is not a row of steps.parquet"),
    ("schedule", "repeat", 1, 10_000, "repeat runs past the last step"),
    ("schedule", "repeat", 1, 0, "repeat runs past the last step"),
    ("schedule", "tokens", 2, 0, "tokens should be positive"),
    ("schedule", "computed_before", 2, -3, "computed_before should not be negative"),
    ("memory", "request", 1, 7, "request is not a row of requests.parquet"),
    ("memory", "seq", 2, 0, "seq should not decrease"),
    ("memory", "length", 1, 0, "length should be positive"),
    ("memory", "position", 1, -1, "position should not be negative"),
    ("memory", "position", 1, 5, "position should be where the request's table ends"),
    ("memory", "requested", 1, 0, "requested should be positive and not more than length"),
    ("memory", "requested", 1, 99, "requested should be positive and not more than length"),
    ("schedule", "tokens", 2, 50, "more is computed than the request holds memory for"),
    ("memory", "address", 1, NUM_UNITS + 1, f"the units lie outside the pool [1, {NUM_UNITS + 1})"),
    ("memory", "address", 1, 0, f"the units lie outside the pool [1, {NUM_UNITS + 1})"),
]


@pytest.mark.parametrize("case", INCONSISTENT, ids=lambda case: f"{case[0]}-{case[1]}-{case[3]}")
def test_an_inconsistent_row_is_named(folder: Path, case: tuple[str, str, int, object, str]) -> None:
    table, column, row, value, rule = case
    change_table(folder, table, **{column: at(row, value)})
    assert message(folder) == f"{table}.parquet, row {row}: {rule}."


def test_a_release_of_a_part_is_refused(recording: Recording, folder: Path) -> None:
    row = int(np.flatnonzero(recording.memory.kind == MemoryKind.RELEASE)[0])
    change_table(folder, "memory", address=at(row, 3))
    assert message(folder) == (
        f"memory.parquet, row {row}: a release should have address -1: it frees the whole table."
    )


def test_a_release_of_nothing_is_named(recording: Recording, folder: Path) -> None:
    row = int(np.flatnonzero(recording.memory.kind == MemoryKind.RELEASE)[-1])
    table = pq.read_table(folder / "memory.parquet")
    pq.write_table(pa.concat_tables([table, table.slice(row, 1)]), folder / "memory.parquet")
    assert message(folder) == (f"memory.parquet, row {len(table)}: the request releases a table that it does not have.")


def test_a_unit_that_is_handed_out_twice_is_noticed_when_it_is_replayed(recording: Recording, folder: Path) -> None:
    """Two requests appended the same unit: each table by itself is in order."""
    memory = recording.memory
    first, second = np.flatnonzero((memory.kind == MemoryKind.APPEND) & (memory.length == 1))[:2].tolist()
    assert memory.request[first] != memory.request[second]
    change_table(folder, "memory", address=at(second, int(memory.address[first])))
    with pytest.raises(RecordingError, match=rf"memory.parquet of good, row {second}: unit \d+ should be free"):
        Replay(read(folder))


def test_a_step_out_of_order_in_the_schedule_is_named(recording: Recording, folder: Path) -> None:
    row = int(np.flatnonzero(recording.schedule.step > 0)[0])
    change_table(folder, "schedule", step=at(row + 1, 0), repeat=at(row + 1, 1))
    assert message(folder) == f"schedule.parquet, row {row + 1}: step should not decrease."


class TestWriting:
    def test_parents_are_made(self, recording: Recording, tmp_path: Path) -> None:
        target = tmp_path / "a" / "b" / "rec"
        assert write(recording, target) == target
        assert [entry.name for entry in target.parent.iterdir()] == ["rec"]

    def test_a_recording_is_replaced(self, recording: Recording, folder: Path) -> None:
        (folder / "stale.txt").write_text("from the old one")
        write(replace(recording, meta=replace(recording.meta, notes="new")), folder)
        assert read(folder).meta.notes == "new"
        assert not (folder / "stale.txt").exists()
        assert [entry.name for entry in folder.parent.iterdir()] == ["good"]

    @pytest.mark.parametrize("what", ["file", "folder", "empty folder"])
    def test_anything_else_is_not_overwritten(self, recording: Recording, tmp_path: Path, what: str) -> None:
        target = tmp_path / "precious"
        if what == "file":
            target.write_text("thesis")
        else:
            target.mkdir()
            if what == "folder":
                (target / "thesis.tex").write_text("thesis")
        with pytest.raises(RecordingError, match="exists and is not a recording; choose another name"):
            write(recording, target)
        assert [entry.name for entry in tmp_path.iterdir()] == ["precious"]
        if what == "folder":
            assert (target / "thesis.tex").read_text() == "thesis"

    def test_a_parent_that_is_a_file(self, recording: Recording, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(RecordingError, match=r"cannot write .*file/rec: .+\."):
            write(recording, tmp_path / "file" / "rec")

    def test_a_folder_that_may_not_be_written(self, recording: Recording, tmp_path: Path) -> None:
        tmp_path.chmod(0o500)
        try:
            (tmp_path / "probe").touch()
        except PermissionError:
            with pytest.raises(RecordingError, match="Permission denied"):
                write(recording, tmp_path / "rec")
        else:
            pytest.skip("this user may write everywhere")
        finally:
            tmp_path.chmod(0o700)

    @pytest.mark.parametrize(
        "error", [OSError(28, "No space left on device"), KeyboardInterrupt(), ValueError("defect")]
    )
    @pytest.mark.parametrize("table", ["requests", "memory"])
    def test_a_write_that_fails_leaves_the_old_one_and_no_scratch(
        self, recording: Recording, folder: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, table: str
    ) -> None:
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        whole = TableFile.append

        def break_off(file: TableFile, rows: Any) -> None:
            whole(file, rows)
            if rows.name == table:
                raise error

        monkeypatch.setattr(TableFile, "rows_per_group", 1)
        monkeypatch.setattr(TableFile, "append", break_off)
        with pytest.raises(RecordingError if isinstance(error, OSError) else type(error)) as raised:
            write(replace(recording, meta=replace(recording.meta, notes="new")), folder)
        if isinstance(error, OSError):
            assert str(raised.value) == f"cannot write {folder}: No space left on device."
        assert [entry.name for entry in folder.parent.iterdir()] == ["good"]
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before

    def test_the_old_one_stays_whole_when_it_cannot_be_replaced(
        self, recording: Recording, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The last rename is the one that may not leave nothing behind."""
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        rename = type(folder).rename

        def refuse(source: Path, target: Path) -> Path:
            if source.name == "new":
                raise OSError(5, "Input/output error")
            return rename(source, target)

        monkeypatch.setattr(type(folder), "rename", refuse)
        with pytest.raises(RecordingError, match="Input/output error"):
            write(recording, folder)
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
        assert [entry.name for entry in folder.parent.iterdir()] == ["good"]

    def test_anybody_may_read_what_was_written(self, folder: Path) -> None:
        assert folder.stat().st_mode & 0o055 == 0o055


class TestFind:
    def test_a_path(self, folder: Path) -> None:
        assert find(str(folder)) == folder

    @pytest.mark.parametrize("name", shipped_names())
    @pytest.mark.parametrize("prefix", ["", "traces/", "./traces/"])
    def test_a_shipped_name_from_any_folder(
        self, name: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert (find(prefix + name) / "meta.json").is_file()

    def test_a_path_comes_before_a_shipped_name(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        name = shipped_names()[0]
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path)
        assert find(name).resolve() == tmp_path / name

    def test_three_real_runs_are_shipped(self) -> None:
        assert {"vllm-h200-llama-3-8b-sharegpt-pressure", "vllm-h200-granite-350m-gsm8k"} < set(shipped_names())

    def test_an_unknown_name_suggests_the_nearest(self) -> None:
        with pytest.raises(UnknownNameError, match="did you mean vllm-h200-llama-3-8b-sharegpt-pressure"):
            find("vllm-h200-llama3-8b-sharegpt-presure")

    @pytest.mark.parametrize("name", ["x" * 500, "nul\0byte", "/no/such/place", "vllm-h200/../x"])
    def test_a_name_that_no_file_can_have(self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(UnknownNameError, match="there is no recording"):
            find(name)

    def test_the_shipped_ones_are_found_inside_an_installed_package(
        self, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from kvsim.recording import shipped

        shutil.copytree(folder, tmp_path / "package" / "traces" / "mine")
        monkeypatch.setattr(shipped, "_PLACES", (tmp_path / "package" / "traces", tmp_path / "traces"))
        assert shipped_names() == ["mine"]
        assert find("mine") == tmp_path / "package" / "traces" / "mine"


def test_row_of(recording: Recording) -> None:
    assert recording.row_of("é") == 4
    with pytest.raises(RecordingError, match="has no request 'z'"):
        recording.row_of("z")


def test_an_outline_has_the_requests_and_steps_that_a_whole_recording_has(folder: Path) -> None:
    whole = read(folder)
    (folder / "schedule.parquet").unlink()
    (folder / "memory.parquet").write_bytes(b"damaged")
    for outline in read_outlines([folder, folder]):
        assert_same(whole, replace(whole, **outline._asdict()))
        assert outline.duration_s == whole.duration_s


def test_an_outline_of_tables_that_cannot_be_right_is_refused(folder: Path) -> None:
    change_table(folder, "steps", start_s=at(1, -1.0))
    with pytest.raises(RecordingError, match=r"steps.parquet, row 1: start_s should not decrease"):
        list(read_outlines([folder]))
    with pytest.raises(RecordingError, match="does not exist"):
        list(read_outlines([folder / "nowhere"]))
