"""How far off predictions were for recordings that nothing was fitted to, by class of machine, model and times.

A figure of error belongs to the class that it was measured for, and to no other: what no recording tells was never
measured. `benchmarks/predictions.py --write` makes the table anew from all recordings that there are.
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
"""Figures of which every recording tells an error."""
TAILS = ("ttft_p99", "tpot_p99")
"""Figures of the slowest requests, which are further off than the means."""
PREEMPTIONS = "preemptions"
"""The figure of which only recordings with preemptions tell one."""
FEWEST = 3
"""Recordings of a class from which on a prediction gets an interval: two say little of a third."""
_NAMES = {"throughput": "throughput", "tpot": "TPOT", "e2e": "end to end", "ttft": "TTFT"}
_UNTIMED = "not in these times: "
_ENGINES = {"vllm": "vLLM", "hf-dynamic": "generate()", "hf-static": "generate() with a static cache"}


class Basis(Enum):
    """What step times rest on."""

    MODEL = "machine and model measured"
    TRANSFERRED = "model measured on another GPU"
    FITTED_THERE = "machine measured and fitted with this model"
    FITTED = "machine measured and fitted with another model or engine"
    MACHINE = "machine measured, model not"
    GPU = "such a GPU measured on another host, model not"
    LINKED = "a GPU measured, sums over several guessed"
    STAGES = "machine measured, stages by a formula"
    SHEET_STAGES = "guessed at least in part, stages by a formula"
    SHEET_FITTED = "data sheet, fitted to recordings of the machine"
    SHEET = "data sheet, at least in part"


_PLAIN = {
    Basis.MODEL: "measured on this GPU with this model",
    Basis.TRANSFERRED: "measured with this model on another GPU",
    Basis.FITTED_THERE: "measured on this machine with this model",
    Basis.FITTED: "measured on this machine with another model",
    Basis.MACHINE: "measured on this machine, by a formula for this model",
    Basis.GPU: "measured on such a GPU, by a formula for this model",
    Basis.LINKED: "measured on such a GPU, by a formula for several",
    Basis.STAGES: "measured on such a GPU, by a formula for stages",
    Basis.SHEET_STAGES: "guessed at least in part, by a formula for stages",
    Basis.SHEET_FITTED: "from a data sheet, and recordings of this machine",
    Basis.SHEET: "from a data sheet",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorClass:
    """Predictions of one kind: an error that was measured for one of them says something of the others."""

    basis: Basis
    family: str
    """The chip of the GPU."""
    layers: str
    """Dense or experts, the kinds of attention and recurrent layers, and the type of the weights."""
    gpus: str
    """Number of GPUs that hold the model, and how they share it."""
    cache: str
    """The type of the cache."""
    engine: str

    @property
    def setting(self) -> str:
        """All but the basis, in words."""
        return ", ".join((self.family, self.layers, self.gpus, self.cache, self.engine))

    @property
    def words(self) -> str:
        """As a clause of a label, from which `class_in` reads it again."""
        return f"{self.basis.value} [{self.setting}]"

    def as_dict(self) -> dict[str, str]:
        """The fields, as the table has them."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"basis": self.basis.name}


_CLAUSE = re.compile(rf"; ({'|'.join(re.escape(basis.value) for basis in Basis)}) \[([^][;]*)\](?:; |$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownError:
    """Errors of the predictions of one class, in percent."""

    recordings: tuple[str, ...]
    """Names of the recordings that tell them."""
    on: tuple[str, ...]
    """GPUs of those, all of one chip."""
    median: Mapping[str, float]
    """Median of the absolute errors, for each of `FIGURES` and `TAILS`, and for `PREEMPTIONS` where some recording had
    any."""
    worst: Mapping[str, float]
    clocks: Mapping[str, float]
    """Medians of the absolute errors of steps that waited for one clock, gpu or host, by the recorded decisions; a
    clock that was never waited for is left out."""

    @property
    def tells_an_interval(self) -> bool:
        """Whether there are recordings enough to say how far off another prediction may be."""
        return len(self.recordings) >= FEWEST

    def words(self) -> str:
        """As one clause."""
        if len(self.recordings) == 1:
            figures = ", ".join(f"{name} {self.median[key]:.0f} %" for key, name in _NAMES.items())
            return f"error in the one recording of this class, on {self.on[0]}: {figures}"
        figures = ", ".join(
            f"{name} {self.median[key]:.0f} % ({self.worst[key]:.0f} %)" for key, name in _NAMES.items()
        )
        told = f"{len(self.recordings)} recordings of this class, on {' and '.join(self.on)}"
        return f"typical (worst) error in {told}: {figures}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Errors of predictions for runs of a class that others recorded: what there is where kvsim has no recording."""

    gpu: str
    model: str
    num_runs: int
    e2e: tuple[float, float]
    """The least and the largest error of the mean time end to end, in percent, with its sign."""
    tpot: tuple[float, float]
    source: str

    def words(self) -> str:
        """As one clause."""
        runs = "one run" if self.num_runs == 1 else f"{self.num_runs} runs"
        figures = ", ".join(f"{_NAMES[name]} {_span(*getattr(self, name))}" for name in ("e2e", "tpot"))
        return f"{runs} recorded by others ({self.model} on {self.gpu}; {self.source}): {figures}"


def _span(low: float, high: float) -> str:
    return f"{low:+.3g} %" if low == high else f"{low:+.3g} to {high:+.3g} %"


def class_of(basis: Basis, gpu: Gpu, model: Model, engine: str, *, captured: bool = True) -> ErrorClass:
    """The class of predictions with times of that basis, for `model` as it is served by `engine` on `gpu`."""
    per_stage, stages = model.tensor_parallel_size, model.pipeline_parallel_size
    each = "1 GPU" if per_stage == 1 else f"{per_stage} GPUs"
    fp8 = model.kv_cache_dtype.startswith("fp8")
    own = model.kv_cache_dtype in ("auto", "bfloat16", "float16", model.dtype)
    return ErrorClass(
        basis=basis,
        # A GPU of the user's own is of the chip that its file names.
        family=re.sub(r"[^\w .+-]", " ", gpu.architecture).strip() or "an unknown chip",
        layers=_layers(model),
        gpus=f"{stages} stages of {each}" if stages > 1 else each,
        cache="cache in fp8" if fp8 else "cache as the model" if own else f"cache in {model.kv_cache_dtype}",
        engine=_ENGINES.get(engine, engine) + ("" if captured or engine != "vllm" else " without graphs"),
    )


def _layers(model: Model) -> str:
    """What kinds of layers a model has. Some shapes name experts and have no layer of them."""
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
    found = " and ".join(name for name, is_there in kinds.items() if is_there)
    return ("experts" if has_experts else "dense") + (f" with {found}" if found else "")


@cache
def known_errors() -> Mapping[ErrorClass, KnownError]:
    """The table, for every class that some recording tells of."""
    return {
        _class(row): KnownError(
            recordings=tuple(row["recordings"]),
            on=tuple(row["on"]),
            median=row["median"],
            worst=row["worst"],
            clocks=row["clocks"],
        )
        for row in _document()["measured"]
    }


@cache
def outside_errors() -> Mapping[ErrorClass, tuple[Outside, ...]]:
    """Runs that others recorded, for every class of which there is one."""
    found: dict[ErrorClass, tuple[Outside, ...]] = {}
    for row in _document()["outside"]:
        e2e, tpot = (tuple(row[name]) for name in ("e2e", "tpot"))
        told = Outside(**{item.name: row[item.name] for item in fields(Outside)} | {"e2e": e2e, "tpot": tpot})
        found[_class(row)] = (*found.get(_class(row), ()), told)
    return found


def _document() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _class(row: Mapping[str, Any]) -> ErrorClass:
    values = {item.name: row[item.name] for item in fields(ErrorClass)}
    return ErrorClass(**values | {"basis": Basis[row["basis"]]})


def class_in(label: str) -> ErrorClass | None:
    """The class that a label of step times names; None where it names none."""
    *_, found = None, *_CLAUSE.finditer(label)  # names stand before it, and may hold anything
    values = [] if found is None else found[2].split(", ")
    names = [item.name for item in fields(ErrorClass)][1:]
    if found is None or len(values) != len(names):
        return None
    return ErrorClass(basis=Basis(found[1]), **dict(zip(names, values, strict=True)))


def known_in(label: str) -> KnownError | None:
    """The errors of predictions with the times of that label; None where they were never measured."""
    found = class_in(label)
    return None if found is None else known_errors().get(found)


def interval_in(label: str) -> KnownError | None:
    """The errors by which a prediction with the times of that label may be off; None where too little is known."""
    known = known_in(label)
    return known if known is not None and known.tells_an_interval else None


def with_error(label: str, kind: ErrorClass, model: Model) -> str:
    """`label` with what is not in its times, the class of its predictions, and how far off those are."""
    missing = ", ".join(untimed(model))
    clauses = (label, f"{_UNTIMED}{missing}" if missing else "", kind.words, error_words(kind))
    return "; ".join(filter(None, clauses))


def untimed_in(label: str) -> str:
    """What is not in the times of that label, in words; nothing where all is."""
    return label.partition(f"; {_UNTIMED}")[2].partition("; ")[0]


def error_words(kind: ErrorClass) -> str:
    """How far off predictions of a class are: by its own recordings, or else by the nearest, said for what it is."""
    if (known := known_errors().get(kind)) is not None:
        return known.words()
    found = ["error never measured", *(each.words() for each in outside_errors().get(kind, ()))]
    if kind.basis is Basis.GPU and (near := known_errors().get(replace(kind, basis=Basis.MACHINE))) is not None:
        found.append(f"on the very machine that the card is of, {near.words()}")
    return "; ".join(found)


def plain_words(label: str) -> str:
    """What times with that label rest on, and how far off they are, in a sentence for everybody."""
    kind = class_in(label)
    if kind is None:
        return label.partition(";")[0]
    if (known := known_errors().get(kind)) is None:
        return f"{_PLAIN[kind.basis]}; how far off that is was never measured"
    if not known.tells_an_interval:
        times = "once" if len(known.recordings) == 1 else "twice"
        return f"{_PLAIN[kind.basis]}: throughput was within {max(known.worst['throughput'], 1):.0f} % {times}"
    return f"{_PLAIN[kind.basis]}: throughput is typically within {max(known.median['throughput'], 1):.0f} %"
