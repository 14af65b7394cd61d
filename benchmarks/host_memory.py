"""How far predictions of servers short of memory are off: benchmarks/host_memory.py

For docs/second-tier.md: each recording beside what the card that ships says of its requests alone, and between which
values that lies with its GPU's and its host's times as far off as such times usually are.
"""

from __future__ import annotations

from pathlib import Path

from kvsim.calibration.clocks import in_words
from kvsim.experiments.bands import band_of
from kvsim.experiments.validation import as_sent, concurrency_of, policy_of, validate
from kvsim.hardware import find_gpu
from kvsim.machines import card_of, from_card, is_in_process, served_model
from kvsim.metrics import summarize
from kvsim.recording import Recording, find, read
from kvsim.simulation import Machine

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


def main() -> None:
    print("| recording | | measured | predicted | between |\n|---|---|---|---|---|")
    words = []
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
            concurrency=concurrency_of(recording),
            stamp_at_entry=True,
        )
        assert band is not None
        for label, (row_name, figure, form) in ROWS.items():
            row = next(row for row in result.rows if row.name == row_name)
            low, high = band.ranges[figure]
            held = "" if low <= row.measured <= high else " **misses**"
            print(
                f"| {f'`{name}`' if label == 'mean TTFT' else ''} | {label} | {form.format(row.measured)} | "
                f"{form.format(row.simulated)} | {form.format(low)} to {form.format(high)}{held} |",
                flush=True,
            )
        words.append(f"{name}: {in_words(result.clocks)}")
    print("", *words, sep="\n")


if __name__ == "__main__":
    main()
