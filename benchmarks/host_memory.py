"""How far predictions of servers short of memory are off: benchmarks/host_memory.py [--write]

For docs/second-tier.md: each recording beside what the card that ships says of its requests alone, and between which
values that lies with its GPU's and its host's times as far off as such times usually are; and each simulated again at
the pace that it tells itself, as `kvsim diagnose` does. Prints both tables, and puts them there with --write.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pages import with_rows

from kvsim.calibration.clocks import in_words
from kvsim.diagnosis import load_of, server_of
from kvsim.experiments.bands import band_of
from kvsim.experiments.recorded_run import as_sent, policy_of, users_of
from kvsim.experiments.validation import validate
from kvsim.fitting import Search
from kvsim.fitting.outcome import outcome_of
from kvsim.hardware import find_gpu
from kvsim.machines import card_of, from_card, is_in_process, served_model
from kvsim.metrics import summarize
from kvsim.recording import Recording, find, read
from kvsim.simulation import Machine, Measured

PAGE = Path(__file__).parents[1] / "docs" / "second-tier.md"
SHIPPED = ("offload", "offload-again", "offload-watermark", "no-offload", "offload-sync")
BESIDE = Path(__file__).with_name("recordings") / "ragpulse"
ROWS = {
    "mean TTFT": ("TTFT, mean", "ttft_s", "{:.2f} s"),
    "preemptions": ("preemptions", "num_preemptions", "{:,.0f}"),
    "output tokens/s": ("throughput", "output_tokens_per_s", "{:,.0f}"),
}


def recordings() -> dict[str, Recording]:
    found = {name: read(find(f"vllm-h200-llama-3-8b-{name}")) for name in SHIPPED}
    return found | {
        "RAGPulse, no watermark": read(BESIDE / "without"),
        "RAGPulse, watermark": read(BESIDE / "watermark"),
    }


def predicted() -> tuple[list[str], list[str]]:
    """The rows of the first table, and a sentence on the clocks of each recording."""
    rows, words = [], []
    for name, recording in recordings().items():
        meta = recording.meta
        gpu, model = find_gpu(meta.gpu), served_model(meta)
        times = from_card(card_of(gpu), gpu, model, "vllm", in_process=is_in_process(meta))
        result = validate(times, recording)
        policy, kv_bytes = policy_of(recording)
        band = band_of(
            as_sent(recording),
            policy,
            Machine(gpu=gpu, model=model, kv_bytes=kv_bytes, step_time=times),
            summarize(result.simulated),
            users=users_of(recording),
            stamp_at_entry=True,
        )
        assert band is not None
        for label, (row_name, figure, form) in ROWS.items():
            row = next(row for row in result.rows if row.name == row_name)
            low, high = band.ranges[figure]
            held = "" if low <= row.measured <= high else " **misses**"
            first = f"`{name}` " if label == "mean TTFT" else ""
            rows.append(
                f"| {first}| {label} | {form.format(row.measured)} | "
                f"{form.format(row.simulated)} | {form.format(low)} to {form.format(high)}{held} |"
            )
        words.append(f"{name}: {in_words(result.clocks)}")
    return rows, words


def at_their_own_pace() -> list[str]:
    """The rows of the second table."""
    rows, search = [], Search(engine="interpreted")
    for name, recording in recordings().items():
        server, load = server_of(recording), load_of(recording)
        measured = outcome_of(load, [Measured.of(recording)], server.machine())
        [simulated] = search.outcomes([(server, load, 1.0)])
        figures = [
            ("mean TTFT", "{:.2f} s", measured.ttft_s.mean, simulated.ttft_s.mean),
            ("preemptions", "{:,.0f}", measured.num_preemptions, simulated.num_preemptions),
            ("output tokens/s", "{:,.0f}", measured.output_tokens_per_s, simulated.output_tokens_per_s),
        ]
        for number, (label, form, before, after) in enumerate(figures):
            first = f"`{name}` | {server.pace.host:.2f}" if number == 0 else "|"
            rows.append(f"| {first} | {label} | {form.format(before)} | {form.format(after)} |")
    return rows


def main() -> None:
    first, words = predicted()
    tables = {
        "| recording | | measured | predicted | between |": first,
        "| recording | host | | measured | simulated |": at_their_own_pace(),
    }
    page = PAGE.read_text(encoding="utf-8")
    for head, rows in tables.items():
        print("", head, *rows, sep="\n", flush=True)
        page = with_rows(page, head, rows)
    print("", *words, sep="\n")
    if "--write" in sys.argv:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
