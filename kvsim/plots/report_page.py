"""Reports on recordings: metadata, results, figures, and the commands that reproduce the figures.

The HTML page contains the figures; a Markdown file with the same text links to their files.
"""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from kvsim.display.text import filled, html_text, markdown_code, markdown_text, printable
from kvsim.errors import KvsimError, UsageError
from kvsim.files.atomic import whole_file
from kvsim.files.overwriting import replacing_folder
from kvsim.memory.waste import SlotState
from kvsim.metrics import Summary, summarize
from kvsim.metrics.summary import hit_words
from kvsim.plots import plans, save
from kvsim.plots.colors import THEMES
from kvsim.plots.sampling import waste_of
from kvsim.plots.style import STATE_LABELS
from kvsim.plots.words import distinct_names, label, memory, policy_label, provenance, seconds
from kvsim.profiles import extrapolation

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.plots.colors import Theme
    from kvsim.recording import Recording

PAGE, TEXT, FIGURES = "report.html", "report.md", "figures"
Row: TypeAlias = tuple[str, tuple[str, ...]]
"""Row of a table: a label, and a cell for each recording."""
_CODE_GROUND: Mapping[Theme, str] = {"light": "#f4f6f8", "dark": "#1b2027"}
"""Background of commands on the page."""
_TEMPLATE = Path(__file__).with_name("report.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFigure:
    """Drawn figure: its file, a description, and the command that draws it."""

    file: str
    """Path of the figure's file in the report's folder."""
    alt_text: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Contents of the page and of the Markdown file."""

    title: str
    lead: tuple[str, ...]
    """Sentences that summarize the results."""
    names: tuple[str, ...]
    about: tuple[Row, ...]
    """Rows of the table of metadata."""
    results: tuple[Row, ...]
    commands: tuple[str, ...]
    """Commands that made the recordings and this report."""
    source: str


def write_report(
    recordings: Sequence[Recording],
    path: str | os.PathLike[str],
    *,
    given_as: Sequence[str] = (),
    overwrite: bool = False,
    theme: Theme = "light",
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the folder `path` with `report.html`, `report.md` and `figures/`; return the path of the page.

    `given_as` has the names of the recordings on the command line. An earlier report is replaced; with `overwrite`,
    other output of kvsim is, too. `theme` is that of the page and of its figures. `progress` is called with the number
    of figures that are drawn, and of all.
    """
    if not recordings:
        raise UsageError("a report is of at least one recording, and none was given.")
    arguments = list(given_as) or [recording.name for recording in recordings]
    again = shlex.join(["kvsim", "report", *arguments, "-o", str(path), *_flags_of(theme)])
    with replacing_folder(path, "report", overwrite=overwrite) as folder:
        (folder / FIGURES).mkdir(parents=True)
        figures = _draw(recordings, arguments, folder, theme, progress)
        facts = facts_of(recordings, again)
        for name, contents in ((TEXT, _markdown(facts, figures)), (PAGE, _page(facts, figures, folder, theme))):
            with whole_file(folder / name, made_by="report") as file:
                file.write_text(contents, encoding="utf-8")
    return Path(path) / PAGE


def _flags_of(theme: Theme) -> list[str]:
    return [] if theme == "light" else ["--theme", theme]


def facts_of(recordings: Sequence[Recording], again: str) -> Facts:
    """Collect the contents of a report; `again` is the command that writes it."""
    names = distinct_names(recordings)
    summaries = [summarize(each, waste_of(each) if len(each.steps) else None) for each in recordings]
    made_by = [printable(each.meta.command) for each in recordings if each.meta.command.startswith("kvsim ")]
    return Facts(
        title=f"Where the KV memory went: {', '.join(names)}",
        lead=tuple(_lead(names, summaries)),
        names=names,
        about=_about(recordings),
        results=_results(summaries),
        commands=(*dict.fromkeys(made_by), again),
        source=f"{provenance(*recordings)}.",
    )


def _draw(
    recordings: Sequence[Recording],
    arguments: Sequence[str],
    folder: Path,
    theme: Theme,
    progress: Callable[[int, int], None] | None,
) -> list[ReportFigure]:
    """Draw the figures of the report into `folder`. Figures for which the recordings lack data are left out.

    `arguments` has the name of each recording on the command line.
    """
    todo, shown = plans(recordings), []
    for number, plan in enumerate(todo):
        if progress is not None:
            progress(number, len(todo))
        file = f"{FIGURES}/{plan.file_stem}.png"
        try:
            picture = plan.draw(purpose="web", theme=theme)
        except KvsimError:
            continue  # the recordings lack something that this figure needs, such as a known GPU
        save(picture, folder / file)
        shows = [arguments[row] for row in plan.rows]
        again = ["kvsim", "plot", plan.kind, *shows, "-o", f"{plan.file_stem}.png", *_flags_of(theme)]
        shown.append(ReportFigure(file=file, alt_text=picture.alt_text, command=shlex.join(again)))
    return shown


def _lead(names: Sequence[str], summaries: Sequence[Summary]) -> list[str]:
    sentences = []
    for name, summary in zip(names, summaries, strict=True):
        waste = summary.waste.pool_percent
        idle = waste[[SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED, SlotState.EXTERNAL]].sum()
        sentences.append(
            f"{name}: {waste[SlotState.TOKEN]:.1f}% of the pool held live tokens and {idle:.1f}% was wasted; "
            f"{summary.mean_batch:.1f} sequences ran at once, "
            f"which put out {summary.output_tokens_per_s:,.0f} tokens per second."
        )
    speeds = np.array([summary.output_tokens_per_s for summary in summaries])
    if len(names) > 1 and np.isfinite(speeds).all() and speeds.min() > 0:
        best, worst = int(speeds.argmax()), int(speeds.argmin())
        sentences.append(f"{names[best]} was {speeds[best] / speeds[worst]:.3g} times as fast as {names[worst]}.")
    return sentences


def _about(recordings: Sequence[Recording]) -> tuple[Row, ...]:
    """Return the rows that say what was run: a label, and a cell for each recording."""

    def row(label: str, cell: Callable[[Recording], str]) -> Row:
        return label, tuple(map(cell, recordings))

    def beyond(recording: Recording) -> str:
        where = recording.meta.extra.get(extrapolation.KEY)
        return "; ".join(map(label, where)) if isinstance(where, list) else "no"

    def pool(recording: Recording) -> str:
        of = recording.meta.pool
        if of.num_units is None:
            return "none: the cache grows with the batch"
        return f"{memory(of.num_bytes)}, {of.num_units:,} {of.units_in_words}"

    extrapolated = any(extrapolation.KEY in recording.meta.extra for recording in recordings)
    return (
        row("made by", provenance),
        *([row("times extrapolate", beyond)] if extrapolated else []),
        row("policy", lambda recording: policy_label(recording.meta.policy)),
        row("KV pool", pool),
        row("requests", lambda recording: f"{len(recording.requests):,}"),
        row("steps", lambda recording: f"{len(recording.steps):,}"),
        row("notes", lambda recording: printable(recording.meta.notes)),
    )


def _results(summaries: Sequence[Summary]) -> tuple[Row, ...]:
    """Return the rows with the results: a label, and a cell for each summary."""

    def row(label: str, cell: Callable[[Summary], str]) -> Row:
        return label, tuple(map(cell, summaries))

    def time(value_s: float) -> str:
        return "–" if np.isnan(value_s) else seconds(value_s)

    def number(value: float, form: str) -> str:
        return "–" if np.isnan(value) else format(value, form)

    def share(state: SlotState) -> Row:
        return row(
            f"{STATE_LABELS[state]}, % of the pool", lambda summary: number(summary.waste.pool_percent[state], ".1f")
        )

    def others(summary: Summary) -> str:
        return f"{summary.num_refused + summary.num_aborted + summary.num_unfinished:,}"

    return (
        *map(share, SlotState),
        row("output tokens per second", lambda summary: number(summary.output_tokens_per_s, ",.0f")),
        row("mean batch, sequences", lambda summary: number(summary.mean_batch, ".2f")),
        row("mean waiting, requests", lambda summary: number(summary.mean_waiting, ",.1f")),
        row("time to first token, median", lambda summary: time(summary.ttft_s.p50)),
        row("time to first token, 99th percentile", lambda summary: time(summary.ttft_s.p99)),
        row("time per later token, median", lambda summary: time(summary.tpot_s.p50)),
        row("end to end, median", lambda summary: time(summary.e2e_s.p50)),
        row("end to end, 99th percentile", lambda summary: time(summary.e2e_s.p99)),
        row("duration", lambda summary: time(summary.duration_s)),
        row("finished", lambda summary: f"{summary.num_finished:,}"),
        row("refused, aborted or unfinished", others),
        row("preemptions", lambda summary: f"{summary.num_preemptions:,}"),
        row("prefix hits", hit_words),
    )


def _markdown(facts: Facts, figures: Sequence[ReportFigure]) -> str:

    def table(rows: Sequence[Row], align: str) -> str:
        lines = [("", facts.names), ("---", (align,) * len(facts.names)), *rows]
        return "\n".join(f"| {' | '.join(map(markdown_text, (label, *cells)))} |" for label, cells in lines)

    blocks = [
        f"# {markdown_text(facts.title)}",
        "\n".join(f"- {markdown_text(sentence)}" for sentence in facts.lead),
        "## What happened",
        table(facts.results, "---:"),
        "## What was recorded",
        table(facts.about, "---"),
        "## Figures",
        *(
            f"![{markdown_text(figure.alt_text)}]({figure.file})\n\n{markdown_code(figure.command)}"
            for figure in figures
        ),
        "## To repeat it",
        markdown_code("\n".join(facts.commands), least=3),
        f"Source: {markdown_text(facts.source)}",
    ]
    return "\n\n".join(blocks) + "\n"


def _page(facts: Facts, figures: Sequence[ReportFigure], folder: Path, theme: Theme) -> str:
    """Return the report as an HTML page that contains the figures of `folder`."""

    def table(rows: Sequence[Row], kind: str) -> str:
        head = "".join(f'<th scope="col">{html_text(name)}</th>' for name in facts.names)
        cells = [(html_text(label), "".join(f"<td>{html_text(cell)}</td>" for cell in row)) for label, row in rows]
        body = "".join(f'<tr><th scope="row">{label}</th>{row}</tr>' for label, row in cells)
        return (
            f'<div class="wide"><table class="{kind}"><thead><tr><td></td>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def figure(shown: ReportFigure) -> str:
        data = base64.b64encode((folder / shown.file).read_bytes()).decode()
        return (
            f'<figure><img src="data:image/png;base64,{data}" alt="{html_text(shown.alt_text)}">'
            f"<figcaption><code>{html_text(shown.command)}</code></figcaption></figure>"
        )

    colors = THEMES[theme]
    parts = {
        "@THEME@": theme,
        "@INK@": colors.ink,
        "@GROUND@": colors.ground,
        "@MUTED@": colors.muted,
        "@GRID@": colors.grid,
        "@CODE@": _CODE_GROUND[theme],
        "@TITLE@": html_text(facts.title),
        "@LEAD@": "".join(f"<li>{html_text(sentence)}</li>" for sentence in facts.lead),
        "@RESULTS@": table(facts.results, "figures"),
        "@ABOUT@": table(facts.about, "words"),
        "@FIGURES@": "\n".join(map(figure, figures)),
        "@COMMANDS@": html_text("\n".join(facts.commands)),
        "@SOURCE@": html_text(facts.source),
    }
    return filled(_TEMPLATE.read_text(encoding="utf-8"), parts)
