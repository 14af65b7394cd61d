"""Conversion of arguments that may be names: of recordings, files of requests, or policies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from kvsim.errors import UnknownNameError, UsageError, described
from kvsim.importers import read_workload, workload_of
from kvsim.kv_groups.sglang_pools import PoolBytes
from kvsim.kv_groups.specs import check_block_size
from kvsim.policies import (
    EVERY_POLICY,
    AnyPolicy,
    Contiguous,
    CustomPolicy,
    Paged,
    Radix,
    RadixSettings,
    SGLangSettings,
    Static,
)
from kvsim.policies.custom import check_hooks, is_policy_file, policy_from_file
from kvsim.policies.settings import ContinuousSettings, StaticSettings
from kvsim.recording import Recording, find, shipped_names
from kvsim.recording import read as read_recording
from kvsim.simulation import Machine
from kvsim.sizing.sglang_budget import DEFAULT_RATIO, default_running_requests, defaults_on
from kvsim.workload import Workload

RecordingLike: TypeAlias = Recording | str | os.PathLike[str]
"""Recording: an object, its folder, or the name of one that comes with kvsim."""
WorkloadLike: TypeAlias = Workload | Recording | str | os.PathLike[str]
"""Requests: a workload, a recording whose requests are served again, the name of a recording, or a trace file."""
PolicyLike: TypeAlias = AnyPolicy | str
"""Policy: an object, a Python file with one (FILE.py:CLASS), or the name of a built-in one.

The names are "paged", "contiguous", "static" and "radix".
"""


def recording_of(given: RecordingLike) -> Recording:
    """Return the recording that is given or named."""
    if isinstance(given, Recording):
        return given
    if not isinstance(given, str | os.PathLike):
        raise UsageError(f"a recording is one that was read, its folder or its name, not {described(given)}.")
    return read_recording(find(os.fspath(given)))


def requests_of(given: WorkloadLike) -> tuple[Workload, Recording | None]:
    """Return the requests that are given or named, and the recording that they come from; None if they come from none.

    Raises:
        UnknownNameError: there is no such recording or file.
        RecordingError, WorkloadError: the file is damaged, or its format is unknown.
    """
    if isinstance(given, Workload):
        return given, None
    if isinstance(given, Recording):
        return workload_of(given), given
    if not isinstance(given, str | os.PathLike):
        raise UsageError(
            f"requests are a Workload, a recording, or the name of a file or recording, not {described(given)}."
        )
    try:
        path = find(os.fspath(given))
    except UnknownNameError as error:
        raise UnknownNameError(
            "recording, and no file of requests,", os.fspath(given), shipped_names(), listed_by="kvsim info"
        ) from error
    if Path(path).is_file():
        return read_workload(path), None
    recording = read_recording(path)
    return workload_of(recording), recording


def checked(policy: PolicyLike) -> PolicyLike:
    """Check that `policy` is a policy or the name of one, and return it. A Python file defines the policy."""
    if isinstance(policy, type):
        raise UsageError(f"{policy.__name__} is a class; give one of its objects, such as {policy.__name__}().")
    if isinstance(policy, str) and is_policy_file(policy):
        policy = policy_from_file(policy)
    if isinstance(policy, str):
        if policy not in EVERY_POLICY:
            raise UnknownNameError("policy", policy, EVERY_POLICY)
    elif isinstance(policy, Paged | Contiguous | Static | Radix):
        return policy
    # `isinstance` of a Protocol reads all attributes, and properties may fail; `check_hooks` reports that.
    elif CustomPolicy not in type(policy).__mro__ and not isinstance(policy, CustomPolicy):
        raise UsageError(f"a policy is a name or an object such as Paged(), not {described(policy)}.")
    else:
        check_hooks(policy)
    return policy


def policy_of(given: PolicyLike, machine: Machine, max_model_len: int | None = None) -> AnyPolicy:
    """Return `given` as a policy for `machine`. A policy that is given by name has its engine's default settings.

    `max_model_len` is the longest sequence in tokens of such a policy; None is that of the machine.

    Raises:
        UsageError: vLLM would not start with the policy's settings.
    """
    if not isinstance(given, str):
        if isinstance(given, Paged):
            check_block_size(machine.model, given.cache.block_size)
        limits = machine.limited(given)
        if isinstance(limits, Paged | Contiguous):
            limits.scheduler.check_starts()
        return given
    longest = max_model_len or machine.max_sequence_tokens
    if given == Static.name:
        return Static(scheduler=StaticSettings(max_model_len=longest))
    if given == Radix.name:
        defaults = defaults_on(machine.gpu, machine.model)
        num_slots = PoolBytes.of(machine.model).num_slots(machine.kv_bytes, DEFAULT_RATIO)
        scheduling = SGLangSettings(
            context_length=longest,
            chunked_prefill_size=defaults["chunked_prefill_size"],
            max_running_requests=default_running_requests(num_slots, longest),
        )
        return Radix(scheduler=scheduling, cache=RadixSettings(page_size=defaults["page_size"]))
    scheduler = ContinuousSettings(max_model_len=longest)
    return Contiguous(scheduler=scheduler) if given == Contiguous.name else Paged(scheduler=scheduler)
