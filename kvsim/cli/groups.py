"""Savings by KV-cache groups, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.cli.scenario import Scenario
    from kvsim.policies import Paged


def most_sequences(scenario: Scenario, grouped: Paged, uniform: Paged) -> str:
    """Return the number of sequences of the workload's mean length that decode at once with groups, and without."""
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
