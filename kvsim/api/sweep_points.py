"""Runs of `kvsim.sweep`: one for each combination of the varied settings of the policy and the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import fields, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from kvsim.api.given import PolicyLike, checked, policy_of
from kvsim.api.named_machine import DEFAULT_MACHINE, MachineLike, machine, machine_for
from kvsim.errors import UsageError, described
from kvsim.experiments.sweeps import Point
from kvsim.hardware import GIB
from kvsim.policies import AnyPolicy, Paged
from kvsim.policies.custom import CustomPolicy
from kvsim.setting_fields import check_instance, settings_in
from kvsim.simulation import Machine
from kvsim.sizing.machine_settings import MachineSettings

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.workload import Workload

_OF_MACHINE = frozenset(each.name for each in settings_in(MachineSettings))
_MEMORY = frozenset({"kv_gib", "num_blocks"})
"""Settings of a machine that a sweep can vary on any machine.

The others can be varied only if the machine is given by name, or is kvsim's default. They cannot be varied if it is a
`Machine`, or comes from the recording.
"""


def points_of(
    workload: Workload,
    source: Recording | None,
    policy: PolicyLike,
    given: MachineLike | None,
    vary: Mapping[str, Sequence[Any]],
    *,
    longest: int | None,
    refuse_misfits: bool,
) -> list[Point]:
    """Return a point of the sweep for every combination of the values in `vary`. The last name varies fastest.

    `workload` has the requests, and `source` is the recording that they come from; None if there is none. `policy` and
    the machine `given` have the settings that are not varied. `longest` is the `max_model_len` of policies that are
    given by name; None for that of the machine. With `refuse_misfits`, requests that can never be served are left out.
    """
    check_instance("vary", vary, Mapping, "a mapping such as {'num_blocks': [1000, 2000]}")
    for name, several in vary.items():
        if isinstance(several, str | bytes) or not isinstance(several, Iterable):
            raise UsageError(f"the values of {name} in vary should be a list, not {described(several)}.")
    points = []
    for values in product(*vary.values()):
        settings = dict(zip(vary, values, strict=True))
        of_machine = {name: value for name, value in settings.items() if name in _OF_MACHINE}
        chosen = checked(settings.get("policy", policy))
        on = _machine_with(of_machine, given, source, chosen)
        varied = policy_of(chosen, on, longest)
        for name in settings.keys() - of_machine.keys() - {"policy"}:
            varied = _with_setting(varied, name, settings[name])
        if "num_blocks" in of_machine:
            on = _with_blocks(on, of_machine["num_blocks"], varied)
        words = {name: _in_table(value) for name, value in settings.items()}
        points.append(
            Point(settings=words, workload=workload, policy=varied, machine=on, refuse_misfits=refuse_misfits)
        )
    return points


def _machine_with(
    changes: Mapping[str, Any], given: MachineLike | None, source: Recording | None, policy: PolicyLike
) -> Machine:
    """Return the machine `given` with the settings `changes`. `num_blocks` is checked here and applied later, by
    `_with_blocks`.
    """
    for name in _MEMORY & changes.keys():
        if changes[name] is None:
            raise UsageError(f"the values of {name} in vary should be numbers, not None.")
    MachineSettings(**changes)  # checks the types and bounds
    if set(changes) <= _MEMORY:
        if len(changes) > 1:
            raise UsageError("kv_gib and num_blocks set the same value; vary only one.")
        on = machine_for(given, source, policy)
        return replace(on, kv_bytes=int(changes["kv_gib"] * GIB)) if "kv_gib" in changes else on
    if isinstance(given, Machine) or (given is None and source is not None) or not isinstance(given, str | None):
        names = ", ".join(changes)
        raise UsageError(f"{names} can be varied where the machine is named; give machine='GPU/MODEL'.")
    gpu, _, model = (given or DEFAULT_MACHINE).partition("/")
    return machine(**{"gpu": gpu, "model": model} | dict(changes))


def _with_blocks(on: Machine, num_blocks: int, policy: AnyPolicy) -> Machine:
    """Return `on` with memory for `num_blocks` blocks of `policy`. If `policy` has no blocks, use vLLM's block size.

    `on` is returned unchanged if `policy` cannot be run on it.
    """
    try:
        layout = on.layout(policy) or on.layout(Paged())
    except UsageError:
        return on  # the run fails with this error, which its row has
    assert layout is not None
    return replace(on, kv_bytes=num_blocks * layout.bytes_per_block)


def _with_setting(policy: AnyPolicy, name: str, value: Any) -> AnyPolicy:
    for part in ("scheduler", "cache"):
        settings: Any = getattr(policy, part, None)
        if settings is not None and name in {field.name for field in fields(settings)}:
            changed = replace(settings, **{name: value})
            if not isinstance(policy, CustomPolicy):
                return replace(policy, **{part: changed})
            changed_policy = copy(policy)
            setattr(changed_policy, part, changed)
            return changed_policy
    raise UsageError(f"{name} is no setting of the policy {policy.name} and no argument of kvsim.machine.")


def _in_table(value: Any) -> Any:
    """Return `value` for a cell of the table: a plain value as it is, and an object by its name."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(getattr(value, "name", value))
