"""`kvsim size`: the KV-cache pool of a model on a GPU, with a row for every term of the memory budget."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.machine_flags import FIND, machine_of, memory_of, title_of
from kvsim.cli.no_start import change_words, changes, print_no_start
from kvsim.cli.options import bounded, check_policy_flags, is_given
from kvsim.cli.scenario_flags import machine_options, settings_options
from kvsim.cli.server_lines import ServedCommand
from kvsim.cli.show import echo, json_option, print_json, print_table, size
from kvsim.cli.size_additions import asleep_of, image_of, image_rows, sleep_rows
from kvsim.cli.size_verdict import draft_bytes_per_block, verdict
from kvsim.display.text import plural
from kvsim.errors import BudgetError, UsageError
from kvsim.kv_groups.reasons import caching_words
from kvsim.kv_groups.specs import check_block_size, check_length
from kvsim.policies import EVERY_POLICY, Radix
from kvsim.policies.releases import DEFAULT, rules_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.hardware import Gpu
    from kvsim.kv_groups import CachePlan, KVCacheGroup
    from kvsim.models import Model
    from kvsim.sizing.budget import Budget


_OF_MODEL = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel",
    "decode_context_parallel_size", "kv_cache_dtype", "kv_bytes_per_token",
)  # fmt: skip
"""Attributes of the model that the JSON output states."""
_OF_HICACHE = ("enable_hierarchical_cache", "hicache_ratio", "hicache_size")
"""Settings that decide the size of SGLang's host memory."""
_OF_VLLM = ("image", "image_tokens", "enable_sleep_mode")
"""Flags that are followed for vLLM alone."""


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
@click.option("--list", "list_only", is_flag=True, help="Name all GPUs and models.")
@click.option("--gpu-template", is_flag=True, help="Print a file for --gpu with all its keys.")
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
@click.option("--image", metavar="WxH", help="Say what one image of this size in pixels costs, such as 1920x1080.")
@click.option(
    "--image-tokens",
    type=int,
    callback=bounded(at_least=1, at_most=1 << 20),
    metavar="N",
    help="Say what one image of N tokens costs, for models whose rule is not known.",
)
@click.option(
    "--enable-sleep-mode",
    is_flag=True,
    help="Say what a server that sleeps leaves on the GPU and in host memory, at levels 1 and 2.",
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
    """Explain how many blocks a GPU and a model leave room for, and how many sequences or rows fit."""
    if list_only:
        _check_alone(context, "list_only", "as_json")
        _list(as_json=as_json)
    elif gpu_template:
        from kvsim.hardware import gpu_template as template

        _check_alone(context, "gpu_template")
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
            print_json(_document(flags, budget, policy, tokens, costs, sleeps=enable_sleep_mode))
        else:
            _print(flags, budget, policy, tokens, costs, sleeps=enable_sleep_mode)


def _check_alone(context: click.Context, *allowed: str) -> None:
    """Check that no flag is given but those in `allowed`, the first of which ends the command without using others."""
    spelled = {str(option.name): option.opts[0] for option in context.command.params}
    for name, flag in spelled.items():
        if name not in allowed and is_given(context, name):
            raise UsageError(f"{flag} has no effect with {spelled[allowed[0]]}; leave one out.")


def _check_slots(context: click.Context) -> None:
    """Check that no flag is given that changes only what is known of vLLM."""
    for option in context.command.params:
        if option.name in _OF_VLLM and is_given(context, str(option.name)):
            raise UsageError(f"{option.opts[0]} has no effect with --policy radix; leave it out.")


def _check_machine(flags: dict[str, Any]) -> tuple[Gpu, Model]:
    if flags["model"] is None or flags["gpu"] is None:
        missing = "--model" if flags["model"] is None else "--gpu"
        raise click.UsageError(f"{missing} is missing; kvsim size --list names models and GPUs.")
    return machine_of(flags)


def _budget(flags: dict[str, Any], gpu: Gpu, model: Model, policy: str, *, as_json: bool) -> Budget:
    """Return the division of the GPU's memory; if it is too small, print why the server would not start, and exit."""
    if flags["mem_fraction_static"] is not None:
        raise UsageError("--mem-fraction-static is SGLang's; give --policy radix with it, or --gpu-memory-utilization.")
    if policy != "static" and flags["max_model_len"] != FIND:
        check_length(model, flags["max_model_len"])
    if policy == "paged":
        check_block_size(model, flags["block_size"])
    longest = None if flags["max_model_len"] == FIND else flags["max_model_len"]
    try:
        budget = memory_of(flags, gpu, model, max_model_len=longest)
    except BudgetError as error:
        if as_json or len(error.account) < 2:  # a pool of a stated size has no terms to print
            raise
        print_no_start(error, title_of(gpu, model), changes(flags, gpu, model))
        sys.exit(error.exit_code)
    if policy == "paged":
        from kvsim.engine.paged.group_initialization import check_groups

        check_groups(budget.plan.layout, _release(flags), caches_prefixes=budget.plan.settings.caches_prefixes(model))
    return budget


def _release(flags: Mapping[str, Any]) -> str:
    release: str = flags["vllm"] or DEFAULT
    return release


def _print(
    flags: dict[str, Any], budget: Budget, policy: str, tokens: int, costs: dict[str, Any] | None, *, sleeps: bool
) -> None:
    num_sequences, how_held = _num_sequences(budget, policy, tokens)
    on_one = "on each GPU" if _num_gpus(budget) > 1 else ""
    rows = [(term.label, size(term.size_bytes), on_one, term.why) for term in budget.terms]
    rows.append(("KV cache", size(budget.kv_bytes), on_one, "what is left, in whole blocks"))
    rows += [(f"  {row[0]}", *row[1:]) for row in _block_rows(budget, on_one)]
    rows += _in_all(budget, logs_longest=rules_of(_release(flags)).logs_longest)
    unit = "sequences" if policy != "static" else "rows"
    rows += [
        (unit, f"{num_sequences:,}", _of_rank(budget), f"of {tokens:,} tokens {how_held}"),
        *_all_ranks(budget, unit, num_sequences),
        *_otherwise_rows(budget, policy, tokens),
        *image_rows(costs),
        *(sleep_rows(budget, on_one) if sleeps else []),
    ]
    if policy == "paged":
        is_on, why = caching_words(budget.model, budget.plan)
        rows.append(("prefix caching", "on" if is_on else "off", "", why))
    others = _otherwise(budget, policy)
    echo(verdict(flags, budget, policy, tokens, num_sequences, image=costs, otherwise=others))
    fits = budget.plan.concurrency >= 1
    remedies = [] if fits else [change_words(changes(flags, budget.gpu, budget.model))]
    note = "\n".join(remedies + _unmeasured(flags, budget))
    print_table(title_of(budget.gpu, budget.model), ["", "", "", "why"], rows, figures=(1,), note=note)


def _num_gpus(budget: Budget) -> int:
    return budget.model.num_gpus * budget.model.data_parallel_size


def _of_rank(budget: Budget) -> str:
    """Describe what a pool's figures refer to: each data-parallel rank, or all GPUs; empty for one GPU."""
    return "on each rank" if budget.model.data_parallel_size > 1 else "in all" if _num_gpus(budget) > 1 else ""


def _all_ranks(budget: Budget, unit: str, num_sequences: int) -> list[tuple[str, str, str, str]]:
    ranks = budget.model.data_parallel_size
    why = f"{ranks} ranks, each with a scheduler and a cache of its own; no sequence uses two"
    return [(f"  {unit}", f"{ranks * num_sequences:,}", "in all", why)] if ranks > 1 else []


def _block_rows(budget: Budget, on_one: str) -> list[tuple[str, str, str, str]]:
    """Return the rows about a block: its bytes, and with several KV cache groups one row per kind of layer."""
    layout = budget.plan.layout
    why = f"{budget.block_size} tokens in all layers" if len(layout.groups) == 1 else _shared(budget)
    if (number := budget.model.decode_context_parallel_size) > 1:
        why += f", {budget.block_size // number} on each of {number} GPUs (--decode-context-parallel-size)"
    if budget.model.pipeline_parallel_size > 1:
        why += " of the stage"
    rows = [("one block", size(budget.bytes_per_block), on_one, why)]
    if len(layout.groups) == 1:
        per_token = size(budget.bytes_per_block // budget.block_size)
        rows.append(("one token", per_token, on_one, "a block's bytes, by its tokens"))
        return rows + _draft_rows(budget, on_one)
    by_spec: dict[int, list[KVCacheGroup]] = {}
    for group in layout.groups:
        by_spec.setdefault(group.spec, []).append(group)
    for groups in by_spec.values():
        first = groups[0]
        settings = budget.plan.settings
        held = sum(group.blocks_for(settings.max_model_len, settings.max_num_batched_tokens) for group in groups)
        window = f" of {first.window:,} tokens" if first.window else ""
        kind = {"mamba": "recurrent state"}.get(first.kind, first.kind.replace("_", " "))
        layers = sum(group.num_layers for group in groups)
        tables = plural(len(groups), "table")
        block = "one block a sequence" if first.mamba_mode == "none" else f"{first.block_size:,} tokens a block"
        rows.append(
            (f"{kind}{window}", f"{layers} layers", "", f"{tables}, {block}; at most {held:,} blocks a sequence")
        )
    return rows


def _draft_rows(budget: Budget, on_one: str) -> list[tuple[str, str, str, str]]:
    layers = budget.plan.settings.draft_layers
    if not layers:
        return []
    draft_bytes = draft_bytes_per_block(budget)
    share = f"{100 * draft_bytes / budget.bytes_per_block:.1f} % of each block: {len(layers)} draft layers"
    return [("draft layers", size(draft_bytes), on_one, share.removesuffix("s" if len(layers) == 1 else ""))]


def _shared(budget: Budget) -> str:
    groups = budget.plan.layout.groups
    longest = max(group.num_layers for group in groups)
    return f"{longest} pages of {size(groups[0].page_bytes)}, of whichever of {len(groups)} tables holds it"


def _in_all(budget: Budget, *, logs_longest: bool) -> list[tuple[str, str, str, str]]:
    plan = budget.plan
    length = plan.settings.max_model_len
    in_all = _of_rank(budget)
    number = len(plan.layout.groups)
    if logs_longest:
        logged = plan.num_tokens, "the next line by the length"
    else:
        logged = plan.divided_tokens, f"the blocks shared evenly by {number} tables" if number > 1 else "all blocks"
    return [
        ("blocks", f"{budget.num_blocks:,}", in_all, "vLLM's number; block 0 is never handed out"),
        ("GPU KV cache size", f"{logged[0]:,}", in_all, f"tokens, as vLLM logs it: {logged[1]}"),
        (
            "maximum concurrency",
            f"{plan.concurrency:.2f}x",
            in_all,
            f"sequences of {length:,} tokens, as vLLM logs it: {plan.blocks_for(length):,} blocks each",
        ),
    ]


def _otherwise(budget: Budget, policy: str) -> dict[str, tuple[CachePlan, str]]:
    """Return what the same memory holds under other layouts: for each JSON key, the plan and its condition in words."""
    if policy != "paged":
        return {}
    full, divided, number = budget.with_full_layers(), budget.with_divided_latents(), budget.model.tensor_parallel_size
    plans = {}
    if full is not None:
        plans["windows_as_full_layers"] = (full, "if windows were full layers")
    if divided is not None:
        plans["latents_divided"] = (divided, f"if the {number} GPUs shared each latent, which vLLM keeps whole on all")
    return plans


def _otherwise_rows(budget: Budget, policy: str, tokens: int) -> list[tuple[str, str, str, str]]:
    in_all = _of_rank(budget)
    return [
        ("  otherwise", f"{plan.max_sequences(tokens):,}", in_all,
         f"{words}: {plan.layout.held_blocks(tokens):,} of {plan.num_blocks:,} blocks each")
        for plan, words in _otherwise(budget, policy).values()
    ]  # fmt: skip


def _unmeasured(flags: Mapping[str, Any], budget: Budget) -> list[str]:
    """Return a note for each term of the budget that was not measured for this model or release."""
    release, model = _release(flags), budget.model
    is_computed = any(term.label == "activations" for term in budget.terms)
    sentences = []
    if is_computed and model.has_shared_experts:
        sentences.append(
            "of data-parallel ranks one start was measured (Qwen3-30B-A3B, two H100s): 1.2 % fewer blocks than these "
            "estimates of activations, buffers and graphs leave"
        )
    if is_computed and model.image_class and not budget.encoder_cache_tokens:
        sentences.append(f"what vLLM keeps for images of {model.image_class} is not in: its largest image is not known")
    if is_computed and model.decode_context_parallel_size > 1:
        sentences.append("what GPUs exchange of divided contexts takes memory that was not measured")
    if not rules_of(release).profiles_free_memory or not is_computed:
        return sentences
    sentences.append(
        f"activations, captured graphs and memory outside PyTorch were measured in vLLM 0.25.1; {release} takes one "
        "difference of free memory instead, which was not measured"
    )
    return sentences


def _document(
    flags: Mapping[str, Any], budget: Budget, policy: str, tokens: int, costs: dict[str, Any] | None, *, sleeps: bool
) -> dict[str, Any]:
    plan = budget.plan
    num_sequences, _ = _num_sequences(budget, policy, tokens)
    logs_longest = rules_of(_release(flags)).logs_longest
    document = {
        "gpu": budget.gpu.name,
        "model": budget.model.name,
        "policy": policy,
        **{name: getattr(budget.model, name) for name in _OF_MODEL},
        "bytes_per_block": budget.bytes_per_block,
        "kv_bytes": budget.kv_bytes,
        "num_blocks": budget.num_blocks,
        "capacity_tokens": budget.capacity_tokens,
        "gpu_kv_cache_size_tokens": plan.num_tokens if logs_longest else plan.divided_tokens,
        "max_concurrency": plan.concurrency,
        "max_model_len": plan.settings.max_model_len,
        "kv_cache_groups": [group.as_meta() for group in plan.layout.groups],
        "max_sequences": {str(tokens): num_sequences},
        "max_sequences_otherwise": {
            name: {str(tokens): plan.max_sequences(tokens)} for name, (plan, _) in _otherwise(budget, policy).items()
        },
        "terms": [{"label": term.label, "bytes": term.size_bytes, "why": term.why} for term in budget.terms],
    }
    document |= {"image": costs} if costs else {}
    document |= {"asleep": asleep_of(budget)} if sleeps else {}
    return document | {"unmeasured": _unmeasured(flags, budget)}


def _num_sequences(budget: Budget, policy: str, tokens: int) -> tuple[int, str]:
    from kvsim.memory.packing import largest_batch

    if policy == "paged":
        held = budget.plan.layout.held_blocks(tokens)
        return budget.max_sequences(tokens), f"decode at once, {plural(held, 'block')} each"
    if not budget.plan.layout.is_uniform:
        raise UsageError(
            f"--policy {policy} is for models whose layers are all alike; {budget.model.name} has several kinds."
        )
    num_slots = budget.kv_bytes // budget.model.kv_bytes_per_token
    if policy == "static":
        return largest_batch(num_slots, tokens), "fit into the largest padded batch that runs to its end"
    return num_slots // tokens, "fit at once, each reserving as much in one piece"
