"""`kvsim compare`: the same requests under several policies, several values of a flag, or two releases of vLLM."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import flag
from kvsim.cli.fleet_flags import check_routes, disaggregation_options, fleet_of, replicas_options
from kvsim.cli.ladder import check_ladder_flags, climb_ladder
from kvsim.cli.options import PolicyParam, check_policy_flags
from kvsim.cli.scenario import build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.several_values import ComparingCommand, SeveralValues, several_values
from kvsim.cli.show import echo, json_option, output_option, overwrite_option, print_json, progress
from kvsim.errors import UsageError
from kvsim.policies import EVERY_POLICY, OF_IMAGES, AnyPolicy, Paged, Static
from kvsim.policies.kinds import evicts_optimally
from kvsim.policies.settings import PrefixEviction

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.cli.scenario import Scenario
    from kvsim.metrics import Summary
    from kvsim.recording import Recording

_OPTIMAL = "paged-optimal"
"""Name of the paged policy that evicts optimally, because it knows all future requests."""
_UNIFORM = "paged-uniform"
"""Name of the paged policy whose cache keeps every token in every layer."""


times_option = flag(
    "--times",
    "clock",
    excludes=("ladder", "uniform_cache", "lesson", "attach"),
    type=click.Choice(["one", "own"]),
    default="one",
    show_default=True,
    help="Step times: those of one engine, vLLM's, for every policy, or those of each policy's own engine.",
)


@click.command("compare", cls=ComparingCommand)
@scenario_options
@output_option("Write a recording for each policy or value into this folder.")
@click.option(
    "--policy",
    "names",
    type=PolicyParam(),
    multiple=True,
    help=f"Policy to compare, or FILE.py:CLASS with one of your own; repeat it for more.  [{', '.join(EVERY_POLICY)}]",
)
@times_option
@click.option(
    "--ladder",
    is_flag=True,
    help="Compare eight ways to serve, each with one more change, from one request at a time to asynchronous "
    "scheduling; all requests arrive at once.",
)
@click.option(
    "--uniform-cache",
    is_flag=True,
    help="Compare the paged policy with and without the model's KV-cache groups; without them, every layer keeps "
    "every token.",
)
@disaggregation_options
@replicas_options
@overwrite_option("output")
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    names: tuple[str, ...],
    output: Path | None,
    ladder: bool,
    uniform_cache: bool,
    overwrite: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Serve the same requests with several policies, or with several values of one flag, and compare.

    For several policies, the output shows where the memory went (in % of the pool), how many sequences ran at once, and
    how long requests waited.

    A flag may have several values, such as --kv-cache-dtype auto fp8, --route shortest prefix or
    --enable-prefix-caching on off. Each value gets a run, and all figures are printed side by side. For two releases,
    --vllm OLD NEW, the output also has the first decision that differs, and the rules that cause the difference.

    --prefill P --decode D compares P prefill and D decode servers with P + D servers that prefill and decode.
    --data-parallel-size N compares N ranks with one tensor-parallel server on as many GPUs, and with N servers that
    each have all weights.
    """
    several = several_values(context)
    _check_one_comparison(names, several, flags, ladder=ladder, uniform_cache=uniform_cache)
    if output is not None:
        from kvsim.files.overwriting import may_replace

        may_replace(output, "compare", overwrite=overwrite, is_folder=True)
    if several is not None and several.name == "vllm" and len(several.words) == 2 and not _is_fleet(flags):
        check_policy_flags(context, [Paged.name], [several.name])
        _compare_releases(names, several, output, flags, as_json=as_json)
        return
    if several is not None or _is_fleet(flags):
        from kvsim.cli.compare_sides import Sides, compare_sides

        name = names[0] if names else Paged.name
        check_policy_flags(context, [name], [several.name] if several else ())
        sides = Sides.of_values(several, flags) if several else Sides.of_servers(flags)
        compare_sides(sides, name, output, overwrite=overwrite, as_json=as_json)
        return
    check_routes(flags)
    fleet_of(flags)
    if ladder:
        check_ladder_flags(context)
        climb_ladder(output, flags, overwrite=overwrite, as_json=as_json)
    else:
        check_policy_flags(context, [Paged.name] if uniform_cache else names or EVERY_POLICY)
        _compare_policies(names, output, flags, uniform_cache=uniform_cache, overwrite=overwrite, as_json=as_json)


def _compare_policies(
    names: Sequence[str], output: Path | None, flags: dict[str, Any], *, uniform_cache: bool, overwrite: bool,
    as_json: bool,
) -> None:  # fmt: skip
    from kvsim.files.overwriting import replacing_folder
    from kvsim.recording import write

    scenario = build_scenario(**flags)
    policies, notes = _policies(scenario, names, uniform_cache=uniform_cache)
    recordings = {}
    for name, policy in policies.items():
        with progress(name) as report:
            recordings[name] = scenario.simulate(policy, progress=report)
    if output is not None:
        with replacing_folder(output, "compare", overwrite=overwrite) as folder:
            for name, recording in recordings.items():
                write(recording, folder / name)
    _print(scenario, policies, recordings, notes, as_json=as_json)


def _print(
    scenario: Scenario, policies: Mapping[str, AnyPolicy], recordings: Mapping[str, Recording], notes: Sequence[str],
    *, as_json: bool,
) -> None:  # fmt: skip
    """Print the comparison of `recordings`, and the throughput of each policy in a pool with room for all requests.

    To know this throughput, each policy is simulated again with such a pool.
    """
    from kvsim.metrics import summarize

    summaries = [replace(summarize(recording), policy=name) for name, recording in recordings.items()]
    with progress("with memory for everything") as report:
        ample = with_memory_for_everything(scenario, policies, report)
    if not as_json:
        _print_comparison(scenario, list(recordings.values()), summaries, ample, notes, clock=scenario.flags["clock"])
        return
    from kvsim.cli.summary_lines import summary_document

    print_json({
        summary.policy: summary_document(recording, summary) | {"ample_output_tokens_per_s": tokens_per_s}
        for recording, summary, tokens_per_s in zip(recordings.values(), summaries, ample, strict=True)
    })  # fmt: skip


def _print_comparison(
    scenario: Scenario,
    recordings: Sequence[Recording],
    summaries: Sequence[Summary],
    ample: Sequence[float],
    notes: Sequence[str],
    *,
    clock: str,
) -> None:
    from kvsim.cli.answer import failure_notes
    from kvsim.cli.summary_lines import print_summaries
    from kvsim.metrics.run_verdict import verdict_of

    for summary in summaries:
        echo(f"{summary.policy}: {verdict_of(summary).sentence}")
    if clock == "one":
        click.echo("every policy with the step times of one engine, vLLM's; --times own gives each its own")
    below = [*notes, *scenario.notes]
    below += [note for recording in recordings for note in failure_notes([recording.meta])]
    if not any(map(math.isnan, ample)):  # NaN: nothing is served however large the memory is
        each = ", ".join(f"{summary.policy} {rate:,.0f}" for summary, rate in zip(summaries, ample, strict=True))
        below.append(f"with memory for everything, tokens per second: {each}; what differs then is not memory")
    print_summaries(
        f"{scenario.workload.description}, {scenario.kv_bytes / 2**30:.2f} GiB of KV memory",
        recordings,
        summaries,
        note="\n".join(below),
    )


def _is_fleet(flags: Mapping[str, Any]) -> bool:
    return bool(flags["prefill"] or flags["decode"] or (flags["data_parallel_size"] or 1) > 1)


def _check_one_comparison(
    names: tuple[str, ...],
    several: SeveralValues | None,
    flags: Mapping[str, Any],
    *,
    ladder: bool,
    uniform_cache: bool,
) -> None:
    """Check that the flags compare only policies, values of a flag, servers, the ladder or --uniform-cache."""
    if ladder and uniform_cache:
        raise UsageError("--ladder and --uniform-cache compare different things; give only one.")
    compared = several.flag if several else "--prefill, --decode or --data-parallel-size" if _is_fleet(flags) else ""
    if (ladder or uniform_cache) and (names or compared):
        raise UsageError(
            "--policy, a flag with several values, servers, --ladder and --uniform-cache compare different things; "
            "give one."
        )
    if len(set(names)) < len(names):
        raise UsageError(f"--policy should name different policies to compare, not {' '.join(names)}.")
    if compared and len(names) > 1:
        raise UsageError(f"{compared} and several policies compare different things; give one --policy.")
    if flags["clock"] == "own" and Static.name not in (names or ([Paged.name] if compared else EVERY_POLICY)):
        raise UsageError("--times own changes only the times of static batches; give --policy static, or leave it out.")
    if not compared and (flags["replicas"] > 1 or flags["prefix_store_gib"] is not None):
        raise UsageError(
            "policies are compared on one server; give a flag of the fleet several values, such as --route shortest "
            "prefix or --replicas 2 4."
        )


def _compare_releases(
    names: Sequence[str], several: SeveralValues, output: Path | None, flags: dict[str, Any], *, as_json: bool
) -> None:
    from kvsim.cli.upgrade import compare_releases

    if names not in ((), (Paged.name,)):
        raise UsageError(f"two releases of vLLM are compared under --policy paged; leave out --policy {names[0]}.")
    if flags["replicas"] > 1:
        raise UsageError("two releases are compared on one server; leave out --replicas.")
    check_routes(flags)
    fleet_of(flags)
    if output is not None:
        raise UsageError(
            "--vllm with two releases writes no recordings; kvsim run --vllm RELEASE -o FOLDER writes one."
        )
    old, new = several.words
    compare_releases(old, new, flags, as_json=as_json)


def _policies(
    scenario: Scenario, names: Sequence[str], *, uniform_cache: bool
) -> tuple[Mapping[str, AnyPolicy], list[str]]:
    """Return the policies to compare, by name, and notes on the choice.

    If the scenario's paged policy evicts optimally, it is included twice: with vLLM's and with optimal eviction.
    """
    policies, notes = _named_policies(scenario, names, uniform_cache=uniform_cache)
    paged = policies.get(Paged.name)
    if isinstance(paged, Paged) and evicts_optimally(paged):
        with_lru = replace(paged, cache=replace(paged.cache, eviction=PrefixEviction.LRU))
        policies = {**policies, Paged.name: with_lru, _OPTIMAL: paged}
    return policies, notes


def _named_policies(
    scenario: Scenario, names: Sequence[str], *, uniform_cache: bool
) -> tuple[dict[str, AnyPolicy], list[str]]:
    """Return the policies to compare, by name, and at most one note on the choice.

    With `uniform_cache`, these are vLLM's policy with and without KV-cache groups, and the note says how many sequences
    fit with each. Otherwise they are the policies called `names`. Without names, they are all policies under which the
    model and the workload can be served, and the note says which ones are left out.
    """
    if uniform_cache:
        paged = scenario.policy(Paged.name)
        assert isinstance(paged, Paged)
        uniform = replace(paged, cache=replace(paged.cache, uniform_cache=True))
        both: dict[str, AnyPolicy] = {Paged.name: paged, _UNIFORM: uniform}
        return both, [_most_sequences(scenario, paged, uniform)]
    if names:
        policies = [scenario.policy(name) for name in names]
        return {policy.name: policy for policy in policies}, []
    if scenario.model.recurrent_layers:
        left_out = (
            f"contiguous, static and radix are left out: {scenario.model.name} keeps recurrent states, and they "
            "allocate memory by tokens"
        )
        return {Paged.name: scenario.policy(Paged.name)}, [left_out]
    if scenario.workload.images is not None:
        left_out = "radix is left out: images are followed as vLLM's scheduler serves them"
        return {name: scenario.policy(name) for name in OF_IMAGES}, [left_out]
    return {name: scenario.policy(name) for name in EVERY_POLICY}, []


def _most_sequences(scenario: Scenario, grouped: Paged, uniform: Paged) -> str:
    workload = scenario.workload
    tokens = round(float((workload.prompt_tokens + workload.output_tokens).mean()))
    counts = []
    for policy in (grouped, uniform):
        machine = scenario.machine(policy)
        layout, num_units = machine.layout(policy), machine.pool(policy).num_units
        assert layout is not None
        assert num_units is not None  # a paged pool has both
        counts.append(num_units // layout.held_blocks(tokens))
    with_groups, without = counts
    ratio = f", {with_groups / without:.1f} times as many" if without else ""
    return (
        f"sequences of {tokens:,} tokens, the mean of the workload, that decode at once: {with_groups:,} with the "
        f"model's KV-cache groups, {without:,} with every layer keeping every token{ratio}"
    )


def with_memory_for_everything(
    scenario: Scenario, policies: Mapping[str, AnyPolicy], report: Callable[[int, int], None]
) -> list[float]:
    """Simulate each policy again with a pool that never runs short. Return their output tokens per second."""
    from kvsim.experiments.rungs import with_ample_memory
    from kvsim.simulation import measure

    rates = []
    for number, policy in enumerate(policies.values()):
        report(number, len(policies))
        machine, ample_policy = with_ample_memory(scenario.machine(policy), policy, scenario.workload)
        rates.append(measure(scenario.workload, ample_policy, machine, refuse_misfits=True).summary.output_tokens_per_s)
    return rates
