"""Are predicted effects of remedies the real ones? python benchmarks/remedies.py FOLDER [--table FILE.md]

FOLDER holds recordings of one load on one GPU: `without`, and with one thing changed each: `memory` (a higher
gpu_memory_utilization), `seqs` (a lower max_num_seqs), `tokens` (a lower max_num_batched_tokens), `fp8` (the cache in
fp8), `watermark` and others of `REMEDIES`. What a
recording with a remedy is like is predicted from `without` alone, as `kvsim diagnose` does, and compared with it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from kvsim.diagnosis import load_of, server_of
from kvsim.diagnosis.diagnosis import missed_by
from kvsim.fitting import Search, Server
from kvsim.fitting.outcome import outcome_of
from kvsim.fitting.search import figures_of
from kvsim.recording import Recording, read
from kvsim.simulation import Measured

REMEDIES = ("memory", "some-memory", "seqs", "tokens", "fp8", "watermark")
_UNITS = {
    "output_tokens_per_s": ("output tokens/s", 1.0),
    "ttft_p99_s": ("TTFT p99, ms", 1000.0),
    "tpot_p99_s": ("TPOT p99, ms", 1000.0),
    "preemptions_per_min": ("preemptions a minute", 1.0),
}


def remedied(server: Server, after: Recording) -> Server:
    """`server` with what the recording `after` has otherwise; its pool is not looked at."""
    engine = after.meta.engine
    dtype = str(engine.get("kv_cache_dtype", "auto"))
    return replace(
        server,
        model=server.model.served(kv_cache_dtype=dtype),
        gpu_memory_utilization=float(engine["gpu_memory_utilization"]),
        max_num_seqs=int(engine["max_num_seqs"]),
        max_num_batched_tokens=int(engine["max_num_batched_tokens"]),
        watermark=float(engine["watermark"]),
    )


def rows(folder: Path) -> list[tuple[str, ...]]:
    """A row for every remedy and figure: predicted, its band, measured, and whether it lies within."""
    search = Search(engine="interpreted")
    before = read(folder / "without")
    server, load = server_of(before), load_of(before)
    base = outcome_of(load, [Measured.of(before)], server.machine())
    [simulated] = search.outcomes([(server, load, 1.0)])
    missed = missed_by(base, simulated)
    found = _rows("without (simulated again)", figures_of(simulated), search.band(server, load, simulated), base)
    for name in REMEDIES:
        if not (folder / name).is_dir():
            continue
        after = read(folder / name)
        changed = remedied(server, after)
        [predicted] = search.outcomes([(changed, load, 1.0)])
        band = search.band(changed, load, predicted, least=missed)
        measured = outcome_of(load, [Measured.of(after)], changed.machine())
        blocks = (after.meta.pool.num_units or 0) + after.meta.pool.first_unit
        found.append((name, "blocks", f"{predicted.num_blocks:,}", "", f"{blocks:,}", ""))
        found += _rows(name, figures_of(predicted), band, measured)
    return found


def _rows(name: str, predicted: dict[str, float], band: dict[str, tuple[float, float]], measured: object) -> list[
    tuple[str, ...]
]:  # fmt: skip
    real, found = figures_of(measured), []  # type: ignore[arg-type]
    for key, (label, scale) in _UNITS.items():
        low, high = band.get(key, (float("nan"), float("nan")))
        within = "yes" if low <= real[key] <= high else "no"
        span = f"{low * scale:,.1f} to {high * scale:,.1f}"
        found.append((name, label, f"{predicted[key] * scale:,.1f}", span, f"{real[key] * scale:,.1f}", within))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--table", type=Path, help="Write the table here as well.")
    given = parser.parse_args()
    head = ("remedy", "figure", "predicted", "band", "measured", "within")
    table = [head, ("---",) * len(head), *rows(given.folder)]
    text = "\n".join(f"| {' | '.join(row)} |" for row in table)
    print(text)
    if given.table is not None:
        given.table.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
