"""What is kept beside a shipped recording says what the recording does."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from kvsim.cli.workload_flags import DEFAULT_WORKLOAD
from kvsim.errors import RecordingError
from kvsim.importers import workload_of
from kvsim.recording import RecordedRequests, Recording, find, read, read_requests
from kvsim.recording import shipped_requests as shipped_requests_module
from kvsim.recording.provenance import meta_as_text
from kvsim.recording.shipped_requests import as_text, file_of, read_shipped_requests
from kvsim.recording.tables import Requests

FOLDER = find(DEFAULT_WORKLOAD)


def test_it_is_what_the_recording_says() -> None:
    """Where it is not: file_of(NAME).write_text(as_text(read(find(NAME)).requests, find(NAME)))."""
    assert file_of(DEFAULT_WORKLOAD).read_text() == as_text(read(FOLDER).requests, FOLDER)


def test_every_column_comes_back() -> None:
    kept, read_from_parquet = read_shipped_requests(FOLDER), read(FOLDER).requests
    assert kept is not None
    for name, _ in Requests.columns():
        ours, theirs = getattr(kept, name), getattr(read_from_parquet, name)
        if theirs is None:
            assert ours is None
            continue
        if name == "prompt_hashes":
            ours, theirs = np.append(ours.values, ours.offsets), np.append(theirs.values, theirs.offsets)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_the_requests_alone_are_served_as_those_of_the_whole_recording() -> None:
    alone, whole = read_requests(FOLDER), read(FOLDER)
    assert isinstance(alone, RecordedRequests)
    assert meta_as_text(alone.meta) == meta_as_text(whole.meta)
    ours, theirs = workload_of(alone), workload_of(whole)
    assert (ours.name, ours.description, list(ours.ids)) == (theirs.name, theirs.description, list(theirs.ids))
    np.testing.assert_array_equal(ours.arrival_s, theirs.arrival_s)
    np.testing.assert_array_equal(ours.output_tokens, theirs.output_tokens)


def test_a_damaged_file_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped_requests_module, "_FOLDER", tmp_path)
    for damaged in ("{", "{}"):
        file_of(DEFAULT_WORKLOAD).write_text(damaged)
        assert read_shipped_requests(FOLDER) is None


def test_a_file_that_is_not_the_one_is_read(tmp_path: Path) -> None:
    copy = tmp_path / DEFAULT_WORKLOAD
    shutil.copytree(find("vllm-h200-llama-3-8b-sharegpt-5"), copy)
    assert read_shipped_requests(copy) is None


@pytest.mark.parametrize("missing", ["steps.parquet", "requests.parquet"])
def test_a_recording_of_the_users_own_is_read_whole(tmp_path: Path, missing: str) -> None:
    copy = tmp_path / DEFAULT_WORKLOAD
    shutil.copytree(FOLDER, copy)
    assert isinstance(read_requests(copy), Recording)
    (copy / missing).unlink()
    with pytest.raises(RecordingError, match=f"{missing} is missing"):
        read_requests(copy)
