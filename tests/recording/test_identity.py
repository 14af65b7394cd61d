"""All files of a recording carry one identity; a recording that is replaced while it is read is never mixed up."""

from __future__ import annotations

import shutil
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kvsim.errors import RecordingError
from kvsim.files import identity
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import AllocatorHistory, Recording, files, read, read_allocator, write, write_allocator
from kvsim.recording.tables import TABLES, PromptImages
from kvsim.simulation import simulate
from kvsim.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def recorded(make_machine: Callable[[int], Any], num_requests: int) -> Recording:
    workload = Workload(
        arrival_s=np.zeros(num_requests), prompt_tokens=[20] * num_requests, output_tokens=[5] * num_requests
    )
    return simulate(workload, Paged(scheduler=ContinuousSettings(max_model_len=64)), make_machine(640))


@pytest.fixture(scope="module")
def two(make_machine: Callable[[int], Any]) -> tuple[Recording, Recording]:
    return recorded(make_machine, 3), recorded(make_machine, 5)


@pytest.mark.parametrize("name", ["requests", "steps", "schedule", "memory"])
def test_a_file_of_another_recording_is_refused(two: tuple[Recording, Recording], tmp_path: Path, name: str) -> None:
    one, other = (write(recording, tmp_path / str(nth)) for nth, recording in enumerate(two))
    shutil.copy(other / f"{name}.parquet", one / f"{name}.parquet")
    with pytest.raises(RecordingError, match=rf"{name}\.parquet and .*meta\.json are of two recordings"):
        read(one)


def test_equal_recordings_have_one_identity_and_others_another(
    two: tuple[Recording, Recording], tmp_path: Path
) -> None:
    texts = [
        (write(recording, tmp_path / str(nth)) / "meta.json").read_text()
        for nth, recording in enumerate((two[0], two[0], replace(two[0], meta=replace(two[0].meta, notes="other"))))
    ]
    assert texts[0] == texts[1]
    identities = [text.partition('"identity": "')[2][:32] for text in texts]
    assert len(set(identities)) == 2
    assert all(len(identity) == 32 for identity in identities)


def test_the_history_of_another_run_is_refused(two: tuple[Recording, Recording], tmp_path: Path) -> None:
    column = np.zeros(1, np.int64)
    history = AllocatorHistory(
        action=np.array(["alloc"]), address=column, size_bytes=column, stream=column, time_us=column, step=column
    )
    one, other = (write(recording, tmp_path / str(nth)) for nth, recording in enumerate(two))
    write_allocator(history, one)
    found = read_allocator(one)
    assert found is not None
    assert len(found) == 1
    shutil.copy(one / "allocator.parquet", other)
    with pytest.raises(RecordingError, match="is not of the recording beside it"):
        read_allocator(other)


def test_what_is_replaced_while_it_is_read_is_one_or_the_other(
    two: tuple[Recording, Recording], tmp_path: Path
) -> None:
    target = write(two[0], tmp_path / "rec")
    done = Event()

    def replace_again_and_again() -> None:
        for nth in range(25):
            write(two[nth % 2], target)
        done.set()

    writer = Thread(target=replace_again_and_again)
    writer.start()
    num_read, refusals = 0, list[str]()
    while not done.is_set():
        try:
            found = read(target)
        except RecordingError as error:
            refusals.append(str(error))
            continue
        num_read += 1
        assert len(found.requests) in {len(recording.requests) for recording in two}
        for column in (found.schedule.request, found.memory.request):
            assert column.max() + 1 == len(found.requests)
    writer.join()
    assert num_read
    assert all("replaced again and again" in refusal for refusal in refusals)
    assert [entry.name for entry in tmp_path.iterdir()] == ["rec"]


def test_one_that_changes_all_the_time_is_refused_in_a_sentence(
    two: tuple[Recording, Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = write(two[0], tmp_path / "rec")
    stamps = iter(range(1000))
    monkeypatch.setattr(files, "_stamp", lambda _folder: (next(stamps),))
    monkeypatch.setattr(files, "_PAUSE_S", 0)
    with pytest.raises(RecordingError, match="was replaced again and again while it was read"):
        read(target)


def test_another_source_is_not_overwritten_unless_that_is_allowed(
    two: tuple[Recording, Recording], tmp_path: Path
) -> None:
    real = replace(two[0], meta=replace(two[0].meta, source="vllm"))
    target = write(real, tmp_path / "mine")
    with pytest.raises(RecordingError, match="is a recording of vllm, and this one is of simulation"):
        write(two[1], target)
    assert read(target).meta.source == "vllm"
    write(two[1], target, overwrite=True)
    assert read(target).meta.source == "simulation"


def test_the_identity_is_of_every_table_that_a_recording_may_have() -> None:
    assert tuple(table.name for table in TABLES) == identity.TABLES


def test_a_recording_with_images_is_known_as_written(two: tuple[Recording, Recording], tmp_path: Path) -> None:
    columns = {"request": [0], "image": [1], "place": [2], "tokens": [8]}
    images = PromptImages(**{name: np.array(values, np.int32) for name, values in columns.items()})
    written = write(replace(two[0], images=images), tmp_path / "with images")
    assert (written / "images.parquet").exists()
    assert identity.is_as_written(written)
