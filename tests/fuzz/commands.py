"""Every command that writes, ready to be disturbed while it does: each is a process of its own, in a folder of its own.

The processes are forked from one that has imported everything: to start Python 10,000 times would take most of a day.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path

import kvsim.cli
from kvsim.recording import read
from kvsim.steptime.card import load_card
from tests.fuzz.seeds import ROOT, make_seeds
from tests.preloaded import load

COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "--workload", "paged", "-o", "out"),
    "run replicas": ("run", "--workload", "paged", "--replicas", "2", "-o", "out"),
    "run ranks": ("run", "--workload", "paged", "--model", "Qwen3-30B-A3B", "--gpu", "H200", "--data-parallel-size",
                  "2", "-o", "out"),
    "run prefill": ("run", "--workload", "paged", "--prefill", "1", "--decode", "1", "-o", "out"),
    "compare": ("compare", "--workload", "paged", "--max-model-len", "64", "-o", "out"),
    "compare values": ("compare", "--workload", "paged", "--max-num-seqs", "2", "4", "-o", "out"),
    "import": ("import", "paged", "-o", "out"),
    "export": ("export", "paged", "-o", "out", "--overwrite"),
    "export csv": ("export", "paged", "--to", "csv", "-o", "out", "--overwrite"),
    "export mooncake": ("export", "paged", "--to", "mooncake", "-o", "out", "--overwrite"),
    "plot": ("plot", "queue", "paged", "-o", "out.png"),
    "plot all": ("plot", "--all", "paged", "-o", "out"),
    "animate": ("animate", "paged", "-o", "out.html"),
    "animate gif": ("animate", "paged", "-o", "out.gif"),
    "report": ("report", "paged", "-o", "out"),
    "explain": ("explain", "1", "--markdown", "-o", "out"),
    "fit": ("fit", "--rate", "2", "--prompt-tokens", "50", "--output-tokens", "5", "--num-requests", "20",
            "--points", "4", "--jobs", "2", "--figure", "out.png"),
    "calibrate": ("calibrate", "hf-h200-granite-350m-batch64-static", "hf-h200-granite-350m-heldout-batch32-static",
                  "-o", "out.toml"),
    "screenshot": ("tui", "paged", "--screenshot", "out.svg", "--size", "80x24"),
    "sweep": ("sweep", "--workload", "paged", "--vary", "num-blocks=30,40", "--jobs", "1", "-o", "out"),
    "sweep figure": ("sweep", "--workload", "paged", "--vary", "num-blocks=30,40", "--jobs", "1", "-o", "table",
                     "--figure", "out.png"),
    "validate": ("validate", "auto", "generate", "--plot", "out.png"),
    "reproduce": ("reproduce", "kv-per-token", "--plot", "out.png"),
    "calibrate card": ("calibrate", "vllm-h200-granite-350m-gsm8k", "--card", "auto", "-o", "out.toml"),
    "capture": ("capture", "hf", "--model", "tiny", "--prompt-tokens", "4", "--output-tokens", "3", "--num-requests",
                "2", "--device", "cpu", "-o", "out", "--overwrite"),
    "measure": ("measure", "-o", "out.toml"),
    "attach": ("tui", "--attach", "127.0.0.1:1", "-o", "out", "--overwrite"),
    "attach KV events": ("tui", "--attach", "http://127.0.0.1:1/metrics", "--kv-events", "1", "--kv-events-replay", "2",
                         "-o", "out.csv", "--overwrite"),
    "attach metrics": ("tui", "--attach", "http://127.0.0.1:1/metrics", "-o", "out.csv", "--overwrite"),
}  # fmt: skip
_LOADED = ("pandas", "perfetto.trace_builder.proto_builder")
_LOADED_TO_CAPTURE = ("kvsim.capture.hf",)


def prepare(folder: Path, names: Collection[str]) -> None:
    """Make what the commands of these names read, below `folder`, and import what they import."""
    if in_a_fork(lambda: make_seeds(folder)):  # whose threads a fork would not have
        raise SystemExit("the seeds cannot be made")
    load(*_LOADED, *(_LOADED_TO_CAPTURE if "capture" in names else ()))
    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy all of this


def run(
    arguments: Sequence[str],
    folder: Path,
    *,
    kill_after_s: float = 600.0,
    before: Callable[[], object] = lambda: None,
    complaint: Path = Path(os.devnull),
) -> int:
    """Run a command in `folder`, and return its exit code, or that it was killed.

    Args:
        kill_after_s: how long it is left alone.
        before: what its process does first.
        complaint: a file for what it says to stderr.
    """
    process = _fork(lambda: _be_kvsim(arguments, folder, before, complaint))
    until_s = time.monotonic() + kill_after_s
    while os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() >= until_s:
            os.kill(process, signal.SIGKILL)
            break
        time.sleep(0.0005)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


def _be_kvsim(arguments: Sequence[str], folder: Path, before: Callable[[], object], complaint: Path) -> None:
    """Go on as `kvsim` with these arguments, until it exits."""
    os.chdir(folder)
    silence = os.open(os.devnull, os.O_RDWR)
    for stream, to in enumerate((silence, silence, os.open(complaint, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))):
        os.dup2(to, stream)
    if arguments[0] in ("measure", "tui"):
        _stand_in()
    sys.argv = ["kvsim", *arguments]
    before()
    kvsim.cli.main()


class _Feed:
    """A server that has been watched, and left."""

    ended = ended_before_close = None

    def __init__(self, address: str) -> None:
        pass

    def close(self) -> None:
        pass

    def looks(self) -> tuple[()]:
        return ()


def _stand_in() -> None:
    """Put something in the place of what is not here: a GPU to measure, a server, and a person who quits."""
    os.environ["TEXTUAL_DRIVER"] = "none"
    card = load_card(ROOT / "kvsim" / "machines" / "cards" / "h200.toml")
    vars(import_module("kvsim.measure"))["measure"] = lambda *_, **__: card
    vars(import_module("kvsim.live.event_feed"))["LiveFeed"] = _Feed
    vars(import_module("kvsim.live.metrics_feed"))["MetricsFeed"] = _Feed
    vars(import_module("kvsim.live.metrics"))["as_csv"] = lambda _: "time_s\n" * 10_000
    vars(import_module("kvsim_tui")).update(
        attach=lambda *_, **__: read(Path("paged")), watch_metrics=lambda *_, **__: 0
    )


def _fork(work: Callable[[], object]) -> int:
    """The number of a process that does `work` and exits as a program would."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def in_a_fork(work: Callable[[], object]) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(_fork(work), 0)[1])
