"""`kvsim size --image`: what one image costs, and what the encoder cache takes off the blocks."""

from __future__ import annotations

import json
from collections.abc import Callable
from subprocess import CompletedProcess
from typing import Any

import pytest

Kvsim = Callable[..., "CompletedProcess[str]"]
QWEN = ("size", "--model", "Qwen2.5-VL-7B-Instruct", "--gpu", "H100")


def sized(kvsim: Kvsim, *arguments: str) -> dict[str, Any]:
    done = kvsim(*arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_an_image_costs_tokens_blocks_and_a_place_in_the_encoder_cache(kvsim: Kvsim) -> None:
    document = sized(kvsim, *QWEN, "--image", "1920x1080")
    assert document["image"] == {
        "scaled_pixels": [1932, 1092],
        "side_pixels": 28,
        "tokens": 2691,
        "prompt_tokens": 2693,
        "blocks": 169,
        "kv_bytes": 169 * 16 * 56 * 1024,
        "encoder_bytes": 2691 * 7168,
        "encoder_cache_tokens": 16_384,
    }
    terms = {term["label"]: term["bytes"] for term in document["terms"]}
    assert terms["encoder cache"] == -16_384 * 7168
    assert sum(terms.values()) == document["kv_bytes"]
    text = kvsim(*QWEN, "--image", "1920x1080").stdout
    assert "2 marks around" in text
    assert "room for 6 such images at once" in text


def test_the_encoder_cache_is_as_large_as_a_step_where_that_is_larger(kvsim: Kvsim) -> None:
    terms = sized(kvsim, *QWEN, "--max-num-batched-tokens", "32768")["terms"]
    assert next(term["bytes"] for term in terms if term["label"] == "encoder cache") == -32_768 * 7168


def test_where_the_rule_is_not_known_that_is_said_and_tokens_can_be_given(kvsim: Kvsim) -> None:
    gemma = ("size", "--model", "gemma-3-4b-it", "--gpu", "H100")
    document = sized(kvsim, *gemma, "--image-tokens", "256")
    assert document["image"]["encoder_cache_tokens"] is None
    assert document["image"]["prompt_tokens"] == 256
    assert any(
        "what vLLM keeps for images of Gemma3ForConditionalGeneration is left out" in each
        for each in document["unmeasured"]
    )
    assert "encoder cache" not in {term["label"] for term in document["terms"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*QWEN, "--image", "huge"), "--image should be width and height in pixels, such as 1920x1080, not 'huge'."),
        ((*QWEN, "--image", "0x10"), "--image should be width and height in pixels, such as 1920x1080, not '0x10'."),
        ((*QWEN, "--image", "4000x10"), "one side may be at most 200 times as long"),
        ((*QWEN, "--image", "1x1", "--image-tokens", "4"), "--image and --image-tokens say the same thing"),
        (("size", "--model", "gemma-3-4b-it", "--gpu", "H100", "--image", "9x9"), "give --image-tokens instead"),
        (("size", "--model", "Meta-Llama-3-8B", "--gpu", "H100", "--image", "9x9"), "it takes no images"),
    ],
)
def test_an_image_that_is_none_is_refused(kvsim: Kvsim, arguments: tuple[str, ...], words: str) -> None:
    done = kvsim(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
