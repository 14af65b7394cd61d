"""What the recording scheduler writes inside vLLM's own engine, of two releases or of those that KVSIM_VLLM names,
against what that engine's scheduler says.

The model is a fake, and so is nothing else: the engine, its scheduler and its cache are vLLM's.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.conformance import verify_recording
from kvsim.conformance.answered_workload import UNAWAITED
from kvsim.metrics.contradictions import refuse_contradictions
from kvsim.recording import Recording, RequestStatus, read, write
from kvsim.recording.eventlog import FILE_NAME
from kvsim.replay import Replay

from ..vllm_engine.engine_process import ON_ITS_WAY_S
from ..vllm_engine.recordings import GROUPED, PLAIN, RANK, RANKED, RETAINING, STAGED_DRAFTS, Live, in_main


@pytest.fixture(params=PLAIN, ids=lambda file: file.stem)
def workload(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


@pytest.fixture
def log(workload: Path, live: Live, tmp_path: Path) -> Path:
    return Path(shutil.copytree(live.log(workload), tmp_path / workload.stem))


def steps_of_the_engine(workload: Path, live: Live) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in live.told(workload).read_text().splitlines()]
    # In a pipeline, calls that scheduled nothing count.
    counts = workload.stem.startswith("pipeline")
    return [item for item in records if item["kind"] == "schedule" and (item["total"] or item["preempted"] or counts)]


def test_every_step_holds_what_the_engine_held(workload: Path, live: Live, log: Path) -> None:
    recording = read(log)
    replay, engine = Replay(recording), steps_of_the_engine(workload, live)
    names = recording.requests.id
    assert len(recording.steps) == len(engine)
    for step, said in enumerate(engine):
        replay.seek(step)
        live = replay.live_requests()
        assert [names[row] for row in live] == said["running"]
        waiting = [*said["waiting"], *said["skipped"]]  # of releases that keep those apart that were passed over
        assert sorted(names[row] for row in replay.waiting_requests()) == sorted(waiting)
        assert {names[row]: replay.block_table(row)[1].tolist() for row in live} == said["blocks"]
        computed = replay.computed(live)
        assert {str(names[row]): int(tokens) for row, tokens in zip(live, computed, strict=True)} == {
            name: said["computed"][name] for name in said["running"]
        }
        assert int((replay.owner == -1).sum()) == said["free"] == recording.steps.free_units[step]


def test_cached_blocks_are_those_that_the_engine_could_hit(workload: Path, live: Live, log: Path) -> None:
    recording = read(log)
    replay = Replay(recording)
    for step, said in enumerate(steps_of_the_engine(workload, live)):
        replay.seek(step)
        held_keys = said["cached_keys"]
        assert int(replay.cached.sum()) <= held_keys, "a free block with a prefix has a key"


@pytest.mark.parametrize("workload", [*PLAIN, *GROUPED, Path(RETAINING)], ids=lambda file: file.stem)
def test_a_log_names_its_release_and_keeps_to_the_format(live: Live, log: Path) -> None:
    recording = read(log, check_shipped=True)
    assert recording.meta.engine["version"] == live.release
    kept = 0 if log.name == RETAINING and live.release >= "0.23" else None  # before, every prefix is kept
    assert recording.meta.engine["prefix_cache_retention_interval"] == kept
    assert refuse_contradictions(recording, log) is not None


def test_a_release_refuses_what_it_cannot_cache(live: Live) -> None:
    with_every_state = {"s04"} if live.release >= "0.33" else set()
    known = [*(["page size"] if live.release < "0.24" else []), *([UNAWAITED] if live.release < "0.27" else [])]
    refused = {name for name, words in live.refusals().items() if not any(part in words for part in known)}
    assert refused == with_every_state, live.refusals()


def test_a_log_verifies_and_packs(log: Path, tmp_path: Path) -> None:
    recording = read(log)
    assert verify_recording(recording).equal
    packed = read(write(recording, tmp_path / "packed"))
    assert verify_recording(packed).equal
    assert np.array_equal(packed.steps.free_units, recording.steps.free_units)


def test_a_log_knows_when_requests_were_sent(workload: Path, log: Path, tmp_path: Path) -> None:
    place = {each["id"]: row for row, each in enumerate(json.loads(workload.read_text())["requests"])}
    recording = read(write(read(log), tmp_path / "packed"))
    requests = recording.requests
    least_s = np.array([ON_ITS_WAY_S * place[name] for name in requests.id])
    assert requests.sent_s is not None
    assert (requests.arrival_s - requests.sent_s >= least_s - 1e-6).all()
    assert (requests.ttft_s - (requests.first_token_s - requests.arrival_s) >= least_s - 1e-6)[
        requests.output_tokens > 0
    ].all()


def test_every_rank_of_a_server_has_a_recording_of_its_own(live: Live) -> None:
    [folder] = live.log(RANKED).iterdir()
    assert folder.name == str(RANK)
    recording = read(folder)
    assert verify_recording(recording).equal
    assert recording.meta.engine["data_parallel_rank"] == RANK
    assert recording.meta.engine["data_parallel_size"] == 1, "its steps wait for no others"


def test_aborted_requests_are_told_apart(workload: Path, log: Path) -> None:
    recording: Recording = read(log)
    requests = json.loads(workload.read_text())["requests"]
    aborted = {item["id"] for item in requests if item.get("abort_step") is not None}
    status = recording.requests.status
    assert set(recording.requests.id[status == RequestStatus.ABORTED].tolist()) <= aborted
    assert RequestStatus.UNFINISHED not in status


@in_main
def test_a_killed_engine_leaves_a_recording(log: Path) -> None:
    file = log / FILE_NAME
    whole = file.read_bytes()
    lines, begin = whole.count(b"\n"), whole.index(b"\n") + 1
    for share in (0.3, 0.6, 0.9):  # of the events: the metadata before them are a third of a short log
        file.write_bytes(whole[: begin + int((len(whole) - begin) * share)])
        recording = read(log)
        assert len(recording.steps) > 0
        assert len(Replay(recording).live_requests()) >= 0
    assert lines > 20


def test_an_engine_that_speculates_in_a_pipeline_is_told_that_nothing_is_recorded(live: Live) -> None:
    assert "kvsim: nothing is recorded: the engine speculates in a pipeline" in live.said()
    assert not live.log(STAGED_DRAFTS).exists()
