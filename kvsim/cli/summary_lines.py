"""Figures of summaries: a table with a column for each run, and the same figures as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from kvsim.cli.show import echo, number, print_table, seconds
from kvsim.cli.turn_tables import turn_documents
from kvsim.display.text import size_words
from kvsim.machines import class_in, known_in, plain_words
from kvsim.memory.waste import SlotState
from kvsim.metrics import Summary, latency_origin
from kvsim.metrics.names import STATE_NAMES
from kvsim.metrics.run_verdict import verdict_of
from kvsim.metrics.steady import steady_part
from kvsim.profiles.extrapolation import KEY
from kvsim.recording import Meta, Recording
from kvsim.simulation import Measured


def print_summaries(
    title: str,
    recordings: Sequence[Recording | Measured],
    summaries: Sequence[Summary],
    *,
    note: str = "",
    lists_recordings: bool = False,
) -> None:
    """Print one table with a column for each summary, then the source of the step times and `note`.

    With `lists_recordings`, also list the recordings with which the error of the step times was measured.
    """
    rows = [(label, *map(cell, summaries)) for label, cell in _rows(summaries)]
    columns = ["", *(summary.policy for summary in summaries)]
    notes = _time_notes(recordings, summaries, lists_recordings=lists_recordings)
    if not all(summary.duration_s for summary in summaries):
        notes.append("a run in which no time passes has no rates, and no means over time")
    without = dict.fromkeys(summary.prefix_no_hits for summary in summaries if summary.prefix_no_hits)
    for why in without:
        names = ", ".join(dict.fromkeys(summary.policy for summary in summaries if summary.prefix_no_hits == why))
        notes.append(f"no prefix hits{f' of {names}' if len(columns) > 2 else ''}: {why}")
    if note:
        notes.append(note)
    below = "\n".join(dict.fromkeys(notes))
    print_table(title, columns, rows, figures=range(1, len(columns)), note=below)
    for recording in recordings:
        _warn(recording)


def _time_notes(
    recordings: Sequence[Recording | Measured], summaries: Sequence[Summary], *, lists_recordings: bool
) -> list[str]:
    """Return the lines about the sources of step times. If there are several sources, each names its runs."""
    names: dict[tuple[str, ...], list[str]] = {}
    for recording, summary in zip(recordings, summaries, strict=True):
        lines = tuple(time_lines(recording, lists_recordings=lists_recordings))
        names.setdefault(lines, []).append(summary.policy)
    notes = []
    for (first, *others), of in names.items():
        which = f" of {', '.join(of)}" if len(names) > 1 else ""
        notes += [f"times{which}: {first.removeprefix('times: ')}", *others]
    return notes


def _rows(summaries: Sequence[Summary]) -> Iterator[tuple[str, Callable[[Summary], str]]]:
    for state in SlotState:
        if state is SlotState.EXPIRED and not any(summary.waste.pool_percent[state] > 0 for summary in summaries):
            continue  # no layer has a window
        yield f"{STATE_NAMES[state]}, % of the pool", partial(_share, state=state)
    yield "sum, %", lambda summary: number(summary.waste.pool_percent.sum(), ".1f")
    yield "mean batch, sequences", lambda summary: number(summary.mean_batch, ".2f")
    yield "output tokens per second", lambda summary: number(summary.output_tokens_per_s, ",.0f")
    yield "duration", lambda summary: seconds(summary.duration_s)
    yield "mean waiting, requests", lambda summary: number(summary.mean_waiting, ".1f")
    yield "wait in the queue, mean", lambda summary: seconds(summary.wait_s.mean)
    for label, name in (("TTFT", "ttft_s"), ("TPOT", "tpot_s"), ("end to end", "e2e_s")):
        for statistic in ("mean", "p50", "p99"):
            yield f"{label}, {statistic}", partial(_statistic, times=attrgetter(f"{name}.{statistic}"))
    yield "finished", lambda summary: f"{summary.num_finished:,}"
    yield "refused", lambda summary: f"{summary.num_refused:,}"
    yield "aborted", lambda summary: f"{summary.num_aborted:,}"
    yield "preemptions", lambda summary: f"{summary.num_preemptions:,}"
    yield "kept waiting by fragmentation", lambda summary: f"{summary.num_fragmented_requests:,}"
    if any(summary.images_used for summary in summaries):
        yield "images computed", lambda summary: f"{summary.images_computed:,}"
        yield "images in the encoder cache", lambda summary: f"{summary.images_used - summary.images_computed:,}"
    if any(summary.swapped_out_bytes for summary in summaries):
        yield "copied to host memory", lambda summary: size_words(summary.swapped_out_bytes)
        yield "copied from host memory", lambda summary: size_words(summary.swapped_in_bytes)
        yield "tokens from host memory", lambda summary: f"{summary.loaded_tokens:,}"
    yield "prefix hits, % of the prompt tokens", lambda summary: f"{100 * summary.prefix_hit_rate:.1f}"


def _share(summary: Summary, state: SlotState) -> str:
    return number(summary.waste.pool_percent[state], ".1f")


def _statistic(summary: Summary, times: Callable[[Summary], float]) -> str:
    return seconds(times(summary))


def summary_document(recording: Recording | Measured, summary: Summary) -> dict[str, Any]:
    """Return a summary for JSON, with the settings of the run and the source of its step times.

    Print a warning if the step times were used outside their fitted range.
    """
    _warn(recording)
    return figures_document(recording, summary) | {
        "settings": _settings(recording.meta),
        "times": time_source(recording).removeprefix("times: "),
        KEY: list(recording.meta.extra.get(KEY, ())),
    }


def figures_document(recording: Recording | Measured, summary: Summary) -> dict[str, Any]:
    """Return every figure of a run or a recording for JSON.

    The value of the key `policy` is the name of the policy, even if `summary.policy` is the name of a server.
    """
    return summary.as_dict() | {
        "policy": recording.meta.rules_name,
        "verdict": verdict_of(summary).as_dict(),
        "steady": steady_part(recording.requests).as_dict(),
        **turn_documents(recording),
    }


def _settings(meta: Meta) -> dict[str, Any]:
    pool = meta.pool
    return {
        "gpu": meta.gpu,
        "model": meta.model.get("name"),
        "tensor_parallel_size": meta.model.get("tensor_parallel_size", 1),
        "pipeline_parallel_size": meta.model.get("pipeline_parallel_size", 1),
        "kv_cache_dtype": meta.model.get("kv_cache_dtype", "auto"),
        "num_units": pool.num_units,
        "unit_tokens": pool.unit_tokens,
        "kv_bytes": None if pool.num_units is None else pool.num_bytes,
        "policy_settings": dict(meta.policy),
    }


def _warn(recording: Recording | Measured) -> None:
    """Print a warning on standard error if the step times were used outside their fitted range."""
    beyond = recording.meta.extra.get(KEY, ())
    if beyond:
        echo(f"warning: {recording.meta.rules_name}: the times extrapolate: {'; '.join(beyond)}", err=True)


def time_source(recording: Recording | Measured) -> str:
    """Describe in a sentence where the times of a run or a recording come from."""
    if recording.meta.source != "simulation":
        return f"times: measured on {recording.meta.gpu}; {latency_origin(recording.requests)}"
    return f"times: {recording.meta.engine.get('step_time', 'unknown')}"


def time_lines(recording: Recording | Measured, *, lists_recordings: bool = False) -> list[str]:
    """Return the lines of a text about the source of a run's step times.

    If step times of this class are known to kvsim, the first line has the source in short, and the second one in full.
    Otherwise there is one line. With `lists_recordings`, the last line lists the recordings with which the error of the
    step times was measured, if it was measured.
    """
    source = time_source(recording)
    if recording.meta.source != "simulation":
        return [source]
    label = source.removeprefix("times: ")
    lines = [f"times: {plain_words(label)}", f"in full: {label}"] if class_in(label) else [source]
    if lists_recordings and (known := known_in(label)) is not None:
        lines.append(f"the recordings of that class: {', '.join(known.recordings)}")
    return lines
