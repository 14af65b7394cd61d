"""kvsim: where does the memory of an LLM server go, and why?

    import kvsim

    recording = kvsim.read("traces/vllm-h200-llama-3-8b-sharegpt-pressure")
    print(kvsim.summarize(recording).as_dict())

Everything named here is imported when it is first used, so that `import kvsim` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.budget import Budget, plan_budget
    from kvsim.errors import KvsimError
    from kvsim.hardware import Gpu, find_gpu
    from kvsim.importers import workload_of
    from kvsim.metrics import Summary, summarize
    from kvsim.models import Model, find_model
    from kvsim.policies import Contiguous, Paged, Static
    from kvsim.recording import Recording, Replay, read, write
    from kvsim.simulation import Machine, simulate
    from kvsim.steptime import Roofline
    from kvsim.workload import Request, Workload, generate

__version__ = "0.1.0"

_HOME = {
    "Budget": "kvsim.budget",
    "Contiguous": "kvsim.policies",
    "Gpu": "kvsim.hardware",
    "KvsimError": "kvsim.errors",
    "Machine": "kvsim.simulation",
    "Model": "kvsim.models",
    "Paged": "kvsim.policies",
    "Recording": "kvsim.recording",
    "Replay": "kvsim.recording",
    "Request": "kvsim.workload",
    "Roofline": "kvsim.steptime",
    "Static": "kvsim.policies",
    "Summary": "kvsim.metrics",
    "Workload": "kvsim.workload",
    "find_gpu": "kvsim.hardware",
    "find_model": "kvsim.models",
    "generate": "kvsim.workload",
    "plan_budget": "kvsim.budget",
    "read": "kvsim.recording",
    "simulate": "kvsim.simulation",
    "summarize": "kvsim.metrics",
    "workload_of": "kvsim.importers",
    "write": "kvsim.recording",
}
"""Where each public name lives."""

__all__ = [
    "Budget",
    "Contiguous",
    "Gpu",
    "KvsimError",
    "Machine",
    "Model",
    "Paged",
    "Recording",
    "Replay",
    "Request",
    "Roofline",
    "Static",
    "Summary",
    "Workload",
    "__version__",
    "find_gpu",
    "find_model",
    "generate",
    "plan_budget",
    "read",
    "simulate",
    "summarize",
    "workload_of",
    "write",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'kvsim' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
