"""`kvsim pack`: pack training sequences into rows of equal length, and compare the result with padded batches."""

from __future__ import annotations

from typing import Any

import click

from kvsim.cli.flag import SectionedCommand
from kvsim.cli.options import bounded
from kvsim.cli.show import json_option, print_json, print_table
from kvsim.cli.workload import workload_of_flags
from kvsim.cli.workload_flags import workload_options


@click.command("pack", cls=SectionedCommand)
@workload_options
@click.option(
    "--row-tokens",
    type=int,
    callback=bounded(at_most=1 << 27),
    default=2048,
    show_default=True,
    help="Length of a packed row.",
)
@click.option(
    "--batch-size",
    type=int,
    callback=bounded(at_most=1 << 20),
    default=16,
    show_default=True,
    help="Rows of a padded batch.",
)
@json_option
def command(*, row_tokens: int, batch_size: int, as_json: bool, **flags: Any) -> None:
    """Pack prompts with their answers into rows, as for training, and count what padding would cost.

    Each sequence is followed by an end token. Rows are filled by first fit, the longest sequence first.
    """
    from kvsim.memory.packing import first_fit_decreasing, padded

    workload = workload_of_flags(flags)
    lengths = (workload.prompt_tokens + workload.output_tokens).tolist()
    ways = {
        "packed": first_fit_decreasing(lengths, row_tokens),
        "padded, sorted by length": padded(sorted(lengths), batch_size),
        "padded": padded(lengths, batch_size),
    }
    if as_json:
        print_json(
            {
                way: {
                    "num_sequences": len(lengths),
                    "num_rows": len(packing.rows),
                    "num_slots": packing.num_slots,
                    "num_tokens": packing.num_tokens,
                    "num_padding": packing.num_padding,
                    "used_percent": packing.used_percent,
                }
                for way, packing in ways.items()
            }
        )
        return
    rows = [
        (
            way,
            f"{len(packing.rows):,}",
            f"{packing.num_slots:,}",
            f"{packing.num_padding:,}",
            f"{packing.used_percent:.1f}",
        )
        for way, packing in ways.items()
    ]
    print_table(
        f"{len(lengths):,} sequences, {ways['packed'].num_tokens:,} tokens: {workload.description}",
        ["", "rows", "slots", "padding", "used, %"],
        rows,
        figures=(1, 2, 3, 4),
        note=f"packed rows have {row_tokens:,} tokens; padded batches have {batch_size} rows, as wide as the longest",
    )
