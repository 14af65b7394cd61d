"""How long one step of an engine takes: on the host that launches it, and on the GPU that runs it.

The model is physical and small. A step streams the weights once and multiplies them with every token, whichever takes
longer; reads the keys and values of every token of context; attends from every new query; and pays for starting
kernels. Meanwhile the host pays for every launch, unless the step is a captured graph. The two clocks run side by side:
an engine that waits for its output sees the longer of the two, one that schedules ahead hides the launch behind the
step before.

`Roofline` takes its coefficients from a GPU's data sheet and the plain constants below, and says so: "uncalibrated".
The overheads among them were read off runs on one H200 and its host: on another machine they are a guide to the order
of magnitude. This module knows nothing of requests, blocks or scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

if TYPE_CHECKING:
    from kvsim.hardware import Gpu
    from kvsim.models import Model

MEMORY_EFFICIENCY = 0.9
"""Share of the peak bandwidth that streaming weights, keys and values reaches."""
ARITHMETIC_EFFICIENCY = 0.65
"""Share of the dense peak that a long prefill reaches: 0.8 in its matrix products, less what stands between them."""
ATTENTION_EFFICIENCY = 0.65
"""Share of the dense peak that attention kernels reach in a long prefill."""

KERNELS_PER_LAYER = 11
"""Kernels of a fused layer: norms (2), products (4), rotation, activation, cache write, attention, its reduction."""
KERNEL_S = 4e-6
"""Start and drain of one kernel, during which memory idles even inside a captured graph."""
SEQUENCE_LAYER_S = 0.3e-6
"""What one more sequence adds to a layer's decode attention, beside the bytes it reads."""

MAX_CAPTURED_TOKENS = 512
"""Largest step that vLLM captures as a graph by default."""
REQUEST_S = 0.1e-3
"""Host time to take in one request: check it, hash its blocks, put it into the queue."""
REQUEST_TOKEN_S = 0.14e-6
"""What one more token of its prompt adds to that."""
HOST_STEP_S = 0.5e-3
"""Host time of a step whatever it holds: schedule, prepare inputs, sample."""
HOST_SEQUENCE_S = 10e-6
"""Host time that one more sequence adds to a step."""
HOST_TOKEN_S = 1e-6
"""Host time that one more prompt token adds: its id, position and slot are written and copied."""
TURNAROUND_STEP_S = 80e-6
"""Host time between an output and the next decision: handing over the output, looking for new requests."""
TURNAROUND_SEQUENCE_S = 2.4e-6
"""What one more sequence adds to that."""
EXPOSED_SHARE = 0.2
"""Streaming and arithmetic overlap well, but not perfectly, where they take equally long."""
LONE_SHARE = 0.5
"""Decode attention reads at two thirds of the full rate while there are fewer heads to read for than processors."""
SHARED_SAVING = 0.4
"""Of the keys and values that several sequences of a step share, what is found in the GPU's cache the second time."""
STRAIN_SHARE = 0.1
"""Dense arithmetic draws more power than a card may for long: its clock gives way by so much."""
STRAIN_S = 0.1
"""Within about so many seconds, and it recovers in as many."""
PIECEWISE_S = 0.3e-3
"""GPU time lost between the pieces of a captured step with prompt tokens."""
PIECEWISE_LAYER_S = 0.12e-3
"""Host time to launch a layer whose attention stands between captured pieces."""
EAGER_LAYER_S = 0.35e-3
"""Host time to launch a layer kernel by kernel."""

HF_LAYER_S = 0.5e-3
"""Host time to launch a layer of Hugging Face's unfused modules."""
HF_MASK_LAYER_S = 0.08e-3
"""What a mask adds to that: attention then wants it in another form, and keys and values once per query head."""
PLAN_S = 31e-3
"""Host time that cuDNN takes to plan attention for a batch of a size and length that the process has not seen."""
KERNEL_BUILD_S = 0.4
"""The same where the plan needs a kernel that the process has not built yet."""
LOAD_COMPILER_S = 2.0
"""Host time to load the compiler of static caches into a process."""
COMPILE_S = 30.0
"""Host time to compile the decode step of a static cache."""
HF_KERNELS_PER_LAYER = 30
"""Kernels of such a layer, of norms, rotations and copies left unfused."""
HF_ARITHMETIC_EFFICIENCY = 0.4
"""Share of the dense peak in a prefill with unfused kernels in between."""
HF_COPY_EFFICIENCY = 0.45
"""Share of the peak bandwidth of strided copies of keys and values."""
HF_ROW_LAYER_S = {"dynamic": 2.4e-6, "static": 1.6e-6}
"""What one more row of the batch adds to a layer's masked attention, which starts every query head of its own."""


class StepShape(NamedTuple):
    """What a step holds. Costs follow from these five sums alone; a step schedules at least one token.

    For many steps at once, every field may be a NumPy array: `StepShape._make(columns)`. The times are arrays then.
    """

    num_seqs: int
    """Sequences scheduled."""
    num_tokens: int
    """Tokens scheduled, over all sequences."""
    num_prefill_tokens: int
    """Those of them that belong to prompts (or to sequences being recomputed)."""
    context_tokens: int
    """KV slots that the step reads, summed over sequences."""
    attention_pairs: int
    """Pairs of a query and a key it attends to, summed over the sequences being prefilled."""
    new_shape: int = 0
    """1 if the engine looks up or compiles kernels for a batch of this size and length for the first time."""
    new_kernels: int = 0
    """Kernels that the step needs and its process has not built or loaded yet."""
    shared_tokens: int = 0
    """KV slots of the context that are read more than once, because sequences share a prefix: all but one reading."""


class StepTime(NamedTuple):
    """How long a step occupies each of the two clocks, in seconds."""

    prepare_s: float
    """Host: from the decision to schedule until the first kernel is launched."""
    launch_s: float
    """Host: from the decision to schedule until everything is launched."""
    gpu_s: float
    """GPU: from the first kernel to the last, were none of them waiting for the host."""
    turnaround_s: float
    """Host: from an output that has been processed until the next step can be scheduled."""
    strain_s: float = 0.0
    """GPU: how much longer the step takes where arithmetic like its own has been going on for long; see
    `strained_gpu_s`.
    """

    @property
    def alone_s(self) -> float:
        """The step in an engine that awaits every output before it goes on."""
        return larger(self.prepare_s + self.gpu_s, self.launch_s) + self.turnaround_s


NO_TIME = StepTime(0.0, 0.0, 0.0, 0.0)
"""The step that schedules nothing."""


class Strain(NamedTuple):
    """How far a GPU's clock has given way to sustained arithmetic."""

    level: float
    """From 0 after a rest towards 1 in prefill upon prefill."""
    at_s: float
    """When it was so; it fades from then on."""


RESTED = Strain(0.0, 0.0)
"""Of a GPU that has had nothing to do for a second."""


def strained_gpu_s(cost: StepTime, begin_s: float, strain: Strain) -> tuple[float, Strain]:
    """How long the GPU takes for a step of `cost` that it begins at `begin_s`, and its strain afterwards.

    Steps that are not bound by arithmetic neither suffer from strain nor add to it.
    """
    if cost.strain_s == 0.0:
        return cost.gpu_s, strain
    before = strain.level * exp((strain.at_s - begin_s) / STRAIN_S)
    rest = (1.0 - before) * exp(-cost.gpu_s / STRAIN_S)
    mean = 1.0 - (1.0 - before - rest) * STRAIN_S / cost.gpu_s
    gpu_s = cost.gpu_s + cost.strain_s * mean
    return gpu_s, Strain(1.0 - rest, begin_s + gpu_s)


class StepTimeModel(Protocol):
    """Anything that can say how long a step takes."""

    @property
    def label(self) -> str:
        """Where the times come from, to be printed beside every result."""

    @property
    def calibrated(self) -> bool:
        """Whether the times were fitted to recordings."""

    def step_time(self, shape: StepShape) -> StepTime:
        """How long a step of that shape takes."""

    def entry_s(self, prompt_tokens: int) -> float:
        """How long the host takes to let one request in, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """A step-time model of a few coefficients, in seconds where not said otherwise."""

    label: str
    calibrated: bool = False
    request_s: float
    """Host, per request that comes in."""
    request_token_s: float
    """Host, per token of its prompt."""
    host_step_s: float
    """Host, per step, before the first kernel."""
    host_sequence_s: float
    """Host, per sequence, before the first kernel."""
    host_token_s: float
    """Host, per prompt token, before the first kernel."""
    turnaround_step_s: float
    """Host, per step, after its output."""
    turnaround_sequence_s: float
    """Host, per sequence, after its output."""
    piecewise_launch_s: float
    """Host, per captured step that holds prompt tokens."""
    eager_launch_s: float
    """Host, per step too large for a captured graph: compiled, and launched kernel by kernel."""
    uncompiled_launch_s: float
    """The same in an engine that compiles and captures nothing; see `uncaptured`."""
    masked_launch_s: float = 0.0
    """Host, per step of several rows where those are padded to one length: their attention has a mask."""
    new_shape_s: float
    """Host, when a batch of a size and length comes for the first time: a kernel is chosen for it, or compiled."""
    new_kernel_s: float
    """Host, per kernel that a process needs for the first time and has to build or load."""
    max_captured_tokens: int
    """Largest captured step in tokens; 0 if nothing is captured."""
    step_s: float
    """GPU, per step: kernels starting and draining."""
    weights_s: float
    """GPU: streaming all weights."""
    active_weights_s: float
    """GPU: streaming the weights that one token passes through; fewer than all in a mixture of experts."""
    token_s: float
    """GPU: arithmetic of one token in the layers; overlaps with streaming the weights."""
    logits_s: float
    """GPU: arithmetic of one sequence's output projection; overlaps likewise."""
    exposed_share: float
    """Of the shorter of streaming and arithmetic, what the longer fails to hide where both are equal; at most 0.5."""
    sequence_s: float
    """GPU, per sequence, beside the bytes it reads."""
    context_token_s: float
    """GPU: reading one token's keys and values in all layers, with many sequences to read for."""
    lone_share: float
    """How much longer that takes for few sequences, whose heads cannot occupy the whole GPU."""
    full_seqs: float
    """So few: with as many, every processor has one head to read for; twice as many draw the full bandwidth."""
    shared_saving: float
    """Of keys and values that several sequences share, what reading them again does not cost; at most 1."""
    piecewise_s: float
    """GPU, per captured step that holds prompt tokens: its attention stands between captured pieces."""
    attention_pair_s: float
    """GPU: arithmetic of one query against one key in all layers."""
    strain_share: float
    """How much longer arithmetic takes where it has been going on for long and the clock has given way."""

    @classmethod
    def for_gpu(cls, gpu: Gpu, model: Model, *, enforce_eager: bool = False) -> Roofline:
        """vLLM serving `model` on `gpu`, from data-sheet figures; `enforce_eager` captures no graphs."""
        bandwidth = gpu.bandwidth_bytes_per_s * MEMORY_EFFICIENCY
        return cls(
            label=f"uncalibrated roofline of {gpu.name} with {model.name}",
            request_s=REQUEST_S,
            request_token_s=REQUEST_TOKEN_S,
            host_step_s=HOST_STEP_S,
            host_sequence_s=HOST_SEQUENCE_S,
            host_token_s=HOST_TOKEN_S,
            turnaround_step_s=TURNAROUND_STEP_S,
            turnaround_sequence_s=TURNAROUND_SEQUENCE_S,
            exposed_share=EXPOSED_SHARE,
            piecewise_launch_s=model.num_layers * PIECEWISE_LAYER_S,
            eager_launch_s=model.num_layers * EAGER_LAYER_S,
            uncompiled_launch_s=model.num_layers * EAGER_LAYER_S,
            new_shape_s=0.0,
            new_kernel_s=0.0,
            max_captured_tokens=0 if enforce_eager else MAX_CAPTURED_TOKENS,
            step_s=model.num_layers * KERNELS_PER_LAYER * KERNEL_S,
            weights_s=_streamed_bytes(model, model.num_parameters) / bandwidth,
            active_weights_s=_streamed_bytes(model, model.num_active_parameters) / bandwidth,
            token_s=model.flops_per_token / (gpu.dense_flops * ARITHMETIC_EFFICIENCY),
            logits_s=model.flops_per_logits / (gpu.dense_flops * ARITHMETIC_EFFICIENCY),
            sequence_s=model.num_kv_layers * SEQUENCE_LAYER_S,
            context_token_s=model.kv_bytes_per_token / bandwidth,
            lone_share=LONE_SHARE,
            full_seqs=gpu.num_processors / model.num_kv_heads,
            shared_saving=SHARED_SAVING,
            piecewise_s=PIECEWISE_S,
            attention_pair_s=model.flops_per_attention_pair / (gpu.dense_flops * ATTENTION_EFFICIENCY),
            strain_share=STRAIN_SHARE,
        )

    @classmethod
    def for_hugging_face(cls, gpu: Gpu, model: Model, *, cache: Literal["dynamic", "static"] = "dynamic") -> Roofline:
        """Hugging Face's `generate()` on a padded batch; context counts every slot of the rectangle, pads included.

        The dynamic cache launches kernel by kernel and copies all keys and values at every step: read and written to
        make room for one more token and then read by attention, or, where heads share keys, read once more, written
        once per query head and read as often. The static cache is compiled and does neither; what compiling costs is
        in no step.
        """
        vllm = cls.for_gpu(gpu, model, enforce_eager=True)
        slowdown = ARITHMETIC_EFFICIENCY / HF_ARITHMETIC_EFFICIENCY
        hugging_face = replace(
            vllm,
            label=f"{vllm.label}, Hugging Face {cache} cache",
            new_shape_s=COMPILE_S if cache == "static" else PLAN_S,
            new_kernel_s=LOAD_COMPILER_S if cache == "static" else KERNEL_BUILD_S,
            request_s=0.0,
            request_token_s=0.0,
            host_sequence_s=0.0,
            host_token_s=0.0,
            turnaround_step_s=0.0,
            turnaround_sequence_s=0.0,
            lone_share=0.0,
            shared_saving=0.0,
            strain_share=0.0,  # kernels with gaps between them do not reach a card's power limit
            eager_launch_s=0.0,
            uncompiled_launch_s=0.0,
            token_s=vllm.token_s * slowdown,
            logits_s=vllm.logits_s * slowdown,
            sequence_s=model.num_kv_layers * HF_ROW_LAYER_S[cache],
        )
        if cache == "static":
            return hugging_face
        queries_per_key = model.num_attention_heads // model.num_kv_heads
        passes = 3 if queries_per_key == 1 else 3 + 2 * queries_per_key
        return replace(
            hugging_face,
            eager_launch_s=model.num_layers * HF_LAYER_S,
            masked_launch_s=model.num_layers * HF_MASK_LAYER_S,
            step_s=model.num_layers * HF_KERNELS_PER_LAYER * KERNEL_S,
            context_token_s=passes * model.kv_bytes_per_token / (gpu.bandwidth_bytes_per_s * HF_COPY_EFFICIENCY),
        )

    def uncaptured(self) -> Roofline:
        """The same machine where the engine captures no graphs and compiles nothing (vLLM's `enforce_eager`)."""
        return replace(self, max_captured_tokens=0, eager_launch_s=self.uncompiled_launch_s)

    def entry_s(self, prompt_tokens: int) -> float:
        """How long the host takes to let one request in, seconds."""
        return self.request_s + self.request_token_s * prompt_tokens

    def step_time(self, shape: StepShape) -> StepTime:
        """How long a step of that shape takes.

        Written without branches, in operators that numbers and arrays share, so that it means the same for one step and
        for a million, and costs a few microseconds for one.
        """
        num_seqs, num_tokens, num_prefill_tokens = shape.num_seqs, shape.num_tokens, shape.num_prefill_tokens
        captured = num_tokens <= self.max_captured_tokens
        eager = num_tokens > self.max_captured_tokens
        padded_tokens = captured * captured_size(num_tokens) + eager * num_tokens
        prepare_s = (
            self.host_step_s
            + self.host_sequence_s * num_seqs
            + self.host_token_s * num_prefill_tokens
            + self.new_shape_s * shape.new_shape
            + self.new_kernel_s * shape.new_kernels
        )
        launch_s = (
            prepare_s
            + self.piecewise_launch_s * (captured * (num_prefill_tokens > 0))
            + self.eager_launch_s * eager
            + self.masked_launch_s * (num_seqs > 1)
        )
        streaming_s = smaller(self.weights_s, self.active_weights_s * padded_tokens)
        arithmetic_s = self.token_s * padded_tokens + self.logits_s * num_seqs
        attention_s = self.attention_pair_s * shape.attention_pairs
        lone = smaller(larger(2 - num_seqs / self.full_seqs, 0.0), 1.0)
        read_tokens = shape.context_tokens - self.shared_saving * shape.shared_tokens
        gpu_s = (
            self.step_s
            + overlapped(streaming_s, arithmetic_s, self.exposed_share)
            + self.sequence_s * num_seqs
            + self.context_token_s * read_tokens * (1 + self.lone_share * lone)
            + self.piecewise_s * (captured * (num_prefill_tokens > 0))
            + attention_s
        )
        turnaround_s = self.turnaround_step_s + self.turnaround_sequence_s * num_seqs
        bound = eager * (arithmetic_s > streaming_s) * (num_prefill_tokens > 0)
        strain_s = self.strain_share * (arithmetic_s + attention_s) * bound
        return StepTime(prepare_s, launch_s, gpu_s, turnaround_s, strain_s)


def _streamed_bytes(model: Model, num_parameters: int) -> float:
    return model.weight_bytes / model.num_parameters * (num_parameters - model.num_lookup_parameters)


def captured_size(num_tokens: int) -> int:
    """The captured size that a step is padded to: 1, 2, 4, then steps of 8, and of 16 above 256."""
    grain = 8 + 8 * (num_tokens > 256) - 4 * (num_tokens <= 4) - 2 * (num_tokens <= 2) - 1 * (num_tokens <= 1)
    return -(-num_tokens // grain) * grain


def overlapped(a: float, b: float, exposed_share: float) -> float:
    """Two things done at once: the longer, and of the shorter what it cannot hide, most where both are equal.

    Never falls in either argument while `exposed_share` is at most 0.5.
    """
    longer, shorter = larger(a, b), smaller(a, b)
    ratio = shorter / longer
    return longer + exposed_share * shorter * ratio * ratio


def larger(a: float, b: float) -> float:
    """The larger of two times, in operators that numbers and arrays share."""
    return a * (a >= b) + b * (a < b)


def smaller(a: float, b: float) -> float:
    """The smaller of two times, likewise."""
    return a * (a <= b) + b * (a > b)
