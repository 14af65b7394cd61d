"""A fitted step-time model on disk: a TOML file that a person can read, with where it comes from and how well it
fits.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kvsim.atomic import whole_file
from kvsim.contents import TEXT_BYTES, content_of
from kvsim.errors import UnknownNameError, UsageError, shortened
from kvsim.hardware import Gpu, find_gpu
from kvsim.models import Model
from kvsim.models.listed import each_model
from kvsim.steptime import ALL_ALIKE, NUM_SIZES, Roofline, StepShape, StepTime

_FOLDER = Path(__file__).parent / "calibrated"
ENGINES = ("vllm", "hf-dynamic", "hf-static")
_EVENTS = ("new_shape", "new_kernels", "num_new_seqs")
"""Fields of `StepShape` that count what happens rather than how large a step is: they have no range to leave."""


_LONGEST_S = 1e3
"""No coefficient in seconds is larger: a step takes milliseconds, and the slowest thing that it holds some minutes."""
_LARGEST_SHAPE = 1e18
_COEFFICIENTS = {
    "exposed_share": (0.0, 1.0),
    "shared_saving": (0.0, 1.0),
    "lone_share": (0.0, 1e3),
    "strain_share": (0.0, 1e3),
    "full_seqs": (1e-3, 1e6),
    "max_captured_tokens": (0, 1 << 20),
}
"""What the coefficients that are no times may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """How far the model is from one recording, step by step."""

    recording: str
    num_steps: int
    mean_percent: float
    """Mean error of a step's time, of the mean step."""
    median_abs_us: float
    held_out_percent: float | None
    """The same mean error when this recording is left out of the fit; None where it is the only one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """The step times of one engine with one model on one GPU. It is a `StepTimeModel`."""

    gpu: str
    model: str
    engine: str
    """One of `ENGINES`."""
    times: Roofline
    ranges: Mapping[str, tuple[float, float]]
    """Smallest and largest value of each field of `StepShape` among the fitted steps."""
    residuals: tuple[Residual, ...]
    tensor_parallel_size: int = 1
    """GPUs among which the model was split when it was fitted."""
    transferred_from: str = ""
    """The GPU that it was fitted on, where that is another one."""

    @property
    def label(self) -> str:
        """Where the times come from."""
        if self.transferred_from:
            machines = f"from {self.transferred_from} to {self.gpu}"
            return f"transferred {machines} with {self.model} ({self.engine}), not measured there"
        number = len(self.residuals)
        recordings = f"{number} recording{'s' * (number != 1)}"
        return f"calibrated on {self.gpu} with {self.model} ({self.engine}), {recordings}"

    @property
    def calibrated(self) -> bool:
        """Whether the times were fitted to recordings of this GPU."""
        return not self.transferred_from

    def step_time(self, shape: StepShape) -> StepTime:
        """How long a step of that shape takes."""
        return self.times.step_time(shape)

    def entry_s(self, prompt_tokens: int) -> float:
        """How long the host takes to let one request in, seconds."""
        return self.times.entry_s(prompt_tokens)

    def outside(self, shape: StepShape) -> list[str]:
        """In words, where steps of at most `shape` leave the range that was fitted."""
        beyond = []
        for name, value in zip(StepShape._fields, shape, strict=True):
            low, high = self.ranges.get(name, (0.0, float("inf")))
            if name not in _EVENTS and not low <= value <= high:
                beyond.append(f"{name} up to {value:,.0f}, fitted on {low:,.0f} to {high:,.0f}")
        return beyond

    def transfer(self, source: Gpu, target: Gpu) -> Profile:
        """The profile on another GPU: bytes scale with bandwidth, arithmetic with FLOP/s, the host's overheads stay.

        Which kernels are picked for a size depends on the chip: between two cards with one chip (H100 and H200) that
        carries over, elsewhere it is not known.
        What a sequence costs beside its bytes is neither: attention's blocks start and drain on the processors, so it
        goes by their number and clock; and fewer processors are occupied by fewer sequences.
        """
        bandwidth = source.bandwidth_bytes_per_s / target.bandwidth_bytes_per_s
        arithmetic = source.dense_flops / target.dense_flops
        processors = source.num_processors / target.num_processors
        times = self.times
        return replace(
            self,
            gpu=target.name,
            transferred_from=self.transferred_from or source.name,
            times=replace(
                times,
                label=f"transferred from {source.name}",
                weights_s=times.weights_s * bandwidth,
                active_weights_s=times.active_weights_s * bandwidth,
                context_token_s=times.context_token_s * bandwidth,
                token_s=times.token_s * arithmetic,
                logits_s=times.logits_s * arithmetic,
                attention_pair_s=times.attention_pair_s * arithmetic,
                sequence_s=times.sequence_s * processors * (source.boost_hz / target.boost_hz),
                of_size_s=times.of_size_s if _one_chip(source, target) else ALL_ALIKE,
                full_seqs=times.full_seqs / processors,
            ),
        )


def _one_chip(source: Gpu, target: Gpu) -> bool:
    def chip(gpu: Gpu) -> tuple[object, ...]:
        return gpu.architecture, gpu.num_processors, gpu.boost_hz

    return chip(source) == chip(target)


def carried(profile: Profile, gpu: Gpu, model: Model, engine: str, *, tensor_parallel_size: int = 1) -> Profile:
    """`profile` where `model` runs on `gpu` with `engine`: as it is, or transferred from its own GPU, which its label
    says.

    Raises:
        UsageError: the profile is of another model, engine or tensor-parallel size.
    """
    if profile.model != listed_name(model):
        raise UsageError(
            f"the profile is of {profile.model}, not of {listed_name(model)}: the times of a profile carry over to "
            "another GPU, not to another model."
        )
    if not _keeps_types(model):
        raise UsageError(
            f"the profile is of {profile.model} with weights and a cache of its own type; other types "
            "(--quantization, --kv-cache-dtype) have other times, so leave out the profile."
        )
    if profile.engine != engine:
        raise UsageError(f"the profile is of the engine {profile.engine}, not of {engine}.")
    if profile.tensor_parallel_size != tensor_parallel_size:
        raise UsageError(
            f"the profile is of tensor-parallel size {profile.tensor_parallel_size}, not of {tensor_parallel_size}."
        )
    return profile if profile.gpu == gpu.name else profile.transfer(find_gpu(profile.gpu), gpu)


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a profile.

    Raises:
        UsageError: the file is missing, or not a profile; the message says what is wrong.
    """
    file = Path(path)
    try:
        document = tomllib.loads(content_of(file, TEXT_BYTES).decode())
    except OSError as error:
        raise UsageError(f"the profile {file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UsageError(f"the profile {file} is not TOML: {reason}.") from error
    try:
        return Profile(
            gpu=_text("gpu", document["gpu"]),
            model=_text("model", document["model"]),
            engine=_text("engine", document["engine"]),
            tensor_parallel_size=_within("tensor_parallel_size", document.get("tensor_parallel_size", 1), int, 1, 1024),
            times=_times(document["gpu"], document["coefficients"]),
            ranges={name: _range(name, ends) for name, ends in document["ranges"].items()},
            residuals=tuple(_residual(residual) for residual in document["residuals"]),
        )
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else "a field is missing"
        raise UsageError(f"the profile {file} is incomplete or wrong: {reason}.") from error


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{name} should be a name, not {shortened(value)}")
    return value


def _within(name: str, value: Any, kind: type, low: float, high: float) -> Any:
    """`value`, a number of that kind from `low` to `high`; a float may be written as a whole number."""
    kinds = (int,) if kind is int else (int, float)
    what = "whole number" if kind is int else "number"
    if not isinstance(value, kinds) or isinstance(value, bool) or not low <= value:
        raise ValueError(f"{name} should be a {what} from {low:g} on, not {shortened(value)}")
    if not value <= high:
        raise ValueError(f"{name} should be a {what} of at most {high:g}, not {shortened(value)}")
    return value


def _range(name: str, ends: Any) -> tuple[float, float]:
    if name not in StepShape._fields:
        raise ValueError(f"ranges has {shortened(name)}, which is nothing that a step has")
    low, high = (float(_within(f"ranges.{name}", end, float, 0, _LARGEST_SHAPE)) for end in ends)
    if low > high:
        raise ValueError(f"ranges.{name} should begin with the smaller value")
    return low, high


def _residual(values: Any) -> Residual:
    residual = Residual(**{"held_out_percent": None} | values)
    _text("residuals.recording", residual.recording)
    _within("residuals.num_steps", residual.num_steps, int, 0, 1 << 53)
    _within("residuals.mean_percent", residual.mean_percent, float, -1e6, 1e6)
    _within("residuals.median_abs_us", residual.median_abs_us, float, 0, 1e12)
    if residual.held_out_percent is not None:
        _within("residuals.held_out_percent", residual.held_out_percent, float, -1e6, 1e6)
    return residual


def _times(gpu: str, coefficients: Mapping[str, Any]) -> Roofline:
    values = {"of_size_s": list(ALL_ALIKE), **coefficients}
    table = values.pop("of_size_s")
    if not isinstance(table, list) or len(table) != NUM_SIZES:
        raise ValueError(f"of_size_s should be a list of {NUM_SIZES} numbers")
    for name, value in (*values.items(), *(("of_size_s", value) for value in table)):
        low, high = _COEFFICIENTS.get(name, (0.0, _LONGEST_S))
        _within(name, value, int if name == "max_captured_tokens" else float, low, high)
    return Roofline(label=f"calibrated on {gpu}", calibrated=True, of_size_s=tuple(table), **values)


def save(profile: Profile, path: str | os.PathLike[str], header: str = "") -> Path:
    """Write a profile as TOML with a line of explanation beside every coefficient; the file appears whole or not at
    all.
    """
    file = Path(path)
    lines = [f"# {line}".rstrip() for line in header.splitlines()]
    lines += [
        f'gpu = "{profile.gpu}"',
        f'model = "{profile.model}"',
        f'engine = "{profile.engine}"',
        f"tensor_parallel_size = {profile.tensor_parallel_size}",
        "",
        "[coefficients]",
    ]
    for item in fields(Roofline):
        if item.name not in ("label", "calibrated"):
            value = getattr(profile.times, item.name)
            if isinstance(value, tuple):
                lines += _table(item.name, value) if any(value) else []
                continue
            text = str(value) if isinstance(value, int) else f"{value:.6g}"
            if "." not in text and "e" not in text and isinstance(value, float):
                text += ".0"
            lines.append(f"{item.name} = {text}  # {EXPLANATIONS[item.name]}")
    lines += ["", "[ranges]  # of the fitted steps; beyond them the model extrapolates, and says so"]
    lines += [f"{name} = [{low:g}, {high:g}]" for name, (low, high) in profile.ranges.items()]
    for residual in profile.residuals:
        lines += ["", "[[residuals]]", f'recording = "{residual.recording}"', f"num_steps = {residual.num_steps}"]
        lines += [f"mean_percent = {residual.mean_percent:.2f}", f"median_abs_us = {residual.median_abs_us:.1f}"]
        if residual.held_out_percent is not None:
            lines.append(f"held_out_percent = {residual.held_out_percent:.2f}")
    with whole_file(file) as scratch:
        scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def _table(name: str, values: tuple[float, ...]) -> list[str]:
    rows = [values[begin : begin + 8] for begin in range(0, len(values), 8)]
    body = [f"    {', '.join(f'{value:.3g}' if value else '0.0' for value in row)}," for row in rows]
    return [f"{name} = [  # {EXPLANATIONS[name]}", *body, "]"]


def shipped() -> tuple[Profile, ...]:
    """The profiles that come with kvsim."""
    return tuple(load(file) for file in sorted(_FOLDER.glob("*.toml")))


def find(name: str) -> Profile:
    """A profile by its path, or by the name of one that comes with kvsim.

    Raises:
        UnknownNameError: it is neither.
    """
    if Path(name).is_file():
        return load(name)
    file = _FOLDER / f"{name}.toml"
    if not file.is_file():
        raise UnknownNameError("profile", name, [known.stem for known in _FOLDER.glob("*.toml")])
    return load(file)


def match(gpu: Gpu, model: Model, engine: str, *, tensor_parallel_size: int = 1) -> Profile | None:
    """The shipped profile for exactly this GPU, model shape, engine and tensor-parallel size; None if there is none.

    Weights and cache must be of the model's own type, as in all recordings that a shipped profile rests on.
    """
    if not _keeps_types(model):
        return None
    wanted = (gpu.name, listed_name(model), engine, tensor_parallel_size)
    return next(
        (item for item in shipped() if (item.gpu, item.model, item.engine, item.tensor_parallel_size) == wanted),
        None,
    )


def _keeps_types(model: Model) -> bool:
    return model.kv_cache_dtype in ("auto", model.dtype) and model.quantization is None


def listed_name(model: Model) -> str:
    """The name under which kvsim lists a model of this shape; its own name if it lists none.

    Recordings call the same model by different names, and only its shape matters to time. bfloat16 and float16 are
    equally large and equally fast.
    """

    def shape(item: Model) -> tuple[object, ...]:
        heads = (item.num_attention_heads, item.num_kv_heads, item.head_dim)
        layers = (item.num_layers, item.layer_kinds, item.layer_caches, item.num_experts, item.num_experts_per_token)
        cache = (item.dtype_bytes,)
        return (*layers, item.hidden_size, item.intermediate_size, item.vocab_size, *heads, *cache)

    return next((item.name for item in each_model() if shape(item) == shape(model)), model.name)


EXPLANATIONS = {
    "request_s": "host, per request that comes in",
    "request_token_s": "host, per token of its prompt",
    "host_step_s": "host, per step, before the first kernel",
    "host_sequence_s": "host, per sequence, before the first kernel",
    "host_token_s": "host, per prompt token, likewise",
    "new_sequence_s": "host, per sequence that joins the batch, likewise",
    "turnaround_step_s": "host, per step, from a processed output to the next decision",
    "turnaround_sequence_s": "host, per sequence, likewise",
    "piecewise_launch_s": "host, launching a captured step that holds prompt tokens, piece by piece",
    "eager_launch_s": "host, launching a step too large for a captured graph, kernel by kernel",
    "uncompiled_launch_s": "host, launching any step where nothing is compiled or captured",
    "masked_launch_s": "host, per step of several rows: padded, they need a mask",
    "new_shape_s": "host, when a batch of a size and length comes for the first time",
    "new_kernel_s": "host, per kernel that a process builds or loads for the first time",
    "max_captured_tokens": "largest captured step, tokens",
    "step_s": "GPU, per step: kernels starting and draining",
    "weights_s": "GPU, streaming all weights once",
    "active_weights_s": "GPU, streaming the weights that one token passes through",
    "token_s": "GPU, arithmetic of one token in the layers",
    "logits_s": "GPU, arithmetic of one sequence's output projection",
    "exposed_share": "of the shorter of streaming and arithmetic, what is not hidden where both are equal",
    "sequence_s": "GPU, per sequence, beside the bytes it reads",
    "context_token_s": "GPU, reading one token's keys and values",
    "lone_share": "how much longer that takes for a single sequence",
    "full_seqs": "so few: with as many, every processor has one head to read for",
    "shared_saving": "of keys and values that several sequences share, what reading them again does not cost",
    "strain_share": "how much longer arithmetic takes where it has been going on for a tenth of a second",
    "piecewise_s": "GPU, per captured step that holds prompt tokens",
    "attention_pair_s": "GPU, arithmetic of one query against one key",
    "window_tokens": "tokens that sliding layers look back; 0 where none slides",
    "window_token_s": "GPU, reading one token's keys and values in sliding layers",
    "window_pair_s": "GPU, arithmetic of one query against one key in sliding layers",
    "mixed_share": "how much longer reading takes in a step that holds prompt tokens too",
    "piecewise_floor_s": "GPU, least time of a captured step that holds prompt tokens, launched by a worker process",
    "eager_floor_s": "GPU, least time of a step too large for a captured graph, launched by a worker process",
    "of_size_s": "GPU, what the kernels picked for a size take besides: up to 4 tokens, then 8, 16 to 512, and above",
}
"""One line for every coefficient: what it is, and of which clock; all in seconds where not said otherwise."""
