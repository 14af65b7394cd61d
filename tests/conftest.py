"""What several rooms' tests need: small machines and workloads, and the command line as a process of its own."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from kvsim.calibration.prior import vllm_prior
from kvsim.hardware import find_gpu
from kvsim.machines import kernel_tables
from kvsim.models import find_model
from kvsim.recording import Meta, Pool, Recording, find, read
from kvsim.simulation import Machine
from kvsim.workload import Workload
from tests.forks import Forks
from tests.vllm_engine.recordings import (
    folder_of_all_workers,
    interpreter_with_vllm,
    live,
    made_beside_the_tests,
    pytest_collection_modifyitems,
)

__all__ = [
    "folder_of_all_workers",
    "interpreter_with_vllm",
    "live",
    "made_beside_the_tests",
    "pytest_collection_modifyitems",
]

REPOSITORY = Path(__file__).resolve().parent.parent
PRESSURE = "vllm-h200-llama-3-8b-sharegpt-pressure"

# Answers are those without the extra kvsim[kernels], whether it is installed or not.
kernel_tables.PACKAGE = "left-out-of-tests"

# The same checkout passes or fails, whoever runs it, how often and on however slow a machine;
# `--hypothesis-profile=search` looks for new examples.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", PATIENT, derandomize=True)
settings.register_profile("search", PATIENT, print_blob=True)
settings.load_profile("repeatable")
# Hypothesis would also draw numbers that occur in the modules imported so far: a test that runs alone would get other
# examples, and every process would read all modules for seconds.
assert hasattr(providers, "is_local_module_file")
providers.is_local_module_file = lambda _path: False

# Few of the objects that a test makes are garbage in a cycle, and none that was there before; looking for such took a
# fourteenth of all the time.
gc.set_threshold(500_000)

RunProcess = Callable[..., "subprocess.CompletedProcess[str]"]
MakeMachine = Callable[[int], Machine]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: a tenth of what tests take is waiting, for servers and for other processes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


def pytest_collection_finish() -> None:
    gc.freeze()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def run_python() -> RunProcess:
    """Run the interpreter on some arguments, in a folder, as a fresh process that finds this checkout."""

    def run(*arguments: str | Path, folder: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path, "NO_COLOR": "1"} | environment,
        )

    return run


@pytest.fixture(scope="session")
def kvsim(run_python: RunProcess, folder_of_all_workers: Path) -> Iterator[RunProcess]:
    """The real entry point: in a fork of a process that has imported it, unless Python's own start matters."""
    with Forks(folder_of_all_workers / "kvsim", "tests.preloaded") as forks:

        def run(
            *arguments: str | Path, folder: Path = REPOSITORY, **environment: str
        ) -> subprocess.CompletedProcess[str]:
            if any(name.startswith("PYTHON") for name in environment):
                return run_python("-m", "kvsim", *arguments, folder=folder, **environment)
            environment = os.environ | {"NO_COLOR": "1"} | environment
            return forks.run("-m", "kvsim", *map(str, arguments), folder=folder, environment=environment)

        yield run


@pytest.fixture(scope="session")
def make_machine() -> MakeMachine:
    """A machine whose KV memory holds exactly so many tokens."""
    gpu, model = find_gpu("H200"), find_model("Meta-Llama-3-8B")
    step_time = vllm_prior(gpu, model)

    def make(num_tokens: int) -> Machine:
        return Machine(gpu=gpu, model=model, kv_bytes=num_tokens * model.kv_bytes_per_token, step_time=step_time)

    return make


@pytest.fixture(scope="session")
def pressure() -> Recording:
    """The shipped recording of a vLLM under memory pressure."""
    return read(find(PRESSURE))


@pytest.fixture(scope="session")
def make_meta() -> Callable[..., Meta]:
    """Provenance of a recording made by hand, for a pool of so many units."""

    def make(
        num_units: int | None,
        *,
        unit_tokens: int = 1,
        first_unit: int = 0,
        policy: str = "paged",
        prefix_caching: bool = False,
    ) -> Meta:
        return Meta(
            source="simulation",
            engine={"name": "test"},
            gpu="none",
            model={"name": "tiny"},
            policy={"name": policy, "enable_prefix_caching": prefix_caching},
            pool=Pool(unit_tokens=unit_tokens, num_units=num_units, first_unit=first_unit, bytes_per_unit=unit_tokens),
        )

    return make


@pytest.fixture(scope="session")
def make_workload() -> Callable[..., Workload]:
    """Requests given as (arrival in seconds, prompt tokens, output tokens)."""

    def make(*requests: tuple[float, int, int], **columns: Any) -> Workload:
        arrival_s, prompt, output = zip(*requests, strict=True)
        return Workload(
            arrival_s=np.array(arrival_s, float), prompt_tokens=list(prompt), output_tokens=list(output), **columns
        )

    return make
