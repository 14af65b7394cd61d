"""`kvsim fit`: whether a load fits a server, the resource that limits it, and the changes that help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvsim.cli.flag import section
from kvsim.cli.fleet_flags import disaggregation_options, fleet_of
from kvsim.cli.load import check_load, load_options
from kvsim.cli.options import check_policy_flags, engine_option, jobs_option
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.served_command import ServedCommand
from kvsim.cli.show import echo, json_option, overwrite_option, print_json, progress
from kvsim.cli.workload import cut_at
from kvsim.errors import UsageError
from kvsim.policies import Paged, Radix

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.fitting import Answer, Goal, Load, SearchedServer
    from kvsim.fitting.growth import Grown
    from kvsim.simulation import EngineName, Servers
    from kvsim.workload import Workload

_goal = section("Targets")


@click.command("fit", cls=ServedCommand)
@scenario_options
@load_options
@click.option(
    "--policy",
    type=click.Choice([Paged.name, Radix.name]),
    default=Paged.name,
    show_default=True,
    help="Server to simulate: paged is vLLM's, radix is SGLang's.",
)
@_goal("--ttft-p99", type=float, metavar="SECONDS", help="The load fits if TTFT p99 is at most this.")
@_goal("--tpot-p99", type=float, metavar="SECONDS", help="The load fits if TPOT p99 is at most this.")
@click.option(
    "--replicas", type=click.IntRange(1, 1_000), default=1, show_default=True, help="Servers behind one queue."
)
@click.option(
    "--points",
    type=click.IntRange(0, 100_000),
    default=60,
    show_default=True,
    help="Changes to simulate; 0: only the load that was asked for.",
)
@click.option(
    "--gpu-hour-price",
    metavar="PRICE",
    help="Price of a GPU hour, such as 2.5 or H100=2.5,B200=6. Requires a range such as --load 1x..4x.",
)
@disaggregation_options
@jobs_option
@engine_option
@click.option(
    "--figure",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw output per second against TPOT for everything that was tried.",
)
@overwrite_option("figure")
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    ttft_p99: float | None,
    tpot_p99: float | None,
    points: int,
    gpu_hour_price: str | None,
    jobs: int,
    engine: EngineName,
    figure: Path | None,
    overwrite: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Tell whether a load fits a vLLM or an SGLang server, what limits it, and which changes help.

    The load is --users N (each waits for an answer before the next request), --rate R (requests per second), or the
    requests of --workload FILE. The first two take --prompt-tokens and --output-tokens. Without any, the load is a
    recording that comes with kvsim.

    Limits that are not given are those of vllm serve; with --policy radix, those of sglang.launch_server. Every change
    in the answer was simulated with the same requests, repeated until the output rate is steady.

    With a range such as --load 1x..4x, the answer is for the load at the start of the range (1x). A table shows how
    many servers the load needs at four multiples in the range.

    kvsim fit --model Llama-3.1-70B-Instruct --gpu H100 --tensor-parallel-size 4 --users 128 --prompt-tokens 1000
    --output-tokens 300
    """
    from kvsim.cli.load import load_of
    from kvsim.fitting import Goal
    from kvsim.fitting.growth import prices_of

    check_policy_flags(context, [flags["policy"]])
    fleet = fleet_of(flags)
    multiples = _load_multiples(flags, fleet, gpu_hour_price)
    if figure is not None:
        from kvsim.plots import may_save

        may_save(figure, "fit", overwrite=overwrite)
    server, workload = _server_and_requests(flags, fleet)
    found = _search(
        server,
        load_of(flags, workload),
        Goal(ttft_p99_s=ttft_p99, tpot_p99_s=tpot_p99),
        points=points,
        jobs=jobs,
        engine=engine,
        multiples=multiples,
        prices=prices_of(gpu_hour_price, server.gpu.name),
    )
    if figure is not None:
        from kvsim.plots import save
        from kvsim.plots.fit_frontier import draw_fit

        save(draw_fit(found.answer), figure, made_by="fit")
    if as_json:
        _print_json(found)
    else:
        _print(found)


class _Findings(NamedTuple):
    """Results of `kvsim fit`: the answer, the answer without speculative decoding, and the servers for larger loads."""

    answer: Answer
    without_speculation: Answer | None
    """Answer for the server without speculative decoding; None if the server has none anyway."""
    multiples: Sequence[float]
    """Multiples of the load for which the needed servers are counted; empty for a single load."""
    growth: Sequence[Grown]


def _load_multiples(flags: dict[str, Any], fleet: Servers, gpu_hour_price: str | None) -> Sequence[float]:
    """Return the multiples of a range such as --load 1x..4x, the first one put into `flags`; empty without one."""
    from kvsim.fitting.growth import multiples_of
    from kvsim.simulation import Disaggregation

    if ".." not in (flags["load"] or ""):
        if gpu_hour_price is not None:
            raise UsageError("--gpu-hour-price is for the table of a range of loads; give --load 1x..4x as well.")
        return ()
    if isinstance(fleet, Disaggregation):
        raise UsageError("a range of loads is for servers of one kind; leave out --prefill and --decode.")
    multiples = multiples_of(flags["load"])
    flags["load"] = f"{multiples[0]}x"
    return multiples


def _server_and_requests(flags: dict[str, Any], fleet: Servers) -> tuple[SearchedServer, Workload]:
    from kvsim.cli.fit_server import server_of
    from kvsim.cli.load import requests_of

    flags["defaults"] = flags["defaults"] or "server"
    check_load(flags)
    workload, source = requests_of(flags)
    server = server_of(flags, fleet, None if source is None else source.meta)
    if server.replicas > len(workload):
        raise UsageError(
            f"the flags ask for {server.replicas:,} servers, and there are {len(workload):,} requests; give more "
            "requests with --num-requests, or fewer servers."
        )
    if not flags["workload"]:
        workload = cut_at(workload, server.length_limit.value, stated=flags["max_model_len"] is not None)
    return server, workload


def _search(
    server: SearchedServer, load: Load, goal: Goal, *, points: int, jobs: int, engine: EngineName,
    multiples: Sequence[float], prices: Mapping[str, float],
) -> _Findings:  # fmt: skip
    from kvsim.fitting import RUNS_OF_LARGEST_LOAD, Search, answer, engine_for
    from kvsim.fitting.draft_effect import without_drafts
    from kvsim.fitting.growth import grown

    if engine == "auto":
        # Estimates of the number of simulations. Without points, no larger load is searched for.
        num_simulations = points + RUNS_OF_LARGEST_LOAD if points else 3
        engine = engine_for(load, num_simulations, server.memory, server.replicas)
    with progress("fit") as report:
        search = Search(num_jobs=jobs, engine=engine, progress=report)
        found = answer(server, load, goal, search, most=points, find_largest=points > 0)
        growth = grown(found, search, multiples, prices) if multiples else []
        return _Findings(found, without_drafts(found, search), multiples, growth)


def _print_json(found: _Findings) -> None:
    document = found.answer.as_dict()
    if found.multiples:
        document["growth"] = [row.as_dict() for row in found.growth]
    if found.without_speculation is not None:
        document["without_drafts"] = found.without_speculation.outcome.as_dict()
    print_json(document)


def _print(found: _Findings) -> None:
    from kvsim.cli.fit_answer import print_fit, print_growth
    from kvsim.fitting.draft_effect import drafts_words

    print_fit(found.answer)
    if found.without_speculation is not None:
        echo(drafts_words(found.answer, found.without_speculation))
    if found.multiples:
        print_growth(found.growth, found.multiples)
