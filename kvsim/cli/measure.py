"""`kvsim measure`: measure the speed of this machine, and write it as a machine card."""

from __future__ import annotations

from pathlib import Path

import click

from kvsim.cli.show import output_option, overwrite_option


@click.command("measure")
@output_option("Machine card to write.", required=True, metavar="CARD.toml")
@click.option(
    "--tensor-parallel-size",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of GPUs of this host; with more than 1, all-reduce is measured, too.",
)
@overwrite_option()
def command(*, output: Path, tensor_parallel_size: int, overwrite: bool) -> None:
    """Measure this machine's GPU, links and host, and write a machine card.

    Takes at most 90 seconds, and needs PyTorch. If vLLM can be imported, its kernels are measured. Nothing else should
    run on the GPU in this time. Other commands simulate this machine with --profile CARD.toml.
    """
    from kvsim.files.overwriting import may_write
    from kvsim.measure import measure
    from kvsim.steptime.card import save_card

    may_write(output, "measure", overwrite=overwrite)
    card = measure(tensor_parallel_size, progress=lambda what: click.echo(f"measuring {what} ...", err=True))
    save_card(card, output, made_by="measure")
    click.echo(output)
