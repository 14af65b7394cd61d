"""Questions about a server: whether a load fits it, and why its requests waited. Simulations find the answers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Literal, overload

from kvsim.api.given import RecordingLike, WorkloadLike, recording_of, requests_of
from kvsim.diagnosis import RUNS_BESIDE_CHANGES, Diagnosis, engine_of
from kvsim.diagnosis import diagnose as explain
from kvsim.errors import UnknownNameError, UsageError, shortened
from kvsim.fitting import (
    RUNS_OF_LARGEST_LOAD,
    Answer,
    Goal,
    Load,
    Search,
    SearchedServer,
    Server,
    SGLangServer,
    answer,
    engine_for,
)
from kvsim.hardware import find_gpu
from kvsim.kv_groups.specs import check_block_size, check_length
from kvsim.models import find_model
from kvsim.policies.releases import DEFAULT_RELEASE, defaults_of, number_of
from kvsim.setting_fields import check_instance, whole_number
from kvsim.simulation import EngineName

Progress = Callable[[int, int], None]
_NAMED = re.compile(r"(?:(\d+)x)?([^/]+)/(.+)")
_MODEL_SETTINGS = ("kv_cache_dtype",)
_SERVERS: dict[str, Any] = {"paged": Server, "radix": SGLangServer}


_MOST_CHANGES = 100_000
"""Largest number of changes that may be simulated."""


@overload
def server(named: str, *, policy: Literal["paged"] = "paged", **settings: Any) -> Server: ...
@overload
def server(named: str, *, policy: Literal["radix"], **settings: Any) -> SGLangServer: ...
def server(named: str, *, policy: str = "paged", **settings: Any) -> Server | SGLangServer:
    """Return the server that a text names, with the default limits of `vllm serve` or of SGLang on its GPU.

    Args:
        named: the text: "GPU/MODEL", or "4xH100/Llama-3.1-70B-Instruct" for a model on four GPUs, tensor parallel.
        policy: "paged" for vLLM's server, "radix" for SGLang's.
        settings: fields of `Server` or of `SGLangServer` to change, such as `max_num_seqs`, `gpu_memory_utilization`,
            `num_blocks` (blocks of the pool), `mem_fraction_static`, `replicas` or `times`; and `kv_cache_dtype`.

    Raises:
        UnknownNameError: no GPU, model or policy of a server is listed under that name.
        UsageError: `named` is malformed, or a setting is unknown or invalid.
    """
    check_instance("a server", named, str, 'a GPU and a model, such as "H200/Llama-3-8B"')
    match = _NAMED.fullmatch(named.strip())
    if match is None:
        raise UsageError(f'a server is a GPU and a model, such as "H200/Llama-3-8B", not {named!r}.')
    check_instance("the policy of a server", policy, str, "paged or radix")
    if policy not in _SERVERS:
        raise UnknownNameError("policy of a server", policy, _SERVERS)
    kind = _SERVERS[policy]
    known = {field.name for field in fields(kind)} - {"gpu", "model"}
    for name in settings:
        if name not in known and name not in _MODEL_SETTINGS:
            raise UsageError(
                f"{name} is no setting of a server; there are {', '.join(sorted({*known, *_MODEL_SETTINGS}))}."
            )
    model_settings = {name: settings.pop(name) for name in _MODEL_SETTINGS if name in settings}
    model = find_model(match[3]).served(tensor_parallel_size=int(match[1] or 1), **model_settings)
    defaults: dict[str, Any] = {"name": match[3]}
    if kind is Server:
        release = settings.get("vllm", DEFAULT_RELEASE)
        number_of(release)  # refuses what is no release
        check_length(model, settings.get("max_model_len"))
        check_block_size(model, settings.get("block_size"))
        defaults |= {
            "enable_prefix_caching": not model.recurrent_layers,
            "gpu_memory_utilization": defaults_of(release).gpu_memory_utilization,
        }
    found: Server | SGLangServer = kind(gpu=find_gpu(match[2]), model=model, **defaults | settings)
    found.policy()  # checks the settings
    return found


def fit(
    workload: WorkloadLike,
    on: SearchedServer | str,
    *,
    users: int | None = None,
    think_s: float = 0.0,
    ttft_p99_s: float | None = None,
    tpot_p99_s: float | None = None,
    most: int = 60,
    num_jobs: int = -1,
    engine: EngineName = "auto",
    progress: Progress | None = None,
) -> Answer:
    """Tell whether a load fits a server, what limits it, and which changes help; every change is simulated.

    Args:
        workload: the requests, as in `kvsim.simulate`.
        on: a `Server` of vLLM, its name as in `kvsim.server`, or an `SGLangServer`.
        users: number of users who each wait for an answer before the next request; None for an open loop.
        think_s: seconds between an answer and a user's next request.
        ttft_p99_s: the load fits if the 99th percentile of TTFT is at most this, in seconds; None for no such target.
        tpot_p99_s: the load fits if the 99th percentile of TPOT is at most this, in seconds; None for no such target.
        most: largest number of changes to simulate.
        num_jobs: runs at a time; -1 for one per core.
        engine: "interpreted", "compiled", or "auto", which chooses by the amount of work.
        progress: called with the number of runs done, and of all runs.

    Raises:
        UsageError: a setting or target is invalid, or `think_s` is given without `users`.
        WorkloadError: a request is longer than the server allows.
    """
    requests, _ = requests_of(workload)
    if think_s and users is None:
        raise UsageError(f"think_s is {think_s}, and only users in a closed loop think; give users as well.")
    load = Load(workload=requests, users=users, think_s=think_s)
    known = server(on) if isinstance(on, str) else on
    check_instance("on", known, SearchedServer, "a server, or its name such as 'H200/Llama-3-8B'")
    _check_most(most)
    if engine == "auto":
        engine = engine_for(load, most + RUNS_OF_LARGEST_LOAD, known.memory, known.replicas)
    search = Search(num_jobs=num_jobs, engine=engine, progress=progress)
    goal = Goal(ttft_p99_s=ttft_p99_s, tpot_p99_s=tpot_p99_s)
    return answer(known, load, goal, search, most=most)


def diagnose(
    recording: RecordingLike,
    *,
    ttft_p99_s: float | None = None,
    tpot_p99_s: float | None = None,
    times: str | os.PathLike[str] | None = None,
    most: int = 40,
    num_jobs: int = -1,
    engine: EngineName = "auto",
    progress: Progress | None = None,
) -> Diagnosis:
    """Explain the waiting and preemptions of a recorded server, and predict the effect of each remedy on its requests.

    Args:
        recording: recording of a vLLM server, or a simulation.
        ttft_p99_s: target for the 99th percentile of TTFT, in seconds; None for no such target.
        tpot_p99_s: target for the 99th percentile of TPOT, in seconds; None for no such target.
        times: a profile or a machine card, by file or by name; None for the best that comes with kvsim.
        most: largest number of changes to simulate.
        num_jobs: runs at a time; -1 for one per core.
        engine: "interpreted", "compiled", or "auto", which chooses by the amount of work.
        progress: called with the number of runs done, and of all runs.

    Raises:
        UsageError: the recording is of another engine, or lacks settings.
        WorkloadError: none of its requests has an answer.
    """
    subject = recording_of(recording)
    check_instance("times", times, str | os.PathLike | None, "a profile or a machine card, by file or by name")
    _check_most(most)
    if engine == "auto":
        engine = engine_of(subject, most + RUNS_BESIDE_CHANGES)
    search = Search(num_jobs=num_jobs, engine=engine, progress=progress)
    goal = Goal(ttft_p99_s=ttft_p99_s, tpot_p99_s=tpot_p99_s)
    return explain(subject, search, goal=goal, times=None if times is None else os.fspath(times), most=most)


def _check_most(most: int) -> None:
    if whole_number("most", most, at_least=0) > _MOST_CHANGES:
        raise UsageError(f"most is {shortened(most)}; it must be at most {_MOST_CHANGES:,} changes.")
