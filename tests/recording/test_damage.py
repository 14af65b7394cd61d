"""Recordings that somebody or something has damaged: they are read, or refused in one sentence. Never a traceback."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsim.errors import RecordingError
from kvsim.policies import Contiguous, Paged, Static
from kvsim.policies.settings import ContinuousSettings, PagedSettings, StaticSettings
from kvsim.recording import Recording, parquet, read, write
from kvsim.recording.tables import Memory, Requests, Schedule, Steps
from kvsim.replay import Replay
from kvsim.simulation import simulate
from kvsim.workload import Poisson, SharedPrefixes, Uniform, generate

if TYPE_CHECKING:
    from pathlib import Path

POLICIES = (
    Paged(cache=PagedSettings(block_size=4), scheduler=ContinuousSettings(max_model_len=64)),
    Contiguous(scheduler=ContinuousSettings(max_model_len=64)),
    Static(scheduler=StaticSettings(batch_size=3, max_model_len=64)),
)
WORDS = st.sampled_from(["append", "share", "release", "evict", "finished", "unfinished", "moved", ""])
NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2**31 - 1, -(2**31), 2**62, -(2**63), float("nan"), float("inf"), 0.5, None]),
    st.integers(-3, 100),
)
VALUES = st.one_of(NUMBERS, WORDS, st.sampled_from([[], [1], {"a": 1}, True, b"\xff"]))


@pytest.fixture(scope="module")
def folders(make_machine: Callable[[int], Any], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One recording for each policy, and one as `generate()` leaves it: no pool, and no file about memory."""
    base = tmp_path_factory.mktemp("good")
    workload = generate(
        20,
        arrivals=Poisson(rate_per_s=400),
        prompt=Uniform(low=1, high=16),
        output=Uniform(low=1, high=20),
        prefixes=SharedPrefixes(num_groups=2, tokens=9),
        seed=3,
    )
    folders = [write(simulate(workload, policy, make_machine(160)), base / policy.name) for policy in POLICIES]
    without = base / "without a pool"
    shutil.copytree(folders[-1], without)
    (without / "memory.parquet").unlink()
    meta = json.loads((without / "meta.json").read_text())
    meta["pool"]["num_units"] = None
    (without / "meta.json").write_text(json.dumps(meta))
    return [*folders, without]


@st.composite
def damages(draw: st.DrawFn) -> Callable[[Path], None]:
    """Something that can happen to a folder."""
    table: Any = draw(st.sampled_from([Requests, Steps, Schedule, Memory]))
    where, amount = draw(st.floats(0, 1, exclude_max=True)), draw(st.integers(0, 255))
    column = draw(st.sampled_from([name for name, spec in table.columns() if not spec.optional]))
    kind = draw(st.sampled_from(["cut", "byte", "value", "value", "row again", "row gone", "rows swapped", "meta"]))
    value = draw(VALUES)

    def damage(folder: Path) -> None:
        file = folder / f"{table.name}.parquet"
        if kind == "meta":
            damage_meta(folder / "meta.json", where, value)
        elif not file.exists():
            return
        elif kind in ("cut", "byte"):
            data = bytearray(file.read_bytes())
            at = int(where * len(data))
            data[at:] = b"" if kind == "cut" else bytes([amount]) + data[at + 1 :]
            file.write_bytes(data)
        else:
            damage_rows(file, column, kind, where, value)

    return damage


def damage_meta(file: Path, where: float, value: Any) -> None:
    meta = json.loads(file.read_text())
    places = [(part, key) for part in (meta, meta["pool"], meta["policy"]) for key in part]
    part, key = places[int(where * len(places))]
    part[key] = None if isinstance(value, bytes) else value
    file.write_text(json.dumps(meta))


def damage_rows(file: Path, column: str, kind: str, where: float, value: Any) -> None:
    data = pq.read_table(file)
    row = int(where * len(data))
    order = list(range(len(data)))
    if kind == "value":
        values = data[column].to_pylist()
        values[row] = value
        try:
            changed = pa.array(values, data.schema.field(column).type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            changed = pa.array([value] * len(values))
        data = data.set_column(data.schema.get_field_index(column), column, changed)
    elif kind == "row again":
        order.insert(row, row)
    elif kind == "row gone":
        del order[row]
    else:
        order[row - 1], order[row] = order[row], order[row - 1]
    pq.write_table(data.take(pa.array(order, pa.int64())), file)


DAMAGED = {"which": st.integers(0, len(POLICIES)), "happened": st.lists(damages(), min_size=1, max_size=2)}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(**DAMAGED)
def test_whatever_happens_it_is_read_or_refused_in_a_sentence(
    folders: list[Path], which: int, happened: list[Callable[[Path], None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_read_or_refused(folders[which], happened, tmp_path_factory.mktemp("damaged") / "rec")


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(**DAMAGED)
def test_whatever_else_happens_it_is_read_or_refused_in_a_sentence(
    folders: list[Path], which: int, happened: list[Callable[[Path], None]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert_read_or_refused(folders[which], happened, tmp_path_factory.mktemp("damaged") / "rec")


def assert_read_or_refused(undamaged: Path, happened: list[Callable[[Path], None]], folder: Path) -> None:
    shutil.copytree(undamaged, folder)
    try:
        for damage in happened:
            damage(folder)
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return  # what was damaged first could not be damaged once more
    said = ""
    try:
        look_at(read(folder))
    except RecordingError as error:
        said = str(error)
    assert not said or (said.endswith(".") and "\n" not in said)


def look_at(recording: Recording) -> None:
    player = Replay(recording)
    for frame in (player.num_frames - 1, 0, player.num_frames // 2, 1):
        before = player.frame
        player.seek(frame)
        assert (player.slots().sum(axis=1) == player.unit_tokens).all()
        player.slots(player.changed_units(before, player.frame))
        player.waiting_requests()
    for request in range(min(3, len(recording.requests))):
        player.block_table(request)


def change(file: Path, column: str, value: Any) -> None:
    data = pq.read_table(file)
    data = data.set_column(data.schema.get_field_index(column), column, pa.array([value] * len(data)))
    pq.write_table(data, file)


def test_a_damaged_page_is_noticed_though_its_values_would_be_possible(folders: list[Path], tmp_path: Path) -> None:
    """A time that is a little off breaks no rule; but every page has a checksum."""
    group = pq.ParquetFile(folders[0] / "steps.parquet").metadata.row_group(0)
    for nth in range(group.num_columns):
        folder = tmp_path / str(nth)
        shutil.copytree(folders[0], folder)
        file = folder / "steps.parquet"
        column = group.column(nth)
        data = bytearray(file.read_bytes())
        begin = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
        data[begin + column.total_compressed_size - 2] ^= 1
        file.write_bytes(data)
        with pytest.raises(RecordingError, match=r"steps\.parquet is damaged or truncated: .*CRC"):
            read(folder)


def test_a_column_that_lost_rows(folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folders[0], tmp_path / "rec")
    whole = pq.ParquetFile.read_row_group

    def lose(file: pq.ParquetFile, group: int, *, columns: list[str], use_threads: bool) -> pa.Table:
        rows = whole(file, group, columns=columns, use_threads=use_threads)
        return rows.slice(0, 0) if columns == ["address"] else rows

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lose)
    monkeypatch.setattr(parquet, "_ROWS_READ", 1)
    with pytest.raises(RecordingError, match=r"memory\.parquet is damaged or truncated: address has 0 of \d+ rows\."):
        read(tmp_path / "rec")


def test_a_small_file_that_lost_rows(folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folders[0], tmp_path / "rec")
    whole = pq.ParquetFile.read
    monkeypatch.setattr(pq.ParquetFile, "read", lambda *words, **more: whole(*words, **more).slice(1))
    with pytest.raises(RecordingError, match=r"\.parquet is damaged or truncated: \w+ has \d+ of \d+ rows\."):
        read(tmp_path / "rec")


def test_a_column_that_has_more_rows_than_the_others(
    folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folders[0], tmp_path / "rec")
    whole = pq.ParquetFile.read_row_group

    def gain(file: pq.ParquetFile, group: int, *, columns: list[str], use_threads: bool) -> pa.Table:
        rows = whole(file, group, columns=columns, use_threads=use_threads)
        return pa.concat_tables([rows] * (1 + (columns == ["address"])))

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", gain)
    monkeypatch.setattr(parquet, "_ROWS_READ", 1)
    with pytest.raises(RecordingError, match=r"memory\.parquet is damaged or truncated: address has \d+ of \d+ rows\."):
        read(tmp_path / "rec")


def test_lists_where_words_should_be(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "rec")
    change(tmp_path / "rec" / "memory.parquet", "kind", ["append"])
    with pytest.raises(RecordingError, match=r"memory\.parquet: column kind should be uint8: .*\.$"):
        read(tmp_path / "rec")


def test_an_error_without_a_message(folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_memory_error(*_: Any, **__: Any) -> None:
        raise MemoryError

    shutil.copytree(folders[0], tmp_path / "rec")
    monkeypatch.setattr(pq, "ParquetFile", raise_memory_error)
    with pytest.raises(RecordingError, match=r"\.parquet is damaged or truncated: MemoryError\.$"):
        read(tmp_path / "rec")


def test_a_batch_longer_than_any_memory(folders: list[Path], tmp_path: Path) -> None:
    """Its slots do not fit into 32 bits, and must not wrap around to few."""
    shutil.copytree(folders[-1], tmp_path / "rec")
    file = tmp_path / "rec" / "schedule.parquet"
    data = pq.read_table(file)
    tokens = data["tokens"].to_numpy().copy()
    tokens[int(np.argmax(data["repeat"].to_numpy()))] = 2**31 - 1
    column = data.schema.get_field_index("tokens")
    pq.write_table(data.set_column(column, "tokens", pa.array(tokens, pa.int32())), file)
    # The steps say it too.
    begins, repeats = data["step"].to_numpy(), data["repeat"].to_numpy()
    steps = pq.read_table(tmp_path / "rec" / "steps.parquet")
    per_step = np.zeros(len(steps), np.int64)
    prefill = np.zeros(len(steps), np.int64)
    for begin, repeat, each in zip(begins, repeats, tokens, strict=True):
        per_step[begin : begin + repeat] += each
        prefill[begin : begin + repeat] += each if each > 1 else 0
    for name, values in (("prefill_tokens", prefill), ("decode_tokens", per_step - prefill)):
        steps = steps.set_column(steps.schema.get_field_index(name), name, pa.array(values, pa.int64()))
    pq.write_table(steps, tmp_path / "rec" / "steps.parquet")
    with pytest.raises(RecordingError, match=r"has a batch of [\d,]+ slots; no server has more"):
        Replay(read(tmp_path / "rec"))


def test_a_word_that_a_file_knows_and_no_row_has(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "rec")
    file = tmp_path / "rec" / "memory.parquet"
    data = pq.read_table(file)
    kind = data["kind"].combine_chunks().dictionary_encode()
    words = pa.DictionaryArray.from_arrays(kind.indices, [*kind.dictionary.to_pylist(), "moved"])
    pq.write_table(data.set_column(data.schema.get_field_index("kind"), "kind", words), file)
    assert (read(tmp_path / "rec").memory.kind == read(folders[0]).memory.kind).all()


def test_a_pool_larger_than_any(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "rec")
    file = tmp_path / "rec" / "meta.json"
    meta = json.loads(file.read_text())
    meta["pool"]["num_units"] = 2**31 - 1
    file.write_text(json.dumps(meta))
    with pytest.raises(RecordingError, match=r"pool\.num_units should be at most 33,554,432, not 2,147,483,647\."):
        read(tmp_path / "rec")


def test_names_that_are_no_text(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[0], tmp_path / "rec")
    change(tmp_path / "rec" / "requests.parquet", "id", b"\xff")
    with pytest.raises(RecordingError, match=r"requests\.parquet: column id should be str"):
        read(tmp_path / "rec")


def test_a_batch_that_computes_what_it_has_computed(folders: list[Path], tmp_path: Path) -> None:
    shutil.copytree(folders[-1], tmp_path / "rec")
    change(tmp_path / "rec" / "schedule.parquet", "tokens", 7)
    with pytest.raises(RecordingError, match="computed_before should be what the request has computed in earlier rows"):
        read(tmp_path / "rec")


@pytest.mark.parametrize(("table", "column"), [("requests", "arrival_seq"), ("memory", "seq")])
def test_a_sequence_number_larger_than_that_of_any_run(
    folders: list[Path], tmp_path: Path, table: str, column: str
) -> None:
    shutil.copytree(folders[0], tmp_path / "rec")
    change(tmp_path / "rec" / f"{table}.parquet", column, 1 << 32)
    with pytest.raises(RecordingError, match=rf"{table}\.parquet, row 0: {column} should be below 4,294,967,296"):
        read(tmp_path / "rec")


def test_a_batch_larger_than_any_pool(folders: list[Path]) -> None:
    recording = read(folders[-1])
    huge = {name: getattr(recording.schedule, name).astype(np.int64) << 26 for name in ("computed_before", "tokens")}
    with pytest.raises(RecordingError, match="no server has more than 33,554,432"):
        Replay(replace(recording, schedule=replace(recording.schedule, **huge)))
