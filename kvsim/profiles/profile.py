"""`Profile`: fitted step times of one engine with one model on one GPU, and their transfer to another GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvsim.display.text import plural
from kvsim.errors import UsageError
from kvsim.hardware import Gpu, find_gpu
from kvsim.models import Model
from kvsim.models.listed import each_model
from kvsim.steptime import ALL_ALIKE, Roofline, StepShape, StepTime, copy_bytes_per_s, streamed_bytes_per_s

ENGINES = ("vllm", "hf-dynamic", "hf-static")
_EVENTS = ("new_shape", "new_kernels", "num_new_seqs")
"""Fields of `StepShape` about first uses of kernels and new sequences. They have no fitted range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """Errors of the step times on one recording."""

    recording: str
    num_steps: int
    mean_percent: float
    """Mean signed error of a step's time, in percent of the mean time."""
    median_abs_us: float
    """Median absolute error of a step's time in microseconds."""
    held_out_percent: float | None
    """Like `mean_percent`, for times that were fitted to all other recordings; None if no such fit was made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Step times of one engine with one model on one GPU, fitted to recordings."""

    gpu: str
    model: str
    engine: str
    """Name of the engine, one of `ENGINES`."""
    times: Roofline
    ranges: Mapping[str, tuple[float, float]]
    """Smallest and largest value of each field of `StepShape` in the steps to which the times were fitted."""
    residuals: tuple[Residual, ...]
    tensor_parallel_size: int = 1
    """Number of GPUs over which the recorded model was split."""
    transferred_from: str = ""
    """GPU of the recordings, if the times were transferred to another GPU; otherwise empty."""

    def __repr__(self) -> str:
        return f"<Profile: {self.label}>"

    @property
    def label(self) -> str:
        """Text on the origin of the times, for results."""
        if self.transferred_from:
            machines = f"from {self.transferred_from} to {self.gpu}"
            return f"transferred {machines} with {self.model} ({self.engine}), not measured there"
        recordings = plural(len(self.residuals), "recording")
        return f"calibrated on {self.gpu} with {self.model} ({self.engine}), {recordings}"

    @property
    def calibrated(self) -> bool:
        """True if the times were fitted to recordings of this GPU."""
        return not self.transferred_from

    def step_time(self, shape: StepShape) -> StepTime:
        """Return the times of a step of this shape."""
        return self.times.step_time(shape)

    def entry_s(self, prompt_tokens: int) -> float:
        """Return the seconds in which the host receives one request."""
        return self.times.entry_s(prompt_tokens)

    def outside(self, shape: StepShape) -> list[str]:
        """Return a text for each field of `shape` that is outside its fitted range."""
        beyond = []
        for name, value in zip(StepShape._fields, shape, strict=True):
            low, high = self.ranges.get(name, (0.0, float("inf")))
            if name not in _EVENTS and not low <= value <= high:
                beyond.append(f"{name} up to {value:,.0f}, fitted on {low:,.0f} to {high:,.0f}")
        return beyond

    def transfer(self, source: Gpu, target: Gpu) -> Profile:
        """Scale the times from the GPU `source` to the GPU `target`, with the same host.

        - Reading bytes scales with bandwidth, arithmetic with FLOP/s. Host times stay.
        - `of_size_s`, the effect of the kernels that are chosen for a size, stays between cards with the same chip
          (H100 and H200). For another chip it is unknown, and left out.
        - With the dynamic cache of `generate()`, `context_token_s` is the time to copy the context. It scales with the
          rate of copies, which the streaming multiprocessors (SMs) or the memory limit.
        - `sequence_s` is inversely proportional to the number and the clock of the SMs, on which the thread blocks of
          attention start and end. `full_seqs`, the number of sequences that occupy all SMs, is proportional to their
          number.
        """
        bandwidth = streamed_bytes_per_s(source) / streamed_bytes_per_s(target)
        copies = copy_bytes_per_s(source) / copy_bytes_per_s(target)
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
                shared_weights_s=times.shared_weights_s * bandwidth,
                context_token_s=times.context_token_s * (copies if self.engine == "hf-dynamic" else bandwidth),
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
    """Return `profile` for `model` on `gpu`. If it was fitted on another GPU, it is transferred.

    Raises:
        UsageError: the profile is of another model, engine or tensor-parallel size.
    """
    if profile.model != listed_name(model):
        raise UsageError(
            f"the profile is of {profile.model}, not of {listed_name(model)}: the times of a profile carry over to "
            "another GPU, not to another model; leave it out, or take another."
        )
    if not keeps_types(model):
        raise UsageError(
            f"the profile is of {profile.model} with weights and a cache of its own type; other types "
            "(--quantization, --kv-cache-dtype) have other times, so leave out the profile."
        )
    if profile.engine != engine:
        raise UsageError(f"the profile is of the engine {profile.engine}, not of {engine}; take another.")
    if profile.tensor_parallel_size != tensor_parallel_size:
        raise UsageError(
            f"the profile is of tensor-parallel size {profile.tensor_parallel_size}, not of {tensor_parallel_size}; "
            "take another."
        )
    return profile if profile.gpu == gpu.name else profile.transfer(find_gpu(profile.gpu), gpu)


def keeps_types(model: Model) -> bool:
    """Tell whether weights are not quantized and the cache has the model's type, as in all profiles' recordings."""
    return model.kv_cache_dtype in ("auto", model.dtype) and model.quantization is None


def listed_name(model: Model) -> str:
    """Return the name of the listed model with the same shape; the name of `model` if none has it.

    Profiles are found by this name, because recordings have different names for one model, and step times depend only
    on its shape. bfloat16 and float16 count as equal: they have the same size and speed.
    """

    def shape(item: Model) -> tuple[object, ...]:
        heads = (item.num_attention_heads, item.num_kv_heads, item.head_dim)
        layers = (item.num_layers, item.layer_kinds, item.layer_caches, item.num_experts, item.num_experts_per_token)
        cache = (item.dtype_bytes,)
        return (*layers, item.hidden_size, item.intermediate_size, item.vocab_size, *heads, *cache)

    return next((item.name for item in each_model() if shape(item) == shape(model)), model.name)


def served_name(model: Model) -> str:
    """Return the listed name of a model, with its tensor-parallel size and types where they are not the defaults."""
    served = {
        "tensor parallel": model.tensor_parallel_size if model.tensor_parallel_size > 1 else None,
        "weights": model.quantization.method if model.quantization is not None else None,
        "cache": model.kv_cache_dtype if model.kv_cache_dtype not in ("auto", model.dtype) else None,
    }
    return ", ".join((listed_name(model), *(f"{name} {value}" for name, value in served.items() if value is not None)))
