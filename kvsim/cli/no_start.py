"""Explanation of a server that does not start: the error, the memory budget, and changes with which it starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvsim.cli.machine_flags import AUTO_LENGTH, engine_limits, memory_of
from kvsim.cli.show import echo, print_table
from kvsim.cli.size_rows import term_rows
from kvsim.errors import BudgetError
from kvsim.sizing.budget_terms import BudgetTerm

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.sizing.budget import Budget
    from kvsim.sizing.starts import StartingSettings


def changes(flags: Mapping[str, Any], gpu: Gpu, model: Model) -> list[StartingSettings]:
    """Return settings with which a server would start that does not start with `flags`. Each changes one flag."""
    from kvsim.sizing.machine_settings import served_with
    from kvsim.sizing.starts import changes_that_start

    longest = model.max_position_embeddings if flags["max_model_len"] in (None, AUTO_LENGTH) else flags["max_model_len"]

    def plan(settings: Mapping[str, Any]) -> Budget:
        served = served_with(model, settings)
        merged = {**flags, **settings, "max_model_len": AUTO_LENGTH if settings.get("find_max_model_len") else longest}
        return memory_of(merged, gpu, served, max_model_len=None if merged["max_model_len"] == AUTO_LENGTH else longest)

    return changes_that_start(plan, _present(flags, gpu, model, longest))


def _present(flags: Mapping[str, Any], gpu: Gpu, model: Model, longest: int) -> dict[str, Any]:
    from kvsim.policies.releases import DEFAULT_RELEASE, defaults_of

    num_seqs, num_tokens = engine_limits(flags, gpu, longest)
    share, quantization = flags["gpu_memory_utilization"], model.quantization
    default = defaults_of(flags["vllm"] or DEFAULT_RELEASE).gpu_memory_utilization
    sixteen_bits = None if gpu.fp8_dense_flops else model.dtype  # types that the GPU cannot multiply are not advised
    return {
        "gpu_memory_utilization": default if share is None else share,
        "max_num_batched_tokens": num_tokens,
        "max_num_seqs": num_seqs,
        "kv_cache_dtype": sixteen_bits if model.kv_cache_dtype == "auto" else model.kv_cache_dtype,
        "quantization": sixteen_bits if quantization is None else quantization.method,
        "tensor_parallel_size": model.tensor_parallel_size,
    }


def print_no_start(error: BudgetError, title: str, found: list[StartingSettings], *, in_vllm: bool = True) -> None:
    """Print the error, the terms of the memory budget, and the changes with which the server starts.

    With `in_vllm`, also print the message in vLLM's log.
    """
    echo(f"kvsim: {error}", err=True)
    on_one = "on each GPU" if " x " in title else ""
    terms = [BudgetTerm(*term) for term in error.account]
    left = sum(term.size_bytes for term in terms)
    logged = f'vLLM\'s log then says: "{_logged(error)}"' if in_vllm else "too little for one sequence"
    terms.append(BudgetTerm("left for the cache", left, logged))
    print_table(title, ["", "", "", "why"], term_rows(terms, on_one), figures=(1,), note=change_words(found))


def _logged(error: BudgetError) -> str:
    """Return the beginning of the message that vLLM logs for `error`, so that a reader can find it in the log."""
    sizes = {label: num_bytes for label, num_bytes, _ in error.account}
    if -sizes.get("weights", 0) > sizes.get("GPU memory", sum(map(abs, sizes.values()))):
        return "CUDA out of memory"
    if sum(sizes.values()) <= 0:
        return "No available memory for the cache blocks"
    return "To serve at least one request with the model's max seq len"


def change_words(found: list[StartingSettings]) -> str:
    """Return a line for each change: its flags, and the number of tokens that the cache then holds."""
    if not found:
        return "No change of a single setting makes it start."
    lines = [f"  {change.flags}: room for {change.budget.plan.num_tokens:,} tokens" for change in found]
    return "\n".join(["It starts with one of:", *lines])
