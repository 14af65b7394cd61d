"""What sliding windows save, as published: bytes of one sequence with and without KV-cache groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.kv_groups import CacheSettings, bytes_per_block, cache_layout
from kvsim.models import find_model
from kvsim.published.figures import Figure, Row

if TYPE_CHECKING:
    from kvsim.published.figures import ProgressCallback


def _held_bytes(model_name: str, num_tokens: int, *, uniform: bool) -> int:
    """Bytes that a sequence of so many tokens holds while it decodes; with `uniform`, as if no layer had a window."""
    model = find_model(model_name)
    settings = CacheSettings(max_model_len=num_tokens, uniform=uniform)
    [block_bytes] = bytes_per_block(model, settings)
    return cache_layout(model, settings).held_blocks(num_tokens) * block_bytes


def _gpt_oss(progress: ProgressCallback) -> list[float]:  # noqa: ARG001  nothing is simulated
    longest = find_model("gpt-oss-20b").max_position_embeddings
    grouped, uniform = (_held_bytes("gpt-oss-20b", longest, uniform=each) for each in (False, True))
    return [grouped / uniform]


ROWS = (
    Row(
        name="windows",
        title="KV cache of gpt-oss with windows in every other layer, as a share of one without",
        source="Hugging Face blog, faster-transformers.md (its pull request 3069): halved as sequences grow",
        band="0.005: the windows themselves remain",
        figures=(Figure.within("131,072 tokens", 0.5, 0.005),),
        reproduce=_gpt_oss,
        note="gpt-oss-20b: 12 layers with a window of 128 tokens, 12 without; in blocks of 16 tokens.",
    ),
)
