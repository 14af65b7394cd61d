"""What a flag may be: the largest numbers that mean anything, and the policies that a flag is for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import click

from kvsim.cli.sections import SectionedOption
from kvsim.errors import UsageError, shortened

_LARGEST: Mapping[str, float] = {
    "num_requests": 1 << 24,
    "max_model_len": 1 << 27,
    "tokens": 1 << 27,
    "block_size": 1 << 16,
    "kv_offloading_size": 999_999,
    "kv_offloading_block_size": 1 << 20,
    "num_blocks": 1 << 40,
    "batch_size": 1 << 20,
    "row_tokens": 1 << 27,
    "max_num_seqs": 1 << 20,
    "max_num_batched_tokens": 1 << 30,
    "long_prefill_token_threshold": 1 << 30,
    "speculative_tokens": 1 << 10,
    "seed": (1 << 63) - 1,
    "min_tokens": (1 << 31) - 1,
    "max_prompt_tokens": (1 << 31) - 1,
    "max_total_tokens": (1 << 31) - 1,
}
"""The largest values that are taken, beyond any engine, model or machine; the smallest are refused where they are used.
"""
_OF_SECTIONS = {"Paged cache": "paged", "Contiguous reservations": "contiguous", "Static batches": "static"}
_NOT_FOR_STATIC = frozenset((
    "max_num_seqs", "max_num_batched_tokens", "long_prefill_token_threshold", "no_chunked_prefill",
    "no_async_scheduling", "order", "defaults",
))  # fmt: skip


def check_ranges(flags: Mapping[str, Any]) -> None:
    """Make sure that no number is larger than anything that could be simulated.

    Raises:
        UsageError: one is; the sentence names the flag.
    """
    for name, largest in _LARGEST.items():
        value = flags.get(name)
        if isinstance(value, int | float) and value > largest:
            raise UsageError(f"--{name.replace('_', '-')} should be at most {largest:,}, not {shortened(value)}.")


def check_policy_flags(context: click.Context, policies: Collection[str], varied: Collection[str] = ()) -> None:
    """Make sure that every flag that was given says something to one of `policies`.

    Args:
        context: of the command, which knows what was typed.
        policies: those that will be simulated.
        varied: flags whose values were given in another way.

    Raises:
        UsageError: one does not; the sentence names the flag and the policy that it is for.
    """
    for option in context.command.params:
        name = str(option.name)
        typed = context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if not isinstance(option, SectionedOption) or not (typed or name in varied):
            continue
        takers = _takers(name, option.section)
        if name == "block_size" and context.params.get("num_blocks") is not None:
            continue  # it says how much memory that is
        if not takers & set(policies):
            flag, given = option.opts[0], " and ".join(policies)
            raise UsageError(
                f"{flag} says nothing to --policy {given}: it is for {' and '.join(sorted(takers))}; leave it out."
            )


def _takers(name: str, section: str) -> set[str]:
    """The policies that a flag is for."""
    if section in _OF_SECTIONS:
        return {_OF_SECTIONS[section]}
    return {"paged", "contiguous"} if name in _NOT_FOR_STATIC else {"paged", "contiguous", "static"}
