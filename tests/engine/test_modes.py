"""Interpreted or compiled: what is chosen, what is refused in a sentence, and what holds without numba."""

from __future__ import annotations

import dis
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.engine import continuation, driver, initialization
from kvsim.engine.arrays import Tables
from kvsim.engine.machine_code import compiled
from kvsim.engine.memory import MemoryManager
from kvsim.engine.paged import block_pool
from kvsim.errors import UsageError
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.simulation import Machine, measure, modes, simulate
from kvsim.steptime import StepShape, StepTime
from kvsim.workload import Workload

from .by_hand import driver_of

MakeMachine = Callable[[int], Machine]
POLICY = Paged(scheduler=ContinuousSettings(max_model_len=1024))


def requests(size: int) -> Workload:
    return Workload(arrival_s=0.01 * np.arange(size), prompt_tokens=[20] * size, output_tokens=[9] * size)


class Metronome:
    """A step-time model of its own."""

    label, calibrated = "a metronome", True

    def step_time(self, shape: StepShape) -> StepTime:  # noqa: ARG002
        return StepTime(prepare_s=0.0, launch_s=0.25, gpu_s=1.0, turnaround_s=0.0)

    def entry_s(self, prompt_tokens: int) -> float:  # noqa: ARG002
        return 0.0


def test_without_numba_everything_runs_and_asking_for_it_is_a_sentence(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(modes, "has_numba", lambda: False)
    monkeypatch.setattr(initialization, "STEPS_PER_SLICE", 5)
    for engine in ("auto", "interpreted"):
        assert measure(requests(30), POLICY, make_machine(4000), engine=engine).summary.num_finished == 30  # type: ignore[arg-type]
    monkeypatch.setattr(modes, "has_machine_code", lambda _: False)
    with pytest.raises(UsageError, match="cannot be compiled: numba is not installed, or does not support this Python"):
        measure(requests(3), POLICY, make_machine(4000), engine="compiled")


def test_machine_code_of_another_layout_does_not_do_without_numba(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiled, "_folders", lambda: [tmp_path])
    monkeypatch.setattr(modes, "has_machine_code", lambda _: True)
    monkeypatch.setattr(compiled, "has_numba", lambda: False)
    compiled._ready.cache_clear()
    with pytest.raises(UsageError, match="cannot be compiled without numba; take --engine interpreted"):
        measure(requests(3), POLICY, make_machine(4000), engine="compiled")


def test_a_package_that_cannot_be_imported_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise ImportError("Numba needs NumPy 2.2 or less.")

    monkeypatch.setattr(compiled, "import_module", fail)
    assert not compiled.has_numba()


def test_a_model_of_ones_own_runs_interpreted_and_only_so(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initialization, "STEPS_PER_SLICE", 5)
    machine = replace(make_machine(4000), step_time=Metronome())
    recording = simulate(requests(30), POLICY, machine)
    assert recording.duration_s > len(recording.steps) - 1
    with pytest.raises(
        UsageError, match=r"cannot be compiled: the step times are a model of their own \(a metronome\)"
    ):
        measure(requests(3), POLICY, machine, engine="compiled")


def test_parts_are_put_together_in_the_release_of_numba_that_is_here() -> None:
    """Otherwise compiling takes several times as long. If this fails: try the release, and add it to those known."""
    numba_linking = pytest.importorskip("kvsim.engine.machine_code.numba_linking")
    assert numba_linking.is_known()
    assert compiled.part_options()["pipeline_class"] is numba_linking.PartCompiler


@pytest.mark.parametrize("release", ["0.61.2", "0.99.0", "1.0.0rc1"])
def test_an_unknown_release_compiles_every_part_by_itself(release: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numba_linking = pytest.importorskip("kvsim.engine.machine_code.numba_linking")
    assert not numba_linking.is_known(release)
    monkeypatch.setattr(numba_linking, "is_known", lambda: False)
    assert "pipeline_class" not in compiled.part_options()


@pytest.mark.slow
def test_both_ways_of_compiling_give_the_same_run(run_python: Callable[..., Any]) -> None:
    """Parts that are put together, as they are where the release of numba is known, and parts compiled apart."""
    code = (
        "import sys, numpy as np, kvsim\n"
        "from kvsim.engine.machine_code import compiled, numba_linking\n"
        "from kvsim.machines import step_times\n"
        "if sys.argv[1] == 'apart':\n"
        "    numba_linking.KNOWN_RELEASES = ()\n"
        "    compiled._folders = lambda: []\n"
        "lengths = {'prompt_tokens': [9, 300] * 20, 'output_tokens': [7, 30] * 20}\n"
        "workload = kvsim.Workload(arrival_s=np.arange(40) / 9, **lengths)\n"
        "gpu, model = kvsim.find_gpu('H200'), kvsim.find_model('Meta-Llama-3-8B')\n"
        "step_time = step_times(gpu, model, 'vllm', source='none')\n"
        "machine = kvsim.Machine(gpu=gpu, model=model, kv_bytes=1 << 28, step_time=step_time)\n"
        "run = kvsim.simulate(workload, kvsim.Static(), machine, engine='compiled')\n"
        "assert ('pipeline_class' in compiled.part_options()) == (sys.argv[1] == 'together')\n"
        "print(run.requests.finished_s.tolist(), run.steps.start_s.tolist())"
    )
    printed = []
    for way in ("together", "apart"):
        result = run_python("-c", code, way)
        assert result.returncode == 0, result.stderr
        printed.append(result.stdout)
    assert printed[0] == printed[1]


def test_machine_code_is_made_of_parts_without_their_asserts() -> None:
    def asserts(function: Callable[..., Any]) -> int:
        return sum(each.opname == "LOAD_ASSERTION_ERROR" for each in dis.get_instructions(function))

    assert asserts(block_pool.allocate) == 2
    assert asserts(compiled.without_asserts(block_pool.allocate)) == 0
    driver = driver_of(POLICY, 1, (1, 1))
    assert compiled.without_asserts(block_pool.allocate)(driver.engine) == (1, False)
    with pytest.raises(AssertionError, match="no free block"):
        block_pool.allocate(driver.engine)


DRAW = "define i64 @draw(i64 %addresses, i64 %action, double %argument) {\n  ret i64 %action\n}\n"
"""A function as LLVM has it, which returns its second argument."""


LITTLE = MemoryManager(name="little")


@dataclass
class Little(Tables):
    memory: Any
    numbers: Any


def engine_of(numbers: list[int]) -> Any:
    return Little(LITTLE, np.array(numbers, np.int64))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where machine code is kept; what is compiled is a function of LLVM's."""
    pytest.importorskip("llvmlite")
    monkeypatch.setattr(compiled, "_folders", lambda: [tmp_path])
    compiled._ready.cache_clear()
    return tmp_path


def draw_from(monkeypatch: pytest.MonkeyPatch, times: list[int]) -> compiled.MachineCode:
    """Machine code that notes when it is compiled."""

    def compile_(*_: object) -> Any:
        from kvsim.engine.machine_code import object_code

        times.append(1)
        return object_code.translate(DRAW, "draw")

    def draw(_engine: Any, action: int, _argument: float) -> int:
        return action

    compiled._ready.cache_clear()
    monkeypatch.setattr(compiled, "_compile", compile_)
    return compiled.MachineCode(draw, [])


@pytest.mark.usefixtures("folder")
def test_machine_code_is_made_once_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    assert not compiled.is_on_disk(LITTLE, [])
    for _ in range(3):
        assert draw_from(monkeypatch, times)(engine_of([1, 2]), 42, 0.0) == 42
    assert len(times) == 1
    assert compiled.is_on_disk(LITTLE, [])
    assert not compiled.is_on_disk(MemoryManager(name="other"), [])


@pytest.mark.parametrize("stated", [True, False], ids=["XDG_CACHE_HOME", "home"])
def test_machine_code_is_kept_in_the_users_cache_where_the_sources_are_read_only(
    stated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("llvmlite")
    (tmp_path / "sources").write_text("a file, in which nobody can make a folder")
    monkeypatch.setattr(compiled, "__file__", str(tmp_path / "sources" / "compiled.py"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches") if stated else "")
    times: list[int] = []
    for _ in range(2):
        assert draw_from(monkeypatch, times)(engine_of([1, 2]), 42, 0.0) == 42
    assert len(times) == 1
    [file] = (tmp_path / ("caches" if stated else "home/.cache") / "kvsim").iterdir()
    assert file.name.startswith("draw-")


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"not json\n1234", None], ids=["empty", "no header", "text", "cut"])
def test_damaged_machine_code_is_made_again(
    damage: bytes | None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvsim.engine.machine_code import object_code

    times: list[int] = []
    draw_from(monkeypatch, times)(engine_of([1]), 1, 0.0)
    [file] = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-9] if damage is None else damage)
    assert draw_from(monkeypatch, times)(engine_of([1]), 5, 0.0) == 5
    assert len(times) == 2
    assert object_code.read(file) is not None


@pytest.mark.usefixtures("folder")
def test_other_layouts_are_other_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[int] = []
    code = draw_from(monkeypatch, times)
    for kind in (np.int64, np.int32, np.float64):
        assert code(Little((), np.zeros(3, kind)), 7, 0.0) == 7
    assert len(times) == 3


def test_machine_code_that_needs_numba_is_not_made() -> None:
    object_code = pytest.importorskip("kvsim.engine.machine_code.object_code")
    code = "declare double @numba_frexp(double)\n" + DRAW
    with pytest.raises(AssertionError, match="calls numba_frexp cannot be used without numba"):
        object_code.translate(code, "draw")


def test_machine_code_of_sources_as_they_were_before_is_removed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources, times = tmp_path_factory.mktemp("sources"), list[int]()
    code_and_texts = (
        b'def rule():\n    return "#1"\n',
        b'"""Decide."""\n\n\ndef rule():  # y\n    """Return.\n\n    One.\n    """\n    # 1\n\n    return "#1"\n',
        b'def rule():\n    """Return a number."""\n    return "#2"\n',
        b'def rule():\nreturn "#2"\n',
    )
    made = []
    for text in code_and_texts:
        (sources / "rule.py").write_bytes(text)
        code = draw_from(monkeypatch, times)
        compiled._stem.cache_clear()
        code._sources = (sources,)
        code(engine_of([1]), 1, 0.0)
        made.append(len(times))
    assert made == [1, 1, 2, 3]
    assert len(list(folder.iterdir())) == 1


def test_texts_in_triple_quotes_are_docstrings_in_what_is_compiled() -> None:
    """Machine code is found again where nothing else has changed."""
    begins = {tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    for file in (file for folder in driver._SOURCES for file in folder.glob("**/*.py")):
        before = tokenize.ENCODING
        with file.open("rb") as source:
            for token in tokenize.tokenize(source.readline):
                is_docstring = token.string.startswith('"""') and before in begins
                assert is_docstring or '"""' not in token.string, (file, token.start)
                if token.type not in {tokenize.COMMENT, tokenize.NL}:
                    before = token.type


def test_where_nothing_can_be_kept_it_is_compiled_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A read-only installation without a home directory."""
    pytest.importorskip("llvmlite")
    (tmp_path / "file").touch()
    monkeypatch.setattr(compiled, "_folders", lambda: [tmp_path / "file" / "folder"])
    times: list[int] = []
    for _ in range(2):
        assert draw_from(monkeypatch, times)(engine_of([1]), 3, 0.0) == 3
    assert len(times) == 2


def test_short_runs_do_not_load_numba(run_python: Callable[..., Any]) -> None:
    code = (
        "import sys, kvsim\n"
        "from kvsim.machines import step_times\n"
        "workload = kvsim.Workload(arrival_s=[0], prompt_tokens=[9], output_tokens=[9])\n"
        "gpu, model = kvsim.find_gpu('H200'), kvsim.find_model('Meta-Llama-3-8B')\n"
        "step_time = step_times(gpu, model, 'vllm', source='none')\n"
        "machine = kvsim.Machine(gpu=gpu, model=model, kv_bytes=1 << 30, step_time=step_time)\n"
        "kvsim.simulate(workload, kvsim.Paged(), machine)\n"
        "assert 'kvsim.engine.machine_code.compiled' in sys.modules\n"
        "assert 'numba' not in sys.modules"
    )
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr


def test_every_part_of_an_engine_goes_on_in_machine_code() -> None:
    """A record of records is copied part by part, but for rows that were taken away; a new one may not be forgotten."""
    engine = driver_of(POLICY, 1, (1, 1)).engine
    parts = [name for name in engine.names() if isinstance(getattr(engine, name), Tables)]
    copied, taken = continuation._parts_of(engine), engine.encoder.rows
    for name in set(parts) - {"memory", "scheduler", "rules"}:
        assert name in continuation._NOT_COPIED_BY_NAME
        assert all(any(one is part for one in (*copied, taken)) for part in getattr(engine, name)), name
