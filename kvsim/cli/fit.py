"""`kvsim fit`: whether a load fits a server, its limit, and remedies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.fleet_flags import ONE_SERVER, FleetFlags, apart_options, fleet_of
from kvsim.cli.load import check_load, load_options
from kvsim.cli.options import check_policy_flags, engine_option, jobs_option, section, settings_from
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.server_lines import ServedCommand
from kvsim.cli.show import echo, json_option, overwrite_option, print_json, progress
from kvsim.cli.workload import cut_at
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.fitting import Server
    from kvsim.recording import Meta
    from kvsim.simulation import EngineName

_goal = section("Targets")


@click.command("fit", cls=ServedCommand)
@scenario_options
@load_options
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
    help="Price of a GPU hour, such as 2.5 or H100=2.5,B200=6; with a range such as --load 1x..4x.",
)
@apart_options
@jobs_option
@engine_option
@click.option(
    "--figure",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Draw output per second against TPOT for everything that was tried.",
)
@overwrite_option
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
    """Tell whether a load fits a vLLM server, what limits it, and which changes help.

    The load: --users N who each wait for an answer before the next request, or --rate R requests a second, with
    --prompt-tokens and --output-tokens; or the requests of --workload FILE, without flags those of a recording that
    comes with kvsim. Limits that are not given are those of vllm serve. Every change in the answer was simulated with
    the same requests, repeated until the rate is steady. With a range such as --load 1x..4x, the answer is for the
    first multiple, and a table has the servers that each of four multiples needs.

    kvsim fit --model Llama-3.1-70B-Instruct --gpu H100 --tensor-parallel-size 4 --users 128 --prompt-tokens 1000
    --output-tokens 300
    """
    from kvsim.cli.fit_answer import print_fit, print_growth
    from kvsim.cli.load import load_of, requests_of
    from kvsim.fitting import Goal, Search, answer, engine_for
    from kvsim.fitting.draft_effect import drafts_words, without_drafts
    from kvsim.fitting.growth import grown, multiples_of, prices_of

    check_policy_flags(context, ["paged"])
    told = fleet_of(flags)
    if told.apart is not None and ".." in (flags["load"] or ""):
        raise UsageError("a range of loads is for servers of one kind; leave out --prefill and --decode.")
    multiples = multiples_of(flags["load"]) if ".." in (flags["load"] or "") else ()
    if multiples:
        flags["load"] = f"{multiples[0]}x"
    elif gpu_hour_price is not None:
        raise UsageError("--gpu-hour-price is for the table of a range of loads; give --load 1x..4x as well.")
    if flags["eviction"] == "optimal":
        raise UsageError("--eviction optimal is a bound that no server reaches; leave it out.")
    if figure is not None:
        from kvsim.plots import may_save

        may_save(figure, "fit", overwrite=overwrite)
    flags["defaults"] = flags["defaults"] or "server"
    check_load(flags)
    goal = Goal(ttft_p99_s=ttft_p99, tpot_p99_s=tpot_p99)
    workload, source = requests_of(flags)
    server = server_of(flags, told, None if source is None else source.meta)
    if server.replicas > len(workload):
        raise UsageError(
            f"the flags ask for {server.replicas:,} servers, and there are {len(workload):,} requests; give more "
            "requests with --num-requests, or fewer servers."
        )
    if not flags["workload"]:
        workload = cut_at(workload, server.max_model_len, stated=flags["max_model_len"] is not None)
    load, prices = load_of(flags, workload), prices_of(gpu_hour_price, server.gpu.name)
    offloads = server.cache.kv_offloading_size > 0
    chosen = engine_for(load, points + 40 if points else 3, offloads=offloads) if engine == "auto" else engine
    with progress("fit") as report:
        search = Search(num_jobs=jobs or -1, engine=chosen, progress=report)
        found = answer(server, load, goal, search, most=points, find_largest=points > 0)
        rows = grown(found, search, multiples, prices) if multiples else []
        plain = without_drafts(found, search)
    if figure is not None:
        from kvsim.plots import save
        from kvsim.plots.fit_frontier import draw_fit

        save(draw_fit(found), figure, made_by="fit")
    without = {} if plain is None else {"without_drafts": plain.outcome.as_dict()}
    if as_json:
        print_json(found.as_dict() | ({"growth": [row.as_dict() for row in rows]} if multiples else {}) | without)
    else:
        print_fit(found)
        if plain is not None:
            echo(drafts_words(found, plain))
        if multiples:
            print_growth(rows, multiples)


def server_of(flags: dict[str, Any], told: FleetFlags = ONE_SERVER, meta: Meta | None = None) -> Server:
    """Return the server that the flags describe, by default with the limits of `vllm serve`, and the GPU and the model
    of a recording, if the requests are from one.

    Raises:
        UsageError: a flag cannot be right, or is not for a server that is searched.
    """
    from kvsim.cli.machine_flags import FIND, engine_limits, machine_of
    from kvsim.cli.scenario import paged_settings
    from kvsim.fitting import Server
    from kvsim.kv_groups.specs import check_block_size, check_length
    from kvsim.policies.releases import defaults_of
    from kvsim.policies.settings import ContinuousSettings
    from kvsim.setting_fields import values_of

    for name in (
        "swap_gib",
        "kv_gib",
        "mem_fraction_static",
        "oversize",
        "pipeline_parallel_size",
    ):
        if flags[name]:
            instead = "size" if name == "pipeline_parallel_size" else "run"
            raise UsageError(
                f"--{name.replace('_', '-')} is not searched by kvsim fit; leave it out, or use kvsim {instead}."
            )
    if flags["order"] not in (None, "fcfs"):
        raise UsageError("--order is not searched by kvsim fit; leave it out, or use kvsim run.")
    gpu, model = machine_of(flags, meta)
    length, share = flags["max_model_len"], flags["gpu_memory_utilization"]
    if length == FIND:
        length = None
    check_length(model, length)
    check_block_size(model, flags["block_size"])
    longest = length or model.max_position_embeddings
    num_seqs, num_tokens = engine_limits(flags, gpu, longest)
    limits = {"max_num_seqs": num_seqs, "max_num_batched_tokens": num_tokens, "max_model_len": longest}
    scheduler = settings_from(ContinuousSettings, flags, **limits, acceptance_seed=flags["seed"])
    cache = paged_settings(flags, gpu, model, flags["block_size"] or 16)
    return Server(
        gpu=gpu,
        model=model,
        gpu_memory_utilization=defaults_of(scheduler.vllm).gpu_memory_utilization if share is None else share,
        block_size=flags["block_size"],
        enable_prefix_caching=cache.enable_prefix_caching,
        watermark=cache.watermark,
        cache=cache,
        captured=not flags["enforce_eager"],
        num_blocks=flags["num_blocks"],
        name=flags["model"] or "",
        replicas=told.num_servers,
        apart=told.apart,
        times=flags["times"],
        **values_of(scheduler),
    )
