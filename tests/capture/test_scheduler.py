"""The recorder inside an engine, against a fake of vLLM's scheduler interface; vLLM's own is what the logs are from."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvsim.capture.scheduler_watch import SchedulerRecorder
from kvsim.capture.sinks import FileSink
from kvsim.errors import RecordingError
from kvsim.recording import Recording, RequestStatus, read
from kvsim.recording.eventlog import FILE_NAME
from kvsim.replay import Replay

NUM_BLOCKS, BLOCK = 11, 4
META = {
    "format": "kvsim-recording",
    "version": 1,
    "source": "vllm",
    "gpu": "CPU",
    "engine": {"name": "vllm", "version": "0.33.0"},
    "model": {"name": "tiny"},
    "policy": {"name": "paged", "block_size": BLOCK},
    "pool": {"unit_tokens": BLOCK, "num_units": NUM_BLOCKS - 1, "first_unit": 1, "bytes_per_unit": 64},
}


class Request:
    """What the recorder looks at of a vLLM request."""

    def __init__(self, name: str, prompt_tokens: int, max_tokens: int) -> None:
        self.request_id, self.num_prompt_tokens, self.max_tokens = name, prompt_tokens, max_tokens
        self.priority, self.block_hashes = 0, [bytes([number]) * 32 for number in range(prompt_tokens // BLOCK)]
        self.num_computed_tokens = self.num_output_tokens = 0
        self.status = SimpleNamespace(name="RUNNING")
        self.mm_features: list[Any] = []
        self.arrival_time = time.time()

    def is_finished(self) -> bool:
        return self.status.name.startswith("FINISHED")


@dataclass(frozen=True)
class FullAttentionSpec:
    """vLLM's description of a layer, as far as it is looked at."""

    block_size: int = BLOCK
    page_size_padded: int | None = None
    page_size_bytes: int = 64


class CrossAttentionSpec(FullAttentionSpec):
    """A layer whose blocks are not followed."""


class FullAttentionManager:
    """The tables of one group."""

    def __init__(self, tables: dict[str, list[Any]]) -> None:
        self.num_cached_block: dict[str, int] = {}
        self.req_to_blocks = tables


class Pool:
    """A free queue of blocks."""

    hash_block_size = BLOCK

    def __init__(self) -> None:
        self.free = [SimpleNamespace(block_id=number, is_null=False) for number in range(1, NUM_BLOCKS)]
        self.free_block_queue = SimpleNamespace(get_all_free_blocks=lambda: list(self.free))

    def get_num_free_blocks(self) -> int:
        return len(self.free)

    def _maybe_evict_cached_block(self, block: Any) -> bool:
        del block
        return False


class Manager:
    """A KV-cache manager of one group."""

    def __init__(self) -> None:
        self.block_pool = Pool()
        self.tables: dict[str, list[Any]] = {}
        self.coordinator = SimpleNamespace(single_type_managers=[FullAttentionManager(self.tables)])

    def allocate_slots(self, request: Request, num_tokens: int) -> Any:
        table = self.tables.setdefault(request.request_id, [])
        missing = -(-(request.num_computed_tokens + num_tokens) // BLOCK) - len(table)
        if missing > self.block_pool.get_num_free_blocks():
            return None
        new = [self.block_pool.free.pop(0) for _ in range(missing)]
        table += new
        return SimpleNamespace(blocks=(new,))

    def free(self, request: Request) -> None:
        self.block_pool.free += reversed(self.tables.pop(request.request_id, []))


class Scheduler:
    """Everything that is waiting runs, one token each after its prompt, until there is no room."""

    def __init__(self, spec: FullAttentionSpec | None = None) -> None:
        self.kv_cache_manager, self.block_size = Manager(), BLOCK
        self.parallel_config = SimpleNamespace(pipeline_parallel_size=1, data_parallel_size=1, data_parallel_index=0)
        group = SimpleNamespace(kv_cache_spec=spec or FullAttentionSpec(), layer_names=["layer"])
        self.kv_cache_config = SimpleNamespace(
            kv_cache_groups=[group], kv_cache_tensors=[SimpleNamespace(size=64 * NUM_BLOCKS)], num_blocks=NUM_BLOCKS
        )
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.requests: dict[str, Request] = {}

    def get_request_counts(self) -> tuple[int, int]:
        return len(self.running), len(self.waiting)

    def add_request(self, request: Request) -> None:
        self.requests[request.request_id] = request
        self.waiting.append(request)

    def schedule(self) -> Any:
        tokens = {}
        for request in [*self.running, *self.waiting]:
            number = max(request.num_prompt_tokens - request.num_computed_tokens, 1)
            if self.kv_cache_manager.allocate_slots(request, number) is None:
                continue
            if request in self.waiting:
                self.waiting.remove(request)
                self.running.append(request)
            tokens[request.request_id] = number
            request.num_computed_tokens += number
        return SimpleNamespace(num_scheduled_tokens=tokens, total_num_scheduled_tokens=sum(tokens.values()))

    def update_from_output(self, output: Any, _: Any = None) -> None:
        for name in output.num_scheduled_tokens:
            request = self.requests[name]
            request.num_output_tokens += 1
            if request.num_output_tokens == request.max_tokens:
                self._finish(request, "FINISHED_LENGTH_CAPPED")

    def finish_requests(self, name: str) -> None:
        self._finish(self.requests[name], "FINISHED_ABORTED")

    def _finish(self, request: Request, status: str) -> None:
        request.status = SimpleNamespace(name=status)
        self.running.remove(request)
        self.kv_cache_manager.free(request)


class Engine:
    """The fake with the hooks around its methods, as `kvsim.capture.vllm` puts them around vLLM's."""

    def __init__(self, folder: Path) -> None:
        self.scheduler = Scheduler()
        self.recorder = SchedulerRecorder(self.scheduler, "0.33.0")
        self.recorder.start(FileSink(folder), META)

    def add(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.add_request(request)
            self.recorder.arrived(request)

    def step(self) -> None:
        self.recorder.scheduling()
        output = self.scheduler.schedule()
        self.recorder.scheduled(output)
        self.recorder.updating()
        self.scheduler.update_from_output(output)
        self.recorder.updated(output)

    def abort(self, name: str) -> None:
        self.recorder.updating()
        self.scheduler.finish_requests(name)
        self.recorder.aborted()


def recorded(folder: Path) -> Recording:
    engine = Engine(folder)
    engine.add(Request("a", 6, 4), Request("b", 9, 2))
    engine.step()
    engine.add(Request("c", 5, 30))
    for _ in range(6):
        engine.step()
    engine.abort("c")
    engine.recorder.stop()
    return read(folder)


def test_what_the_engine_did_is_what_the_recording_says(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "run")
    assert recording.requests.id.tolist() == ["a", "b", "c"]
    assert recording.requests.output_tokens.tolist() == [4, 2, 6]
    assert [RequestStatus(status).name for status in recording.requests.status] == ["FINISHED", "FINISHED", "ABORTED"]
    replay = Replay(recording)
    replay.seek(1)
    assert replay.block_table(0)[1].tolist() == [1, 2]
    assert replay.block_table(1)[1].tolist() == [3, 4, 5]
    assert replay.block_table(2)[1].tolist() == [6, 7]
    assert recording.steps.free_units.tolist()[:2] == [5, 3]


def test_a_model_whose_blocks_are_not_followed_is_not_recorded_wrongly(tmp_path: Path) -> None:
    recorder = SchedulerRecorder(Scheduler(CrossAttentionSpec()), "0.33.0")
    sink = FileSink(tmp_path / "run")
    with pytest.raises(RecordingError, match="has layers of vLLM's CrossAttentionSpec"):
        recorder.start(sink, META)
    assert recorder.sink is None
    sink.close()
    assert (tmp_path / "run" / FILE_NAME).read_bytes() == b""


FEATURES = {
    "parallel_config.decode_context_parallel_size": "context parallelism",
    "parallel_config.prefill_context_parallel_size": "context parallelism",
    "kv_cache_manager.coordinator.enable_partial_hash_hits": "inside a block",
    "prefix_replay_tokens": "last window of a prefix again",
    "mamba_shared_prefix_checkpoint": "checkpoints",
    "kv_cache_config.hisparse_host_num_blocks": "HiSparse",
    "connector": "moves its cache with int",
}


@pytest.mark.parametrize("feature", FEATURES)
def test_what_newer_releases_do_with_blocks_is_refused_in_a_sentence(feature: str, tmp_path: Path) -> None:
    scheduler: Any = Scheduler()
    *path, name = feature.split(".")
    place = scheduler
    for each in path:
        place = getattr(place, each)
    setattr(place, name, 2)
    with pytest.raises(RecordingError, match=FEATURES[feature]):
        SchedulerRecorder(scheduler, "0.33.0").start(FileSink(tmp_path / "run"), META)


def test_the_first_request_with_images_ends_the_recording_in_a_sentence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(tmp_path / "run")
    text, picture = Request("text", 6, 4), Request("picture", 6, 4)
    picture.mm_features = [SimpleNamespace(modality="image")]
    engine.add(text)
    engine.step()
    engine.add(picture)
    engine.step()
    assert engine.recorder.sink is None
    assert "the engine goes on: request picture has images" in caplog.text
    assert engine.scheduler.requests["picture"].num_output_tokens == 1


def test_drafts_that_are_not_followed_are_refused_by_their_method(tmp_path: Path) -> None:
    scheduler: Any = Scheduler()
    scheduler.num_spec_tokens = 2
    config = SimpleNamespace(method="medusa", model="heads", num_speculative_tokens=2)
    scheduler.vllm_config = SimpleNamespace(speculative_config=config)
    with pytest.raises(
        RecordingError, match="the engine speculates: kvsim does not follow drafts of the method 'medusa'"
    ):
        SchedulerRecorder(scheduler, "0.33.0").start(FileSink(tmp_path / "run"), META)


@pytest.mark.parametrize(("version", "is_warned"), [
    ("0.20.0", False), ("0.25.1", False), ("0.33.2+cu130", False), ("0.19.1", True), ("0.34.0", True), ("dev", True),
])  # fmt: skip
def test_a_release_that_was_not_tried_is_named_in_a_warning(
    version: str, is_warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = SchedulerRecorder(Scheduler(), version)
    recorder.start(FileSink(tmp_path / "run"), META)
    recorder.stop()
    assert (f"not been tried with vLLM {version}" in caplog.text) == is_warned


def test_a_defect_ends_the_recording_and_not_the_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine(tmp_path / "run")
    engine.add(Request("a", 6, 40))
    engine.step()
    engine.recorder._rows.clear()  # what must not happen
    for _ in range(3):
        engine.step()
    assert "recording ends here because of a defect" in caplog.text
    assert engine.scheduler.requests["a"].num_output_tokens == 4
    assert engine.recorder.sink is None
    for _ in range(100):
        text = (tmp_path / "run" / FILE_NAME).read_bytes()
        if text.count(b'"output"') == 1:
            break
        time.sleep(0.02)
    assert text.endswith(b"\n")


@pytest.fixture
def vllm_module(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`kvsim.capture.vllm` over the fake."""
    pytest.importorskip("torch")
    fakes = {"vllm": {"__version__": "fake"}, "vllm.v1": {}, "vllm.v1.core": {}, "vllm.v1.core.sched": {}}
    fakes["vllm.v1.core.sched.async_scheduler"] = {"AsyncScheduler": Scheduler}
    fakes["vllm.v1.core.sched.scheduler"] = {"Scheduler": Scheduler}
    for name, contents in fakes.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "kvsim.capture.vllm", raising=False)
    import kvsim.capture.vllm as found

    yield found
    sys.modules.pop("kvsim.capture.vllm", None)


def test_a_server_that_cannot_be_recorded_serves_and_is_told(
    vllm_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(vllm_module, "describe", lambda _: META)
    monkeypatch.setenv("KVSIM_RECORD", str(tmp_path / "run"))
    scheduler = vllm_module.RecordingScheduler(CrossAttentionSpec())
    assert "nothing is recorded: the model has layers of vLLM's CrossAttentionSpec" in caplog.text
    scheduler.add_request(Request("a", 6, 1))
    scheduler.update_from_output(scheduler.schedule(), None)
    assert scheduler.requests["a"].is_finished()
    assert not (tmp_path / "run").exists()


def test_vllms_class_is_named_below_a_class_of_the_user(vllm_module: Any) -> None:
    own = type("Own", (vllm_module.RecordingScheduler,), {})
    for recording in (own, vllm_module.RecordingScheduler, vllm_module.RecordingSyncScheduler):
        assert vllm_module._class_in_vllm(recording) is Scheduler


def test_a_server_that_cannot_be_described_serves(
    vllm_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("KVSIM_RECORD", str(tmp_path / "run"))
    scheduler = vllm_module.RecordingScheduler()  # the fake has no configuration
    assert "nothing is recorded because of a defect" in caplog.text
    scheduler.add_request(Request("a", 6, 1))
    scheduler.update_from_output(scheduler.schedule(), None)
    assert scheduler.requests["a"].is_finished()


def test_a_server_records_where_its_environment_says(
    vllm_module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(vllm_module, "describe", lambda _: META)
    monkeypatch.setenv("KVSIM_RECORD", str(tmp_path / "run"))
    monkeypatch.setenv("KVSIM_PUBLISH", "127.0.0.1:0")
    scheduler = vllm_module.RecordingScheduler()
    assert "publishing at 127.0.0.1:" in caplog.text
    scheduler.add_request(Request("a", 6, 3))
    for _ in range(3):
        scheduler.update_from_output(scheduler.schedule(), None)
    scheduler.kvsim.stop()
    recording = read(tmp_path / "run")
    assert recording.requests.output_tokens.tolist() == [3]
    assert len(recording.steps) == 3
