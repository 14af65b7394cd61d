"""`kvsim size`: the pool that a GPU and a model leave room for, line by line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.show import json_option, print_json, print_table, size
from kvsim.policies import POLICY_NAMES

if TYPE_CHECKING:
    from kvsim.budget import Budget


def _list(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Name everything that is listed, and leave."""
    if not wanted:
        return
    from kvsim.hardware import GPUS
    from kvsim.models import all_models

    click.echo("\n".join(["GPUs", *(f"  {gpu.name}" for gpu in GPUS)]))
    click.echo("\n".join(["models", *(f"  {model.name}" for model in all_models())]))
    context.exit()


@click.command("size")
@click.option(
    "--list", is_flag=True, is_eager=True, expose_value=False, callback=_list, help="Name all GPUs and models."
)
@click.option("--model", required=True, help="A listed model, such as Meta-Llama-3-8B.")
@click.option("--gpu", required=True, help="A listed GPU, such as H200.")
@click.option(
    "--gpu-memory-utilization", type=float, default=0.92, show_default=True, help="Share of the GPU that may be used."
)
@click.option("--block-size", type=int, default=16, show_default=True, help="Tokens per block.")
@click.option("--kv-gib", type=float, help="Memory for the KV cache, instead of what the GPU leaves.")
@click.option("--max-num-batched-tokens", type=int, default=16384, show_default=True)
@click.option("--max-num-seqs", type=int, default=1024, show_default=True)
@click.option("--tensor-parallel-size", type=int, default=1, show_default=True, help="GPUs that share the model.")
@click.option("--tokens", type=int, default=2048, show_default=True, help="Length of a sequence, to say how many fit.")
@click.option(
    "--policy",
    type=click.Choice(POLICY_NAMES),
    default="paged",
    show_default=True,
    help="How the memory is shared out; with static, the result is the largest batch.",
)
@json_option
def command(
    *, model: str, gpu: str, kv_gib: float | None, tokens: int, policy: str, as_json: bool, **settings: Any
) -> None:
    """Explain how many blocks a GPU and a model leave room for, and how many sequences or rows fit."""
    from kvsim.budget import plan_budget
    from kvsim.errors import UsageError
    from kvsim.hardware import find_gpu
    from kvsim.models import find_model

    if kv_gib is not None and not 0 < kv_gib < 1e6:
        raise UsageError(f"--kv-gib should be a positive size, not {kv_gib}.")
    kv_memory_bytes = None if kv_gib is None else int(kv_gib * 2**30)
    budget = plan_budget(find_gpu(gpu), find_model(model), kv_memory_bytes=kv_memory_bytes, **settings)
    num_sequences, fits_as = _num_sequences(budget, policy, tokens)
    if as_json:
        print_json(
            {
                "gpu": budget.gpu.name,
                "model": budget.model.name,
                "policy": policy,
                "kv_bytes_per_token": budget.model.kv_bytes_per_token,
                "bytes_per_block": budget.bytes_per_block,
                "kv_bytes": budget.kv_bytes,
                "num_blocks": budget.num_blocks,
                "capacity_tokens": budget.capacity_tokens,
                "max_sequences": {str(tokens): num_sequences},
                "terms": [{"label": term.label, "bytes": term.size_bytes, "why": term.why} for term in budget.terms],
            }
        )
        return
    rows = [(term.label, size(term.size_bytes), term.why) for term in budget.terms]
    rows += [
        ("KV cache", size(budget.kv_bytes), "what is left, in whole blocks"),
        ("KV per token", size(budget.model.kv_bytes_per_token), "keys and values in all layers"),
        ("one block", size(budget.bytes_per_block), f"{budget.block_size} tokens"),
        ("blocks", f"{budget.num_blocks:,}", "vLLM's number; block 0 is never handed out"),
        ("tokens that fit", f"{budget.capacity_tokens:,}", "in the usable blocks"),
        (f"sequences of {tokens:,} tokens", f"{num_sequences:,}", fits_as),
    ]
    print_table(f"{budget.model.name} on {budget.gpu.name}", ["", "", "why"], rows, figures=(1,))


def _num_sequences(budget: Budget, policy: str, tokens: int) -> tuple[int, str]:
    """How many sequences of `tokens` tokens the memory holds at once, and in what form."""
    from kvsim.memory.padded import largest_batch

    num_slots = budget.kv_bytes // budget.model.kv_bytes_per_token
    if policy == "static":
        return largest_batch(num_slots, tokens), "the largest padded batch that runs to its end"
    if policy == "contiguous":
        return num_slots // tokens, "at once, each reserving as much in one piece"
    return budget.max_sequences(tokens), "at once, in whole blocks"
