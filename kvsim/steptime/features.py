"""Time that speculative decoding and adapters (LoRA) add to every step of vLLM.

After the step that verifies the previous drafts, a draft model runs once for each new draft. Its layers are launched
like those of a captured step with prompt tokens. The step also projects and compares every draft, not one token a
sequence. N-grams are found by the host. With adapters, more kernels run beside the matrix products of each layer.

The constants were read off decodes of Llama-3-8B in vLLM 0.25.1 on one H100 (docs/drafts.md, docs/adapters.md), those
of n-grams on two H200s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvsim.steptime.roofline import Roofline

MEASURED_METHODS = ("eagle", "eagle3", "draft_model", "ngram")
"""Methods of drafting whose time was measured."""
PASS_LAYERS = 1.36
"""Host time of a drafting pass apart from its layers, in multiples of the host time of one layer."""
LOGIT_BYTES = 76
"""Number of bytes read and written per logit of a draft that is verified: to compute, convert and compare it."""
N_GRAM_STEP = 1 / 3
"""Host time of a step with n-grams, relative to the host time per step before the first kernel.

The host starts the search, prepares the comparison of drafts with tokens, and launches the kernels that compare them.
"""
N_GRAM_TOKEN = 0.5
"""Host time per verified token with n-grams, relative to the host time per sequence before the first kernel.

The host searches the sequence, schedules its drafts, and handles several outputs of it. Timers around vLLM's calls show
that scheduling and outputs take a third each, and the search a fifth. The length of the context hardly matters.
"""
ADAPTER_LAYER_S = 42e-6
"""Seconds per layer and step of the kernels of one adapter, of rank 16 or less."""
MORE_ADAPTERS_LAYER_S = 10e-6
"""Seconds per layer and step of each further adapter that the step uses."""
ADAPTER_SEQUENCE_LAYER_S = 0.43e-6
"""Seconds per layer and sequence in the step, in a server with adapters."""
ADAPTER_TOKEN_LAYER_S = 0.21e-6
"""Seconds per layer and token in the step, in a server with adapters. In small steps, reading the weights hides it."""


def with_drafting(
    times: Roofline,
    *,
    model_layers: int,
    num_layers: int,
    num_drafts: int,
    read_s: float,
    logits_read_s: float,
) -> Roofline:
    """Return `times` with the time of drafting in each step.

    A step that is too large for a captured graph is launched kernel by kernel, and so is the first pass after it, over
    the same tokens. The host then launches the other passes, too, before it can prepare the next step.

    Args:
        times: step times of the model that verifies.
        model_layers: number of layers of the model that verifies.
        num_layers: number of layers of the drafter.
        num_drafts: number of drafts for each sequence and step, each by a pass of its own.
        read_s: seconds to read the drafter's weights once.
        logits_read_s: seconds to read one byte for each logit of one token.
    """
    layers = PASS_LAYERS + num_layers
    launch_s = layers * times.piecewise_launch_s / model_layers
    eager_s = layers * times.eager_launch_s / model_layers
    return replace(
        times,
        step_s=times.step_s + num_drafts * max(launch_s, read_s),
        sequence_s=times.sequence_s + num_drafts * LOGIT_BYTES * logits_read_s,
        eager_launch_s=times.eager_launch_s + eager_s + (num_drafts - 1) * launch_s,
    )


def with_n_grams(times: Roofline, *, num_drafts: int, logits_read_s: float) -> Roofline:
    """Return `times` with the search for n-grams, and with the host's work for several outputs of a sequence.

    vLLM does both between the output of a step and the launch of the next one. `logits_read_s` is that of
    `with_drafting`. The GPU is taken to compare `num_drafts` drafts of every sequence.

    Steps in which a sequence lacks drafts are launched in pieces (`_is_uniform_decode` in vLLM's model runner V1). They
    have no time of their own here: by the launches of pieces with prompts, they were 36 % too long (docs/drafts.md).
    """
    before_kernels = 1 - times.sampling_share
    return replace(
        times,
        turnaround_step_s=times.turnaround_step_s + N_GRAM_STEP * before_kernels * times.host_step_s,
        verified_token_s=N_GRAM_TOKEN * before_kernels * times.host_sequence_s,
        sequence_s=times.sequence_s + num_drafts * LOGIT_BYTES * logits_read_s,
    )


def with_adapters(times: Roofline, *, num_layers: int, num_adapters: int) -> Roofline:
    """Return `times` with the time of adapters in each step.

    `num_layers` is the model's number of layers, and `num_adapters` the largest number of adapters in one step.
    """
    return replace(
        times,
        step_s=times.step_s + num_layers * (ADAPTER_LAYER_S + (num_adapters - 1) * MORE_ADAPTERS_LAYER_S),
        sequence_s=times.sequence_s + num_layers * ADAPTER_SEQUENCE_LAYER_S,
        token_s=times.token_s + num_layers * ADAPTER_TOKEN_LAYER_S,
    )
