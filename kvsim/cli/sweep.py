"""`kvsim sweep`: simulations of every combination of settings, written as one table and one optional figure."""

from __future__ import annotations

import signal
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.options import POLICY_HELP, PolicyParam, check_policy_flags, flag_values, is_given, jobs_option
from kvsim.cli.scenario import Requests, build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.served_command import ServedCommand
from kvsim.cli.show import echo, json_option, overwrite_option, print_json, print_table, progress, seconds
from kvsim.cli.workload import workload_and_source
from kvsim.errors import UsageError, shortened

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.experiments.sweeps import Point, SweepResult


@click.command("sweep", cls=ServedCommand)
@click.option("--policy", type=PolicyParam(), default="paged", show_default=True, help=POLICY_HELP)
@scenario_options
@click.option(
    "--vary",
    multiple=True,
    metavar="FLAG=A,B,...",
    help="Flag of this command with its values; repeat it for more flags.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The table, a Parquet file. Points that it has already are not run again.",
)
@click.option(
    "--figure",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw output per second against the first flag that varies. If only kv-offloading-size "
    "varies, draw prefix hits, TTFT and preemptions.",
)
@jobs_option
@click.option(
    "--backend",
    type=click.Choice(["loky", "dask", "ray"]),
    default="loky",
    show_default=True,
    help="Place where simulations run: processes of this machine (loky), or a cluster.",
)
@click.option(
    "--scheduler", default="", metavar="ADDRESS", help="Address of the cluster of --backend.  [one is started here]"
)
@overwrite_option()
@json_option
@click.pass_context  # fmt: skip
def command(
    context: click.Context,
    /,
    *,
    policy: str,
    vary: Sequence[str],
    output: Path,
    figure: Path | None,
    jobs: int,
    backend: Any,
    scheduler: str,
    overwrite: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Run a grid of settings and write one table.

    kvsim sweep --num-requests 500 --vary policy=paged,contiguous --vary num-blocks=1000,2000,4000 -o sweep.parquet
    """
    _check_outputs(output, figure, vary, overwrite=overwrite)
    if scheduler and backend == "loky":
        raise UsageError("--scheduler is the address of a cluster; give --backend dask or ray as well.")
    axes = _axes(context, vary)
    check_policy_flags(context, axes.get("policy", [policy]), [name for name in axes if name != "policy"])
    requests_of = _requests_once(context.command, axes)
    points = [_point(requests_of, policy, flags, axes, values) for values in product(*axes.values())]
    outcome = _run(points, output, num_jobs=jobs, backend=backend, scheduler=scheduler)
    if figure is not None:
        from kvsim.plots import save
        from kvsim.plots.sweep_figures import HOST_MEMORY, draw_host_memory, draw_sweep

        picture = draw_host_memory(output) if list(axes) == [HOST_MEMORY] else draw_sweep(output, list(axes))
        save(picture, figure, made_by="sweep")
    facts = {
        "done": outcome.num_done,
        "kept": outcome.num_kept,
        "failed": outcome.num_failed,
        "lost": len(outcome.lost),
    }
    if as_json:
        print_json({"table": str(output), **facts, "best": outcome.best, "points": outcome.rows})
        return
    _print_points(outcome, list(axes), [point.machine.step_time.label for point in points])
    click.echo(f"{output}: " + ", ".join(f"{count} {name}" for name, count in facts.items()))
    for settings in outcome.lost:
        echo(f"lost with its worker: {dict(settings)}", err=True)


def _check_outputs(output: Path, figure: Path | None, vary: Sequence[str], *, overwrite: bool) -> None:
    from kvsim.files.overwriting import check_ending, may_write

    if figure is not None and not vary:
        raise UsageError("--figure draws against the first flag that varies; give --vary, or leave it out.")
    check_ending(output, "a table of runs", ".parquet", "")
    may_write(output, "sweep", overwrite=overwrite)
    if figure is not None:
        from kvsim.plots import may_save

        may_save(figure, "sweep", overwrite=overwrite)


def _run(points: Sequence[Point], output: Path, **options: Any) -> SweepResult:
    """Run `points` with the `options` of `kvsim.experiments.sweeps.sweep`. If interrupted, print how many are done."""
    from kvsim.experiments.sweeps import sweep

    num_done = 0

    def count(done: int, total: int) -> None:
        nonlocal num_done
        num_done = done
        report(done, total)

    try:
        with progress("sweep") as report:
            return sweep(points, output, progress=count, **options)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a cluster's library needs half a second to shut down
        echo(f"kvsim: stopped with {num_done:,} of {len(points):,} points done; this command again goes on.", err=True)
        raise


def _print_points(outcome: SweepResult, names: Sequence[str], labels: Sequence[str]) -> None:
    from kvsim.machines import plain_words, untimed_in

    def of(row: Mapping[str, Any]) -> str:
        return ", ".join(f"{name.replace('_', '-')} {row[name]}" for name in names) or "the only point"

    best = outcome.best
    if best is not None:
        held = f"; held back by {best['limit']}" if "limit" in best else ""  # rows of older tables have no limit
        echo(f"Most output: {of(best)}, {best['output_tokens_per_s']:,.0f} tokens/s{held}.")
    rows = [(*(str(row[name]) for name in names), *_cells(row)) for row in outcome.rows]
    columns = [*(name.replace("_", "-") for name in names), "output tokens/s", "TTFT p99", "TPOT p99", "preemptions",
               "prefix hits", "pool held at most", "held back by"]  # fmt: skip
    notes = [f"times: {plain_words(label)}" for label in labels]
    notes += [f"not in the times: {words}" for label in labels if (words := untimed_in(label))]
    notes += [f"no prefix hits: {why}" for row in outcome.rows if (why := row.get("prefix_no_hits"))]
    print_table("", columns, rows, figures=range(len(columns)), note="\n".join(dict.fromkeys(notes)))


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if row["error"]:
        return (row["error"], "", "", "", "", "", "")
    tokens_per_s, peak = row["output_tokens_per_s"], row["peak_occupancy"]
    return (
        "–" if tokens_per_s is None else f"{tokens_per_s:,.0f}",
        *("–" if row[name] is None else seconds(row[name]) for name in ("ttft_s.p99", "tpot_s.p99")),
        f"{row['num_preemptions']:,}",
        "–" if row.get("prefix_hit_rate") is None else f"{100 * row['prefix_hit_rate']:.1f} %",
        "–" if peak is None else f"{100 * peak:.0f} %",
        row.get("limit") or "–",
    )


def _axes(context: click.Context, vary: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each flag in `vary`, by the name of its parameter."""
    axes: dict[str, list[Any]] = {}
    for name, values in (_axis(context, each) for each in vary):
        if name in axes or is_given(context, name):
            raise UsageError(f"--{name.replace('_', '-')} is given twice; give all its values in one --vary.")
        axes[name] = values
    return axes


def _axis(context: click.Context, text: str) -> tuple[str, list[Any]]:
    """Return the varied parameter and its values. `num-blocks=1000,2000` is ("num_blocks", [1000, 2000])."""
    flag, equals, values = text.partition("=")
    spelled = "--" + flag.strip().lstrip("-").replace("_", "-")
    fixed = ("vary", "output", "figure", "jobs", "backend", "scheduler", "overwrite", "as_json")
    options = [
        option
        for option in context.command.params
        if isinstance(option, click.Option)
        and option.name not in fixed
        and spelled in (*option.opts, *option.secondary_opts, f"--{option.name}".replace("_", "-"))
    ]
    if not equals or not values:
        raise UsageError(f"--vary should be a flag and its values, such as num-blocks=1000,2000, not {text!r}.")
    if not options:
        raise UsageError(f"--vary {text!r} names no flag that can vary; it should be such as num-blocks=1000,2000.")
    option, name = options[0], str(options[0].name)
    found = flag_values(context, option, spelled, words := values.split(","))
    for number, value in enumerate(found):
        if value in found[:number]:
            raise UsageError(f"--vary {shortened(text)} has the value {words[number]} twice; give each value once.")
    return name, found


def _requests_once(command: click.Command, axes: Mapping[str, Any]) -> Callable[[dict[str, Any]], Requests]:
    """Return a function that builds the requests for a point's flags. Points with equal flags share the requests."""
    sections = {option.name: getattr(option, "section", "") for option in command.params}
    varying = [name for name in axes if sections[name] == "Requests"]
    known: dict[tuple[Any, ...], Requests] = {}

    def requests_of(flags: dict[str, Any]) -> Requests:
        key = tuple(flags[name] for name in varying)
        if key not in known:
            known[key] = workload_and_source(flags)
        return known[key]

    return requests_of


def _point(
    requests_of: Callable[[dict[str, Any]], Requests],
    policy: str,
    flags: Mapping[str, Any],
    axes: Mapping[str, Any],
    values: Sequence[Any],
) -> Point:
    """Return the simulation for one point of the grid: `axes` names the varied flags, `values` has a value for each."""
    from kvsim.experiments.sweeps import Point

    settings = dict(zip(axes, values, strict=True))
    merged: dict[str, Any] = {**flags, **settings}
    name = merged.pop("policy", policy)
    scenario = build_scenario(requests_of, only_policy=name, **merged)
    chosen = scenario.policy(name)
    return Point(
        settings=settings,
        workload=scenario.workload,
        policy=chosen,
        machine=scenario.machine(chosen),
        refuse_misfits=merged["refuse_misfits"],
        check=merged["check"],
    )
