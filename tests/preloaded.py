"""Import the modules of all `kvsim` commands, for a server of `forks`."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import kvsim.cli
from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.machines.cards import shipped_cards
from kvsim.models import find_model

_EXTRA = ("serve",)
"""Modules of commands that need optional packages."""
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
"""Modules that commands import only when they run."""


def load(*others: str) -> None:
    """Import the modules of all commands, and `others`, and read the files that most commands read."""
    ours = [module.name for module in pkgutil.iter_modules(kvsim.cli.__path__) if module.name not in _EXTRA]
    for module in (*(f"kvsim.cli.{name}" for name in ours), *_LIBRARIES, *others):
        import_module(module)
    step_times(find_gpu("H200"), find_model("Meta-Llama-3-8B"), "vllm")  # reads the lists of models and of profiles
    shipped_cards()
