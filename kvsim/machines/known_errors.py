"""Known errors of predictions, by class of machine, model and step times.

Every answer of kvsim states this error. It was measured with recordings that no fit had seen, and holds only for
predictions of the same class. Without a recording of the class, the error is unknown. `benchmarks/predictions.py
--write` makes the table.

A label of step times is a line of clauses, separated by semicolons: the basis in words, images, the parts that the
times do not include, the class as `basis [setting]`, and the error. `class_in` and `untimed_in` read the clauses again.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.models.layers import ChunkedLocal, Mamba2, Mla, SlidingWindow
from kvsim.steptime import untimed

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model

FILE = Path(__file__).with_name("errors.toml")
FIGURES = ("throughput", "tpot", "e2e", "ttft")
"""Figures whose error is known for every recording."""
TAILS = ("ttft_p99", "tpot_p99")
"""Figures of the slowest requests. Their errors are larger than those of means."""
PREEMPTIONS = "preemptions"
"""Figure whose error is known only for recordings with preemptions."""
FEWEST_RECORDINGS = 3
"""Smallest number of recordings of a class for a prediction interval."""
_NAMES = {"throughput": "throughput", "tpot": "TPOT", "e2e": "end to end", "ttft": "TTFT"}
_UNTIMED = "not in these times: "
IMAGES_BY_CONSTANTS = "images by constants read off one H100"
"""Clause in the label of times that include an image encoder."""
DRAFTS_BY_CONSTANTS = "drafting by constants read off one H100"
"""Clause in the label of times that include drafting by a model."""
N_GRAMS_BY_CONSTANTS = "n-grams by constants read off two H200s"
"""Clause in the label of times that include n-grams."""
ADAPTERS_BY_CONSTANTS = "adapters by constants read off one H100"
"""Clause in the label of times that include the kernels of adapters."""
BETTER_BY_TABLES = "kvsim[kernels] would add measured kernels"
"""Advice in a label, if kernel tables would be used but are not installed."""
_ENGINES = {"vllm": "vLLM", "hf-dynamic": "generate()", "hf-static": "generate() with a static cache"}


class Basis(Enum):
    """Measurements from which step times follow. Labels contain the value."""

    MODEL = "machine and model measured"
    TRANSFERRED = "model measured on another GPU"
    FITTED_THERE = "machine measured and fitted with this model"
    FITTED = "machine measured and fitted with another model or engine"
    MACHINE = "machine measured, model not"
    GPU = "such a GPU measured on another host, model not"
    LINKED = "a GPU measured, sums over several guessed"
    TABLES = "kernels measured by others on such a GPU"
    STAGES = "machine measured, stages by a formula"
    SHEET_STAGES = "guessed at least in part, stages by a formula"
    SHEET_FITTED = "data sheet, fitted to recordings of the machine"
    SHEET = "data sheet, at least in part"


_PLAIN = {
    Basis.MODEL: "measured on this GPU with this model",
    Basis.TRANSFERRED: "measured with this model on another GPU",
    Basis.FITTED_THERE: "measured on this machine with this model",
    Basis.FITTED: "measured on this machine with another model or engine",
    Basis.MACHINE: "measured on this machine, by a formula for this model",
    Basis.GPU: "measured on such a GPU, by a formula for this model",
    Basis.LINKED: "measured on such a GPU, by a formula for several",
    Basis.TABLES: "from kernels that others measured on such a GPU",
    Basis.STAGES: "measured on such a GPU, by a formula for stages",
    Basis.SHEET_STAGES: "guessed at least in part, by a formula for stages",
    Basis.SHEET_FITTED: "from a data sheet, and recordings of this machine",
    Basis.SHEET: "from a data sheet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClass:
    """Class of predictions with similar errors."""

    basis: Basis
    family: str
    """Family of the GPU: its chip."""
    layers: str
    """Kinds of layers: dense or with experts, kinds of attention, recurrent layers, and the type of the weights."""
    gpus: str
    """Number of GPUs that hold the model, and how they share it, in words such as "2 ranks of 4 GPUs"."""
    cache: str
    """Type of the keys and values in the cache: the model's, fp8 or another."""
    engine: str

    @property
    def setting(self) -> str:
        """All fields but the basis as text, separated by commas."""
        return ", ".join((self.family, self.layers, self.gpus, self.cache, self.engine))

    @property
    def words(self) -> str:
        """Clause for a label: the basis, and the setting in brackets. `class_in` reads it."""
        return f"{self.basis.value} [{self.setting}]"

    def as_dict(self) -> dict[str, str]:
        """Return the fields as they are in a row of `errors.toml`."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"basis": self.basis.name}


_CLAUSE = re.compile(rf"; ({'|'.join(re.escape(basis.value) for basis in Basis)}) \[([^][;]*)\](?:; |$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """Errors of the predictions of one class, in percent."""

    recordings: tuple[str, ...]
    """Names of the recordings with which the errors were measured."""
    gpus: tuple[str, ...]
    """Names of the GPUs of `recordings`. All have the same chip."""
    median: Mapping[str, float]
    """Median absolute error by figure: `FIGURES`, `TAILS`, and `PREEMPTIONS` if a recording had any."""
    worst: Mapping[str, float]
    """Largest absolute error by figure, with the keys of `median`."""
    step_errors: Mapping[str, float]
    """Median absolute errors of the times of single steps, each predicted with the recorded scheduling decisions.

    The key "gpu" is for steps that waited for the GPU, "host" for steps that waited for the host. A key without steps
    is missing.
    """

    @property
    def tells_an_interval(self) -> bool:
        """True if there are enough recordings for a prediction interval."""
        return len(self.recordings) >= FEWEST_RECORDINGS

    def words(self) -> str:
        """Describe the errors in one clause, with the number of recordings and their GPUs."""
        if len(self.recordings) == 1:
            figures = ", ".join(f"{name} {self.median[key]:.0f} %" for key, name in _NAMES.items())
            return f"error in the one recording of this class, on {self.gpus[0]}: {figures}"
        figures = ", ".join(
            f"{name} {self.median[key]:.0f} % ({self.worst[key]:.0f} %)" for key, name in _NAMES.items()
        )
        runs = f"{len(self.recordings)} recordings of this class, on {' and '.join(self.gpus)}"
        return f"typical (worst) error in {runs}: {figures}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedErrors:
    """Errors of predictions for published runs, in a class without recordings of kvsim."""

    gpu: str
    model: str
    num_runs: int
    e2e: tuple[float, float]
    """Smallest and largest error of the predicted mean end-to-end time, in percent. Negative if it is too short."""
    tpot: tuple[float, float]
    """Smallest and largest error of the predicted mean time per output token, in percent.

    Negative if it is too short.
    """
    source: str

    def words(self) -> str:
        """Describe the errors in one clause, with their source."""
        runs = "one run" if self.num_runs == 1 else f"{self.num_runs} runs"
        figures = ", ".join(f"{_NAMES[name]} {_span(*getattr(self, name))}" for name in ("e2e", "tpot"))
        return f"{runs} recorded by others ({self.model} on {self.gpu}; {self.source}): {figures}"


def _span(low: float, high: float) -> str:
    return f"{low:+.3g} %" if low == high else f"{low:+.3g} to {high:+.3g} %"


def class_of(basis: Basis, gpu: Gpu, model: Model, engine: str, *, captured: bool = True) -> ErrorClass:
    """Return the class of predictions whose step times have this basis, for `model` as `engine` serves it on `gpu`."""
    per_stage, stages = model.tensor_parallel_size, model.pipeline_parallel_size
    per_rank = "1 GPU" if per_stage == 1 else f"{per_stage} GPUs"
    if model.divides_experts_among_ranks:
        per_rank = f"{model.data_parallel_size} ranks of {per_rank}"
    fp8 = model.kv_cache_dtype.startswith("fp8")
    is_plain = model.kv_cache_dtype in ("auto", "bfloat16", "float16", model.dtype)
    return ErrorClass(
        basis=basis,
        # A custom GPU has the chip that its file names.
        family=re.sub(r"[^\w .+-]", " ", gpu.architecture).strip() or "an unknown chip",
        layers=_layers(model),
        gpus=f"{stages} stages of {per_rank}" if stages > 1 else per_rank,
        cache="cache in fp8" if fp8 else "cache as the model" if is_plain else f"cache in {model.kv_cache_dtype}",
        engine=_ENGINES.get(engine, engine) + ("" if captured or engine != "vllm" else " without graphs"),
    )


def _layers(model: Model) -> str:
    """Describe the kinds of layers of a model, for the class of its predictions.

    Only layers decide: a configuration may name experts although no layer has any.
    """
    attention, recurrent = model.attention_layers, model.recurrent_layers
    has_experts = model.num_expert_parameters > 0 or model.num_active_parameters < model.num_parameters
    kinds = {
        "sparse attention": any(isinstance(layer, Mla) and layer.sparse for layer in attention),
        "latent attention": any(isinstance(layer, Mla) and not layer.sparse for layer in attention),
        "windows": any(isinstance(layer, SlidingWindow) for layer in attention),
        "chunked attention": any(isinstance(layer, ChunkedLocal) for layer in attention),
        "Mamba 2": any(isinstance(layer, Mamba2) for layer in recurrent),
        "other recurrent layers": any(not isinstance(layer, Mamba2) for layer in recurrent),
        f"{model.quantization.method if model.quantization else ''} weights": model.quantization is not None,
    }
    present = " and ".join(name for name, is_there in kinds.items() if is_there)
    return ("experts" if has_experts else "dense") + (f" with {present}" if present else "")


@cache
def known_errors() -> Mapping[ErrorClass, KnownError]:
    """Return the table of errors by class."""
    return {
        _class(row): KnownError(
            recordings=tuple(row["recordings"]),
            gpus=tuple(row["on"]),
            median=row["median"],
            worst=row["worst"],
            step_errors=row["clocks"],
        )
        for row in _document()["measured"]
    }


@cache
def outside_errors() -> Mapping[ErrorClass, tuple[PublishedErrors, ...]]:
    """Return the published runs by class."""
    runs: dict[ErrorClass, tuple[PublishedErrors, ...]] = {}
    for row in _document()["outside"]:
        e2e, tpot = (tuple(row[name]) for name in ("e2e", "tpot"))
        run = PublishedErrors(
            **{item.name: row[item.name] for item in fields(PublishedErrors)} | {"e2e": e2e, "tpot": tpot}
        )
        runs[_class(row)] = (*runs.get(_class(row), ()), run)
    return runs


def _document() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _class(row: Mapping[str, Any]) -> ErrorClass:
    values = {item.name: row[item.name] for item in fields(ErrorClass)}
    return ErrorClass(**values | {"basis": Basis[row["basis"]]})


def class_in(label: str) -> ErrorClass | None:
    """Return the class that a label of step times names; None if it names none."""
    *_, clause = None, *_CLAUSE.finditer(label)  # the last match, because a name before it may look alike
    values = [] if clause is None else clause[2].split(", ")
    names = [item.name for item in fields(ErrorClass)][1:]
    if clause is None or len(values) != len(names):
        return None
    return ErrorClass(basis=Basis(clause[1]), **dict(zip(names, values, strict=True)))


def known_in(label: str) -> KnownError | None:
    """Return the errors of predictions with this label of step times; None if never measured."""
    kind = class_in(label)
    return None if kind is None else known_errors().get(kind)


def interval_in(label: str) -> KnownError | None:
    """Return the errors of predictions with this label; None without enough recordings for an interval."""
    known = known_in(label)
    return known if known is not None and known.tells_an_interval else None


def with_error(
    label: str, kind: ErrorClass, model: Model, *, times_sparse: bool = False, times_delta_nets: bool = False
) -> str:
    """Add clauses to `label`: parts of `model` without times, the class of the predictions, and its error.

    See `untimed` for these parts, and for `times_sparse` and `times_delta_nets`. Of the added clauses, one on the image
    encoder is the first.
    """
    missing = ", ".join(untimed(model, times_sparse=times_sparse, times_delta_nets=times_delta_nets))
    images = IMAGES_BY_CONSTANTS if model.vision is not None else ""
    clauses = (label, images, f"{_UNTIMED}{missing}" if missing else "", kind.words, error_words(kind))
    return "; ".join(filter(None, clauses))


def includes_drafting(label: str) -> bool:
    """Tell whether the step times with this label include drafting."""
    return DRAFTS_BY_CONSTANTS in label or N_GRAMS_BY_CONSTANTS in label


def served_otherwise(label: str, ways: Mapping[str, str], engine: str = "", constants: str = "") -> str:
    """Return the label of step times if the engine has features for which the times of `label` were not made.

    The features become part of the class, as in "vLLM with drafts", and the label states the error of this new class.
    If `label` names no class, only `constants` is added. Without features, the class is not changed.

    Args:
        label: label of the step times.
        ways: by name of a feature, the part that is missing in the times, such as `{"drafts": "drafting"}`; "" if no
            part is missing.
        engine: name that replaces the engine of the class; empty to add the names of the features to it.
        constants: clause about features whose times come from constants, such as `DRAFTS_BY_CONSTANTS`; empty without.
    """
    kind = class_in(label)
    if not ways or kind is None:
        return "; ".join(filter(None, (label, constants)))
    *_, clause = _CLAUSE.finditer(label)
    before, _, rest = label[: clause.start()].partition(f"; {_UNTIMED}")
    missing = ", ".join(filter(None, (rest, *ways.values())))
    served = replace(kind, engine=engine or f"{kind.engine} with {' and '.join(ways)}")
    clauses = (before, constants, f"{_UNTIMED}{missing}" if missing else "", served.words, error_words(served))
    return "; ".join(filter(None, clauses))


def untimed_in(label: str) -> str:
    """Return the parts that the times with this label do not include, separated by commas; empty without any."""
    return label.partition(f"; {_UNTIMED}")[2].partition("; ")[0]


def error_words(kind: ErrorClass) -> str:
    """Describe the known error of a class. Without recordings of it, describe the errors in published runs, if any."""
    if (known := known_errors().get(kind)) is not None:
        return known.words()
    outside = [each.words() for each in outside_errors().get(kind, ())]
    unchecked = kind.basis is Basis.TABLES and not outside
    tables = ": kernel tables, never checked against a recording" if unchecked else ""
    clauses = [f"error never measured{tables}", *outside]
    if kind.basis is Basis.GPU and (near := known_errors().get(replace(kind, basis=Basis.MACHINE))) is not None:
        clauses.append(f"on the very machine that the card is of, {near.words()}")
    return "; ".join(clauses)


def plain_words(label: str) -> str:
    """Describe in one sentence what the times with this label are based on, and their error."""
    kind = class_in(label)
    if kind is None:
        return label.partition(";")[0]
    basis, advice = _PLAIN[kind.basis], f"; {BETTER_BY_TABLES}" if BETTER_BY_TABLES in label else ""
    if (known := known_errors().get(kind)) is None:
        return f"{basis}; how far off that is was never measured{advice}"
    if not known.tells_an_interval:
        times = "once" if len(known.recordings) == 1 else "twice"
        return f"{basis}: throughput was within {max(known.worst['throughput'], 1):.0f} % {times}{advice}"
    return f"{basis}: throughput is typically within {max(known.median['throughput'], 1):.0f} %{advice}"
