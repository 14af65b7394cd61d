"""Left-out predictions by what they rest on: benchmarks/predictions.py [--write]

Prints one table per basis for docs/accuracy.md, misses first; --write puts their medians and worst into
kvsim/machines/errors.toml, from which every summary quotes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from kvsim.calibration import calibrate_card
from kvsim.errors import UsageError
from kvsim.experiments.validation import Validation, matching_profile, validate
from kvsim.hardware import find_gpu
from kvsim.machines import Basis, card_of, from_card, in_batches_of, is_in_process, served_model, sheet_card
from kvsim.machines.errors import FIGURES, FILE, PREEMPTIONS
from kvsim.profiles import listed_name
from kvsim.recording import Recording, find, read, shipped_names
from kvsim.steptime.card import Card, load_card

MEASURED = ("8e7132d6", "5b3fd3e7", "36f35ba1", "4362a16e")
"""Machines whose cards ship, or lie in `cards` beside this file."""
CARDS = Path(__file__).with_name("cards")
ROWS = {"throughput": "throughput", "tpot": "TPOT, mean", "e2e": "end to end, mean", "ttft": "TTFT, mean"}
MANY_PREEMPTIONS = 20
"""With fewer, a share of the count says little."""
TELLING = 0.03
"""Share of the time from which on steps that waited for a clock tell of it."""
BESIDE = (Path(__file__).with_name("recordings") / "vllm-h200-llama-3.2-3b-served",)
"""Recordings that do not ship."""

Found = tuple[str, Validation]
"""What told the prediction, and how it went."""


def recordings() -> dict[str, Recording]:
    """Every recording of vLLM with captured graphs and without host memory."""
    found = {name: read(find(name)) for name in shipped_names() if name.startswith("vllm")}
    found |= {folder.name: read(folder) for folder in BESIDE}
    return {
        name: item for name, item in found.items() if not item.meta.engine.get("enforce_eager") and item.copies is None
    }


def machine_of(recording: Recording) -> str:
    return str(recording.meta.extra.get("machine", recording.name))


def by_card(card: Card, recording: Recording) -> Validation:
    meta = recording.meta
    times = from_card(card, find_gpu(meta.gpu), served_model(meta), "vllm", in_process=is_in_process(meta))
    return validate(in_batches_of(meta.engine["max_num_seqs"], times), recording)


def own_card(recording: Recording) -> Card:
    """The card of the recording's machine, or else the one that ships for its GPU."""
    for file in CARDS.glob(f"*-{machine_of(recording)}.toml"):
        return load_card(file)
    return card_of(find_gpu(recording.meta.gpu), served_model(recording.meta).tensor_parallel_size)


def model_measured(everything: dict[str, Recording]) -> Iterator[Found]:
    """Profiles, on recordings that they were not fitted to."""
    for recording in everything.values():
        try:
            result = validate(matching_profile(recording), recording)
        except UsageError:
            continue
        if result.held_out:
            yield "the profile of the model", result


def machine_measured(everything: dict[str, Recording]) -> Iterator[Found]:
    """Cards, on recordings of the machines that they were measured on."""
    for recording in everything.values():
        if machine_of(recording) in MEASURED:
            yield "the card of the machine", by_card(own_card(recording), recording)


def gpu_measured(everything: dict[str, Recording]) -> Iterator[Found]:
    """Cards, on recordings of machines with the GPU and another host."""
    for recording in everything.values():
        if machine_of(recording) not in MEASURED:
            yield "a card of the GPU", by_card(own_card(recording), recording)


def fitted_with_another(everything: dict[str, Recording]) -> Iterator[Found]:
    """Cards with the factors that one recording of each other model on the machine tells."""
    for recording in everything.values():
        others: dict[str, Recording] = {}
        for other in everything.values():
            if machine_of(other) == machine_of(recording) and shape_of(other) != shape_of(recording):
                others.setdefault(shape_of(other), other)
        for other in others.values():
            card, _ = calibrate_card(own_card(other), [other])
            fitted = replace(own_card(recording), factors=card.factors)
            yield f"the card, fitted to {short(other.name)}", by_card(fitted, recording)


def shape_of(recording: Recording) -> str:
    """The model and how it was served."""
    model = served_model(recording.meta)
    return f"{listed_name(model)} {model.tensor_parallel_size} {model.kv_cache_dtype}"


def data_sheet(everything: dict[str, Recording]) -> Iterator[Found]:
    """Data sheets, on GPUs whose card they did not borrow from."""
    for recording in everything.values():
        if find_gpu(recording.meta.gpu).name != "H200":
            yield "the data sheet", by_card(sheet_card(find_gpu(recording.meta.gpu)), recording)


TABLES = {
    Basis.MODEL: model_measured,
    Basis.FITTED: fitted_with_another,
    Basis.MACHINE: machine_measured,
    Basis.GPU: gpu_measured,
    Basis.SHEET: data_sheet,
}


def short(name: str) -> str:
    return name.removeprefix("vllm-")


def error(result: Validation, figure: str) -> float:
    return next(row.error for row in result.rows if row.name == ROWS[figure])


def preemption_errors(found: Sequence[Found]) -> list[float]:
    """Of the predictions for recordings with many preemptions, by how much of the measured count they are off, in
    percent."""
    counts = [next(row for row in result.rows if row.name == "preemptions") for _, result in found]
    return [100 * (row.simulated - row.measured) / row.measured for row in counts if row.measured >= MANY_PREEMPTIONS]


def clock_errors(found: Sequence[Found], clock: str) -> Iterator[float]:
    """How far off the steps are that waited for `clock`, in percent, where it was waited for often enough to tell."""
    for _, result in found:
        yield from (
            abs(item.error_percent) for item in result.clocks if item.clock == clock and item.time_share > TELLING
        )


def main() -> None:
    everything = recordings()
    lines = ["# Made by: benchmarks/predictions.py --write. Errors in percent, of recordings left out."]
    for basis, predict in TABLES.items():
        found = sorted(predict(everything), key=lambda item: -abs(error(item[1], "e2e")))
        print(f"\n### {basis.value.capitalize()}: {len(found)} predictions\n")
        print("| recording | told by | throughput | TPOT | end to end | TTFT | preemptions |")
        print("|---|---|---:|---:|---:|---:|---:|")
        for told, result in found:
            cells = " | ".join(f"{error(result, figure):+.1f} %" for figure in FIGURES)
            preempted = next(row for row in result.rows if row.name == "preemptions")
            counts = f"{preempted.measured:.0f} → {preempted.simulated:.0f}"
            print(f"| {short(result.measured.name)} | {told} | {cells} | {counts} |", flush=True)
        clocks = {clock: median(clock_errors(found, clock)) for clock in ("GPU", "host")}
        print("\nBy clock: " + ", ".join(f"{clock} {percent:.1f} %" for clock, percent in clocks.items()))
        lines += ["", f"[{basis.name}]", f"num_recordings = {len({result.measured.name for _, result in found})}"]
        for name, statistic in (("median", median), ("worst", max)):
            values = {figure: statistic(abs(error(result, figure)) for _, result in found) for figure in FIGURES}
            if counted := preemption_errors(found):
                values[PREEMPTIONS] = statistic(map(abs, counted))
            lines.append(f"{name} = {{ {', '.join(f'{key} = {value:.1f}' for key, value in values.items())} }}")
        lines.append(f"clocks = {{ gpu = {clocks['GPU']:.1f}, host = {clocks['host']:.1f} }}")
    if "--write" in sys.argv:
        FILE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
