"""Pages of metrics and KV events of vLLM's own classes, of two releases or of those that KVSIM_VLLM names."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.live.exposition import samples
from kvsim.live.kv_events import ServerCache
from kvsim.live.metrics import parse_metrics

from ..vllm_engine.recordings import WATCHED, Live


@pytest.fixture(params=WATCHED)
def told(request: pytest.FixtureRequest, live: Live) -> Path:
    return live.watched(request.param)


@pytest.fixture
def state(told: Path) -> dict[str, Any]:
    """What the engine held at that moment."""
    return dict(json.loads((told / "state.json").read_text()))


def test_a_page_of_metrics_says_what_the_engine_holds(told: Path, state: dict[str, Any]) -> None:
    look = parse_metrics((told / "metrics.txt").read_text())
    assert (look.running, look.waiting, look.num_blocks) == (state["running"], state["waiting"], state["num_blocks"])
    assert look.usage == pytest.approx(state["usage"])
    assert (look.num_engines, look.deferred) == (1, 0)
    assert look.finished > 0
    assert look.histograms["ttft"].count > 0
    assert look.histograms["inter_token"].count == look.generation_tokens - look.histograms["ttft"].count
    assert (look.preemptions > 0) == (told.name == "001")


def test_prefix_hits_are_counted_once_in_every_release(live: Live, told: Path) -> None:
    page = (told / "metrics.txt").read_text()
    look = parse_metrics(page)
    assert look.queried_tokens == look.prompt_tokens > 0
    assert (look.hit_tokens > 0) == (told.name == "009")
    attempts = {sample.name: sample.value for sample in samples(page, "vllm:prefix_cache_")}
    is_counted_again = told.name == "001" and live.release < "0.27"
    assert (attempts["vllm:prefix_cache_queries_total"] > look.queried_tokens) == is_counted_again


def test_events_tell_the_keys_that_the_cache_has(live: Live, told: Path, state: dict[str, Any]) -> None:
    cached = ServerCache()
    for batch in (told / "events.txt").read_bytes().splitlines():
        cached.hear(base64.b64decode(batch))
    named = {(place.group, name) for place, blocks in cached.blocks.items() for name in blocks}
    assert named == {tuple(key) for key in state["keys"]}
    assert len(named) > 10
    (place,) = cached.blocks
    assert (place.medium, place.group) == ("GPU", 0)
    kinds = {block.kind for block in cached.blocks[place].values()}
    assert kinds == ({"full_attention"} if live.release >= "0.22" else {None})
