"""Functions of the package that correspond to commands: simulate, compare, sweep, read, verify, validate, calibrate."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from kvsim import simulation
from kvsim.api.comparison import Comparison
from kvsim.api.finished_run import Run
from kvsim.api.fleet_run import FleetRun
from kvsim.api.given import PolicyLike, RecordingLike, WorkloadLike, checked, policy_of, recording_of, requests_of
from kvsim.api.named_machine import MachineLike, machine_for
from kvsim.api.rows import Rows
from kvsim.api.sweep_points import points_of
from kvsim.errors import UsageError, described
from kvsim.experiments import sweeps, validation
from kvsim.experiments.upgrades import Upgrade, explain_upgrade
from kvsim.policies import EVERY_POLICY, OF_IMAGES, AnyPolicy, ContinuousSettings, Paged
from kvsim.policies.connectors import KvLink
from kvsim.policies.routers import RouteName, Router
from kvsim.profiles import Profile
from kvsim.setting_fields import check_instance, check_progress, whole_number
from kvsim.simulation import Disaggregation, Machine, Options, PrefixStore, Replicas

if TYPE_CHECKING:
    from kvsim.conformance import Verdict
    from kvsim.experiments.validation import Validation
    from kvsim.recording import Recording
    from kvsim.steptime import StepTimeModel
    from kvsim.steptime.card import Card
    from kvsim.workload import Workload


def read(recording: RecordingLike) -> Run:
    """Read a recorded run: a folder, or the name of a recording that comes with kvsim (`kvsim.shipped_names()`).

    Raises:
        UnknownNameError: there is no such folder or name.
        RecordingError: the recording is truncated or inconsistent; the message names the file, and the row if known.
    """
    return Run.of(recording_of(recording))


@overload
def simulate(
    workload: WorkloadLike,
    policy: PolicyLike = "paged",
    machine: MachineLike | None = None,
    *,
    replicas: None = None,
    **options: Unpack[Options],
) -> Run: ...
@overload
def simulate(
    workload: WorkloadLike,
    policy: PolicyLike = "paged",
    machine: MachineLike | None = None,
    *,
    replicas: int,
    route: RouteName | str | Router = "shortest",
    route_lag_s: float = 0.0,
    prefix_store: PrefixStore | None = None,
    **options: Unpack[Options],
) -> FleetRun: ...
@overload
def simulate(
    workload: WorkloadLike,
    policy: PolicyLike = "paged",
    machine: MachineLike | None = None,
    *,
    prefill: int,
    decode: int,
    kv_link: KvLink | None = None,
    route: RouteName | str | Router = "shortest",
    **options: Unpack[Options],
) -> FleetRun: ...
def simulate(
    workload: WorkloadLike,
    policy: PolicyLike = "paged",
    machine: MachineLike | None = None,
    *,
    replicas: int | None = None,
    prefill: int | None = None,
    decode: int | None = None,
    kv_link: KvLink | None = None,
    route: RouteName | str | Router | None = None,
    route_lag_s: float = 0.0,
    prefix_store: PrefixStore | None = None,
    **options: Unpack[Options],
) -> Run | FleetRun:
    """Serve all requests of `workload` under `policy` on `machine`, and return the run.

    Args:
        workload: a `Workload`, a recording whose requests are served again, or the name of one or of a trace file.
        policy: a policy, a Python file with one (FILE.py:CLASS), or "paged", "contiguous", "static" or "radix" with the
            defaults of the engine that it models.
        machine: a `Machine`, a recording of one, or "GPU/MODEL" such as "H200/Llama-3-8B"; by default the machine of
            the recording that the requests are from, or "H200/Meta-Llama-3-8B".
        replicas: number of equal servers behind one router; None for one server. With several servers or data-parallel
            ranks, the result is a `FleetRun`, which has a run for each server or rank.
        prefill: number of servers that only compute prompts; the result is a `FleetRun` that begins with these servers.
            None, like `decode`, if each server does both.
        decode: number of servers that fetch the KV of prompts and generate the answers.
        kv_link: speed and latency of the link of a decode server, and its number of concurrent transfers; None for the
            defaults of `KvLink`.
        route: router in front of the replicas or the prefill servers: "shortest" (the default), another name of
            `kvsim run --route`, a Python file with a function `route(request, servers)`, or such a function.
        route_lag_s: age in seconds of the router's knowledge of the servers' prefix caches.
        prefix_store: memory for prefixes that the replicas share, and the link of each replica to it; None for none.
        options: see `kvsim.simulation.Options`: `refuse_misfits`, `users` and `think_s` for a closed loop,
            `engine`, `check`, `progress`.

    Raises:
        UnknownNameError: a name is unknown.
        UsageError: a setting or option is invalid.
        WorkloadError: a prompt leaves no room for an answer in the longest allowed sequence.
        BudgetError: a request needs more than the whole pool.
        StalledError: the head of the queue can never be scheduled.
    """
    requests, source = requests_of(workload)
    policy = checked(policy)
    on = machine_for(machine, source, policy)
    chosen = policy_of(policy, on, _longest(machine, source))
    servers = _servers(
        chosen, on, replicas=replicas, prefill=prefill, decode=decode, link=kv_link, route=route,
        route_lag_s=route_lag_s, store=prefix_store,
    )  # fmt: skip
    if servers is None:
        return _simulate(requests, chosen, on, options)
    return FleetRun(*simulation.simulate_fleet(requests, chosen, on, servers, **options))


def _servers(
    policy: AnyPolicy, on: Machine, *, replicas: int | None, prefill: int | None, decode: int | None,
    link: KvLink | None, route: RouteName | str | Router | None, route_lag_s: float, store: PrefixStore | None,
) -> simulation.Servers | None:  # fmt: skip
    """Return the servers that the arguments of `simulate` ask for; None for a single server."""
    if prefill is None and decode is None:
        if link is not None:
            raise UsageError("kv_link is between prefill and decode servers; give prefill and decode as well.")
        return _equal_servers(policy, on, replicas, route=route, route_lag_s=route_lag_s, store=store)
    if replicas is not None or route_lag_s or store is not None:
        raise UsageError("prefill and decode servers take the place of replicas; leave out replicas, route_lag_s "
                         "and prefix_store.")  # fmt: skip
    return Disaggregation(
        num_prefill=prefill or 0,
        num_decode=decode or 0,
        route=route or "shortest",
        ranks=on.model.data_parallel_size,
        link=link or KvLink(),
    )


def _equal_servers(
    policy: AnyPolicy,
    on: Machine,
    number: int | None,
    *,
    route: RouteName | str | Router | None,
    route_lag_s: float,
    store: PrefixStore | None,
) -> Replicas | None:
    if number is None and on.model.data_parallel_size == 1:
        if route is not None or route_lag_s or store is not None:
            raise UsageError("route, route_lag_s and prefix_store are for several servers; give replicas as well.")
        return None
    if number is not None:
        whole_number("replicas", number)
    return Replicas(number=number or 1, route=route, route_lag_s=route_lag_s, store=store).on(on, policy)


def compare(
    workload: WorkloadLike,
    policies: Sequence[PolicyLike] | Mapping[str, PolicyLike] | None = None,
    machine: MachineLike | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Serve the same requests on the same machine under each of `policies`, with the step times of one engine, vLLM's.

    Args:
        workload: as in `simulate`.
        policies: policies or names of built-in ones; the keys of a mapping become the names of the runs. By default
            all four, or those that can serve images if the requests have images.
        machine: as in `simulate`.
        options: as in `simulate`.

    Raises:
        UsageError: there is no policy, or two policies have the same name and are not in a mapping. Also the errors of
            `simulate`.
    """
    requests, source = requests_of(workload)
    if policies is None:
        policies = EVERY_POLICY if requests.images is None else OF_IMAGES
    if not isinstance(policies, Mapping):
        if isinstance(policies, str | bytes) or not isinstance(policies, Iterable):
            raise UsageError(f"policies should be a list such as ['paged', 'static'], not {described(policies)}.")
        policies = [checked(each) for each in policies]
        names = [each if isinstance(each, str) else each.name for each in policies]
        if len(set(names)) < len(names):
            raise UsageError(f"two of the policies {', '.join(names)} have one name; give a mapping of names to them.")
        policies = dict(zip(names, policies, strict=True))
    for name in policies:
        check_instance("the name of a policy", name, str, "a text")
    policies = {name: checked(each) for name, each in policies.items()}
    if not policies:
        raise UsageError("there is nothing to compare; give at least one policy.")
    on, longest = machine_for(machine, source, "paged"), _longest(machine, source)
    return Comparison(
        {name: _simulate(requests, policy_of(each, on, longest), on, options) for name, each in policies.items()}
    )


def compare_releases(
    workload: WorkloadLike,
    old: str,
    new: str,
    machine: MachineLike | None = None,
    policy: Paged | None = None,
    **options: Unpack[Options],
) -> Upgrade:
    """Serve the same requests with the rules of two releases of vLLM; return the differences and their causes.

    To find the causes, each changed rule is added to the older release twice: alone, and together with all rules that
    changed earlier.

    Args:
        workload: as in `simulate`.
        old: the older release, such as "0.22.1".
        new: the newer release, such as "0.33.0".
        machine: as in `simulate`; a named machine has the memory and the limits of each release.
        policy: the paged policy with custom settings; by default the defaults of each release.
        options: as in `simulate`.

    Raises:
        UsageError: a release is unknown, or `new` is older than `old`. Also the errors of `simulate`.
    """
    requests, source = requests_of(workload)
    check_instance("policy", policy, Paged | None, "a Paged, or None for the defaults of each release")
    longest = _longest(machine, source)

    def setup(release: str) -> tuple[Paged, Machine]:
        on = machine_for(machine, source, "paged", release)
        if policy is not None:
            return replace(policy, scheduler=replace(policy.scheduler, vllm=release)), on
        limits = ContinuousSettings(vllm=release, max_model_len=longest or on.max_sequence_tokens)
        return Paged(scheduler=limits), on

    return explain_upgrade(old, new, requests, setup, **options)


def sweep(
    workload: WorkloadLike,
    policy: PolicyLike = "paged",
    machine: MachineLike | None = None,
    *,
    vary: Mapping[str, Sequence[Any]],
    table: str | os.PathLike[str] | None = None,
    refuse_misfits: bool = False,
    num_jobs: int = -1,
    progress: Callable[[int, int], None] | None = None,
) -> Rows:
    """Simulate every combination of the values in `vary`, on all cores; return a row for each.

    Args:
        workload: as in `simulate`.
        policy: as in `simulate`.
        machine: as in `simulate`.
        vary: names and their values: "policy"; a setting of the policy, such as "block_size", "watermark" or
            "max_num_seqs"; or an argument of `kvsim.machine`, such as "num_blocks", "kv_gib" or "gpu".
        table: Parquet file that stores the rows; combinations that it already has are not simulated again. None for no
            file.
        refuse_misfits: refuse requests that could never be served; otherwise a run with such requests is a row with an
            `error`.
        num_jobs: runs at a time; -1 for one per core.
        progress: called with the number of runs done, and of all runs.

    Raises:
        UsageError: a name in `vary` is no setting, a setting has no values, or the table cannot be written.
    """
    requests, source = requests_of(workload)
    check_progress(progress)
    check_instance("table", table, str | os.PathLike | None, "the path of a Parquet file")
    longest = _longest(machine, source)
    points = points_of(requests, source, policy, machine, vary, longest=longest, refuse_misfits=refuse_misfits)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "sweep.parquet" if table is None else Path(table)
        outcome = sweeps.sweep(points, file, num_jobs=num_jobs, progress=progress)
        rows = sweeps.rows_of(file)
    if outcome.lost:
        raise UsageError(f"{len(outcome.lost)} runs died with their processes, such as {dict(outcome.lost[0])}.")
    return Rows([rows[point.key] for point in points], tuple(vary))


def verify(recording: RecordingLike, progress: Callable[[int, int], None] | None = None) -> Verdict:
    """Replay a recording of vLLM with kvsim's paged policy, and find the first decision in which the two differ.

    `progress` is called with the number of steps compared, and of all steps.

    Raises:
        UsageError: the recording is not of vLLM's paged cache, or its settings are not modelled.
    """
    from kvsim.conformance import verify_recording  # noqa: PLC0415

    check_progress(progress)
    return verify_recording(recording_of(recording), progress)


def validate(
    recording: RecordingLike,
    times: str | os.PathLike[str] | StepTimeModel | None = None,
    progress: Callable[[int, int], None] | None = None,
    *,
    vllm: str | None = None,
) -> Validation:
    """Simulate the requests of a recorded run from scratch and compare the result with the measurements.

    Args:
        recording: a recording of a real engine.
        times: a profile or machine card, by file or by name, or a step-time model; by default the best that comes with
            kvsim.
        progress: called with the number of requests that have ended, and of all requests.
        vllm: release of vLLM whose rules are simulated; by default that of the recording.

    Raises:
        UsageError: the recording is a simulation, the release is not known, or the times are of another model, engine
            or machine.
    """
    measured = recording_of(recording)
    check_progress(progress)
    if times is None or isinstance(times, str | os.PathLike):
        times = validation.times_of(measured, None if times is None else os.fspath(times))
    elif not hasattr(times, "step_time"):
        raise UsageError(f"times should be a profile or a card, by file or by name, not {described(times)}.")
    return validation.validate(times, measured, progress, vllm)


def calibrate(
    *recordings: RecordingLike,
    card: Card | str | os.PathLike[str] | None = None,
    held_out: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Profile | Card:
    """Fit step times to recordings of real engines: a profile for one model, or with `card` a card for every model.

    Args:
        recordings: recordings of one GPU, model and engine; with `card`, of one machine and any models on vLLM.
        card: a machine card, or its file. Instead of a profile, fit its factors: how many times longer the engine takes
            than the measured kernels and launches.
        held_out: also fit without each recording in turn, to measure how well the others predict it; not with `card`.
        progress: called with the number of fits done, and of all fits; not with `card`.

    Returns:
        A `Profile`; with `card`, a `Card`. `kvsim.machine(times=...)` takes a `Profile`, or the file of a profile
        (`kvsim.profiles.save`) or of a card (`kvsim.steptime.card.save_card`).

    Raises:
        UsageError: there is no recording, or they are not of the same GPU, model and engine.
    """
    from kvsim.calibration import calibrate as fit_profile  # noqa: PLC0415  imports the solver
    from kvsim.calibration import calibrate_card  # noqa: PLC0415
    from kvsim.steptime.card import Card, load_card  # noqa: PLC0415

    items = [recording_of(each) for each in recordings]
    check_progress(progress)
    check_instance("card", card, Card | str | os.PathLike | None, "a machine card, or its file")
    if card is None:
        return fit_profile(items, held_out=held_out, progress=progress)
    fitted, _ = calibrate_card(load_card(card) if isinstance(card, str | os.PathLike) else card, items)
    return fitted


def _simulate(workload: Workload, policy: AnyPolicy, on: Machine, options: Options) -> Run:
    return Run.of(simulation.simulate(workload, policy, on, **options))


def _longest(given: MachineLike | None, source: Recording | None) -> int | None:
    """Return the recorded `max_model_len` if the simulation has the machine of `source`; None otherwise."""
    return source.meta.max_model_len if given is None and source is not None else None
