"""What vLLM's own engine leaves behind while these tests run: recordings, and what its scheduler says.

One process of each release serves all workloads, for all tests, while others run.
"""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from kvsim.conformance.driven import EngineFailedError
from kvsim.conformance.generated import realistic, small, staged
from kvsim.conformance.generated_groups import grouped, staged_groups

from ..conformance.offloaded_workloads import offloaded
from ..forks import ROOT
from .install import MAIN, NEWEST, RELEASES, missing
from .process import EngineProcess, forks_with

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_THIS = "tests.vllm_engine.recordings"
_WORKER = "PYTEST_XDIST_WORKER"
GOLDEN = Path(__file__).parent.parent / "conformance"
PLAIN = tuple(
    GOLDEN / "golden" / f"{name}.json"
    for name in (
        *("001", "002", "009", "012", "030", "pipeline-2-async-recorded", "pipeline-2-sync-recorded"),
        *("pipeline-3-async-recorded", "pipeline-6-resumed-under-way"),
    )
)
"""Workloads of one group of full attention: hits, preemptions, priorities, aborts, and pipelines."""
GROUPED = tuple(GOLDEN / "golden_groups" / f"{name}.json" for name in ("s00", "s04", "s06", "s18", "s37", "s44", "s54"))
"""Workloads with windows, recurrent states in two modes, latents, chunks, and blocks of several sizes."""
OFFLOADED = tuple(GOLDEN / "golden_offload" / f"{name}.json" for name in ("off02", "off10", "off12", "off14"))
"""Workloads with blocks on the host."""
FEATURED = tuple(
    GOLDEN / "golden_features" / "0.33.0" / f"{name}.json"
    for name in (
        *("spec/g_spec_02", "spec/m_preempt", "spec/m_preempt_sync", "spec/m_ngram_some_drafts", "spec/m_dynamic_k"),
        "spec/m_prefix_lookahead_hash",
        *("lora/g_lora_03", "lora/m_keys", "lora/m_preempted_adapter", "lora/m_salt"),
        *("kv/g_loads_by_priority", "kv/g_nixl_08", "kv/m_nixl_bad_after_hit", "kv/m_nixl_decode", "kv/m_nixl_prefill"),
        *("mm/g_mm_04", "mm/m_budget_splits", "mm/m_eviction_order", "mm/m_gaps_in_placeholders", "mm/m_preempted"),
        *("mm/m_repeated_image", "mm/m_spec", "mm/m_whole_images"),
    )
)
"""Workloads with drafts (heads, n-grams), adapters, transfers and images, of releases in which kvsim follows them."""
RETAINING = "retaining"
"""A recording with windows of which only the last prefix is kept, as vLLM 0.30 and later do by default."""
WATCHED = ("001", "009")
"""Golden workloads, one with preemptions and one with prefix hits, whose engine is also watched from outside."""
_WATCHED_UNTIL = 60
RANK, RANKED = 1, "ranked"
"""The number of a data-parallel rank, and the recording of its server."""
BROKEN = "broken"
"""A recording of a scheduler that is broken: before one call the block that is free first goes to the queue's end."""
_BROKEN_AT = 50
STAGED_DRAFTS = "staged-drafts"
"""Of an engine that speculates in a pipeline there is no recording, and the recorder says why."""
KINDS: dict[str, Callable[[Random], dict[str, Any]]] = {
    "small": small,
    "realistic": realistic,
    "grouped": grouped,
    "offloaded": offloaded,
    "staged": staged,
    "staged-groups": staged_groups,
}
"""What makes workloads, by name."""
_NUMBERS = {"small": 12, "realistic": 1, "grouped": 12, "offloaded": 6, "staged": 8, "staged-groups": 6}
GENERATED = {
    f"{kind}-{number}": KINDS[kind](Random(f"suite/{number}"))
    for kind, size in _NUMBERS.items()
    for number in range(size)
}
"""Generated workloads, by name."""


class Live(NamedTuple):
    """A folder with the recorder's log of each workload, and the records of the scheduler."""

    folder: Path
    release: str

    def log(self, workload: Path | str) -> Path:
        """The folder that the recorder wrote; a test skips a workload that this release of vLLM refuses."""
        self._skip_if_refused(workload)
        return self.folder / "recorded" / Path(workload).stem

    def said(self) -> str:
        """What vLLM's process and the recorder in it said aloud."""
        return (self.folder / "vllm.log").read_text()

    def told(self, workload: Path | str) -> Path:
        """The records of the scheduler, in a file like those of the golden pairs."""
        self._skip_if_refused(workload)
        return self.folder / f"{Path(workload).stem}.jsonl"

    def watched(self, name: str) -> Path:
        """The folder with what the engine told from outside: `vllm_engine.watching` names its files."""
        return self.folder / "watched" / name

    def refusals(self) -> dict[str, str]:
        """Workloads that this release refuses, and what it says of them."""
        return dict(json.loads((self.folder / "refusals.json").read_text()))

    def _skip_if_refused(self, workload: Path | str) -> None:
        if reason := self.refusals().get(Path(workload).stem):
            pytest.skip(f"vLLM {self.release}: {reason}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the tests that need them come last: until then they have been made."""
    items.sort(key=_needs_them)


@pytest.fixture(scope="session")
def folder_of_all_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what is made once for all workers."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if _WORKER in os.environ else own


@pytest.fixture(scope="session")
def interpreter_with_vllm(folder_of_all_workers: Path) -> Iterator[Callable[[str], tuple[str, ...]]]:
    """The first words of a command that runs, without waiting for its imports, with a release of vLLM."""
    with ExitStack() as stack:
        yield cache(lambda release: stack.enter_context(forks_with(release, folder_of_all_workers)).command())


@pytest.fixture(scope="session", autouse=True)
def made_beside_the_tests(request: pytest.FixtureRequest, folder_of_all_workers: Path) -> Iterator[None]:
    """Begin to make them with the first test, in a process: some tests count the threads and the files of theirs.

    If it fails, the tests that need them will meet the reason again.
    """
    is_first = os.environ.get(_WORKER, "gw0") == "gw0"
    if not (is_first and any(map(_needs_them, request.session.items))):
        yield
        return
    interpreter = request.getfixturevalue(interpreter_with_vllm.__name__)
    for release in RELEASES:
        if not missing(release):
            interpreter(release)  # so that it ends with the tests, and not with the process below
    silence = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    with subprocess.Popen([sys.executable, "-m", _THIS, str(folder_of_all_workers)], cwd=ROOT, **silence) as making:
        yield
        making.terminate()


@pytest.fixture(scope="session", params=RELEASES)
def live(request: pytest.FixtureRequest, folder_of_all_workers: Path) -> Live:
    """All of one release, made once, by whichever worker asks first."""
    if reason := missing(request.param):
        pytest.skip(reason)
    return _make(folder_of_all_workers, request.param)


in_main = pytest.mark.parametrize("live", [MAIN], indirect=True)
"""Run a test, which is not about the engine, with the recordings of one release."""


def _needs_them(item: pytest.Item) -> bool:
    return live.__name__ in getattr(item, "fixturenames", ())


def _make(folder: Path, release: str) -> Live:
    live = Live(folder / "live" / release, release)
    live.folder.mkdir(parents=True, exist_ok=True)
    with (live.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (live.folder / "done").exists():
            with forks_with(release, folder) as forks:
                _serve_all(live, forks.command())
            (live.folder / "done").touch()
    return live


def _serve_all(live: Live, interpreter: Sequence[str]) -> None:
    refusals: dict[str, str] = {}

    def tell(name: str, document: dict[str, Any], **environment: str) -> None:
        with (live.folder / f"{name}.jsonl").open("w") as file:
            try:
                for _, record in engine.records(document, environment=environment):
                    file.write(json.dumps(record) + "\n")
            except EngineFailedError as error:
                refusals[name] = str(error)

    def recorded(name: str) -> str:
        return str(live.folder / "recorded" / name)

    with EngineProcess(live.release, live.folder / "vllm.log", interpreter) as engine:
        for workload in (*PLAIN, *GROUPED):
            tell(workload.stem, json.loads(workload.read_text()), KVSIM_RECORD=recorded(workload.stem))
        for workload in OFFLOADED if live.release == MAIN else ():
            # What is told of these is in an order that vLLM's own scheduler does not have.
            engine.serve(json.loads(workload.read_text()), KVSIM_RECORD=recorded(workload.stem))
        tell(
            RETAINING,
            json.loads(GROUPED[0].read_text()) | {"retention_interval": 0},
            KVSIM_RECORD=recorded(RETAINING),
        )
        engine.serve(json.loads(PLAIN[0].read_text()) | {"rank": RANK}, KVSIM_RECORD=recorded(RANKED))
        for name in WATCHED:
            document = json.loads((GOLDEN / "golden" / f"{name}.json").read_text())
            engine.serve(document | {"watched_in": str(live.watched(name)), "watched_until": _WATCHED_UNTIL})
        broken = json.loads(GROUPED[0].read_text()) | {"broken_at": _BROKEN_AT}
        engine.serve(broken, KVSIM_RECORD=recorded(BROKEN))
        for workload in FEATURED if live.release in (MAIN, NEWEST) else ():
            engine.serve(json.loads(workload.read_text()), KVSIM_RECORD=recorded(workload.stem))
        staged = {"spec": {"method": "ngram", "k": 2}, "async_scheduling": False, "pipeline_parallel_size": 2}
        engine.serve(json.loads(PLAIN[0].read_text()) | staged, KVSIM_RECORD=recorded(STAGED_DRAFTS))
        for name, document in GENERATED.items():
            if "offload" not in document or live.release == MAIN:
                tell(name, document)
    (live.folder / "refusals.json").write_text(json.dumps(refusals))


if __name__ == "__main__":
    for _release in RELEASES:
        if not missing(_release):
            _make(Path(sys.argv[1]), _release)
