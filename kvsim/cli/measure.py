"""`kvsim measure`: measure the speed of this machine, and write it as a machine card."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.cli.show import output_option, overwrite_option


@click.command("measure")
@output_option("The card.", required=True, metavar="CARD.toml")
@click.option(
    "--tensor-parallel-size",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of GPUs of this host over which all-reduce is measured, too.",
)
@overwrite_option()
def command(*, output: Path, tensor_parallel_size: int, overwrite: bool) -> None:
    """Measure this machine's GPU, links and host, and write a machine card.

    Takes at most 90 seconds, needs PyTorch, and uses vLLM's kernels where vLLM is importable. Nothing else should run
    on the GPU meanwhile. `--profile CARD.toml` then simulates on this machine.
    """
    from kvsim.files.overwriting import may_write
    from kvsim.measure import measure
    from kvsim.steptime.card import save_card

    may_write(output, "measure", overwrite=overwrite)
    card = measure(tensor_parallel_size, progress=lambda what: click.echo(f"measuring {what} ...", err=True))
    save_card(card, output, made_by="measure")
    click.echo(output)
