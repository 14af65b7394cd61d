"""The arrows between rooms, proved twice: by reading every import, and by what a fresh process has loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]
HEAVY = ("simpy", "textual", "torch", "transformers", "vllm", "matplotlib", "pyarrow", "rich")


def loaded_by(run_python: RunPython, code: str) -> set[str]:
    """The top-level modules that a fresh process has loaded after running `code`."""
    result = run_python("-c", f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.__stderr__)")
    assert result.returncode == 0, result.stderr
    return {name.partition(".")[0] for name in result.stderr.splitlines()}


def test_importing_kvsim_loads_nothing_heavy(run_python: RunPython) -> None:
    loaded = loaded_by(run_python, "import kvsim")
    assert "kvsim" in loaded
    assert not loaded & {*HEAVY, "numpy", "click"}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []], ids=str)
def test_looking_at_the_commands_loads_nothing_heavy(run_python: RunPython, arguments: list[str]) -> None:
    code = (
        f"sys.argv = ['kvsim', *{arguments!r}]\n"
        "from kvsim.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )
    result = run_python("-c", f"import sys\n{code}\nprint('LOADED', *sys.modules, sep='\\n')")
    loaded = {name.partition(".")[0] for name in result.stdout.partition("LOADED")[2].split()}
    assert "click" in loaded
    assert not loaded & {*HEAVY, "numpy"}


def test_the_help_of_a_command_loads_nothing_heavy(run_python: RunPython) -> None:
    code = f"""
from importlib import import_module
for name in ("run", "compare", "tui", "plot", "info", "size", "verify", "capture"):
    import_module(f"kvsim.cli.{{name}}").command.main(["--help"], standalone_mode=False)
    assert not sys.modules.keys() & {{*{HEAVY!r}, "numpy"}}, name
"""
    assert "click" in loaded_by(run_python, code)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("from kvsim import read, simulate, find_gpu, summarize, generate", {"textual", "matplotlib", "torch"}),
        ("import kvsim.recording, kvsim.replay, kvsim.metrics", {"simpy", "textual", "matplotlib", "pyarrow"}),
        ("import kvsim.engine.driver, kvsim.engine.initialization", {"simpy", "pyarrow", "numba", "click"}),
        ("import kvsim.simulation", {"numba", "textual", "matplotlib", "pyarrow", "rich", "click"}),
        ("import kvsim.memory.packing, kvsim.memory.waste", {"simpy", "pyarrow", "click"}),
    ],
)
def test_a_room_loads_only_what_it_stands_on(run_python: RunPython, code: str, absent: set[str]) -> None:
    assert not loaded_by(run_python, code) & absent


def test_a_room_knows_nothing_of_the_rooms_above(run_python: RunPython) -> None:
    code = """
from importlib import import_module
for room in ("files", "memory", "workload", "steptime", "engine", "recording", "replay", "metrics"):
    import_module(f"kvsim.{room}")
    above = ("kvsim.cli", "kvsim.plots", "kvsim.simulation", "kvsim_tui")
    assert not [name for name in sys.modules if name.startswith(above)], room
"""
    assert "kvsim" in loaded_by(run_python, code)


def test_the_contracts_hold(repository: Path, tmp_path: Path) -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    if not lint_imports.exists():
        pytest.skip("import-linter is not installed")
    result = subprocess.run(
        [lint_imports, "--no-cache"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path)},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout
