"""Times of an image encoder, computed from its shape and a machine card.

vLLM launches the encoder kernel by kernel, without compiled code or graphs, so that launching usually takes longer than
the kernels. All constants come from one H100, whose engine (vLLM 0.25.1) served two encoders with random weights: those
of Qwen2.5-VL and Qwen2-VL (`benchmarks/images.py`). No other encoder and no other GPU was measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.steptime.curves import product_curve

if TYPE_CHECKING:
    from kvsim.models.vision import VisionTower
    from kvsim.steptime.card import Card

LAYER_LAUNCHES = {"gated": 264, "plain": 144}
"""Host time to launch one layer with a gated or a plain feed-forward network, in multiples of `Card.launch_s`.

A gated layer has 31 kernels, because its RMS norms are not fused. A plain layer has 15.
"""
IMAGE_LAUNCHES = 1400
"""Host time per image to copy its pixels to the GPU, in multiples of `Card.launch_s`.

It was 10 to 15 ms on two hosts.
"""
IMAGE_TOKEN_LAUNCHES = 0.5
"""Host time per token of an image to copy its pixels, in multiples of `Card.launch_s`."""
_ELEMENTS = {"gated": 98, "plain": 61}
"""Number of elements that one layer reads and writes per patch, divided by the hidden size.

Norms, rotations, activations and copies read and write these elements; those of matrix products and attention are left
out.
"""
_UNALIGNED = 2.9
"""Factor on the time of a matrix product whose number of inputs is no multiple of 8, because an older kernel runs it.

An example is the feed-forward network of Qwen2.5-VL, with a width of 3,420.
"""
_ATTENTION_SHARE = 0.9
"""FLOP/s of attention in an encoder, relative to the highest FLOP/s of the card's launches with one whole prompt.

Measured with heads of 80 elements, without a mask.
"""
_MANY_PATCHES = 16_384
"""Number of patches for which matrix products are evaluated. From about here on, the time per patch is constant."""
_ELEMENT_BYTES = 2


def encoder_coefficients(card: Card, tower: VisionTower, tensor_parallel_size: int) -> dict[str, Any]:
    """Return the coefficients of a `Roofline` for the image encoder, by field.

    With several GPUs, all GPUs share every layer of the encoder, as is vLLM's default.
    """
    kind = "gated" if tower.has_gate else "plain"
    hidden, inner, patches = tower.hidden_size, tower.intermediate_size, tower.patches_per_token
    matrices = [(3 * hidden, hidden), (hidden, hidden), (inner * (2 if tower.has_gate else 1), hidden), (hidden, inner)]
    products_s = sum(_product_s(card, *matrix) for matrix in matrices)
    elements_s = _ELEMENTS[kind] * hidden * _ELEMENT_BYTES / card.read_bytes_per_s
    pair_s = 4 * hidden / (_ATTENTION_SHARE * _attention_flops_per_s(card))
    windows_s = (tower.num_layers - tower.num_full_layers) * tower.window_patches * pair_s
    return {
        "encoder_step_s": tower.num_layers * LAYER_LAUNCHES[kind] * card.launch_s,
        "encoder_image_s": IMAGE_LAUNCHES * card.launch_s,
        "encoder_image_token_s": IMAGE_TOKEN_LAUNCHES * card.launch_s,
        "encoder_token_s": patches
        * (tower.num_layers * (products_s / tensor_parallel_size + elements_s) + windows_s / tensor_parallel_size),
        "encoder_pair_s": patches**2 * tower.num_full_layers * pair_s / tensor_parallel_size,
    }


def _product_s(card: Card, n: int, k: int) -> float:
    """Return the seconds per patch of a matrix product with `n` outputs and `k` inputs."""
    slower = _UNALIGNED if k % 8 else 1.0
    return slower * product_curve(card.products["bfloat16"], n, k)(_MANY_PATCHES) / _MANY_PATCHES


def _attention_flops_per_s(card: Card) -> float:
    """Return the highest FLOP/s that the card's attention of a whole prompt reaches."""
    prompts = [row for row in card.attention if not row.num_decodes and row.prompt_tokens == row.prompt_context]
    return max(
        2 * row.num_heads * row.head_dim * row.prompt_tokens * (row.prompt_tokens + 1) / row.seconds for row in prompts
    )
