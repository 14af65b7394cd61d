"""`kvsim import`: convert requests in a public format to a workload file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import flag, with_options
from kvsim.cli.generated_workload import arrivals_of_flags
from kvsim.cli.options import bounded
from kvsim.cli.show import json_option, output_option, overwrite_option, print_json, print_table
from kvsim.cli.workload import columns_of, first_requests
from kvsim.cli.workload_flags import ARRIVAL_OPTIONS, REQUESTS, SEED
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.workload import Workload

_FORMAT_NAMES = (
    "azure", "burstgpt", "conversations", "csv", "mooncake", "ragpulse", "sharegpt", "sharegpt-turns", "vidur",
    "vllm-bench",
)  # fmt: skip
"""Names of the formats. They are repeated here so that the help does not import the readers; a test compares them."""
_NEW_ARRIVALS = ("arrivals", "burstiness", "ramp", "rate_profile")
"""Flags that replace the arrivals in the imported file."""
_LENGTH = bounded(at_most=(1 << 31) - 1)


@click.command("import")
@click.argument("file")
@click.option("--columns", metavar="OURS=THEIRS,...", help="Column names of a CSV file: arrival_s=ts,...")
@click.option("--as", "form", metavar="FORMAT", help=f"One of {', '.join(_FORMAT_NAMES)}.  [found from the content]")
@output_option("Write the workload here, as Parquet.")
@click.option("--num-requests", type=int, callback=REQUESTS, help="Maximum number of requests.")
@click.option(
    "--min-tokens",
    type=int,
    callback=_LENGTH,
    default=1,
    show_default=True,
    help="Shortest prompt and shortest answer to keep.",
)
@click.option("--max-prompt-tokens", type=int, callback=_LENGTH, help="Longest prompt to keep.")
@click.option("--max-total-tokens", type=int, callback=_LENGTH, help="Longest prompt and answer together to keep.")
@click.option(
    "--chars-per-token", type=float, help="Letters per token of a sharegpt file that does not count tokens.  [4]"
)
@with_options(*ARRIVAL_OPTIONS)
@flag(
    "--seed",
    type=int,
    callback=SEED,
    default=0,
    show_default=True,
    requires=_NEW_ARRIVALS,
    help="Seed of new arrivals.",
)
@overwrite_option("output")
@json_option
def command(
    *,
    file: str,
    form: str | None,
    columns: str | None,
    output: Path | None,
    num_requests: int | None,
    min_tokens: int,
    max_prompt_tokens: int | None,
    max_total_tokens: int | None,
    chars_per_token: float | None,
    overwrite: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Turn the requests in FILE (CSV, JSON, gzip or not, or a recording) into a workload, and describe it.

    Every command that simulates can read FILE with --workload FILE. Importing it once is faster for several commands,
    and stores which requests were chosen and when they arrive. The description says what was left out.
    """
    from kvsim.files.overwriting import check_ending, may_write
    from kvsim.importers import LengthLimits, arriving, read_workload, within, write_workload

    if output is not None:
        check_ending(output, "a workload", ".parquet", "")
        may_write(output, "import", overwrite=overwrite)
    workload = (
        _sharegpt_with_guessed_lengths(file, form, columns_of(columns), chars_per_token)
        if chars_per_token is not None
        else read_workload(file, form=form, columns=columns_of(columns))
    )
    limits = LengthLimits(min_tokens=min_tokens, max_prompt_tokens=max_prompt_tokens, max_total_tokens=max_total_tokens)
    workload = within(workload, limits)
    if num_requests is not None:
        workload = first_requests(workload, num_requests)
    if any(flags[name] is not None for name in _NEW_ARRIVALS):
        workload = arriving(workload, arrivals_of_flags(flags), flags["seed"])
    elif flags["rate"] is not None:
        raise UsageError("--rate is the rate of new arrivals; say which with --arrivals.")
    if output is not None:
        write_workload(workload, output)
    if as_json:
        about = {"name": workload.name, "description": workload.description}
        print_json(about | asdict(workload.summary()))
    else:
        print_table(workload.description, ["", ""], _rows(workload, output))


def _rows(workload: Workload, output: Path | None) -> list[tuple[str, str]]:
    summary = workload.summary()
    rate = "all at once" if summary.rate_per_s is None else f"{summary.rate_per_s:.4g} per second"
    hashed = len(workload.prompt_hashes.values) * workload.hash_unit_tokens / workload.prompt_tokens.sum(dtype=float)
    return [
        ("requests", f"{summary.num_requests:,}"),
        *([] if workload.turns is None else [("sessions", f"{int((workload.turns.after < 0).sum()):,}")]),
        ("arrivals", f"{rate}, over {summary.duration_s:,.1f} s"),
        *([] if summary.gap_cv is None else [("variation of the gaps", f"{summary.gap_cv:.3g} (Poisson: 1)")]),
        ("prompt, mean", f"{summary.mean_prompt_tokens:,.1f} tokens"),
        ("answer, mean", f"{summary.mean_output_tokens:,.1f} tokens"),
        ("longest request", f"{summary.longest_request_tokens:,} tokens"),
        ("prefixes known of", f"{100 * hashed:.1f}% of prompt tokens"),
        *([] if output is None else [("written to", str(output))]),
    ]


def _sharegpt_with_guessed_lengths(
    file: str, form: str | None, columns: dict[str, str], chars_per_token: float
) -> Workload:
    """Read ShareGPT conversations. A missing number of tokens is estimated: one per `chars_per_token` characters."""
    from kvsim.importers import TextSource, detect
    from kvsim.importers.sharegpt import read

    source = TextSource.open(file)
    if (form or detect(source)) != "sharegpt":
        raise UsageError("--chars-per-token is for ShareGPT conversations; other formats count tokens.")
    if columns:
        raise UsageError("--columns are those of a CSV file, not of the format sharegpt; leave them out.")
    return read(source, chars_per_token=chars_per_token)
