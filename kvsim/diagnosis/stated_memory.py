"""Memory figures of a server from its metrics or a recording, in the form of a start-up log."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvsim.diagnosis.startup_log import LoggedFigure, StartupLog
from kvsim.live.exposition import Sample, samples
from kvsim.live.metrics import parse_metrics

if TYPE_CHECKING:
    from kvsim.recording import Recording

_SETTINGS = {
    "gpu_memory_utilization": ("gpu_memory_utilization", r"[01]?\.\d{1,9}|1"),
    "cache_dtype": ("kv_cache_dtype", r"(?!auto)[a-z]\w*"),
    "enable_prefix_caching": ("enable_prefix_caching", "True|False"),
}
"""kvsim's name of the flag, and pattern of its valid values, by label of `vllm:cache_config_info`."""
_LABELS = {"num_gpu_blocks": "blocks", "num_gpu_blocks_override": "blocks_override", "kv_cache_size_tokens": "tokens"}
"""Name of the value in `StartupLog`, by label of `vllm:cache_config_info`."""
_GAUGES = {"vllm:kv_cache_usage_perc": "usage", "sglang:token_usage": "usage", "sglang:max_total_num_tokens": "tokens"}
_USAGES = ("vllm:kv_cache_usage_perc", "sglang:token_usage")
"""A page counts as complete if it has one of these metrics. Incomplete pages, such as pasted lines, are not checked."""
_MOST = 1e15
_RECORDED = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization")


def is_page(text: str) -> bool:
    """Tell whether one of the first 1,000 lines of `text` begins like a metric."""
    return any(line.startswith(("vllm:", "sglang:", "# HELP ", "# TYPE ")) for line in text.splitlines()[:1000])


def read_metrics_page(text: str) -> StartupLog:
    """Read the sizes and settings in a page of metrics. Of several engines, the first counts.

    Raises:
        RecordingError: a line is not a metric, or a complete page contradicts itself.
    """
    if any(line.startswith(_USAGES) for line in text.splitlines()):
        parse_metrics(text)
    server = "vllm" if any(line.startswith("vllm:") for line in text.splitlines()) else "sglang"
    log = StartupLog(server=server, source="metrics")
    wanted = (*_GAUGES, "vllm:cache_config_info")
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(wanted):
            for sample in samples(line, f"{server}:"):
                _add_sample(log, sample, number)
    return log


def _add_sample(log: StartupLog, sample: Sample, line: int) -> None:
    if name := sample.labels.get("model_name"):
        log.settings.setdefault("model", name)
    if sample.name in _GAUGES and 0 <= sample.value < _MOST:
        log.figures.setdefault(_GAUGES[sample.name], LoggedFigure(sample.value, line))
    if sample.name != "vllm:cache_config_info":
        return
    for label, name in _LABELS.items():
        if re.fullmatch(r"[0-9]{1,15}", text := sample.labels.get(label, "")):
            log.figures.setdefault(name, LoggedFigure(float(text), line))
    for label, (name, form) in _SETTINGS.items():
        if re.fullmatch(form, text := sample.labels.get(label, "")):
            log.settings.setdefault(name, text)


def recorded_memory(recording: Recording) -> StartupLog:
    """Return the sizes and settings of a recorded server."""
    meta = recording.meta
    log = StartupLog(server="vllm", source="recording")
    log.settings = {name: str(value) for name in _RECORDED if (value := meta.policy.get(name)) is not None}
    pool = meta.pool
    if pool.num_units is not None and meta.policy_name == "paged":
        log.figures["blocks"] = LoggedFigure(pool.num_units + 1)
        log.figures["pool"] = LoggedFigure((pool.num_units + 1) * pool.bytes_per_unit)
    return log
