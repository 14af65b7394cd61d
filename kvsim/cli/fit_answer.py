"""Printed answers of `kvsim fit` and `kvsim diagnose`: the simulated server, its figures, and the remedies."""

from __future__ import annotations

from math import isnan
from typing import TYPE_CHECKING

from kvsim.cli.answer import times_rows
from kvsim.cli.show import echo, print_table, seconds
from kvsim.display.text import size_words
from kvsim.fitting.outcome import price_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.fitting import Answer, Outcome, Remedy
    from kvsim.fitting.growth import Grown

Band = "Mapping[str, tuple[float, float]]"


def print_fit(answer: Answer) -> None:
    """Print the verdict, the limit, the simulated server, its figures, and the changes that help."""
    echo(answer.verdict)
    echo(f"Limit: {answer.limit}")
    if answer.splits:
        echo(answer.splits)
    if answer.left_out:
        echo(answer.left_out)
    outcome, server = answer.outcome, answer.server
    gpus = f"{server.num_gpus} x {server.gpu.name}" if server.num_gpus > 1 else server.gpu.name
    rows: list[tuple[str, ...]] = [
        ("requests", load_words(answer)),
        ("server", server.command()),
        ("GPUs", ", ".join(filter(None, (gpus, server.fleet_words)))),
    ]
    if not outcome.error:
        pool = server.pool_words(outcome.num_blocks)
        rows.append(("KV cache", f"{size_words(outcome.kv_bytes)} on each GPU, {pool}"))
        rows += times_rows(outcome.label)
    print_table("", ["", ""], rows)
    if not outcome.error:
        print_table(
            "",
            ["", ""],
            [(name, cell) for name, cell in zip(_NAMES, cells(outcome, answer.band), strict=True)],
            note="" if answer.band else NO_MARGIN,
        )
    if answer.tried:
        print_remedies(answer.remedies, outcome, fits=answer.fits)
        print_ineffective_remedies(answer.without_gain, fits=answer.fits)


def print_ineffective_remedies(remedies: Sequence[Remedy], *, fits: bool) -> None:
    """Print one line that names the remedies without an effect; nothing if there are none.

    `fits` tells whether the load fits without a remedy.
    """
    if remedies:
        tried = "; ".join(
            f"{each.change.words} ({_rate(each.outcome.output_tokens_per_s)} tokens/s, TTFT p99 "
            f"{seconds(each.outcome.ttft_s.p99)}, TPOT p99 {seconds(each.outcome.tpot_s.p99)})"
            for each in remedies
        )
        echo(f"Tried {'without gain' if fits else 'and not much nearer'}: {tried}.")


def print_remedies(remedies: Sequence[Remedy], before: Outcome, *, fits: bool) -> None:
    """Print a table of the remedies, with the command for each and the figures that become worse than `before`.

    `fits` tells whether the load fits without a remedy.
    """
    if not remedies:
        echo(
            "No change that was tried brings more, or answers much sooner."
            if fits
            else "No change that was tried would help."
        )
        return
    heading = (
        "what would bring more output, or answers sooner, nearest first" if fits else "what would help, nearest first"
    )
    rows = [
        (str(number), change_words(each, before), "yes" if each.fits else "no", *cells(each.outcome, each.band))
        for number, each in enumerate(remedies, 1)
    ]
    note = _BAND if any(each.band for each in remedies) else ""
    if not all(each.band for each in remedies):
        note = "\n".join(filter(None, (note, NO_MARGIN)))
    print_table(heading, ["", "change", "fits", *_NAMES], rows, note=note)
    for number, each in enumerate(remedies, 1):
        behind = f", {words}" if (words := each.change.server.fleet_words) else ""
        on = f"  # {each.change.server.num_gpus} x {each.change.server.gpu.name}{behind}"
        echo(f"{number}  {each.change.server.command()}{on}")


def print_growth(rows: Sequence[Grown], multiples: Sequence[float]) -> None:
    """Print a row for each kind of server, cheapest first: how many are needed for each multiple of the load. If no
    number of servers fits any multiple, print one sentence instead of a table.
    """
    missing = [f"{times:g}x" for times in multiples if times not in {row.times for row in rows}]
    if not rows:
        echo(f"No number of servers that was tried fits {', '.join(missing)}.")
        return
    note = f"no number of servers that was tried fits {', '.join(missing)}" if missing else ""
    has_price = any(row.price_per_hour is not None for row in rows)
    heads = ["load", "servers", "GPUs", *(["an hour", "a million tokens"] if has_price else []), *_NAMES[:3], "kind"]
    lines = []
    for row in rows:
        outcome, million = row.outcome, row.price_per_million
        prices = ("–", "–") if million is None else (f"{row.price_per_hour:,.2f}", f"{million:,.3f}")
        lines.append((
            f"{row.times:g}x", f"{row.server.replicas}", f"{row.server.num_gpus} x {row.server.gpu.name}",
            *(prices if has_price else ()), f"{outcome.output_tokens_per_s:,.0f}", seconds(outcome.ttft_s.p99),
            seconds(outcome.tpot_s.p99), row.words,
        ))  # fmt: skip
    print_table("the fewest servers for a growing load, cheapest kinds first", heads, lines, note=note)


def change_words(remedy: Remedy, before: Outcome) -> str:
    """Describe a remedy, and the figures that it makes much worse than `before`."""
    price = price_words(before, remedy.outcome)
    return f"{remedy.change.words}, {price}" if price else remedy.change.words


_NAMES = ("output tokens/s", "TTFT p99", "TPOT p99", "preemptions a minute")
_BAND = "in brackets: the 80 % interval of such predictions"
NO_MARGIN = "without brackets: fewer than three recordings show the error of such predictions, so that it is unknown"


def cells(outcome: Outcome, band: Mapping[str, tuple[float, float]]) -> tuple[str, str, str, str]:
    """Return output tokens/s, TTFT p99, TPOT p99 and preemptions per minute as text.

    `band` has the smallest and the largest value of a figure, as a prediction interval, by `output_tokens_per_s`,
    `ttft_p99_s`, `tpot_p99_s` and `preemptions_per_min`. A figure without an entry is printed without an interval.
    """

    def span(name: str, *, time: bool) -> str:
        if name not in band:
            return ""
        low, high = band[name]
        return f" ({seconds(low)} to {seconds(high)})" if time else f" ({low:,.0f} to {high:,.0f})"

    return (
        f"{_rate(outcome.output_tokens_per_s)}{span('output_tokens_per_s', time=False)}",
        f"{seconds(outcome.ttft_s.p99)}{span('ttft_p99_s', time=True)}",
        f"{seconds(outcome.tpot_s.p99)}{span('tpot_p99_s', time=True)}",
        f"{outcome.preemptions_per_min:,.0f}{span('preemptions_per_min', time=False)}",
    )


def _rate(per_s: float) -> str:
    return "–" if isnan(per_s) else f"{per_s:,.0f}"


def load_words(answer: Answer) -> str:
    """Describe the load of `answer` in words."""
    load = answer.load
    if load.users is None:
        return load.workload.description
    pause = f", {load.think_s:g} s after the answer before" if load.think_s else ""
    return f"{load.users:,} users, each with one request at a time{pause}; {load.workload.description}"
