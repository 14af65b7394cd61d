"""Shrink a workload that shows a difference, so that the reason is easier to find.

Parts are removed or simplified as long as the smaller workload still shows the difference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Document = dict[str, Any]

_PLAIN_SETTINGS = {
    "enable_prefix_caching": False,
    "async_scheduling": False,
    "policy": "fcfs",
    "scheduler_reserve_full_isl": True,
    "enable_chunked_prefill": True,
    "v2_model_runner": True,
    "long_prefill_token_threshold": 0,
    "watermark": 0.0,
}
_PLAIN_REQUEST = {
    "arrival_step": 0,
    "priority": 0,
    "prefix_group": None,
    "prefix_len": 0,
    "stop_at": None,
    "abort_step": None,
}


def shrink(document: Document, still_shows: Callable[[Document], bool]) -> Document:
    """Remove, simplify and shorten parts one at a time; return the smallest workload found that `still_shows`."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in _candidates(document):
            if still_shows(candidate):
                document, smaller = candidate, True
                break
    return document


def _candidates(document: Document) -> Iterator[Document]:
    """Yield simpler workloads than `document`, the largest cuts first."""
    requests = document["requests"]
    size = len(requests) // 2
    while size:
        for start in range(0, len(requests), size):
            kept = requests[:start] + requests[start + size :]
            if kept:
                yield document | {"requests": kept}
        size //= 2
    keeps_states = document.get("mamba_cache_mode", "none") != "none"
    for name, plain in _PLAIN_SETTINGS.items():
        if document.get(name, plain) != plain and not (name == "enable_prefix_caching" and keeps_states):
            yield document | {name: plain}
    for row, request in enumerate(requests):
        for name, plain in _PLAIN_REQUEST.items():
            if request.get(name, plain) != plain:
                yield _with(document, row, {name: plain})
        for name in ("prompt_len", "output_len", "arrival_step", "prefix_len"):
            value = request.get(name, 0)
            floor = 1 if name in ("prompt_len", "output_len") else 0
            for lower in dict.fromkeys((value // 2, value - 1)):
                if floor <= lower < value:
                    yield _with(document, row, _shortened(request, name, lower))


def _shortened(request: Document, name: str, length: int) -> Document:
    change: Document = {name: length}
    if name == "prompt_len" and request.get("prompt_token_ids"):
        change["prompt_token_ids"] = request["prompt_token_ids"][:length]
    return change


def _with(document: Document, row: int, change: Document) -> Document:
    requests = list(document["requests"])
    requests[row] = requests[row] | change
    return document | {"requests": requests}
