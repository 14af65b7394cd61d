"""A figure of error belongs to one class of machine, model and times; what no recording tells was never measured."""

from __future__ import annotations

import json
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvsim.cli.fit import command as fit_command
from kvsim.cli.run import command as run_command
from kvsim.cli.sweep import command as sweep_command
from kvsim.errors import UsageError
from kvsim.hardware import GPUS, Gpu, find_gpu
from kvsim.machines import (
    Basis,
    card_of,
    class_in,
    class_of,
    from_card,
    known_errors,
    known_in,
    plain_words,
    served_model,
    step_times,
)
from kvsim.machines.known_errors import FEWEST_RECORDINGS, FIGURES, ErrorClass, error_words, outside_errors
from kvsim.models import Model, find_model, find_quantization
from kvsim.recording import Meta, find, read
from kvsim.recording.files import read_outlines
from kvsim_tui.facts.headlines import headline
from kvsim_tui.playback.session import Session

ROOT = Path(__file__).parents[2]
MODELS = (
    *("Meta-Llama-3-8B", "Qwen3-32B", "Llama-3.3-70B-Instruct", "gemma-3-4b-it", "gpt-oss-20b", "Qwen3-30B-A3B"),
    *("DeepSeek-V2-Lite", "DeepSeek-V3", "DeepSeek-V3.2", "granite-4.0-h-micro", "Qwen3-Next-80B-A3B-Instruct"),
)
SPARSE = "its sparse attention"


@cache
def meta_of(name: str) -> Meta:
    """What the recording of that name in the table says of itself."""
    folders = (find(name) if (ROOT / "traces" / name).is_dir() else None,)
    places = ("benchmarks/recordings", "benchmarks/recordings/blind", "tests/conformance")
    found = [folder for folder in (*folders, *(ROOT / place / name for place in places)) if folder and folder.is_dir()]
    assert found, f"there is no recording {name}"
    return next(read_outlines(found[:1])).meta


@pytest.mark.parametrize("kind", known_errors(), ids=lambda kind: kind.words)
def test_every_class_has_recordings_that_exist_and_belong_to_it(kind: ErrorClass) -> None:
    known = known_errors()[kind]
    assert known.recordings
    assert len(set(known.recordings)) == len(known.recordings)
    assert set(known.gpus) == {find_gpu(meta_of(name).gpu).name for name in known.recordings}
    for name in known.recordings:
        meta = meta_of(name)
        engine = "vllm" if meta.policy_name != "static" else f"hf-{meta.policy.get('cache', 'dynamic')}"
        captured = not meta.engine.get("enforce_eager")
        assert class_of(kind.basis, find_gpu(meta.gpu), served_model(meta), engine, captured=captured) == kind
    assert all(0 <= known.median[name] <= known.worst[name] for name in (*FIGURES, *known.median))


def test_no_two_classes_share_their_figures() -> None:
    """Equal figures of two classes would mean that one borrowed them from the other."""
    for (kind, one), (other, two) in combinations(known_errors().items(), 2):
        figures = [(known.median, known.worst, known.step_errors) for known in (one, two)]
        assert figures[0] != figures[1], f"{kind.words} and {other.words}"
    for words, others in combinations([error_words(kind) for kind in known_errors()], 2):
        assert words != others


def ways(model: Model) -> list[Model]:
    """`model` served in several ways, as far as it can be."""
    found = []
    for settings in (
        *({"tensor_parallel_size": size} for size in (1, 2, 4)),
        {"pipeline_parallel_size": 2},
        {"kv_cache_dtype": "fp8"},
        {"quantization": find_quantization("awq")},
    ):
        try:
            found.append(model.served(**settings))  # type: ignore[arg-type]
        except UsageError:
            continue
    return found


RECORDED = {name for known in known_errors().values() for name in known.gpus}
FIRST = {gpu.architecture: gpu for gpu in reversed(GPUS)}
"""The first listed GPU of each architecture."""
SOME = [gpu for gpu in GPUS if gpu.name in RECORDED or gpu in FIRST.values()]
"""The GPUs that have recordings, and the first of each architecture."""
LABELS = [
    *(pytest.param(gpu, MODELS[number % 3 :: 3], id=f"{gpu.name}, some models") for number, gpu in enumerate(SOME)),
    *(pytest.param(gpu, MODELS, id=gpu.name, marks=pytest.mark.slow) for gpu in GPUS),
]


@pytest.mark.parametrize(("gpu", "models"), LABELS)
def test_every_label_names_its_own_class_or_says_that_it_was_never_measured(gpu: Gpu, models: tuple[str, ...]) -> None:
    for name in models:
        for model in ways(find_model(name)):
            for captured in (True, False) if model.tensor_parallel_size == 1 else (True,):
                try:
                    label = step_times(gpu, model, "vllm", captured=captured).label
                except UsageError:  # vLLM has no such cache
                    continue
                kind = class_in(label)
                assert kind is not None
                assert kind == class_of(kind.basis, gpu, model, "vllm", captured=captured)
                assert label.endswith(error_words(kind))
                if (known := known_in(label)) is None:
                    assert "never measured" in label
                    assert "never measured" in plain_words(label)
                    assert "recordings of this class" not in label.partition("on the very machine")[0]
                else:
                    assert {find_gpu(meta_of(item).gpu).architecture for item in known.recordings} == {gpu.architecture}
                assert (SPARSE in label) == any(layer.kind == "indexer" for each in model.layers for layer in each)


@pytest.mark.parametrize(
    ("gpu", "name", "settings"),
    [
        ("MI300X", "Meta-Llama-3-8B", {}),
        ("A10G", "Meta-Llama-3-8B", {}),
        ("L40S", "Meta-Llama-3-8B", {}),
        ("H100", "Llama-3.3-70B-Instruct", {"tensor_parallel_size": 4}),
        ("H200", "DeepSeek-V3", {"tensor_parallel_size": 8}),
        ("H100", "Mixtral-8x7B-v0.1", {"tensor_parallel_size": 4}),
        ("B200", "Qwen3-30B-A3B", {}),
        ("H200", "Meta-Llama-3-8B", {"quantization": find_quantization("awq")}),
    ],
)
def test_nothing_is_borrowed_from_a_dense_model_on_one_h200(gpu: str, name: str, settings: dict[str, object]) -> None:
    label = step_times(find_gpu(gpu), find_model(name).served(**settings), "vllm").label  # type: ignore[arg-type]
    assert "error never measured" in label
    assert known_in(label) is None


def test_what_others_recorded_is_told_with_its_source() -> None:
    gpu = find_gpu("H100")
    llama = from_card(card_of(gpu, 4), gpu, find_model("Llama-2-70b").served(tensor_parallel_size=4), "vllm").label
    assert "2 runs recorded by others (Llama-2-70b on H100 SXM; inference-sim" in llama
    assert "end to end +1.8 to +6.2 %" in llama
    for kind, told in outside_errors().items():
        assert all(low <= high for each in told for low, high in (each.e2e, each.tpot)), kind.words


def test_what_was_measured_of_the_very_machine_is_told_as_such() -> None:
    """Llama-3-8B on two H200 was recorded on the machine of the card that ships, and on no other."""
    label = step_times(find_gpu("H200"), find_model("Meta-Llama-3-8B").served(tensor_parallel_size=2), "vllm").label
    assert (
        "error never measured; on the very machine that the card is of, typical (worst) error in 7 recordings" in label
    )


def test_a_class_is_read_from_a_label_whatever_the_names_before_it_say() -> None:
    label = step_times(find_gpu("L40S"), find_model("Qwen3-8B"), "vllm").label
    kind = class_in(label)
    assert kind is not None
    good = class_of(Basis.MODEL, find_gpu("H200"), find_model("Meta-Llama-3-8B"), "vllm")
    assert class_in(f"a card; {good.words}; {label}") == kind
    assert class_in("step times of my own") is None
    assert class_in("x; machine and model measured [Hopper GH100]") is None


@pytest.mark.parametrize(
    ("name", "words"), [("DeepSeek-V3.2", SPARSE), ("Qwen3-Next-80B-A3B-Instruct", "recurrent layers")]
)
def test_what_is_not_in_the_times_is_in_every_answer(name: str, words: str) -> None:
    flags = [
        *("--gpu", "H200", "--model", name, "--tensor-parallel-size", "8", "--max-model-len", "4096"),
        *("--arrivals", "poisson", "--rate", "2", "--num-requests", "4"),
        *("--prompt-tokens", "50", "--output-tokens", "4"),
    ]
    said, document = (
        CliRunner().invoke(run_command, [*flags, *more], catch_exceptions=False).stdout for more in ((), ("--json",))
    )
    assert words in " ".join(said.split())
    assert words in json.loads(document)["times"]


def test_a_fit_without_a_measured_class_says_that_its_margin_is_unknown() -> None:
    flags = [
        *("--gpu", "A10G", "--model", "Meta-Llama-3-8B", "--max-model-len", "512", "--points", "2"),
        *("--arrivals", "poisson", "--rate", "2", "--num-requests", "20"),
        *("--prompt-tokens", "50", "--output-tokens", "10"),
    ]
    said, document = (
        CliRunner().invoke(fit_command, [*flags, *more], catch_exceptions=False).stdout for more in ((), ("--json",))
    )
    assert "the error of such predictions, so that it is unknown" in " ".join(said.split())
    assert json.loads(document)["outcome"]["band"] == {}


def test_few_recordings_tell_a_figure_and_no_interval() -> None:
    for known in known_errors().values():
        assert known.tells_an_interval == (len(known.recordings) >= FEWEST_RECORDINGS)
        assert ("(" in known.words()) == (len(known.recordings) > 1)


def test_one_recording_makes_nothing_typical() -> None:
    fp8 = step_times(find_gpu("H200"), find_model("Qwen3-8B").served(kv_cache_dtype="fp8"), "vllm").label
    assert plain_words(fp8) == "measured on such a GPU, by a formula for this model: throughput was within 1 % once"
    plain = step_times(find_gpu("H200"), find_model("Qwen3-8B"), "vllm").label
    assert "throughput is typically within" in plain_words(plain)


def test_the_recordings_of_a_class_are_named_where_all_is_asked_for() -> None:
    said = CliRunner().invoke(run_command, ["--all", "--no-band"], catch_exceptions=False).stdout
    known = known_in(step_times(find_gpu("H200"), find_model("Meta-Llama-3-8B"), "vllm").label)
    assert known is not None
    assert all(name in "".join(said.split()) for name in known.recordings)


def test_sweeps_and_headlines_say_what_is_not_in_the_times(tmp_path: Path) -> None:
    flags = [
        *("--gpu", "H200", "--model", "DeepSeek-V3.2", "--tensor-parallel-size", "8", "--max-model-len", "4096"),
        *("--arrivals", "at-once", "--num-requests", "2", "--prompt-tokens", "50", "--output-tokens", "4"),
    ]
    vary = ["--vary", "max-num-seqs=1,2", "--jobs", "1", "-o", str(tmp_path / "table.parquet")]
    swept = CliRunner().invoke(sweep_command, [*flags, *vary], catch_exceptions=False).stdout
    assert swept.count("not in the times: its sparse attention") == 1
    assert swept.count("how far off that is was never measured") == 1
    written = ["--no-band", "-o", str(tmp_path / "rec")]
    CliRunner().invoke(run_command, [*flags, *written], catch_exceptions=False)
    session = Session(read(tmp_path / "rec"))
    for short in (True, False):
        untimed = "not timed: its sparse attention, compiling the kernels of its experts"
        assert headline(session, short=short)[-1] == untimed
    dense = Session(read(find("vllm-h200-llama-3-8b-sharegpt-5")))
    assert not any("not timed" in part for part in headline(dense, short=False))


def test_a_machine_may_have_been_fitted_with_another_engine() -> None:
    kind = class_of(Basis.FITTED, find_gpu("H200"), find_model("Qwen3-8B"), "vllm")
    said = plain_words(f"machine card of H200; {kind.words}")
    assert said.startswith("measured on this machine with another model or engine")
