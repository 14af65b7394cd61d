"""Figures of runs that `kvsim compare` prints side by side: a table with a row per figure, and a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.cli.show import change_words, seconds
from kvsim.cli.summary_lines import summary_document
from kvsim.display.text import size_words
from kvsim.metrics.session_turns import by_turn

if TYPE_CHECKING:
    from kvsim.metrics import Summary
    from kvsim.metrics.fleet_totals import FleetTotals
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Fleet, Machine
    from kvsim.workload import Workload

_COUNT = "{:,.0f}".format
_MEAN = "{:,.1f}".format


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


_LEAST_CHANGE = 0.01
"""Changes of a figure up to this size are not named in the printed sentence.

A change is a fraction of the figure's largest value in the runs: 0.01 is 1 %. A figure in percent is itself a fraction,
and its change is not divided by anything: 0.01 is 1 percentage point.
"""
_MOST_NAMED = 5
"""Maximum number of figures that the printed sentence names."""


@dataclass(frozen=True)
class SideRun:
    """One of the compared runs, on one or more servers, with its requests and its setup."""

    workload: Workload
    policy: AnyPolicy
    machine: Machine
    fleet: Fleet

    @cached_property
    def totals(self) -> FleetTotals:
        """Figures of all servers together."""
        return self.fleet.totals(self.summaries)

    @cached_property
    def summaries(self) -> list[Summary]:
        """Summaries by the number of the server."""
        return self.fleet.summaries()

    @cached_property
    def figures(self) -> dict[str, float]:
        """Figures of all servers together, by the keys of `_FIGURES`; NaN where a figure is undefined."""
        totals, pool = self.totals, self.fleet.servers[0].meta.pool
        turns = [turn for run in self.fleet.servers for turn in by_turn(run.requests, pool.unit_tokens)]
        waits = [each.waiting_for for each in self.summaries]
        store = totals.store or {}
        return {
            "num_units": pool.num_units or math.nan,
            "num_sequences": self._num_sequences(),
            "pool_bytes": totals.pool_bytes,
            "num_finished": totals.num_finished,
            "num_lost": totals.num_lost,
            "output_tokens_per_s": totals.output_tokens_per_s,
            "ttft_p50_s": totals.ttft_s.p50,
            "ttft_p99_s": totals.ttft_s.p99,
            "tpot_p50_s": totals.tpot_s.p50,
            "tpot_p99_s": totals.tpot_s.p99,
            "e2e_p50_s": totals.e2e_s.p50,
            "e2e_p99_s": totals.e2e_s.p99,
            "mean_batch": math.fsum(each.mean_batch for each in self.summaries if each.mean_batch == each.mean_batch),
            "mean_waiting": totals.mean_waiting,
            "waiting_for_memory": sum(each.memory for each in waits),
            "waiting_for_batch": sum(each.batch for each in waits),
            "waiting_for_tokens": sum(each.tokens for each in waits),
            "waiting_for_adapters": sum(each.adapters for each in waits),
            "num_preemptions": totals.num_preemptions,
            "vain_tokens": sum(each.vain_tokens for each in self.summaries),
            "mean_occupancy": totals.mean_occupancy,
            "peak_occupancy": totals.peak_occupancy,
            "prefix_hit_rate": totals.prefix_hit_rate,
            "history_tokens": sum(turn.history_tokens for turn in turns),
            "lost_tokens": sum(turn.lost_tokens for turn in turns),
            "to_host_bytes": sum(each.swapped_out_bytes for each in self.summaries),
            "from_host_bytes": sum(each.swapped_in_bytes for each in self.summaries),
            "store_loaded_bytes": totals.block_bytes * store.get("loaded_blocks", 0),
            "fetched_bytes": totals.fetched_bytes,
            "idle_steps": sum(totals.idle_steps),
            "duplicate_bytes": totals.mean_duplicate_bytes,
            "imbalance": totals.imbalance if len(self.summaries) > 1 else math.nan,
        }

    def _num_sequences(self) -> float:
        """Return how many sequences of the workload's mean length all pools hold at once; NaN if there is no pool."""
        pool, workload = self.fleet.servers[0].meta.pool, self.workload
        if pool.num_units is None:
            return math.nan
        tokens = max(round(float((workload.prompt_tokens + workload.output_tokens).mean())), 1)
        layout = self.machine.layout(self.policy)
        units = -(-tokens // pool.unit_tokens) if layout is None else layout.held_blocks(tokens)
        return len(self.fleet.servers) * (pool.num_units // units)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON: the totals, and every figure of each server."""
        servers = zip(self.fleet.servers, self.summaries, strict=True)
        return {
            **self.totals.as_dict(),
            "compared": self.figures,
            "servers": [summary_document(run, summary) for run, summary in servers],
        }


class _FigureRow(NamedTuple):
    label: str
    form: Callable[[float], str]
    words: str = ""
    """Name of the figure in the printed sentence; empty if the sentence leaves it out."""
    is_good_if_large: bool = True
    is_optional: bool = False
    """True if the row is left out when the figure is 0 in all runs."""


_FIGURES = {
    "num_units": _FigureRow("units of a server's pool", _COUNT),
    "num_sequences": _FigureRow("sequences of mean length in all pools", _COUNT, "sequences that fit"),
    "pool_bytes": _FigureRow("pools of all servers", size_words),
    "num_finished": _FigureRow("finished", _COUNT),
    "num_lost": _FigureRow("not served", _COUNT, "requests not served", is_good_if_large=False, is_optional=True),
    "output_tokens_per_s": _FigureRow("output tokens/s", _COUNT, "output tokens/s"),
    "ttft_p50_s": _FigureRow("TTFT, p50", seconds),
    "ttft_p99_s": _FigureRow("TTFT, p99", seconds, "TTFT p99", is_good_if_large=False),
    "tpot_p50_s": _FigureRow("TPOT, p50", seconds),
    "tpot_p99_s": _FigureRow("TPOT, p99", seconds, "TPOT p99", is_good_if_large=False),
    "e2e_p50_s": _FigureRow("end to end, p50", seconds),
    "e2e_p99_s": _FigureRow("end to end, p99", seconds),
    "mean_batch": _FigureRow("running, sequences on average", _MEAN),
    "mean_waiting": _FigureRow("waiting, requests on average", _MEAN, is_optional=True),
    "waiting_for_memory": _FigureRow("  for memory", _MEAN, is_optional=True),
    "waiting_for_batch": _FigureRow("  for a place in the batch", _MEAN, is_optional=True),
    "waiting_for_tokens": _FigureRow("  for tokens of a step", _MEAN, is_optional=True),
    "waiting_for_adapters": _FigureRow("  for a slot of their adapter", _MEAN, is_optional=True),
    "num_preemptions": _FigureRow("preemptions", _COUNT, "preemptions", is_good_if_large=False),
    "vain_tokens": _FigureRow("computed in vain, tokens", _COUNT),
    "mean_occupancy": _FigureRow("pools held, mean", _share),
    "peak_occupancy": _FigureRow("pools held, at most on a server", _share),
    "prefix_hit_rate": _FigureRow("prefix hits, of the prompt tokens", _share, "prefix hits"),
    "history_tokens": _FigureRow("history of turns, tokens", _COUNT, is_optional=True),
    "lost_tokens": _FigureRow("  of it computed again", _COUNT, "tokens of history computed again",
                           is_good_if_large=False, is_optional=True),
    "to_host_bytes": _FigureRow("copied to host memory", size_words, is_optional=True),
    "from_host_bytes": _FigureRow("copied from host memory", size_words, is_optional=True),
    "store_loaded_bytes": _FigureRow("loaded from the prefix store", size_words, is_optional=True),
    "fetched_bytes": _FigureRow("KV fetched by decode servers, on each GPU", size_words, is_optional=True),
    "idle_steps": _FigureRow("steps of ranks without a batch", _COUNT, is_optional=True),
    "duplicate_bytes": _FigureRow("cached twice, mean", size_words, is_optional=True),
    "imbalance": _FigureRow("tokens of the busiest server, by the mean", "{:.2f}".format, is_optional=True),
}  # fmt: skip


def figure_rows(runs: Sequence[SideRun]) -> list[tuple[str, ...]]:
    """Return a row of the table for each figure. With two runs, its last cell is the change to the second run."""
    rows = []
    for name, figure in _FIGURES.items():
        values = [run.figures[name] for run in runs]
        if all(value != value or (figure.is_optional and not value) for value in values):
            continue
        cells = ["–" if value != value else figure.form(value) for value in values]
        change = [change_words(values[0], values[1], figure.form)] if len(values) == 2 else []
        rows.append((figure.label, *cells, *change))
    return rows


def sentence_on(flag: str, runs: Mapping[str, SideRun]) -> str:
    """Describe the largest changes from the first of two runs to the second. With more runs, name the best run.

    `flag` is the flag in which the runs differ; empty if their servers differ.
    """
    sides = list(runs.values())
    moved = [name for name, figure in _FIGURES.items() if figure.words and _moves(name, sides)]
    named = sorted(moved, key=lambda name: -_spread(name, sides))[:_MOST_NAMED]
    if len(runs) == 1:
        return f"Only {_spelled(flag, *runs)} can be simulated."
    if not named:
        return f"{_spelled(flag, ' and '.join(runs))}: no figure of this load moves by 1 %."
    if len(runs) == 2:
        (old, before), (new, after) = runs.items()
        parts = [_instead(_FIGURES[name], before.figures[name], after.figures[name]) for name in named]
        return f"{_spelled(flag, new)} instead of {old}: {', '.join(parts)}."
    return f"{'; '.join(_best(name, flag, runs) for name in named)}."


def _spelled(flag: str, words: str) -> str:
    return f"{flag} {words}".strip()


def _moves(name: str, runs: Sequence[SideRun]) -> bool:
    values = [run.figures[name] for run in runs]
    if any(value != value for value in values):
        return False
    spread = max(values) - min(values)
    return spread > _LEAST_CHANGE * (1 if _FIGURES[name].form is _share else max(values))


def _spread(name: str, runs: Sequence[SideRun]) -> float:
    """Return the ratio of the largest to the smallest value of a figure in `runs`, by which figures are ordered.

    Before the division, a constant is added to both values, because some figures can be 0. The constant is 0 for times,
    0.01 (1 percentage point) for figures in percent, and 1 for all others.
    """
    values = [run.figures[name] for run in runs]
    added_to: dict[Callable[[float], str], float] = {seconds: 0.0, _share: 0.01}
    added = added_to.get(_FIGURES[name].form, 1.0)
    return (max(values) + added) / max(min(values) + added, 1e-9)


def _instead(figure: _FigureRow, before: float, after: float) -> str:
    if figure.form in (_COUNT, _MEAN):
        return f"{figure.form(after)} instead of {figure.form(before)} {figure.words}"
    return f"{figure.words} {figure.form(after)} instead of {figure.form(before)}"


def _best(name: str, flag: str, runs: Mapping[str, SideRun]) -> str:
    figure = _FIGURES[name]
    choose = max if figure.is_good_if_large else min
    best = choose(runs, key=lambda side: runs[side].figures[name])
    superlative = "most" if figure.form in (_COUNT, _share) else "shortest"
    if not figure.is_good_if_large and superlative == "most":
        superlative = "fewest"
    value = runs[best].figures[name]
    return f"{superlative} {figure.words}: {_spelled(flag, best)}, {figure.form(value)}"
