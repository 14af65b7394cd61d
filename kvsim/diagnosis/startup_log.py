"""Memory figures and settings that a server logs when it starts, for `kvsim doctor`.

The patterns match the lines of vLLM 0.8 to 0.33 and SGLang 0.4 to 0.5. Prefixes such as times and process names, and
colour codes, are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from kvsim.hardware import GIB

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"
_SIZE = rf"{_NUMBER} ?(?:GiB|GB)"
"""Pattern of a size. Both servers divide bytes by 2**30, whether a release writes GiB or GB."""
_BYTES: tuple[tuple[str, str], ...] = (
    ("requested", rf"gpu_memory_utilization \([\d.]+\) = {_SIZE}"),
    ("requested", rf"Requested memory: [\d.]+ \(util\), {_SIZE}"),
    ("device", rf"total_gpu_memory \({_SIZE}\)"),
    ("device", rf"Free memory on device(?: cuda:\d+)? \([\d.]+/{_SIZE}\)"),
    ("initial_free", rf"Initial free memory: {_SIZE}"),
    ("initial_free", rf"Free memory on device(?: cuda:\d+)? \({_NUMBER}/"),
    ("initial_free", rf"Load weight begin\. avail mem={_SIZE}"),
    ("weights", rf"Model loading took {_SIZE}"),
    ("weights", rf"model weights take {_SIZE}"),
    ("weights", rf"Load weight end\..* mem usage={_SIZE}"),
    ("after_weights", rf"Load weight end\..*avail mem={_SIZE}"),
    ("activations", rf"PyTorch activation peak memory takes {_SIZE}"),
    ("outside_pytorch", rf"non_torch_memory takes {_SIZE}"),
    ("available", rf"reserved for KV Cache is {_SIZE}"),
    ("available", rf"Available KV cache memory: {_SIZE}"),
    ("available", rf"larger than the available KV cache memory \({_SIZE}\)"),
    ("needed", rf"\({_SIZE} KV cache is needed"),
    ("graphs_estimated", rf"Estimated CUDA graph memory: {_SIZE}"),
    ("graphs", rf"Graph capturing finished in .* took {_SIZE}"),
    ("graphs", rf"[Cc]apture .*graph.* end\..* mem usage={_SIZE}"),
    ("images", rf"Reserving {_SIZE} of GPU memory for frontend multimodal decoding"),
    ("pool", rf"KV Cache is allocated.* KV size: {_SIZE}"),
    ("pool", rf"KV Cache is allocated.* K size: {_SIZE}, V size: {_SIZE}"),
    ("after_pool", rf"Memory pool end\. avail mem={_SIZE}"),
)
"""Name of a value in bytes, and pattern of the lines with it. Several sizes in one line are added."""
_COUNTS: tuple[tuple[str, str], ...] = (
    ("tokens", rf"KV cache size: {_NUMBER} tokens"),
    ("tokens", rf"max_total_num_tokens={_NUMBER}"),
    ("tokens", rf"KV Cache is allocated.* #tokens: {_NUMBER}"),
    ("blocks", rf"# (?:GPU|cuda) blocks: {_NUMBER}"),
    ("blocks", rf"num_gpu_blocks is: {_NUMBER}"),
    ("blocks_override", rf"num_gpu_blocks_override={_NUMBER}"),
    ("concurrency", rf"Maximum concurrency for [\d,]+ tokens per request: {_NUMBER}x"),
    ("block_size", rf"Setting attention block size to {_NUMBER} tokens"),
    ("longest_that_fits", rf"the estimated maximum model length is {_NUMBER}"),
    ("longest_that_fits", rf"Auto-fit max_model_len: reduced from \d+ to {_NUMBER}"),
    ("padding_layers", rf"Add {_NUMBER} padding layers"),
    ("encoder_tokens", rf"Encoder cache will be initialized with a budget of {_NUMBER} tokens"),
)
_COMPILED = [(name, re.compile(pattern), GIB) for name, pattern in _BYTES] + [
    (name, re.compile(pattern), 1) for name, pattern in _COUNTS
]
_FAILURES = {
    "no_blocks": re.compile(r"No available memory for the cache blocks"),
    "too_long": re.compile(r"To serve at least one request with the model(?:'s|s's) max seq len"),
    "others_hold_it": re.compile(r"on startup is less than desired GPU memory utilization"),
    "not_enough": re.compile(r"Not enough memory\. Please try to increase --mem-fraction-static"),
    "out_of_memory": re.compile(r"CUDA out of memory|OutOfMemoryError"),
}
"""Patterns of the lines that a server logs when it fails to start, by reason."""
_RELEASE = re.compile(r"(?:LLM engine \(v|version )(\d+\.\d+\.\d+)")
_SETTINGS = {
    name: re.compile(pattern)
    for name, pattern in (
        ("model", r"(?:\bmodel|model_path)=['\"]([^'\"]+)['\"]|['\"]model(?:_tag)?['\"]: ['\"]([^'\"]+)['\"]"),
        ("tensor_parallel_size", r"(?:tensor_parallel_size|tp_size)['\"]?[=:] ?(\d+)"),
        ("pipeline_parallel_size", r"(?:pipeline_parallel_size|pp_size)['\"]?[=:] ?(\d+)"),
        ("max_model_len", r"(?:max_seq_len=|max_model_len['\"]?[=:] ?|context_length=)(\d+)"),
        ("quantization", r"\bquantization['\"]?[=:] ?['\"]?([a-z0-9_-]+)"),
        ("kv_cache_dtype", r"kv_cache_dtype['\"]?[=:] ?['\"]?([a-z0-9_]+)"),
        (
            "gpu_memory_utilization",
            r"(?:gpu_memory_utilization(?:['\"]: | \(|=)|gpu-memory-utilization=|Requested memory: )(\d\.\d+)",
        ),
        ("max_num_batched_tokens", r"max_num_batched_tokens['\"]?(?:=|: )(\d+)"),
        ("max_num_seqs", r"max_num_seqs['\"]?(?:=|: )(\d+)"),
        ("block_size", r"\bblock_size['\"]?(?:=|: )(\d+)"),
        ("enforce_eager", r"enforce_eager['\"]?(?:=|: )(True)"),
        ("enable_prefix_caching", r"enable_prefix_caching['\"]?(?:=|: )(True|False)"),
        ("mem_fraction_static", r"mem_fraction_static=([01]?\.\d{1,9})"),
    )
}
"""Patterns of settings in the lines that list all arguments, by kvsim's name of the flag."""
_ARGUMENTS = re.compile(
    r"non-default args|LLM engine \(v|server_args=|Chunked prefill is enabled|Requested memory|graph memory profiling"
)
_NONE = frozenset(("none", "None", "auto"))


@dataclass(frozen=True, slots=True)
class LoggedFigure:
    """Number in a log: bytes or a count."""

    value: float
    line: int = 0
    """Line of the log, from 1; 0 for a number that has none."""


@dataclass(slots=True)
class StartupLog:
    """Sizes and settings in a server's start-up log. If several processes log the same one, the first value counts."""

    server: str = "vllm"
    release: str = ""
    source: str = "log"
    """Kind of the text: a log, metrics, or a recording."""
    settings: dict[str, str] = field(default_factory=dict)
    """Value of each setting as text, by kvsim's name of the flag."""
    figures: dict[str, LoggedFigure] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    """Number, from 1, of the first line that reports a failed start, by the reason of the failure."""

    @property
    def values(self) -> Mapping[str, float]:
        """Value of each of `figures`, without its line."""
        return {name: figure.value for name, figure in self.figures.items()}


def read_startup_log(text: str) -> StartupLog:
    """Read the sizes and settings in a log. Other lines are ignored."""
    log = StartupLog(server="sglang" if "server_args=" in text or "mem_fraction_static" in text else "vllm")
    for number, coloured in enumerate(text.splitlines(), 1):
        line = _COLOUR.sub("", coloured)
        for name, pattern, unit in _COMPILED:
            if name not in log.figures and (match := pattern.search(line)):
                parts = [float(each.replace(",", "")) for each in match.groups()]
                log.figures[name] = LoggedFigure(sum(parts) * unit, number)
        for name, pattern in _FAILURES.items():
            if pattern.search(line):
                log.failures.setdefault(name, number)
        if not log.release and (match := _RELEASE.search(line)):
            log.release = match[1]
        if _ARGUMENTS.search(line):
            for name, pattern in _SETTINGS.items():
                match = pattern.search(line)
                value = next((each for each in match.groups() if each), "") if match else ""
                if value and value not in _NONE:
                    log.settings.setdefault(name, value)
    return log
