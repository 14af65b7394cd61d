"""Output of all commands: text, tables, JSON and progress bars. Control characters are escaped."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import Command, flag
from kvsim.display.text import printable, printable_lines

if TYPE_CHECKING:
    from kvsim.conformance.verdict import VerdictLine
    from kvsim.metrics import Distribution

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def overwrite_option(*outputs: str) -> Callable[[Command], Command]:
    """Return a decorator that adds `--overwrite`. One of the parameters `outputs`, if any, must be given with it."""
    return flag(
        "--overwrite",
        is_flag=True,
        requires=outputs,
        help="Replace output of other commands or programs, and output that was edited. Without it, only unchanged "
        "output of the same command is replaced.",
    )


def theme_option(text: str) -> Callable[[Command], Command]:
    """Return a decorator that adds `--theme`, light or dark, with `text` as its help."""
    return flag("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help=text)


def output_option(text: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds `-o`, the path of a command's output, with `text` as its help."""
    return flag("-o", "--output", type=click.Path(path_type=Path), help=text, **settings)


def command_line() -> str:
    """Return the command line of this process, for the metadata of written files."""
    return shlex.join(["kvsim", *sys.argv[1:]])


def echo(text: object, *, err: bool = False) -> None:
    """Print `text` on standard output or standard error."""
    click.echo(printable_lines(str(text)), err=err)


def print_json(document: Mapping[str, Any]) -> None:
    """Print `document` as JSON; NaN and infinity become null."""
    click.echo(json.dumps(_finite(document), indent=2, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, figures: Sequence[int] = (), note: str = ""
) -> None:
    """Print a table. `figures` has the indices, from 0, of columns to align to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A pipe has no width, so lines are wrapped there at 200 characters only.
    console = Console(width=None if sys.stdout.isatty() else 200, highlight=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(
            Text(printable(column)), justify="right" if index in figures else "left", no_wrap=index in figures
        )
    for row in rows:
        table.add_row(*(Text(printable_lines(cell)) for cell in row))
    if title:
        console.print(Text(printable(title), style="bold"))
    console.print(table)
    if note:
        console.print(Text(printable_lines(note)))


def difference_rows(lines: Iterable[VerdictLine]) -> list[tuple[str, str, str]]:
    """Return the rows of a table of compared decisions: label, recorded value, simulated value.

    The label of a line that differs begins with ">".
    """
    return [(("> " if line.differs else "  ") + line.label, line.recorded, line.simulated) for line in lines]


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function of (steps done, all steps) that shows progress on a terminal; without one, it does nothing."""
    if not sys.stderr.isatty():
        yield lambda done, total: None  # noqa: ARG005
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=Console(stderr=True), transient=True,
    )  # fmt: skip
    with bar:
        task = bar.add_task(escape(printable(label)), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def change_words(before: float, after: float, form: Callable[[float], str]) -> str:
    """Return the change from `before` to `after` in percent, or in percentage points if `form` prints percentages.

    The text is empty if a value is NaN, or if `form` prints both values alike. If `before` is 0, it is `after` with a
    plus sign.
    """
    if before != before or after != after or form(before) == form(after):
        return ""
    if form(0.5).endswith("%"):
        return f"{100 * (after - before):+.1f} points"
    return f"{100 * (after / before - 1):+.1f} %" if before else f"+{form(after)}"


def number(value: float, form: str = ",.0f") -> str:
    """Format a number; a dash for NaN."""
    return "–" if value != value else format(value, form)


def quantiles(times: Distribution) -> str:
    """Format the median, the 99th percentile and the mean of `times`."""
    return f"p50 {seconds(times.p50)}, p99 {seconds(times.p99)}, mean {seconds(times.mean)}"


def seconds(value: float) -> str:
    """Format a duration with a suitable unit; a dash for NaN."""
    if value != value:  # NaN: nothing to measure
        return "–"
    if value < 1:
        return f"{value * 1000:.1f} ms"
    return f"{value:.2f} s"
