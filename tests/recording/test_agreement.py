"""What a recording says twice must agree, and no figure of it may be out of range; the file and the row are named."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.errors import RecordingError
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import read, write
from kvsim.recording.check import check_events
from kvsim.recording.tables import Steps
from kvsim.simulation import simulate
from kvsim.workload import Poisson, Uniform, generate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LATER, EARLIER = 1e6, 0.0


@pytest.fixture(scope="module")
def good(make_machine: Callable[[int], Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run with preemptions."""
    workload = generate(
        12, arrivals=Poisson(rate_per_s=400), prompt=Uniform(low=4, high=16), output=Uniform(low=4, high=20), seed=3
    )
    policy = Paged(
        cache=PagedSettings(block_size=4, enable_prefix_caching=False), scheduler=ContinuousSettings(max_model_len=64)
    )
    recording = simulate(workload, policy, make_machine(80))
    assert recording.num_preemptions
    folder = write(recording, tmp_path_factory.mktemp("good") / "rec")
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.fixture
def folder(good: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in good.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def change(folder: Path, table: str, column: str, row: int, value: Any) -> None:
    file = folder / f"{table}.parquet"
    data = pq.read_table(file)
    values = data[column].to_pylist()
    values[row] = value(values[row]) if callable(value) else value
    pq.write_table(data.set_column(data.schema.get_field_index(column), column, pa.array(values)), file)


def more(value: float) -> float:
    return value + 1


def less(value: float) -> float:
    return value - 1


@pytest.mark.parametrize(
    ("table", "column", "value", "rule"),
    [
        ("requests", "arrival_s", LATER, "first_scheduled_s should not be before arrival_s"),
        ("requests", "arrival_s", -1.0, "arrival_s should be a finite time"),
        ("requests", "first_token_s", LATER, "finished_s should not be before first_token_s"),
        ("requests", "first_token_s", None, "first_token_s should be there if output_tokens are"),
        ("requests", "first_scheduled_s", None, "a finished request should have first_scheduled_s"),
        ("requests", "finished_s", None, "a finished request should have an output and finished_s"),
        ("requests", "finished_s", EARLIER, "finished_s should not be before"),
        ("requests", "finished_s", LATER, "finished_s says 1,000,000, and steps.parquet makes it 0"),
        ("requests", "finished_s", lambda time_s: time_s + 1e-3, "finished_s says .*, and steps.parquet makes it"),
        (
            "requests",
            "first_token_s",
            lambda time_s: time_s + 1e-3,
            "first_token_s says .*, and steps.parquet makes it",
        ),
        (
            "requests",
            "first_scheduled_s",
            lambda time_s: time_s + 1e-3,
            "first_scheduled_s says .* steps.parquet makes",
        ),
        ("requests", "arrival_s", EARLIER, "arrival_s should not be before|arrival_s should not decrease"),
        ("requests", "finished_s", lambda time_s: time_s - 1e-3, "finished_s should not be before the end of the step"),
        ("requests", "first_token_s", lambda time_s: time_s - 1e-3, "first_token_s should not be before the end"),
        ("requests", "id", "r7", "row 5 has this id|row 7: row 5|row 7"),
        ("requests", "status", "refused", "a refused request should have no output"),
        ("requests", "status", "unfinished", "an unfinished request should have no finished_s"),
        ("requests", "max_tokens", 0, "max_tokens should be positive"),
        ("requests", "max_tokens", 1, "output_tokens should not be more than max_tokens"),
        ("requests", "output_tokens", more, "output_tokens should not be more than"),
        ("requests", "preemptions", -1, "preemptions should not be negative"),
        ("requests", "preemptions", more, "preemptions says 5, and memory.parquet makes it 4"),
        ("requests", "cached_tokens", -1, "cached_tokens should lie between"),
        ("requests", "cached_tokens", 1, "cached_tokens says 1, and schedule.parquet makes it 0"),
        ("requests", "prompt_hashes", [1] * 99, "prompt_hashes should be one for each 4 of prompt_tokens, or none"),
        ("requests", "arrival_seq", 10_000, "arrival_seq should not decrease"),
        (
            "steps",
            "num_scheduled",
            more,
            "num_scheduled should not be more|num_scheduled says 5, and schedule.parquet makes",
        ),
        ("steps", "running", 0, "num_scheduled should not be more than running"),
        ("steps", "running", 13, "running says 13, and memory.parquet makes it 5"),
        ("steps", "waiting", -1, "waiting should not be negative"),
        ("steps", "waiting", 13, "waiting says 13, and requests.parquet makes it 6"),
        ("steps", "preempted", -3, "preempted should not be negative"),
        ("steps", "preempted", more, "preempted says 1, and memory.parquet makes it 0"),
        ("steps", "prefill_tokens", more, "prefill_tokens and decode_tokens should add up"),
        ("steps", "decode_tokens", -5, "decode_tokens should not be negative"),
        ("steps", "free_units", less, "free_units should be what memory.parquet leaves|free_units should lie"),
        ("steps", "unusable_units", -1, "unusable_units should not be negative"),
        ("steps", "unusable_units", 99, "unusable_units should not be more than free_units"),
        ("steps", "end_s", LATER, "end_s should not decrease"),
        ("steps", "output_seq", 10_000, "output_seq should increase"),
        ("schedule", "computed_before", more, "."),
        ("schedule", "tokens", more, "."),
        ("schedule", "request", 5, "."),
        ("schedule", "repeat", more, "."),
        ("memory", "length", more, "."),
        ("memory", "cached", 99, "cached should lie between 0 and length"),
        ("memory", "step", 0, "seq should not come after that of its step"),
    ],
)
def test_a_contradiction_names_the_file(folder: Path, table: str, column: str, value: Any, rule: str) -> None:
    data = pq.read_table(folder / f"{table}.parquet")
    row = 5
    if column == "cached":
        row = data["kind"].to_pylist().index("release")
    elif table == "memory":
        row = next(nth for nth in range(20, len(data)) if data["kind"][nth].as_py() == "append")
    change(folder, table, column, row, value)
    with pytest.raises(RecordingError, match=rf"\.parquet, row \d+: .*({rule})"):
        check_events(read(folder), folder)  # as `kvsim info`


@pytest.mark.parametrize(
    ("sent_s", "rule"), [(LATER, "arrival_s should not be before sent_s"), (None, "sent_s should be a finite time")]
)
def test_a_request_is_sent_before_the_engine_takes_it(folder: Path, sent_s: float | None, rule: str) -> None:
    file = folder / "requests.parquet"
    data = pq.read_table(file)
    times = [time_s - 0.5 for time_s in data["arrival_s"].to_pylist()]
    pq.write_table(data.append_column("sent_s", pa.array(times)), file)
    assert read(folder).requests.sent_s is not None
    times[5] = sent_s
    pq.write_table(data.append_column("sent_s", pa.array(times)), file)
    with pytest.raises(RecordingError, match=rf"requests\.parquet, row 5: .*{rule}"):
        read(folder)


def test_a_prompt_that_is_called_an_answer(folder: Path) -> None:
    """The sum of the step stays."""
    tokens = pq.read_table(folder / "steps.parquet")["prefill_tokens"].to_pylist()
    row = next(row for row, count in enumerate(tokens) if count)
    change(folder, "steps", "prefill_tokens", row, less)
    change(folder, "steps", "decode_tokens", row, more)
    with pytest.raises(RecordingError, match=rf"row {row}: prefill_tokens says .*, and schedule.parquet makes it"):
        read(folder)


def test_a_last_step_that_ends_after_its_tokens_were_there(folder: Path) -> None:
    change(folder, "steps", "end_s", -1, LATER)
    with pytest.raises(RecordingError, match="finished_s should not be before the end of the step"):
        read(folder)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("policy.block_size", 8, "meta.json: pool.unit_tokens should be 8, as units are of policy paged, not 4."),
        ("policy.name", "contiguous", "pool.unit_tokens should be 1, as units are of policy contiguous, not 4."),
        ("model.kv_bytes_per_token", 0, "pool.bytes_per_unit divided by its tokens, which is 131,072, not 0."),
        ("model.kv_bytes_per_token", "x", "which is 131,072, not 'x'."),
        ("pool.bytes_per_unit", 4, "which is 1, not 131072."),
        ("policy.max_num_seqs", 1, "running should not be more than policy.max_num_seqs of meta.json, which is 1."),
        ("engine.max_num_batched_tokens", 3, "together should not be more than engine.max_num_batched_tokens"),
    ],
)
def test_settings_are_those_of_the_engine_that_ran(folder: Path, place: str, value: Any, sentence: str) -> None:
    set_field(folder / "meta.json", place, value)
    with pytest.raises(RecordingError) as raised:
        read(folder)
    assert sentence in str(raised.value)


def set_field(file: Path, place: str, value: Any) -> None:
    document = part = json.loads(file.read_text())
    *path, last = place.split(".")
    for key in path:
        part = part[key]
    part[last] = value
    file.write_text(json.dumps(document))


def test_nothing_computed_and_finished_all_the_same(folder: Path) -> None:
    file = folder / "schedule.parquet"
    pq.write_table(pq.read_table(file).slice(0, 0), file)
    with pytest.raises(
        RecordingError, match=r"steps\.parquet, row 0: num_scheduled says 1, and schedule.parquet makes it 0"
    ):
        read(folder)


def test_a_length_beyond_any_memory_is_refused_before_anything_is_allocated(folder: Path) -> None:
    kinds = pq.read_table(folder / "memory.parquet")["kind"].to_pylist()
    change(folder, "memory", "length", kinds.index("release"), 2**31 - 2)
    with pytest.raises(RecordingError, match="length should be that of the released table"):
        read(folder)


@pytest.mark.parametrize("name", ["meta.json", "steps.parquet", "requests.parquet", "memory.parquet"])
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(RecordingError, match=name.replace(".", r"\.")):
        read(folder)


def test_a_log_that_is_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "events.jsonl")
    with pytest.raises(RecordingError, match=r"events\.jsonl cannot be read: It is a pipe"):
        read(folder)


def test_equal_values_without_end_are_not_unpacked(folder: Path) -> None:
    """A hundred million steps in a few kilobytes."""
    file = folder / "steps.parquet"
    required = [name for name, spec in Steps.columns() if not spec.optional]
    schema = pa.schema([pq.read_schema(file).field(name) for name in required])
    part = pa.table({name: pa.array(np.zeros(2_000_000), schema.field(name).type) for name in schema.names})
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for _ in range(5):
            writer.write_table(part)
    with pytest.raises(RecordingError, match=r"steps\.parquet is damaged: it declares 10,000,000 values in"):
        read(folder)


def test_ids_that_together_would_fill_the_memory(folder: Path) -> None:
    file = folder / "requests.parquet"
    data = pq.read_table(file)
    ids = ["x" * 30_000_000, *map(str, range(len(data) - 1))]
    pq.write_table(data.set_column(data.schema.get_field_index("id"), "id", pa.array(ids)), file, compression="zstd")
    with pytest.raises(RecordingError, match=r"is damaged: it declares|is too long to be the id"):
        read(folder)


@pytest.mark.parametrize(
    ("place", "value", "sentence"),
    [
        ("policy.name", {"a": 1}, "policy.name should be one of paged, contiguous, static, radix, not {'a': 1}."),
        ("policy.name", "orca", "policy.name should be one of paged, contiguous, static, radix, not 'orca'."),
        ("policy.block_size", "16", "policy.block_size should be a whole number above 0, not '16'."),
        ("policy.max_model_len", 2**70, "policy.max_model_len should be a whole number above 0, not"),
        ("policy.enable_prefix_caching", 3, "policy.enable_prefix_caching should be true or false, not 3."),
        ("prompt_hash_tokens", 0, "prompt_hash_tokens should be a whole number above 0, not 0."),
        ("prompt_hash_tokens", "4", "prompt_hash_tokens should be a whole number above 0, not '4'."),
        ("gpu", ["H200"], "gpu should be a text, not ['H200']."),
        ("notes", "x" * 10 + "\ud800", "cannot be read as JSON"),
        ("engine.time", float("inf"), "cannot be read as JSON"),
        ("pool.bytes_per_unit", 2**90, "pool.bytes_per_unit should be at most"),
        ("pool.unit_tokens", 10**400, "not a whole number of some"),
        ("policy.kv_offloading_block_size", [16], "policy.kv_offloading_block_size should be a whole number from 0 on"),
        ("policy.kv_offloading_size", "1", "policy.kv_offloading_size should be a number from 0 on, not '1'."),
        ("engine.tensor_parallel_size", "x", "engine.tensor_parallel_size should be a whole number above 0, not 'x'."),
        ("private_segment_bytes", [-1], "private_segment_bytes should be a list of whole numbers from 0 on, not [-1]."),
        ("earlier_batches", [{"rows": 1}], "earlier_batches should be a list of objects with rows"),
        ("earlier_batches", 3, "earlier_batches should be a list of objects with rows"),
        (
            "earlier_batches",
            [{"rows": 1, "prompt_width": 1, "new_tokens": 2**52, "padded": True, "cache": "dynamic"}],
            "earlier_batches should be of 10,000,000 new_tokens in all at most",
        ),
    ],
)
def test_a_field_of_another_type_is_named(folder: Path, place: str, value: Any, sentence: str) -> None:
    set_field(folder / "meta.json", place, value)
    with pytest.raises(RecordingError) as raised:
        read(folder)
    text = str(raised.value)
    assert sentence in text
    assert "meta.json" in text
    assert len(text) < 400 + len(str(folder))
    assert "\n" not in text
