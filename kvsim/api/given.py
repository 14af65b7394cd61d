"""What a caller may give in place of a value: the name of a recording, of a file with requests, of a policy."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from kvsim.errors import UnknownNameError
from kvsim.importers import read_workload, workload_of
from kvsim.policies import POLICY_NAMES, AnyPolicy, Contiguous, Paged, Static
from kvsim.policies.settings import ContinuousSettings, EngineDefaults, PagedSettings, StaticSettings
from kvsim.recording import Recording, find
from kvsim.recording import read as read_recording
from kvsim.simulation import Machine
from kvsim.workload import Workload

RecordingLike: TypeAlias = Recording | str | os.PathLike[str]
"""A recording, its folder, or the name of one that comes with kvsim."""
WorkloadLike: TypeAlias = Workload | Recording | str | os.PathLike[str]
"""Requests: a workload, a recording whose requests are served again, or the name of either, or of a trace file."""
PolicyLike: TypeAlias = AnyPolicy | str
"""A policy, or the name of a built-in one: "paged", "contiguous" or "static"."""


def recording_of(given: RecordingLike) -> Recording:
    """The recording that was given or named.

    Raises:
        UnknownNameError: it is neither a folder nor a recording that comes with kvsim.
        RecordingError: it is damaged.
    """
    return given if isinstance(given, Recording) else read_recording(find(os.fspath(given)))


def requests_of(given: WorkloadLike) -> tuple[Workload, Recording | None]:
    """The requests that were given or named, and the recording that they are from, if they are.

    Raises:
        UnknownNameError: there is no such recording or file.
        RecordingError, WorkloadError: it is damaged, or no format of requests.
    """
    if isinstance(given, Workload):
        return given, None
    if isinstance(given, Recording):
        return workload_of(given), given
    path = find(os.fspath(given))
    if Path(path).is_file():
        return read_workload(path), None
    recording = read_recording(path)
    return workload_of(recording), recording


def policy_of(given: PolicyLike, machine: Machine, max_model_len: int | None = None) -> AnyPolicy:
    """The policy that was given, or the named one with vLLM's defaults on the GPU of `machine`.

    `max_model_len` is the longest sequence in tokens; the model's, if left out.

    Raises:
        UnknownNameError: no policy has that name.
    """
    if not isinstance(given, str):
        return given
    if given not in POLICY_NAMES:
        raise UnknownNameError("policy", given, POLICY_NAMES)
    longest = max_model_len or machine.model.max_position_embeddings
    if given == Static.name:
        return Static(scheduler=StaticSettings(max_model_len=longest))
    gpu = machine.gpu
    defaults = EngineDefaults.of("llm", gpu.memory_bytes, is_a100=gpu.name.startswith("A100"))
    scheduler = ContinuousSettings(
        max_num_seqs=defaults.max_num_seqs,
        max_num_batched_tokens=defaults.max_num_batched_tokens,
        max_model_len=longest,
    )
    if given == Contiguous.name:
        return Contiguous(scheduler=scheduler)
    return replace(Paged(scheduler=scheduler), cache=PagedSettings())
