"""`kvsim doctor`: the memory figures in a server's log, metrics or recording, beside those that kvsim computes.

A difference shows which assumption is wrong: a setting, the weights, or memory of other processes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import SectionedCommand
from kvsim.cli.machine_flags import machine_of, memory_of
from kvsim.cli.no_start import change_words, changes
from kvsim.cli.scenario_flags import machine_options
from kvsim.cli.show import echo, json_option, print_json, print_table
from kvsim.display.text import size_column, size_words
from kvsim.errors import BudgetError, UnknownNameError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvsim.diagnosis.startup_log import StartupLog
    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.recording import Meta
    from kvsim.sizing.budget import Budget

_MOST_BYTES = 64 << 20
_WORDS = {
    "device": ("GPU memory", "what the driver reports"),
    "initial_free": ("free before the start", "less than the GPU's memory by what other processes hold"),
    "requested": ("requested", "GPU memory times gpu_memory_utilization; all that follows must fit into it"),
    "weights": ("weights", "parameters in their stored type, on each GPU"),
    "after_weights": (
        "free after the weights",
        "the cache leaves 1 - mem_fraction_static of what was free before them",
    ),
    "activations": ("activations", "peak of one step of max_num_batched_tokens; grows with it and with max_num_seqs"),
    "outside_pytorch": ("outside PyTorch", "kernels, and buffers for the exchange between GPUs"),
    "graphs_estimated": ("captured graphs, estimated", "set aside before the cache; 0 with --enforce-eager"),
    "graphs": ("captured graphs", "taken after the cache was sized, from what the share leaves to others"),
    "images": ("images", "set aside for decoding images in the front end"),
    "available": ("available for the cache", "what the lines above leave of the requested memory"),
    "needed": ("needed for one sequence", "cache of one sequence of max_model_len tokens, which must fit"),
    "pool": ("KV cache", "bytes of the slots of all tokens"),
    "after_pool": ("free after the cache", "for activations, captured graphs and workspaces"),
    "blocks": ("blocks", "whole blocks in the available memory, the null block included"),
    "blocks_override": ("blocks, stated", "num_gpu_blocks_override replaces the computed number"),
    "tokens": ("tokens", "tokens that the cache holds, as the server counts them"),
    "concurrency": ("maximum concurrency", "sequences of max_model_len tokens that fit at once"),
    "block_size": ("attention block", "raised until a page of attention has the bytes of a recurrent state's page"),
    "longest_that_fits": ("longest sequence", "tokens of the longest sequence that fits"),
    "padding_layers": ("padding layers", "added so that groups of layers have pages of one size; their memory is lost"),
    "encoder_tokens": ("encoder cache", "tokens of images that are kept beside the cache"),
    "usage": ("in use now", "share of the pool that requests hold; what only the prefix cache keeps is free"),
}
_SGLANG_NOTE = (
    "The cache of SGLang is what was free after the weights, less 1 - mem_fraction_static of what was free before; "
    "kvsim's figures begin with both readings of the log."
)
_SGLANG_WITHOUT_READINGS = (
    "SGLang sizes its cache by the memory that was free before and after the weights, which its start-up log says."
)
_SOURCES = {"log": "The log does", "metrics": "Metrics do", "recording": "The recording does"}
_CACHE_SIZE_SETTINGS = ("gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
"""Settings that decide the size of the cache. If no source or flag gives one, vLLM's default is assumed, noted."""
_COUNTS = frozenset(("blocks", "blocks_override", "tokens", "block_size", "longest_that_fits", "padding_layers"))
_NO_BYTES = _COUNTS | {"concurrency", "usage", "encoder_tokens"}
"""Figures that are no numbers of bytes."""
_FAILURES = {
    "no_blocks": "The start failed: weights and activations leave nothing of the requested memory for the cache. Raise "
    "--gpu-memory-utilization, spread the model over more GPUs (--tensor-parallel-size), take a quantized model, or "
    "lower --max-num-batched-tokens.",
    "too_long": "The start failed: one sequence of max_model_len tokens does not fit into the cache. Lower "
    "--max-model-len, or make room as for any larger cache.",
    "others_hold_it": "The start failed: other processes hold memory of this GPU, so that the requested share is not "
    "free. Stop them (nvidia-smi names them), or lower --gpu-memory-utilization.",
    "not_enough": "The start failed: mem_fraction_static times the memory that was free before the weights were loaded "
    "is less than the weights. Raise --mem-fraction-static.",
    "out_of_memory": "The start failed: an allocation exceeded the GPU's memory. Captured graphs and workspaces take "
    "what the requested share leaves to others: lower --gpu-memory-utilization.",
}


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    line: int
    logged: float
    computed: float | None


@click.command("doctor", cls=SectionedCommand)
@click.argument("source", metavar="LOG|METRICS|URL|HOST:PORT|RECORDING")
@machine_options
@json_option
def command(*, source: str, as_json: bool, **flags: Any) -> None:
    """Explain the memory figures of a server, beside those that kvsim computes.

    The lines about memory in a start-up LOG are explained one by one. For METRICS (a file, an http:// address or
    HOST:PORT) and for a RECORDING (a folder, or the name of one that comes with kvsim), the cache's size is explained.

    Settings are read from the log, metrics or recording. Flags replace these settings, and add those that are missing
    there, such as --gpu.
    """
    log, meta = _read(source)
    if not log.figures and not log.failures:
        raise UsageError(
            f"{source} has no line about memory; kvsim doctor reads the start-up log of vLLM or SGLang, from its first "
            "line to the one that says that the server runs, and their /metrics."
        )
    computed, title, note = _computed(log, flags, meta)
    rows = [
        _Row(name, log.figures[name].line, log.figures[name].value, computed.get(name))
        for name in _WORDS
        if name in log.figures
    ]
    if as_json:
        print_json(_document(log, rows, note))
        return
    for name, line in log.failures.items():
        echo(f"Line {line}: {_FAILURES[name]}")
    if verdict := _verdict(rows):
        echo(verdict)
    print_table(
        title,
        ["", log.source, "kvsim", "difference", "line", "meaning"],
        _cells(rows),
        figures=(1, 2, 3, 4),
        note=note,
    )


def _read(source: str) -> tuple[StartupLog, Meta | None]:
    """Return the settings and memory figures that `source` states, and the metadata if it is a recording (else None).

    `source` is a start-up log, a saved page of metrics, the address of a server, or a recording.

    Raises:
        UsageError: `source` is none of these.
    """
    from kvsim.diagnosis.startup_log import read_startup_log
    from kvsim.diagnosis.stated_memory import is_page, read_metrics_page, recorded_memory
    from kvsim.live.address import page_of
    from kvsim.live.metrics_feed import page_text
    from kvsim.recording import find, read

    file = Path(source)
    if file.is_file():
        text = _text(file)
        return (read_metrics_page(text) if is_page(text) else read_startup_log(text)), None
    if not file.exists():
        try:
            metrics_url = page_of(source)
        except UsageError:  # no address: the name of a recording
            metrics_url = None
        if metrics_url is not None:
            return read_metrics_page(page_text(metrics_url)), None
    try:
        recording = read(find(source))
    except UnknownNameError:
        raise UsageError(
            f"{source} cannot be read: it is no file, no recording, and no server answers there."
        ) from None
    return recorded_memory(recording), recording.meta


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{file} has more than 64 MiB; cut it after the lines of the start.")
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from None


def _computed(log: StartupLog, flags: dict[str, Any], meta: Meta | None) -> tuple[Mapping[str, float], str, str]:
    """Return the figures that kvsim computes for the server, a title that names the server, and a note.

    Figures have the names of `StartupLog.figures`; sizes are in bytes. The note lists the assumptions. If no figure can
    be computed, the mapping is empty and the note says why.
    """
    merged = flags | {name: _value(name, text) for name, text in log.settings.items() if flags.get(name) is None}
    merged["vllm"] = flags["vllm"] or log.release or None
    merged["defaults"] = flags["defaults"] or "server"
    if merged["num_blocks"] is not None or merged["kv_gib"] is not None:
        merged["gpu_memory_utilization"] = None
    needed = ("model",) if log.server == "sglang" else ("model", "gpu")
    missing = [f"--{name}" for name in needed if meta is None and merged[name] is None]
    title = {"vllm": "vLLM", "sglang": "SGLang"}[log.server] + (f" {log.release}" if log.release else "")
    if missing:
        named = " and ".join(missing)
        return {}, title, f"{_SOURCES[log.source]} not name all that an own account needs; give {named}."
    try:
        gpu, model = machine_of(merged, meta)
        if log.server == "sglang":
            note = _SGLANG_NOTE if "after_weights" in log.figures else _SGLANG_WITHOUT_READINGS
            return _sglang_figures(log, model), f"{title}: {model.name}", note
        return _vllm_figures(log, merged, gpu, model, title)
    except UsageError as error:
        return {}, title, f"kvsim has no account of this server: {error} --model also takes a config.json."


def _vllm_figures(
    log: StartupLog, merged: dict[str, Any], gpu: Gpu, model: Model, title: str
) -> tuple[Mapping[str, float], str, str]:
    """Return figures, title and note as `_computed` does, for a vLLM server.

    `merged` has the settings of the log and of the flags. `title` names the engine; model and GPU are added to it.
    """
    try:
        budget = memory_of(merged, gpu, model, max_model_len=merged["max_model_len"])
    except BudgetError as error:
        advice = change_words(changes(merged, gpu, model))
        return {}, title, f"By kvsim's account this server does not start: {error}\n{advice}"
    assumed = [name for name in _CACHE_SIZE_SETTINGS if merged[name] is None]
    flags_of_them = ", ".join(f"--{name.replace('_', '-')}" for name in assumed)
    note = f"{_SOURCES[log.source]} not say {flags_of_them}; vLLM's defaults are assumed." if assumed else ""
    if log.source == "recording":
        note = f"{note} Nor whether the number of blocks was set by hand.".strip()
    return _figures_of_budget(budget, log, merged["vllm"]), f"{title}: {model.name} on {gpu.name}", note


def _value(name: str, text: str) -> Any:
    """Convert `text`, the value of a setting in a log, to the type of the setting."""
    if text in ("True", "False"):
        return text == "True"
    if name == "gpu_memory_utilization":
        return float(text)
    return int(text) if text.isdecimal() else text


def _sglang_figures(log: StartupLog, model: Model) -> dict[str, float]:
    """Compute an SGLang server's figures from the free memory that it logs, its mem_fraction_static and the model."""
    values = log.values
    computed: dict[str, float] = {"weights": (model.weight_bytes + model.encoder_bytes) / model.tensor_parallel_size}
    share, after = log.settings.get("mem_fraction_static"), values.get("after_weights")
    before = values.get("initial_free", (after or 0) + values.get("weights", 0))
    if share is None or after is None:
        return computed
    computed["pool"] = after - before * (1 - float(share))
    if not model.recurrent_layers and len(set(model.layer_kinds)) <= 1:
        computed["tokens"] = computed["pool"] // model.kv_bytes_per_token
    return computed


def _figures_of_budget(budget: Budget, log: StartupLog, release: str | None) -> Mapping[str, float]:
    """Return kvsim's figures for a vLLM server, by their names in `StartupLog.figures`; sizes are in bytes.

    If `release` is None, it is kvsim's default release.
    """
    from kvsim.policies.releases import DEFAULT_RELEASE, rules_of

    terms = {term.label: term.size_bytes for term in budget.terms}
    plan, longest = budget.plan, rules_of(release or DEFAULT_RELEASE).logs_longest
    if "blocks_override" in log.figures:
        plan = replace(plan, num_blocks=int(log.figures["blocks_override"].value))
    computed = {
        "device": terms.get("GPU memory"),
        "requested": terms.get("GPU memory", 0) + terms.get("left to others", 0) or None,
        "weights": -terms["weights"] - terms.get("tower for images", 0) if "weights" in terms else None,
        "activations": -terms["activations"] if "activations" in terms else None,
        "outside_pytorch": -terms["outside PyTorch"] if "outside PyTorch" in terms else None,
        "graphs_estimated": -terms["captured graphs"] if "captured graphs" in terms else None,
        "available": budget.kv_bytes - terms.get("rounding", 0),
        "pool": budget.kv_bytes,
        "blocks": plan.num_blocks,
        "tokens": plan.num_tokens if longest else plan.divided_tokens,
        "concurrency": plan.concurrency,
        "block_size": budget.block_size,
    }
    return {name: value for name, value in computed.items() if value is not None}


def _cells(rows: Sequence[_Row]) -> list[tuple[str, ...]]:
    """Return the cells of the table. All bytes have one unit, so that they can be added."""
    values = [(row.name, value) for row in rows for value in (row.logged, row.computed) if value is not None]
    sizes = [value for name, value in values if name not in _NO_BYTES]
    in_unit = dict(zip(sizes, size_column(sizes), strict=True))

    def figure(name: str, value: float | None) -> str:
        if value is None:
            return ""
        return _figure(name, value) if name in _NO_BYTES else in_unit[value]

    return [
        (
            _WORDS[row.name][0], figure(row.name, row.logged), figure(row.name, row.computed), _difference(row),
            f"{row.line or ''}", _WORDS[row.name][1],
        )
        for row in rows
    ]  # fmt: skip


def _figure(name: str, value: float) -> str:
    """Return a figure that is no number of bytes as text."""
    if name in ("concurrency", "usage"):
        return f"{value:.2f}x" if name == "concurrency" else f"{100 * value:.0f} %"
    return f"{value:,.0f}"


def _difference(row: _Row) -> str:
    return "" if row.computed is None or not row.logged else f"{100 * (row.computed - row.logged) / row.logged:+.1f}%"


def _verdict(rows: list[_Row]) -> str:
    parts = [row for row in rows if row.name in ("weights", "activations", "outside_pytorch", "graphs_estimated")]
    differing = [row for row in parts if row.computed is not None]
    total = next((row for row in rows if row.name in ("available", "pool") and row.computed is not None), None)
    if total is None:
        counted = next((row for row in rows if row.name in ("blocks", "tokens") and row.computed is not None), None)
        return _count_verdict(counted) if counted else ""
    excess = (total.computed or 0) - total.logged
    verdict = f"The cache has {size_words(int(total.logged))}; kvsim computes {size_words(int(total.computed or 0))}"
    if abs(excess) <= 0.01 * total.logged or not differing:
        return f"{verdict}, {_difference(total)}."
    worst = max(differing, key=lambda row: abs((row.computed or 0) - row.logged))
    return f"{verdict}, {_difference(total)}; most of the difference is in {_WORDS[worst.name][0]}."


def _count_verdict(row: _Row) -> str:
    """Compare the stated and the computed number of blocks or tokens, if the source lacks the bytes of the cache."""
    computed = _figure(row.name, row.computed or 0)
    return f"The cache has {_figure(row.name, row.logged)} {row.name}; kvsim computes {computed}, {_difference(row)}."


def _document(log: StartupLog, rows: list[_Row], why_not: str) -> dict[str, Any]:
    return {
        "server": log.server,
        "release": log.release or None,
        "source": log.source,
        "settings": log.settings,
        "failures": {name: _FAILURES[name] for name in log.failures},
        "figures": {
            row.name: {"log": row.logged, "kvsim": row.computed, "line": row.line, "meaning": _WORDS[row.name][1]}
            for row in rows
        },
        "no_account": why_not or None,
    }
