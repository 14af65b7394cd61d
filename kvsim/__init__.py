"""kvsim: where does the memory of an LLM server go, and why?

    import kvsim

    run = kvsim.simulate("vllm-h200-llama-3-8b-sharegpt-pressure", "paged")
    run.summary()
    run.plot("waste-bars")
    kvsim.compare("vllm-h200-llama-3-8b-sharegpt-pressure", ["paged", "contiguous"]).summary()

Everything named here is imported when it is first used, so that `import kvsim` stays cheap. These names are stable:
before a name is removed, one release warns of it, and the release that removes it says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.on_demand import by_name, names_of

if TYPE_CHECKING:
    from kvsim.api.comparison import Comparison
    from kvsim.api.finished_run import Run
    from kvsim.api.fleet_run import FleetRun
    from kvsim.api.named_machine import machine
    from kvsim.api.questions import diagnose, fit, server
    from kvsim.api.rows import Rows
    from kvsim.api.verbs import calibrate, compare, compare_releases, read, simulate, sweep, validate, verify
    from kvsim.errors import KvsimError
    from kvsim.experiments.fixed_order import hits_in_order
    from kvsim.fitting import Server, SGLangServer
    from kvsim.hardware import Gpu, find_gpu
    from kvsim.importers import read_workload, workload_of
    from kvsim.metrics import Summary, summarize
    from kvsim.models import Model, all_models, find_model
    from kvsim.policies import Contiguous, Paged, Static
    from kvsim.policies.custom import Allocator, CustomPolicy, SharingAllocator
    from kvsim.policies.settings import (
        ContiguousSettings,
        ContinuousSettings,
        Growth,
        Order,
        PagedSettings,
        PrefixEviction,
        Reserve,
        StaticSettings,
    )
    from kvsim.recording import Recording, shipped_names, write
    from kvsim.replay import Replay
    from kvsim.simulation import Machine
    from kvsim.sizing.budget import Budget, plan_budget
    from kvsim.sizing.pool_settings import PoolSettings
    from kvsim.steptime import Roofline, StepTimeModel
    from kvsim.workload import (
        AllAtOnce,
        Constant,
        Empirical,
        Fixed,
        Gamma,
        LogNormal,
        Pauses,
        Poisson,
        Request,
        SharedPrefixes,
        Turns,
        Uniform,
        Workload,
        converse,
        generate,
    )

__version__ = "0.1.0"

_HOME = by_name({
    "kvsim.api.questions": "diagnose fit server",
    "kvsim.api.comparison": "Comparison",
    "kvsim.api.fleet_run": "FleetRun",
    "kvsim.api.named_machine": "machine",
    "kvsim.api.rows": "Rows",
    "kvsim.api.finished_run": "Run",
    "kvsim.api.verbs": "calibrate compare compare_releases read simulate sweep validate verify",
    "kvsim.errors": "KvsimError",
    "kvsim.experiments.fixed_order": "hits_in_order",
    "kvsim.fitting": "SGLangServer Server",
    "kvsim.hardware": "Gpu find_gpu",
    "kvsim.importers": "read_workload workload_of",
    "kvsim.metrics": "Summary summarize",
    "kvsim.models": "Model all_models find_model",
    "kvsim.policies": "Contiguous Paged Static",
    "kvsim.policies.custom": "Allocator CustomPolicy SharingAllocator",
    "kvsim.policies.settings": (
        "ContiguousSettings ContinuousSettings Growth Order PagedSettings PrefixEviction Reserve StaticSettings"
    ),
    "kvsim.recording": "Recording shipped_names write",
    "kvsim.replay": "Replay",
    "kvsim.simulation": "Machine",
    "kvsim.sizing.budget": "Budget plan_budget",
    "kvsim.sizing.pool_settings": "PoolSettings",
    "kvsim.steptime": "Roofline StepTimeModel",
    "kvsim.workload": (
        "AllAtOnce Constant Empirical Fixed Gamma LogNormal Pauses Poisson Request SharedPrefixes Turns Uniform "
        "Workload converse generate"
    ),
})  # fmt: skip
"""Module of each public name, by the name."""

__all__ = [
    "AllAtOnce",
    "Allocator",
    "Budget",
    "Comparison",
    "Constant",
    "Contiguous",
    "ContiguousSettings",
    "ContinuousSettings",
    "CustomPolicy",
    "Empirical",
    "Fixed",
    "FleetRun",
    "Gamma",
    "Gpu",
    "Growth",
    "KvsimError",
    "LogNormal",
    "Machine",
    "Model",
    "Order",
    "Paged",
    "PagedSettings",
    "Pauses",
    "Poisson",
    "PoolSettings",
    "PrefixEviction",
    "Recording",
    "Replay",
    "Request",
    "Reserve",
    "Roofline",
    "Rows",
    "Run",
    "SGLangServer",
    "Server",
    "SharedPrefixes",
    "SharingAllocator",
    "Static",
    "StaticSettings",
    "StepTimeModel",
    "Summary",
    "Turns",
    "Uniform",
    "Workload",
    "__version__",
    "all_models",
    "calibrate",
    "compare",
    "compare_releases",
    "converse",
    "diagnose",
    "find_gpu",
    "find_model",
    "fit",
    "generate",
    "hits_in_order",
    "machine",
    "plan_budget",
    "read",
    "read_workload",
    "server",
    "shipped_names",
    "simulate",
    "summarize",
    "sweep",
    "validate",
    "verify",
    "workload_of",
    "write",
]

__getattr__ = names_of(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted(__all__)
