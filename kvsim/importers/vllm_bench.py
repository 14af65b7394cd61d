"""What `vllm bench serve --save-result --save-detailed` writes: one JSON object with a list per measured quantity."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.errors import WorkloadError, shortened
from kvsim.importers.collect import Requests
from kvsim.workload import LONGEST_S

if TYPE_CHECKING:
    from kvsim.importers.source import Source
    from kvsim.workload import Workload

_DETAILED = "write it with --save-detailed"


def looks_like(source: Source) -> bool:
    """Whether it is an object with the benchmark's totals."""
    head = source.lines[0].lstrip()
    return head.startswith("{") and any('"total_input_tokens"' in line for line in source.lines[:200])


def read(source: Source) -> Workload:
    """The requests that were answered, at the times at which they were sent.

    Older versions do not save those times: the requests are then spaced evenly at the rate that was asked for.

    Raises:
        WorkloadError: the lists are missing or do not fit together.
    """
    if any(line.startswith("{") for line in source.lines[1:]):
        raise WorkloadError(
            f"{source.path} has several results, as --append-result writes them; give a file with one of its lines."
        )
    document = source.json_document()
    if not isinstance(document, dict):
        raise WorkloadError(f"{source.path} should be a JSON object, as vLLM's serving benchmark writes.")
    prompts, outputs = (_lengths(source, document, name) for name in ("input_lens", "output_lens"))
    if len(prompts) != len(outputs):
        raise WorkloadError(f"{source.path} has {len(prompts)} input_lens and {len(outputs)} output_lens.")
    starts_s, note = _starts_s(source, document, len(prompts))
    requests = Requests(source=source, what="vLLM serving benchmark")
    for row in zip(starts_s, prompts, outputs, strict=True):
        requests.add(*row)
    return requests.workload(note, from_first=True)


def _lengths(source: Source, document: dict[str, Any], name: str) -> list[int]:
    values = document.get(name)
    if not isinstance(values, list) or not values:
        raise WorkloadError(f"{source.path} has no list of {name}; {_DETAILED}.")
    wrong = [
        value for value in values if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31
    ]
    if wrong:
        raise WorkloadError(f"{source.path}: {name} should be whole numbers of tokens, not {shortened(wrong[0])}.")
    return values


def _starts_s(source: Source, document: dict[str, Any], num_requests: int) -> tuple[list[float], str]:
    starts = document.get("start_times")
    if starts is not None:
        numbers = isinstance(starts, list) and all(
            isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LONGEST_S
            for value in starts
        )
        if not numbers or len(starts) != num_requests:
            raise WorkloadError(
                f"{source.path}: start_times should be a number for each of the {num_requests} requests."
            )
        return starts, ""
    try:
        rate = float(document.get("request_rate", "inf"))
    except (TypeError, ValueError, OverflowError):
        rate = 0.0
    if not rate > 0:
        raise WorkloadError(
            f"{source.path}: request_rate should be a number above 0 or inf, not {shortened(document['request_rate'])}."
        )
    said = "all arrive at once" if math.isinf(rate) else f"they are spaced evenly at {rate:g} per second"
    return [number / rate for number in range(num_requests)], f"; the file has no start_times, so {said}"
