"""Compute the time of a step from coefficients, which come from a fit, a machine card, or a data sheet."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np

from kvsim.steptime.shapes import StepShape, StepTime, larger, smaller
from kvsim.steptime.sizes import ALL_ALIKE, NUM_SIZES, captured_size, size_place

_LEAST_S = 1e-30
"""Seconds that are added to a divisor to avoid a division by 0. They change no other result."""
HEATING_RATIO = 1.5
"""A step lowers the clock if its heating time is more than this many times as long as its weight reads.

The heating time is that of arithmetic and cache reads. The value was measured in steps of 160 to 500 sequences of
Llama-3-8B on two H200s. The clock of one GPU fell from 1.98 to 1.86 GHz with 128 sequences, and to 1.6 GHz with 400.
"""
HEATING_SLOPE = 2.5
"""Part of a step that a lowered clock lengthens, in seconds per second of heating time beyond `HEATING_RATIO`.

The part is at most the whole heating time. The value was measured like `HEATING_RATIO`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Step times from coefficients, which are in seconds unless their text says otherwise.

    "Host time per sequence" means: the time of the host grows by this for each sequence of the step.
    """

    label: str
    calibrated: bool = False
    fitted_to: tuple[str, ...] = ()
    """Names of the recordings to which the card's factors were fitted; empty without a card or without such factors."""
    request_s: float
    """Host time to receive a request, independent of its length."""
    request_token_s: float
    """Host time to receive a request, per prompt token."""
    host_step_s: float
    """Host time per step, before the first kernel."""
    host_sequence_s: float
    """Host time per sequence, before the first kernel."""
    host_token_s: float
    """Host time per prompt token, before the first kernel."""
    new_sequence_s: float = 0.0
    """Host time per sequence that joins the batch, before the first kernel."""
    sampling_share: float = 0.0
    """Part of `host_step_s` and `host_sequence_s` in which the host launches sampling while the GPU computes.

    The first kernel does not wait for this part. It is 0 in fitted times, whose host times are those before the first
    kernel alone.
    """
    worker_step_s: float = 0.0
    """Time of a worker process per step, before the first kernel; 0 without worker processes.

    The scheduler's process continues during this time.
    """
    worker_sequence_s: float = 0.0
    """Time of a worker process per sequence, before the first kernel."""
    worker_token_s: float = 0.0
    """Time of a worker process per prompt token, before the first kernel."""
    turnaround_step_s: float
    """Host time per step from its output to the next scheduling."""
    turnaround_sequence_s: float
    """Host time per sequence from the step's output to the next scheduling."""
    verified_token_s: float = 0.0
    """Host time per token of decoding sequences, from the step's output to the next scheduling."""
    piecewise_launch_s: float
    """Host time to launch a captured step with prompt tokens, whose attention runs between the captured pieces."""
    eager_launch_s: float
    """Host time to launch a step that is too large for a captured graph: compiled kernels, one by one."""
    uncompiled_launch_s: float
    """Host time to launch a step in an engine without compilation and graphs; see `uncaptured`."""
    masked_launch_s: float = 0.0
    """Additional host time of a step with several padded rows, because attention then has a mask."""
    new_shape_s: float
    """Host time to choose or compile kernels for the first batch with its number of rows and its length."""
    new_kernel_s: float
    """Host time to build or load a kernel that the process has not used before."""
    max_captured_tokens: int
    """Number of tokens in the largest captured step; 0 if nothing is captured."""
    step_s: float
    """GPU time per step in which kernels start and end, independent of the step's size."""
    weights_s: float
    """GPU time to read all weights."""
    active_weights_s: float
    """GPU time per token to read the weights that the token uses, except those of `shared_weights_s`.

    With experts, one token uses only a part of the weights. The sum over tokens is at most `weights_s`.
    """
    shared_weights_s: float = 0.0
    """GPU time per step to read the weights that all tokens use; 0 if `active_weights_s` includes them."""
    token_s: float
    """GPU time for the arithmetic of one token in the layers. It overlaps with reading the weights."""
    logits_s: float
    """GPU time for the output projection of one sequence. It overlaps with reading the weights."""
    exposed_share: float
    """Part of the shorter time (reading or arithmetic) that is added to the longer one if both are equal; at most 0.5.

    Less is added the more the times differ; see `overlapped`.
    """
    sequence_s: float
    """GPU time per sequence, in addition to reading its keys and values."""
    context_token_s: float
    """GPU time to read the keys and values of one token in all layers without a window, in steps with many sequences.

    With sparse attention, it is the time to score one token.
    """
    lone_share: float
    """Additional reading time in steps with too few sequences to occupy the GPU: 0.5 means 1.5 times as long."""
    full_seqs: float
    """Number of sequences with which every streaming multiprocessor has one KV head.

    Steps with twice as many sequences read with the full bandwidth.
    """
    shared_saving: float
    """Share of the repeated reads of shared keys and values that takes no time, 0 to 1."""
    piecewise_s: float
    """Additional GPU time of a captured step with prompt tokens, whose attention runs between the captured pieces."""
    attention_pair_s: float
    """GPU time for the arithmetic of one query with one key in all layers without a window."""
    throttle_share: float
    """Additional time of arithmetic in large prefills while the clock is lowered, relative to the usual time."""
    power_share: float = 0.0
    """Additional time of arithmetic and cache reads while the clock is lowered, relative to the usual time.

    It applies to all kinds of steps. Fitted times have `throttle_share` instead.
    """
    window_tokens: float = 0.0
    """Number of tokens in the window of layers with one; 0 without such layers.

    With sparse attention, it is the largest number of tokens that a query reads.
    """
    window_token_s: float = 0.0
    """GPU time to read the keys and values of one token in all layers with a window."""
    window_pair_s: float = 0.0
    """GPU time for the arithmetic of one query with one key in all layers with a window."""
    mixed_share: float = 0.0
    """Additional reading time in a step with prompt tokens: 0.5 means 1.5 times as long as in a step without."""
    piecewise_floor_s: float = 0.0
    """Least GPU time of a captured step with prompt tokens, which a worker process launches piece by piece.

    It is 0 without worker processes.
    """
    eager_floor_s: float = 0.0
    """Least GPU time of a step that is too large for a captured graph, so that a worker launches every kernel.

    It is 0 without worker processes.
    """
    handed_over_s: float = 0.0
    """Time per step to receive activations from the previous pipeline stage; 0 for the first stage."""
    handed_over_token_s: float = 0.0
    """Time per token to receive activations from the previous pipeline stage; 0 for the first stage."""
    encoder_step_s: float = 0.0
    """Host time per step with images, to launch the image encoder."""
    encoder_image_s: float = 0.0
    """Host time per image, before the first kernel of the encoder."""
    encoder_image_token_s: float = 0.0
    """Host time per token of an image, before the first kernel of the encoder."""
    encoder_token_s: float = 0.0
    """GPU time of the encoder per token of an image."""
    encoder_pair_s: float = 0.0
    """GPU time of the encoder per pair of tokens of one image."""
    of_size_s: tuple[float, ...] = ALL_ALIKE
    """Additional GPU time of a step by its size, for kernels that are slower than the other coefficients predict.

    For a step of n tokens, `size_place(n)` is the index of the entry. A fractional index interpolates two entries.
    """

    def uncaptured(self) -> Roofline:
        """Return the times for an engine without graphs and compilation (vLLM's `enforce_eager`)."""
        return replace(self, max_captured_tokens=0, eager_launch_s=self.uncompiled_launch_s)

    def entry_s(self, prompt_tokens: int) -> float:
        """Return the seconds in which the host receives one request."""
        return self.request_s + self.request_token_s * prompt_tokens

    def passing_s(self, num_tokens: int) -> float:
        """Return the seconds in which this pipeline stage receives the activations of `num_tokens`."""
        return self.handed_over_s + self.handed_over_token_s * num_tokens

    def step_time(self, shape: StepShape) -> StepTime:
        """Return the times of a step of this shape.

        The fields of `shape` may be arrays. The code therefore branches only on coefficients, and uses only operators
        that numbers and arrays have in common.
        """
        num_seqs, num_tokens, num_prefill_tokens = shape.num_seqs, shape.num_tokens, shape.num_prefill_tokens
        captured = num_tokens <= self.max_captured_tokens
        eager = num_tokens > self.max_captured_tokens
        padded_tokens = captured * captured_size(num_tokens) + eager * num_tokens
        in_pieces = captured * (num_prefill_tokens > 0)
        prepare_s, launch_s = host_times(self, shape, in_pieces, eager)
        streaming_s = smaller(self.weights_s, self.shared_weights_s + self.active_weights_s * padded_tokens)
        arithmetic_s = self.token_s * padded_tokens + self.logits_s * num_seqs
        reading_s, attention_s = attention_times(self, shape)
        busy_s = (
            self.step_s
            + overlapped(streaming_s, arithmetic_s, self.exposed_share)
            + size_s(self, num_tokens)
            + self.sequence_s * num_seqs
            + reading_s
            + self.piecewise_s * in_pieces
            + attention_s
        )
        gpu_s = busy_s
        if self.piecewise_floor_s + self.eager_floor_s > 0:
            floor_s = self.piecewise_floor_s * in_pieces + self.eager_floor_s * eager
            gpu_s = larger(busy_s, floor_s)
        if self.encoder_token_s > 0:
            inputs_s, encoder_launch_s, encoder_s = encoder_times(self, shape)
            # The kernels of the text model follow those of the encoder, which wait for the host if it is slower.
            prepare_s = prepare_s + inputs_s + larger(encoder_launch_s - encoder_s, 0.0)
            launch_s = launch_s + inputs_s + encoder_launch_s
            gpu_s = gpu_s + encoder_s
        turnaround_s = self.turnaround_step_s + self.turnaround_sequence_s * num_seqs
        if self.verified_token_s > 0:
            turnaround_s = turnaround_s + self.verified_token_s * (num_tokens - num_prefill_tokens)
        bound = eager * (arithmetic_s > streaming_s) * (num_prefill_tokens > 0)
        heating_s = arithmetic_s + attention_s + reading_s
        throttle_s = self.throttle_share * (arithmetic_s + attention_s) * bound
        if self.power_share > 0:
            beyond_s = larger(heating_s - HEATING_RATIO * streaming_s, 0.0)
            throttle_s = throttle_s + self.power_share * smaller(heating_s, HEATING_SLOPE * beyond_s)
        return StepTime(prepare_s, launch_s, gpu_s, turnaround_s, throttle_s)


def host_times(times: Roofline, shape: StepShape, in_pieces: Any, eager: Any) -> tuple[float, float]:
    """Return the host's seconds from scheduling to the launch of the first kernel, and to the launch of the last one.

    `in_pieces` is True for a captured step that is launched in pieces. `eager` is True for a step that is too large for
    a captured graph. Both may be arrays.
    """
    num_seqs, num_prefill_tokens = shape.num_seqs, shape.num_prefill_tokens
    host_s = (
        times.host_step_s
        + times.host_sequence_s * num_seqs
        + times.host_token_s * num_prefill_tokens
        + times.new_sequence_s * shape.num_new_seqs
        + times.new_shape_s * shape.new_shape
        + times.new_kernel_s * shape.new_kernels
    )
    sampling_s = times.sampling_share * (times.host_step_s + times.host_sequence_s * num_seqs)
    prepare_s = (
        host_s
        - sampling_s
        + times.worker_step_s
        + times.worker_sequence_s * num_seqs
        + times.worker_token_s * num_prefill_tokens
    )
    launch_s = (
        host_s
        + times.piecewise_launch_s * in_pieces
        + times.eager_launch_s * eager
        + times.masked_launch_s * (num_seqs > 1)
    )
    return prepare_s, launch_s


def encoder_times(times: Roofline, shape: StepShape) -> tuple[float, float, float]:
    """Return three times of the image encoder, in seconds.

    They are the host's time before the first kernel, the host's time to launch all kernels, and the GPU's time.
    """
    inputs_s = times.encoder_image_s * shape.num_images + times.encoder_image_token_s * shape.image_tokens
    launch_s = times.encoder_step_s * (shape.num_images > 0)
    return inputs_s, launch_s, times.encoder_token_s * shape.image_tokens + times.encoder_pair_s * shape.image_pairs


def attention_times(times: Roofline, shape: StepShape) -> tuple[float, float]:
    """Return the GPU's seconds to read keys and values, and its seconds for the arithmetic of attention in prompts."""
    num_seqs, num_prefill_tokens = shape.num_seqs, shape.num_prefill_tokens
    reading_s = times.context_token_s * (shape.context_tokens - times.shared_saving * shape.shared_tokens)
    arithmetic_s = times.attention_pair_s * shape.attention_pairs
    if times.window_tokens > 0:
        window_context = smaller(shape.context_tokens, times.window_tokens * num_seqs + num_prefill_tokens)
        window_pairs = smaller(shape.attention_pairs, times.window_tokens * num_prefill_tokens)
        reading_s = reading_s + times.window_token_s * window_context
        arithmetic_s = arithmetic_s + times.window_pair_s * window_pairs
    lone = smaller(larger(2 - num_seqs / times.full_seqs, 0.0), 1.0)
    reading_s = reading_s * (1 + times.lone_share * lone) * (1 + times.mixed_share * (num_prefill_tokens > 0))
    return reading_s, arithmetic_s


def size_s(times: Roofline, num_tokens: Any) -> Any:
    """Return the additional GPU time for the size of a step, in seconds: `times.of_size_s` at `size_place(num_tokens)`.

    `num_tokens` may be an array. Between two indices, the time is interpolated.
    """
    if not isinstance(num_tokens, np.ndarray):
        return size_s_of_one(times, num_tokens)
    table, place = np.asarray(times.of_size_s), np.asarray(size_place(cast("Any", num_tokens)))
    entry = place.astype(np.intp)
    return table[entry] + (place - entry) * (table[np.minimum(entry + 1, NUM_SIZES - 1)] - table[entry])


def size_s_of_one(times: Roofline, num_tokens: int) -> float:
    """Return `size_s` of one step. Compiled code calls it."""
    place = size_place(num_tokens)
    entry = int(place)
    here_s = times.of_size_s[entry]
    return here_s if place == entry else here_s + (place - entry) * (times.of_size_s[entry + 1] - here_s)


def overlapped(a: float, b: float, exposed_share: float) -> float:
    """Return the time of two activities that overlap: the longer time, plus a part of the shorter one.

    The part is `exposed_share` if both times are equal, and less otherwise. If `exposed_share` is at most 0.5, the
    result never falls when `a` or `b` grows.
    """
    longer, shorter = larger(a, b), smaller(a, b)
    ratio = shorter / (longer + _LEAST_S)  # no division by zero if both are 0
    return longer + exposed_share * shorter * ratio * ratio


COEFFICIENTS = tuple(field.name for field in fields(Roofline) if field.name not in ("label", "calibrated", "fitted_to"))
"""Names of the fields of `Roofline` that are coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """Step times of all pipeline stages.

    A step passes through the stages in order, while other steps are in the other stages.
    """

    label: str
    calibrated: bool
    stages: tuple[Roofline, ...]
    """Times of each stage, in order. Only the first stage's host times are used."""

    def step_time(self, shape: StepShape) -> StepTime:
        """Return the times of a step through all stages, if no other step is in the pipeline."""
        first = self.stages[0].step_time(shape)
        gpu_s, throttle_s = first.gpu_s, first.throttle_s
        for stage in self.stages[1:]:
            cost = stage.step_time(shape)
            gpu_s += stage.passing_s(shape.num_tokens) + cost.gpu_s
            throttle_s += cost.throttle_s
        return first._replace(gpu_s=gpu_s, throttle_s=throttle_s)

    def entry_s(self, prompt_tokens: int) -> float:
        """Return the seconds in which the host receives one request."""
        return self.stages[0].entry_s(prompt_tokens)
