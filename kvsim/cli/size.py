"""`kvsim size`: the KV-cache pool of a model on a GPU, with a row for each term of the memory budget."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.machine_flags import AUTO_LENGTH, machine_of, memory_of, title_of
from kvsim.cli.no_start import change_words, changes, print_no_start
from kvsim.cli.options import bounded, check_policy_flags, is_given
from kvsim.cli.scenario_flags import machine_options, settings_options
from kvsim.cli.served_command import ServedCommand
from kvsim.cli.show import echo, json_option, print_json, print_table
from kvsim.cli.size_figures import document, other_layouts, release_of, sequences_at_once, slots_of, unmeasured_notes
from kvsim.cli.size_image import image_of, image_rows
from kvsim.cli.size_rows import (
    block_rows,
    num_gpus,
    other_layout_rows,
    place_of,
    pool_rows,
    rank_rows,
    slot_rows,
    term_rows,
)
from kvsim.cli.size_sleep import sleep_rows
from kvsim.cli.size_verdict import verdict
from kvsim.errors import BudgetError, UsageError
from kvsim.kv_groups.reasons import caching_words
from kvsim.kv_groups.specs import check_block_size, check_length
from kvsim.policies import EVERY_POLICY, Radix
from kvsim.policies.releases import rules_of
from kvsim.sizing.budget_terms import BudgetTerm

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.sizing.budget import Budget


_OF_HICACHE = ("enable_hierarchical_cache", "hicache_ratio", "hicache_size")
"""Names of settings that decide the size of SGLang's host memory."""
_OF_VLLM = ("image", "image_tokens", "enable_sleep_mode", "data_parallel_size")
"""Names of flags that have no effect on SGLang's slots."""


def _list(*, as_json: bool) -> None:
    from kvsim.hardware import GPUS
    from kvsim.models import all_models

    names = {"GPUs": [gpu.name for gpu in GPUS], "models": [model.name for model in all_models()]}
    if as_json:
        print_json(names)
        return
    for heading, listed in names.items():
        click.echo("\n".join([heading, *(f"  {name}" for name in listed)]))


@click.command("size", cls=ServedCommand)
@click.option("--list", "list_only", is_flag=True, help="List the names of all GPUs and models.")
@click.option("--gpu-template", is_flag=True, help="Print an example file for --gpu with all keys.")
@machine_options
@settings_options(*_OF_HICACHE)
@click.option(
    "--tokens",
    type=int,
    callback=bounded(at_least=1, at_most=1 << 27),
    default=2048,
    show_default=True,
    help="Length of the sequences that are counted.",
)
@click.option(
    "--policy",
    type=click.Choice(EVERY_POLICY),
    default="paged",
    show_default=True,
    help="Policy that uses the memory; with static, the result is the largest batch; with radix, SGLang's slots beside "
    "vLLM's blocks.",
)
@click.option("--image", metavar="WxH", help="Print the cost of one image of this size in pixels, such as 1920x1080.")
@click.option(
    "--image-tokens",
    type=int,
    callback=bounded(at_least=1, at_most=1 << 20),
    metavar="N",
    help="Print the cost of one image of N tokens, for models whose number of tokens per image kvsim cannot compute.",
)
@click.option(
    "--enable-sleep-mode",
    is_flag=True,
    help="Print the memory that a sleeping server uses on the GPU and on the host, at sleep levels 1 and 2.",
)
@json_option
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    list_only: bool,
    gpu_template: bool,
    tokens: int,
    policy: str,
    image: str | None,
    image_tokens: int | None,
    enable_sleep_mode: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Explain how many blocks a GPU and a model leave room for, and how many sequences fit."""
    if list_only:
        _check_no_other_flags(context, "list_only", "as_json")
        _list(as_json=as_json)
    elif gpu_template:
        from kvsim.hardware import gpu_template as template

        _check_no_other_flags(context, "gpu_template")
        click.echo(template())
    else:
        gpu, model = _check_machine(flags)
        if policy == Radix.name:
            from kvsim.cli.size_sglang import size_slots

            _check_slots(context)
            size_slots(flags, gpu, model, tokens, as_json=as_json)
            return
        check_policy_flags(context, [policy])
        budget = _budget(flags, gpu, model, policy, as_json=as_json)
        costs = image_of(budget, image, image_tokens)
        if as_json:
            print_json(document(flags, budget, policy, tokens, costs, sleeps=enable_sleep_mode))
        else:
            _print(flags, budget, policy, tokens, costs, sleeps=enable_sleep_mode)


def _check_no_other_flags(context: click.Context, *allowed: str) -> None:
    """Check that only flags in `allowed` are given. An error names `allowed[0]`, such as --list, and the other flag."""
    spelled = {str(option.name): option.opts[0] for option in context.command.params}
    for name, flag in spelled.items():
        if name not in allowed and is_given(context, name):
            raise UsageError(f"{flag} has no effect with {spelled[allowed[0]]}; leave one out.")


def _check_slots(context: click.Context) -> None:
    """Check that no flag is given that has no effect on SGLang's slots."""
    for option in context.command.params:
        if option.name in _OF_VLLM and is_given(context, str(option.name)):
            raise UsageError(f"{option.opts[0]} has no effect with --policy radix; leave it out.")


def _check_machine(flags: dict[str, Any]) -> tuple[Gpu, Model]:
    """Check that --gpu and --model are given, and return both."""
    if flags["model"] is None or flags["gpu"] is None:
        missing = "--model" if flags["model"] is None else "--gpu"
        raise click.UsageError(f"{missing} is missing; kvsim size --list names models and GPUs.")
    return machine_of(flags)


def _budget(flags: dict[str, Any], gpu: Gpu, model: Model, policy: str, *, as_json: bool) -> Budget:
    """Return the memory budget of the flags. If the server would not start, print the reason and exit."""
    if flags["mem_fraction_static"] is not None:
        raise UsageError("--mem-fraction-static is SGLang's; give --policy radix with it, or --gpu-memory-utilization.")
    if policy != "static" and flags["max_model_len"] != AUTO_LENGTH:
        check_length(model, flags["max_model_len"])
    if policy == "paged":
        check_block_size(model, flags["block_size"])
    longest = None if flags["max_model_len"] == AUTO_LENGTH else flags["max_model_len"]
    try:
        budget = memory_of(flags, gpu, model, max_model_len=longest)
    except BudgetError as error:
        if policy != "paged":
            error = _in_slots(error, flags, gpu, model)
        if as_json or len(error.account) < 2:  # a pool of a stated size has no terms to print
            raise error from None
        print_no_start(error, title_of(gpu, model), changes(flags, gpu, model), in_vllm=policy == "paged")
        sys.exit(error.exit_code)
    if policy == "paged":
        from kvsim.engine.paged.group_initialization import check_groups

        check_groups(budget.plan.layout, release_of(flags), caches_prefixes=budget.plan.settings.caches_prefixes(model))
    return budget


def _in_slots(error: BudgetError, flags: dict[str, Any], gpu: Gpu, model: Model) -> BudgetError:
    """Return `error` in the unit of a policy without blocks. It is unchanged if no sequence fits, however short."""
    try:
        num_slots = slots_of(memory_of({**flags, "max_model_len": AUTO_LENGTH}, gpu, model))
    except BudgetError:
        return error
    longest = flags["max_model_len"] or model.max_position_embeddings
    return BudgetError(
        f"one sequence of {longest:,} tokens needs {longest:,} slots of the KV cache, and there is room for "
        f"{num_slots:,}; --max-model-len {num_slots} would fit; a larger share of the GPU, more GPUs or a smaller "
        "cache type would help, and --oversize allows it.",
        error.account,
    )


def _print(
    flags: dict[str, Any], budget: Budget, policy: str, tokens: int, costs: dict[str, Any] | None, *, sleeps: bool
) -> None:
    num_sequences, how_held = sequences_at_once(budget, policy, tokens)
    on_one = "on each GPU" if num_gpus(budget) > 1 else ""
    rows = term_rows([*budget.terms, BudgetTerm("KV cache", budget.kv_bytes, "what is left, in whole blocks")], on_one)
    if policy == "paged":
        rows += [(f"  {row[0]}", *row[1:]) for row in block_rows(budget, on_one)]
        rows += pool_rows(budget, logs_longest=rules_of(release_of(flags)).logs_longest)
    else:
        rows += slot_rows(budget, on_one, slots_of(budget))
    unit = "sequences" if policy != "static" else "rows"
    rows += [
        (unit, f"{num_sequences:,}", place_of(budget), f"of {tokens:,} tokens {how_held}"),
        *rank_rows(budget, unit, num_sequences),
        *other_layout_rows(budget, policy, tokens),
        *image_rows(costs),
        *(sleep_rows(budget, on_one) if sleeps else []),
    ]
    if policy == "paged":
        is_on, why = caching_words(budget.model, budget.plan)
        rows.append(("prefix caching", "on" if is_on else "off", "", why))
    others = other_layouts(budget, policy)
    echo(verdict(flags, budget, policy, tokens, num_sequences, image=costs, otherwise=others))
    fits = budget.plan.concurrency >= 1
    remedies = [] if fits else [change_words(changes(flags, budget.gpu, budget.model))]
    note = "\n".join(remedies + unmeasured_notes(flags, budget))
    print_table(title_of(budget.gpu, budget.model), ["", "", "", "why"], rows, figures=(1,), note=note)
