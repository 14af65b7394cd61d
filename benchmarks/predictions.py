"""Left-out predictions by what they rest on: benchmarks/predictions.py [--write] [BASIS ...]

Makes those of each named basis anew (TABLES, GPU, MACHINE, ...), or all. Prints one table per basis, misses first;
--write puts them into docs/accuracy.md, and the medians and worst of every class, with the recordings that tell them,
into kvsim/machines/errors.toml, from which every summary quotes. Needs the extra kvsim[kernels].
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

from kvsim.calibration import calibrate_card
from kvsim.calibration.coefficient_fit import engine_of
from kvsim.errors import UsageError
from kvsim.experiments.validation import Validation, matching_profile, times_of, validate
from kvsim.hardware import find_gpu
from kvsim.machines import (
    Basis,
    card_of,
    class_of,
    from_card,
    in_batches_of,
    is_in_process,
    middle_host,
    served_model,
    sheet_card,
)
from kvsim.machines.kernel_tables import table_card
from kvsim.machines.known_errors import (
    FIGURES,
    FILE,
    PREEMPTIONS,
    ErrorClass,
    KnownError,
    PublishedErrors,
    known_errors,
)
from kvsim.profiles import served_name
from kvsim.recording import Recording, find, read, shipped_names
from kvsim.steptime import Pace, at_pace
from kvsim.steptime.card import Card, load_card

MEASURED = ("8e7132d6", "16b87d30", "5b3fd3e7", "36f35ba1", "4362a16e", "6561975f", "73c6158a")
"""Machines whose cards ship, or lie in `cards` beside this file."""
CARDS = Path(__file__).with_name("cards")
ROWS = {
    "throughput": "throughput",
    "tpot": "TPOT, mean",
    "e2e": "end to end, mean",
    "ttft": "TTFT, mean",
    "ttft_p99": "TTFT, p99",
    "tpot_p99": "TPOT, p99",
}
MANY_PREEMPTIONS = 20
"""With fewer, a share of the count says little."""
TELLING = 0.03
"""Share of the time from which on steps that waited for a clock tell of it."""
_BESIDE = Path(__file__).with_name("recordings")
_REMEDIES = ("llama-3-8b", "qwen3-8b", "ragpulse")
BESIDE = (
    *sorted(_BESIDE.glob("vllm-*")),
    *(folder for folder in sorted(_BESIDE.glob("blind/vllm-*")) if "gpt-oss" not in folder.name),
    *(folder for name in _REMEDIES for folder in sorted(_BESIDE.glob(f"{name}/*/"))),
)
"""Recordings that do not ship; those in `blind` were predicted before they were made (`predicted.json`).

Of four loads of gpt-oss-20b, three have the times of a compiler at work: the one that fits would flatter its class.
"""
_CRASHED = "async-pressure"
"""A pipeline whose engine ended halfway, with three requests of four unanswered."""
_PIPELINES = (Path(__file__).parents[1] / "tests/conformance/recorded_pipeline").glob("*sync-*")
PIPELINES = tuple(folder for folder in sorted(_PIPELINES) if folder.name != _CRASHED)
"""Recordings of Llama-3-8B in two stages."""

_HTTP = "inference-sim/training ed5c1d2, vLLM behind HTTP"
_SERVING_SIM = "casys-kaist/LLMServingSim 5daddb2, vLLM 0.19.0"
_HOPPER = ("Hopper GH100", "H100 SXM")
_OUTSIDE = (
    (Basis.GPU, *_HOPPER, "dense", 1, "Llama-2-7b", 4, (-2.0, 3.8), (-2.0, 3.7), _HTTP),
    (Basis.LINKED, *_HOPPER, "dense", 2, "CodeLlama-34b", 2, (9.8, 13.2), (9.9, 13.2), _HTTP),
    (Basis.LINKED, *_HOPPER, "dense", 4, "Llama-2-70b", 2, (1.8, 6.2), (2.8, 6.2), _HTTP),
    (Basis.LINKED, *_HOPPER, "experts", 2, "Mixtral-8x7B-v0.1", 4, (-0.9, 4.1), (-0.7, 4.3), _HTTP),
    (Basis.TABLES, *_HOPPER, "dense", 1, "Llama-2-7b", 4, (-7.3, 3.2), (-7.4, 3.0), _HTTP),
    (Basis.TABLES, *_HOPPER, "dense", 2, "CodeLlama-34b", 2, (2.7, 3.2), (2.6, 3.2), _HTTP),
    (Basis.TABLES, *_HOPPER, "dense", 4, "Llama-2-70b", 2, (-2.7, 3.8), (-1.7, 3.8), _HTTP),
    (Basis.TABLES, *_HOPPER, "experts", 2, "Mixtral-8x7B-v0.1", 4, (-2.4, 1.5), (-2.2, 1.7), _HTTP),
    (Basis.SHEET, "Ada AD102", "RTX 4090", "dense", 1, "Llama-3.1-8B", 1, (6.4, 6.4), (4.2, 4.2), _SERVING_SIM),
    (Basis.SHEET, "Blackwell GB202", "RTX PRO 6000", "dense", 1, "Llama-3.1-8B", 1, (-1.2, -1.2), (-1.1, -1.1),
     _SERVING_SIM),
    (Basis.TABLES, "Blackwell GB202", "RTX PRO 6000", "dense", 1, "Llama-3.1-8B", 1, (-4.2, -4.2), (-3.2, -3.2),
     _SERVING_SIM),
)  # fmt: skip
OUTSIDE = tuple(
    (
        ErrorClass(
            basis=basis,
            family=family,
            layers=layers,
            gpus="1 GPU" if num_gpus == 1 else f"{num_gpus} GPUs",
            cache="cache as the model",
            engine="vLLM",
        ),
        PublishedErrors(gpu=gpu, model=model, num_runs=num_runs, e2e=e2e, tpot=tpot, source=source),
    )
    for basis, family, gpu, layers, num_gpus, model, num_runs, e2e, tpot, source in _OUTSIDE
)
"""Runs that others recorded, and how far off kvsim is (`benchmarks/outside.py` has every stage). Step times were fitted
to none of them. Mixtral was +22 to +30 % off before the times of experts went by measured kernels."""

PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
SECTIONS = {
    Basis.MACHINE: ("The machine measured, the model not", 100),
    Basis.FITTED: ("Fitted to one recording of another model on the machine", 15),
    Basis.GPU: ("Such a GPU measured in another host", 12),
    Basis.SHEET: ("Data sheet only", 100),
}
"""Headings of the page, and how many rows, worst first, stand below each."""
SUMMARY = {
    Basis.MODEL: "such a GPU and the model measured (a profile)",
    Basis.FITTED_THERE: "a card, fitted to one recording of this model there",
    Basis.FITTED: "a card, fitted to one recording of another model there",
    Basis.MACHINE: "the machine measured, the model not (its own card)",
    Basis.GPU: "such a GPU measured in another host, the model not (a card that ships)",
    Basis.SHEET_FITTED: "a data sheet, fitted to one recording there",
    Basis.SHEET: "a data sheet (H100 from the H200's efficiencies)",
    Basis.LINKED: "a card that ships, and sums over several GPUs guessed",
    Basis.TABLES: "kernel tables, and the host of a card that ships",
    Basis.STAGES: "a card that ships, and stages by a formula",
}
"""Rows of the page's first table."""
CLASSES_HEAD = (
    "| class | step times from | recordings | throughput | TPOT | end to end | TTFT |",
    "|---|---|---:|---:|---:|---:|---:|",
)
HEAD = (
    "| recording | predicted by | throughput | TPOT | end to end | TTFT | preemptions |",
    "|---|---|---:|---:|---:|---:|---:|",
)

Found = tuple[str, Validation]
"""What a prediction was made from, in words, and its comparison with the recording."""


def recordings() -> dict[str, Recording]:
    """Every recording of vLLM with captured graphs and without host memory."""
    found = {name: read(find(name)) for name in shipped_names() if name.startswith("vllm")}
    found |= {name_of(folder): replace(read(folder), name=name_of(folder)) for folder in BESIDE}
    return {
        name: item for name, item in found.items() if not item.meta.engine.get("enforce_eager") and item.copies is None
    }


def name_of(folder: Path) -> str:
    """The name of a recording that does not ship; those of one server have its name before their own."""
    return f"{folder.parent.name}/{folder.name}" if folder.parent.name in _REMEDIES else folder.name


def hugging_face() -> dict[str, Recording]:
    """Every recording of `generate()`."""
    return {name: read(find(name)) for name in shipped_names() if name.startswith("hf")}


def class_of_recording(basis: Basis, recording: Recording) -> ErrorClass:
    """The class of a prediction for `recording` with times of that basis."""
    meta = recording.meta
    captured = not meta.engine.get("enforce_eager")
    return class_of(basis, find_gpu(meta.gpu), served_model(meta), engine_of(recording), captured=captured)


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
    """Profiles, on recordings that they were not fitted to, with the host in the middle of all other machines."""
    for recording in (everything | hugging_face()).values():
        try:
            profile = matching_profile(recording)
            host = Pace(host=middle_host(without=machine_of(recording)))
            result = validate(replace(profile, times=at_pace(host, profile.times)), recording)
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


def fitted(
    everything: dict[str, Recording], base: Callable[[Recording], Card], tells: Callable[[Recording, Recording], bool]
) -> Iterator[Found]:
    """Cards with the factors that one recording of each model on the machine tells, of those that `tells` admits."""
    for recording in everything.values():
        others: dict[str, Recording] = {}
        for other in everything.values():
            if other is not recording and machine_of(other) == machine_of(recording) and tells(other, recording):
                others.setdefault(shape_of(other), other)
        for other in others.values():
            card, _ = calibrate_card(base(other), [other])
            told = replace(base(recording), factors=card.factors)
            yield f"the card, fitted to {short(other.name)}", by_card(told, recording)


def fitted_with_another(everything: dict[str, Recording]) -> Iterator[Found]:
    """Cards with the factors that a recording of each other model on the machine tells."""
    yield from fitted(everything, own_card, lambda other, recording: shape_of(other) != shape_of(recording))


def fitted_there(everything: dict[str, Recording]) -> Iterator[Found]:
    """Cards with the factors that another recording of the same model on the machine tells."""
    yield from fitted(everything, own_card, lambda other, recording: shape_of(other) == shape_of(recording))


def shape_of(recording: Recording) -> str:
    """The model and how it was served."""
    return served_name(served_model(recording.meta))


def has_a_sheet(recording: Recording) -> bool:
    """Whether the card of the data sheet of the recording's GPU borrowed nothing from that very GPU."""
    return find_gpu(recording.meta.gpu).name != "H200"


def sheet_of(recording: Recording) -> Card:
    return sheet_card(find_gpu(recording.meta.gpu))


def sheet_fitted(everything: dict[str, Recording]) -> Iterator[Found]:
    """Data sheets with the factors that a recording of each model on the machine tells."""
    yield from fitted(everything, sheet_of, lambda _, recording: has_a_sheet(recording))


def data_sheet(everything: dict[str, Recording]) -> Iterator[Found]:
    """Data sheets, on GPUs whose card they did not borrow from."""
    for recording in everything.values():
        if has_a_sheet(recording):
            yield "the data sheet", by_card(sheet_of(recording), recording)


def sums_guessed(everything: dict[str, Recording]) -> Iterator[Found]:
    """Cards of one GPU with guessed sums over several."""
    for recording in everything.values():
        card = card_of(find_gpu(recording.meta.gpu), served_model(recording.meta).tensor_parallel_size)
        if not card.measured:
            yield "a card of one GPU", by_card(card, recording)


def kernel_tables(everything: dict[str, Recording]) -> Iterator[Found]:
    """Kernel tables, with the host of the card that ships."""
    for recording in everything.values():
        gpu, model = find_gpu(recording.meta.gpu), served_model(recording.meta)
        card = table_card(gpu, model, card_of(gpu, model.tensor_parallel_size))
        yield "kernel tables", by_card(card, recording)


def stages(_: dict[str, Recording]) -> Iterator[Found]:
    """Cards with the layers in stages, on recordings of pipelines."""
    for folder in PIPELINES:
        recording = replace(read(folder), name=f"recorded_pipeline/{folder.name}")
        yield "a card, in stages", validate(times_of(recording), recording)


TABLES = {
    Basis.MODEL: model_measured,
    Basis.FITTED_THERE: fitted_there,
    Basis.FITTED: fitted_with_another,
    Basis.MACHINE: machine_measured,
    Basis.GPU: gpu_measured,
    Basis.SHEET_FITTED: sheet_fitted,
    Basis.SHEET: data_sheet,
    Basis.LINKED: sums_guessed,
    Basis.TABLES: kernel_tables,
    Basis.STAGES: stages,
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


def row_of(told: str, result: Validation) -> str:
    cells = " | ".join(f"{error(result, figure):+.1f} %" for figure in FIGURES)
    preempted = next(row for row in result.rows if row.name == "preemptions")
    counts = f"{preempted.measured:.0f} → {preempted.simulated:.0f}"
    return f"| {short(result.measured.name)} | {told} | {cells} | {counts} |"


def statistics(found: Sequence[Found], statistic: Callable[[Iterable[float]], float]) -> dict[str, float]:
    values = {figure: statistic([abs(error(result, figure)) for _, result in found]) for figure in ROWS}
    if counted := preemption_errors(found):
        values[PREEMPTIONS] = statistic([abs(percent) for percent in counted])
    return values


def with_section(page: str, title: str, rows: Sequence[str], most: int) -> str:
    """`page` with the first of `rows` as the table below the heading that begins with `title`."""
    shown = rows[:most]
    heading = f"### {title}" + (f" (the worst {most} of {len(rows)})" if len(shown) < len(rows) else "")
    begin = page.index(f"### {title}")
    table = page.index("| recording |", begin)
    end = page.index("\n\n", table)
    return page[:begin] + heading + page[page.index("\n", begin) : table] + "\n".join((*HEAD, *shown)) + page[end:]


def with_summary(page: str, basis: Basis, known: KnownError) -> str:
    """`page` with a row of its first table made anew."""
    begin = page.index(f"| {SUMMARY[basis]} |")
    cells = (f"{known.median[name]:.1f} ({known.worst[name]:.0f}) %" for name in FIGURES)
    counts = "–"
    if PREEMPTIONS in known.median:
        counts = f"{known.median[PREEMPTIONS]:.0f} ({known.worst[PREEMPTIONS]:.0f}) %"
    row = f"| {SUMMARY[basis]} | {len(known.recordings)} | {' | '.join(cells)} | {counts} |"
    return page[:begin] + row + page[page.index("\n", begin) :]


def told_by(found: Sequence[Found]) -> KnownError:
    """The errors of predictions of one class, and the recordings that tell them."""
    clocks = {clock.lower(): list(clock_errors(found, clock)) for clock in ("GPU", "host")}
    return KnownError(
        recordings=tuple(sorted({result.measured.name for _, result in found})),
        gpus=tuple(sorted({find_gpu(result.measured.meta.gpu).name for _, result in found})),
        median=statistics(found, median),
        worst=statistics(found, max),
        step_errors={clock: median(errors) for clock, errors in clocks.items() if errors},
    )


def entry(kind: ErrorClass, known: KnownError) -> list[str]:
    """A class as lines of the table."""
    lines = ["", "[[measured]]", *(f"{name} = {json.dumps(text)}" for name, text in kind.as_dict().items())]
    lines += [f"recordings = {json.dumps(known.recordings)}", f"on = {json.dumps(known.gpus)}"]
    for name, errors in (("median", known.median), ("worst", known.worst), ("clocks", known.step_errors)):
        values = ", ".join(f"{key} = {value:.1f}" for key, value in errors.items())
        lines.append(f"{name} = {{ {values} }}")
    return lines


def outside_entries() -> list[str]:
    """Return the runs that others recorded, as lines of the table."""
    lines = []
    for kind, told in OUTSIDE:
        values = kind.as_dict() | asdict(told)
        lines += ["", "[[outside]]", *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return lines


def class_row(kind: ErrorClass, known: KnownError) -> str:
    """A class as a row of the page."""
    cells = (f"{known.median[name]:.1f} ({known.worst[name]:.0f}) %" for name in FIGURES)
    return f"| {kind.setting} | {kind.basis.value} | {len(known.recordings)} | {' | '.join(cells)} |"


def with_classes(page: str, classes: Mapping[ErrorClass, KnownError]) -> str:
    """`page` with the table of classes, and the recordings behind each, made anew."""
    begin = page.index(CLASSES_HEAD[0])
    end = page.index("\n### ", begin)
    ordered = sorted(classes.items(), key=lambda item: (item[0].setting, list(Basis).index(item[0].basis)))
    rows = [class_row(kind, known) for kind, known in ordered]
    outside = [f"- {kind.setting}; {kind.basis.value}: {told.words()}." for kind, told in OUTSIDE]
    lines = [
        f"- {kind.setting}; {kind.basis.value}: {', '.join(map(short, known.recordings))}." for kind, known in ordered
    ]
    return (
        page[:begin]
        + "\n".join(
            (
                *CLASSES_HEAD,
                *rows,
                "",
                "Runs that others recorded:",
                "",
                *outside,
                "",
                "The recordings of each class:",
                "",
                *lines,
                "",
            )
        )
        + page[end:]
    )


def main() -> None:
    everything, page = recordings(), PAGE.read_text(encoding="utf-8")
    lines = ["# Made by: benchmarks/predictions.py --write. Errors in percent, of recordings left out."]
    wanted = {basis: predict for basis, predict in TABLES.items() if basis.name in sys.argv} or TABLES
    classes = {kind: known for kind, known in known_errors().items() if kind.basis not in wanted}
    for basis, predict in wanted.items():
        found = sorted(predict(everything), key=lambda item: -abs(error(item[1], "e2e")))
        rows = [row_of(told, result) for told, result in found]
        print(f"\n### {basis.value.capitalize()}: {len(found)} predictions\n", *HEAD, *rows, sep="\n", flush=True)
        for clock in ("GPU", "host"):
            if errors := list(clock_errors(found, clock)):
                print(f"By clock: {clock} {median(errors):.1f} %")
        by_class = defaultdict(list)
        for item in found:
            by_class[class_of_recording(basis, item[1].measured)].append(item)
        classes |= {kind: told_by(items) for kind, items in by_class.items()}
        page = with_summary(page, basis, told_by([item for item in found if engine_of(item[1].measured) == "vllm"]))
        if basis in SECTIONS:
            title, most = SECTIONS[basis]
            page = with_section(page, title, rows, most)
    for kind, known in classes.items():
        print(f"{kind.words}: {known.words()}")
        lines += entry(kind, known)
    if "--write" in sys.argv:
        FILE.write_text("\n".join((*lines, *outside_entries())) + "\n", encoding="utf-8")
        PAGE.write_text(with_classes(page, classes), encoding="utf-8")


if __name__ == "__main__":
    main()
