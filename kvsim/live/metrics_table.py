"""Write the metrics of a server as a table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from kvsim.live.metrics import HISTOGRAMS, ServerMetrics

_COLUMNS = (
    "usage", "fullest_usage", "num_blocks", "block_size", "running", "waiting", "deferred", "preemptions", "finished",
    "prompt_tokens", "generation_tokens", "queried_tokens", "hit_tokens",
)  # fmt: skip


def as_csv(looks: Sequence[ServerMetrics]) -> str:
    """Return a CSV with one row per look.

    The columns are `time_s` since the first look, the gauges and counters of `ServerMetrics`, and the number and sum in
    seconds of each distribution.
    """
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["time_s", *_COLUMNS, *(f"{key}_{what}" for key in HISTOGRAMS for what in ("count", "sum_s"))])
    for look in looks:
        times = [look.histograms[key] for key in HISTOGRAMS]
        row = [round(look.time_s - looks[0].time_s, 3), *(getattr(look, name) for name in _COLUMNS)]
        rows.writerow([*row, *(value for time in times for value in (time.count, time.sum_s))])
    return text.getvalue()
