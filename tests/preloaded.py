"""The command line from a process that has imported it: a fork of that is `kvsim` without the wait for its imports.

Run as a program, this reads a request in each line and answers with the exit code of a fork that went on as `kvsim`.
What an interpreter is told at its start (`PYTHONHASHSEED`, `-X`) needs a process from the start.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pkgutil
import subprocess
import sys
import tempfile
import threading
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import kvsim.cli
from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import find_model

_EXTRA = ("serve",)
"""Modules of the command line that need what may not be installed."""
_LIBRARIES = (
    "PIL.BmpImagePlugin", "PIL.GifImagePlugin", "PIL.JpegImagePlugin", "PIL.PngImagePlugin", "PIL.PpmImagePlugin",
    "encodings.ascii", "http.client", "joblib", "joblib.externals.loky.backend.popen_loky_posix", "llvmlite.binding",
    "matplotlib.backends.backend_agg", "matplotlib.backends.backend_pdf", "matplotlib.backends.backend_svg",
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", "pyarrow.compute", "pyarrow.parquet", "rich.progress",
    "scipy.optimize", "textual.drivers.headless_driver", "textual.drivers.linux_driver", "textual.layouts.factory",
    "textual.pilot", "textual.scrollbar",
    "kvsim.calibration", "kvsim.engine.machine_code.object_code", "kvsim.exporters", "kvsim.experiments.bands",
    "kvsim.experiments.sweeps", "kvsim.experiments.validation", "kvsim.fitting", "kvsim.importers",
    "kvsim.importers.select", "kvsim.live.address", "kvsim.metrics.contradictions", "kvsim.metrics.group_totals",
    "kvsim.plots.report_page", "kvsim.published", "kvsim.recording.check", "kvsim.recording.parquet",
    "kvsim_tui.app", "kvsim_tui.lessons", "kvsim_tui.saving",
)  # fmt: skip
"""What commands import when they are called."""


class Commands:
    """Runs `kvsim` in forks of one process, one command at a time."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.preloaded"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parent.parent,
        )

    def run(
        self, arguments: tuple[str, ...], folder: Path, environment: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """What the command said and returned, as `subprocess.run` has it."""
        server = self._server
        assert server.stdin is not None
        assert server.stdout is not None
        with tempfile.TemporaryDirectory() as said:
            words = {name: Path(said, name) for name in ("stdout", "stderr")}
            request = {"arguments": arguments, "folder": str(folder), "environment": environment, "said": said}
            server.stdin.write(json.dumps(request) + "\n")
            server.stdin.flush()
            code = int(server.stdout.readline())
            return subprocess.CompletedProcess(
                arguments, code, **{name: file.read_text() for name, file in words.items()}
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()


def load(*others: str) -> None:
    """Import what commands import, and `others`, and read what most of them read, for forks of this process."""
    ours = [module.name for module in pkgutil.iter_modules(kvsim.cli.__path__) if module.name not in _EXTRA]
    for module in (*(f"kvsim.cli.{name}" for name in ours), *_LIBRARIES, *others):
        import_module(module)
    step_times(find_gpu("H200"), find_model("Meta-Llama-3-8B"), "vllm")  # reads the lists of models and of profiles
    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy all of this


def _become(request: dict[str, Any]) -> None:
    """Take the place of a process that was started with these arguments, in this folder."""
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(Path(request["said"], name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.argv = ["kvsim", *request["arguments"]]


def _serve() -> None:
    """Answer requests to their end; in a fork, return."""
    for line in sys.stdin:
        process = os.fork()
        if not process:
            return _become(json.loads(line))
        _, status = os.waitpid(process, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
    raise SystemExit


def _finish() -> None:
    """Run the command, and end as Python does, but for taking its modules down: that costs ten times as much as the
    command, since a fork copies whatever it takes down.
    """
    code: object = 0
    try:
        kvsim.cli.main()
    except SystemExit as end:
        code = end.code or 0
        if not isinstance(code, int):
            raise
    if threading.active_count() == 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


if __name__ == "__main__":
    load()
    _serve()
    _finish()
