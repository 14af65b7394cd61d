"""Number of simulations that a command runs at a time, and their engine."""

from __future__ import annotations

import click

jobs_option = click.option(
    "--jobs",
    type=click.IntRange(-1, 1000),
    default=-1,
    show_default=True,
    help="Runs at a time; -1: one for each core.",
)
engine_option = click.option(
    "--engine",
    type=click.Choice(["auto", "compiled", "interpreted"]),
    default="auto",
    show_default=True,
    help="The engine as machine code, or as it stands in Python. auto: by how much there is to simulate.",
)
