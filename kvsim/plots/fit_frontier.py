"""Changes tried by `kvsim fit`: output tokens per second over TPOT, with the frontier as a line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from kvsim.errors import UsageError
from kvsim.fitting.server_change import Kind
from kvsim.plots.picture import Look, Picture, drawn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.fitting import Answer, Outcome

Point = tuple[float, float]
"""TPOT p99 in milliseconds and output tokens per second."""


def draw_fit(answer: Answer, **look: Unpack[Look]) -> Picture:
    """Draw every simulated server of `answer` as a dot, filled if it can serve the load, and the Pareto frontier.

    The frontier is a line through the servers that no other server beats in both TPOT and throughput. If servers with
    the current GPUs could be simulated, only these count. The current server and the best change have labels.

    Raises:
        UsageError: nothing could be simulated.
    """
    tried = [(each.outcome, each.fits) for each in answer.tried if not each.outcome.error]
    if not answer.outcome.error:
        tried.append((answer.outcome, answer.fits))
    points = [(point, fits) for outcome, fits in tried if (point := _point(outcome)) is not None]
    if not points:
        raise UsageError("nothing could be simulated, so there is nothing to draw.")
    with drawn(aspect=0.62, **look) as picture:
        axis = picture.subplots()
        frontier_color, chosen_color = picture.colors.hues[:2]
        for fits, fill, label in ((True, picture.colors.muted, "fits"), (False, "none", "does not fit")):
            chosen = [point for point, each in points if each is fits]
            if chosen:
                x, y = zip(*chosen, strict=True)
                axis.scatter(
                    x, y, s=(3.4 * picture.line_pt) ** 2, facecolors=fill, edgecolors=picture.colors.muted, label=label
                )
        edge = frontier(_on_these_gpus(answer)) or frontier([point for point, _ in points])
        if len(edge) > 1:
            label = "frontier of settings and types on these GPUs"
            axis.plot(*zip(*edge, strict=True), color=frontier_color, label=label)
        named = [("as it is", answer.outcome)]
        named += [(each.change.words, each.outcome) for each in answer.remedies[:1]]
        for (name, outcome), color in zip(named, (picture.colors.ink, chosen_color), strict=False):
            point = None if outcome.error else _point(outcome)
            if point is not None:
                axis.scatter(
                    point[0],
                    point[1],
                    s=(6.3 * picture.line_pt) ** 2,
                    facecolors="none",
                    edgecolors=color,
                    linewidths=1.3 * picture.line_pt,
                    label=name,
                )
        axis.set(xlabel="TPOT p99, ms", ylabel="output tokens per second", ylim=(0, None), xlim=(0, None))
        axis.yaxis.set_major_formatter("{x:,.6g}")
        picture.headline(answer.verdict, f"times: {answer.outcome.label}" if answer.outcome.label else "")
        picture.add_legend(axis.get_legend_handles_labels()[0])
    picture.alt_text = (
        f"Output tokens per second against TPOT p99 of {len(points)} servers. {answer.verdict} {_about(edge)}"
    )
    return picture


def _on_these_gpus(answer: Answer) -> list[Point]:
    """Return the points of the current server, and of its changes that need no other GPUs."""
    outcomes = [answer.outcome, *(each.outcome for each in answer.tried if each.change.kind is not Kind.GPUS)]
    return [point for outcome in outcomes if not outcome.error and (point := _point(outcome)) is not None]


def frontier(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto-optimal `points`, lowest TPOT first: each has more throughput than all with a lower TPOT."""
    best: list[Point] = []
    for time_ms, tokens_per_s in sorted(points, key=lambda point: (point[0], -point[1])):
        if not best or tokens_per_s > best[-1][1]:
            best.append((time_ms, tokens_per_s))
    return best


def _point(outcome: Outcome) -> Point | None:
    time_s, tokens_per_s = outcome.tpot_s.p99, outcome.output_tokens_per_s
    return (1000 * time_s, tokens_per_s) if time_s == time_s and tokens_per_s == tokens_per_s else None


def _about(edge: Sequence[Point]) -> str:
    if len(edge) == 1:
        return f"One server is better in both than all others on these GPUs: {_words(edge[0])}."
    return f"The frontier runs from {_words(edge[0])} to {_words(edge[-1])}."


def _words(point: Point) -> str:
    return f"{point[1]:,.0f} tokens/s at {point[0]:,.1f} ms"
