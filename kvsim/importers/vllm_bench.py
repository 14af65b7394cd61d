"""Reader of the results of `vllm bench serve --save-result --save-detailed`: JSON with a list per quantity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.errors import WorkloadError, shortened
from kvsim.files.values import is_integer, is_number
from kvsim.importers.arrival_times import Clock
from kvsim.importers.collect import RequestCollector
from kvsim.importers.source import SourceRow

if TYPE_CHECKING:
    from kvsim.importers.source import TextSource
    from kvsim.workload import Workload

_DETAILED = "write it with --save-detailed"


def looks_like(source: TextSource) -> bool:
    """Tell whether the file is an object with the benchmark's totals."""
    head = source.lines[0].lstrip()
    return head.startswith("{") and any('"total_input_tokens"' in line for line in source.lines[:200])


def read(source: TextSource) -> Workload:
    """Return the answered requests, with the times at which the benchmark sent them.

    Older versions do not save these times. The requests are then spaced evenly at the requested rate.

    Raises:
        WorkloadError: the file has several results, or was not written with --save-detailed.
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
    clock = Clock(path=source.path, column="request_rate" if note else "start_times", unit="s")
    requests = RequestCollector(source=source, kind="vLLM serving benchmark", clock=clock)
    row = SourceRow(path=source.path, line=1, fields=document)
    for request in zip(starts_s, prompts, outputs, strict=True):
        requests.add(row, *request)
    return requests.workload(note)


def _lengths(source: TextSource, document: dict[str, Any], name: str) -> list[int]:
    values = document.get(name)
    if not isinstance(values, list) or not values:
        raise WorkloadError(f"{source.path} has no list of {name}; {_DETAILED}.")
    wrong = [value for value in values if not is_integer(value, 0, 2**31 - 1)]
    if wrong:
        raise WorkloadError(f"{source.path}: {name} should be whole numbers of tokens, not {shortened(wrong[0])}.")
    return values


def _starts_s(source: TextSource, document: dict[str, Any], num_requests: int) -> tuple[list[float], str]:
    starts = document.get("start_times")
    if starts is not None:
        if not isinstance(starts, list) or len(starts) != num_requests:
            raise WorkloadError(
                f"{source.path}: start_times should be a number for each of the {num_requests} requests."
            )
        return starts, ""
    rate = document.get("request_rate", "inf")
    if rate == "inf":
        return [0.0] * num_requests, "; the file has no start_times, so all arrive at once"
    if not is_number(rate, 0, 1e300) or rate == 0:
        raise WorkloadError(f"{source.path}: request_rate should be a number above 0 or inf, not {shortened(rate)}.")
    spaced = [number / rate for number in range(num_requests)]
    return spaced, f"; the file has no start_times, so they are spaced evenly at {rate:g} per second"
