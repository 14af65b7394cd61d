"""The summary of a run: a few numbers, for tables and for `--json`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from kvsim.metrics.request_times import Distribution
from kvsim.metrics.shares import WasteShares
from kvsim.metrics.waiting import Limits, WaitingFor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Summary:
    """Figures of a run. Undefined figures, such as the mean of no values, are NaN.

    In means over time, the figures of a step count until the next step begins. If no step is in flight between its
    output and the next step, they count until the output. From the output to the next step, the figures after the
    output count.
    """

    name: str
    policy: str
    num_finished: int
    num_refused: int
    num_aborted: int
    num_unfinished: int
    num_steps: int
    duration_s: float
    output_tokens: int
    """Number of output tokens of all requests, unfinished ones included."""
    output_tokens_per_s: float
    requests_per_s: float
    """Number of finished requests divided by `duration_s`; NaN if that is 0."""
    mean_batch: float
    """Number of sequences in the batch, mean over time; idle time counts as 0."""
    peak_batch: int
    mean_occupancy: float
    """Share of the pool that requests hold, 0 to 1, mean over time."""
    peak_occupancy: float
    num_preemptions: int
    num_fragmented_steps: int
    """Number of steps in which the head of the queue waited for contiguous slots, although enough were free."""
    num_fragmented_requests: int
    """Number of requests that were first in the queue in one of the `num_fragmented_steps`."""
    swapped_out_bytes: int
    """Number of bytes that were copied to host memory: by swapping, by native offload or by HiCache."""
    swapped_in_bytes: int
    prefix_queried_tokens: int
    """Number of prompt tokens looked up in the prefix cache. Each prompt counts once, when first scheduled."""
    prefix_hit_tokens: int
    """Number of the queried tokens that were found in the cache or in host memory, and so not computed."""
    prefix_hit_rate: float
    """Hit tokens divided by queried tokens, 0 to 1; 0 if no tokens were looked up."""
    prefix_no_hits: str
    """Reason why there was no hit, in words; empty if there was one."""
    computed_tokens: int
    """Number of tokens scheduled in all steps."""
    vain_tokens: int
    """Number of computed tokens that no finished request needed.

    They are tokens that are computed again, tokens after the end of an output, padding, and tokens of other requests.
    """
    mean_waiting: float
    """Number of requests in the queue, mean over time."""
    waiting_for: WaitingFor
    limits: Limits | None
    """Limits of one step of the engine; None if they are unknown."""
    wait_s: Distribution
    ttft_s: Distribution
    tpot_s: Distribution
    e2e_s: Distribution
    waste: WasteShares
    swapped_out_units: int = 0
    """Number of the pool's units that were copied to host memory."""
    swapped_in_units: int = 0
    """Number of the pool's units that were copied back from host memory."""
    loaded_tokens: int = 0
    """Number of tokens in units that were copied back from host memory, and so not computed."""
    images_used: int = 0
    """Number of images that requests used. An image counts once for each request, and again after a preemption."""
    images_computed: int = 0
    """Number of the `images_used` that the encoder computed. The others were in its cache."""

    def as_dict(self) -> dict[str, Any]:
        """Return all figures as nested dictionaries for JSON, with None in place of NaN."""
        return {field.name: plain(getattr(self, field.name)) for field in fields(self)}

    def as_row(self) -> dict[str, Any]:
        """Return all figures as a row of a table. Names of nested figures are joined by dots: `ttft_s.mean`."""
        return dict(_flat(self.as_dict()))

    def __repr__(self) -> str:
        return f"<Summary of {self.name!r}: {', '.join(f'{label} {value}' for label, value in self._shown())}>"

    def _repr_html_(self) -> str:
        lines = "".join(f"<tr><th>{label}</th><td>{value}</td></tr>" for label, value in self._shown())
        return f"<table>{lines}</table>"

    def _shown(self) -> list[tuple[str, str]]:
        """Return the most important figures as pairs of a label and a value in words."""
        return [
            ("finished", f"{self.num_finished:,}"),
            ("output tokens/s", f"{self.output_tokens_per_s:,.0f}"),
            ("mean batch", f"{self.mean_batch:.3g}"),
            ("TTFT mean", f"{self.ttft_s.mean:.3g} s"),
            ("TPOT mean", f"{1e3 * self.tpot_s.mean:.3g} ms"),
            ("end to end p99", f"{self.e2e_s.p99:.3g} s"),
            ("preemptions", f"{self.num_preemptions:,}"),
            ("prefix hits", hit_words(self)),
            ("pool holds tokens", f"{self.waste.pool_percent[0]:.1f} %"),
        ]


def hit_words(summary: Summary) -> str:
    """Return words for a table: the share of prompt tokens found in the prefix cache, or the reason for no hit."""
    if summary.prefix_no_hits:
        return f"0 %: {summary.prefix_no_hits}"
    return f"{100 * summary.prefix_hit_rate:.1f} % of {summary.prefix_queried_tokens:,} prompt tokens"


def _flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def plain(value: Any) -> Any:
    """Return `value` in the types of JSON: dictionaries, lists and numbers, with None in place of NaN."""
    if isinstance(value, WasteShares):
        value = value.as_dict()
    elif isinstance(value, Limits | WaitingFor | Distribution):
        value = asdict(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value
