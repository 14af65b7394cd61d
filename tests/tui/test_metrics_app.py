"""The view of a server's metrics: what they say, no block that they do not know of, and a visible end."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvsim.live.kv_event_feed import CacheState
from kvsim.live.metrics import parse_metrics
from kvsim_tui.live.metrics_app import MetricsApp
from kvsim_tui.live.metrics_text import chart_lines

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.live.metrics import ServerMetrics

PAGE = """
vllm:cache_config_info{block_size="16",num_gpu_blocks="80864"} 1.0
vllm:kv_cache_usage_perc{model_name="m\x1b[31m"} 0.5
vllm:num_requests_running{model_name="m"} 3.0
vllm:num_requests_waiting{model_name="m"} 11.0
vllm:num_preemptions_total{model_name="m"} 63.0
vllm:time_to_first_token_seconds_bucket{le="0.1"} TWO
vllm:time_to_first_token_seconds_bucket{le="0.5"} ALL
vllm:time_to_first_token_seconds_bucket{le="+Inf"} ALL
vllm:time_to_first_token_seconds_sum SUM
"""


class Looks:
    """A feed that has seen a pool fill for twenty seconds."""

    def __init__(self) -> None:
        self.name = "http://127.0.0.1:8000/metrics"
        self.ended: str | None = None
        self.restarts = 0
        self.quiet_s = 0.0
        self.seen = [self.look(second) for second in range(21)]

    def look(self, second: int) -> ServerMetrics:
        usage = 0.4 + 0.01 * second
        page = PAGE.replace("TWO", str(second)).replace("ALL", str(9 * second)).replace("SUM", str(3 * second))
        now = parse_metrics(page, float(second))
        return replace(now, usage=usage, fullest_usage=usage, preemptions=63 + second // 10)

    def polls(self) -> list[ServerMetrics]:
        return self.seen


def text_of(app: MetricsApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("plain", [False, True])
async def test_what_the_metrics_say_is_on_every_screen(size: tuple[int, int], plain: bool) -> None:
    app = MetricsApp(Looks(), ascii=plain)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        text = text_of(app)
        for words in (
            "METRICS http://127.0.0.1:8000/metrics", "60.0% in use", "about 48,518 of 80,864 blocks",
            "full in about 40 s", "running      3", "waiting      11", "6.0 a minute, 65 since the server started",
            "first token", "333 ms", "q Quit",
        ):  # fmt: skip
            assert words in text
        assert "\x1b" not in text
        assert "100–500 ms" in text or "100-500 ms" in text
        assert not plain or text.isascii()


@pytest.mark.parametrize("height", [2, 3, 4, 5, 8, 20])
def test_charts_are_told_apart_and_say_how_far_they_reach(height: int) -> None:
    polls = [replace(look, waiting=1234) for look in Looks().seen]
    lines = [line.plain for line in chart_lines(polls, 60, height, plain=True)]
    assert len(lines) == (height if height >= 3 else 0)
    names = [line[:13].strip() for line in lines if line[:13].strip()]
    assert names == (["in use 0-100%", "running 0-3", "waiting 1,234"] if lines else [])
    assert lines.count("") == (2 if height >= 5 else 0)


async def test_a_feed_that_ends_is_not_shown_as_live() -> None:
    feed = Looks()
    app = MetricsApp(feed)  # type: ignore[arg-type]
    async with app.run_test(size=(120, 40)) as pilot:
        feed.quiet_s = 9.0
        app.poll()
        await pilot.pause()
        assert "NO ANSWER for 9 s" in text_of(app)
        assert "full in about" not in text_of(app)
        feed.ended = "[red]refused[/red]."
        app.poll()
        await pilot.pause()
        assert "ENDED: [red]refused[/red]" in text_of(app)


async def test_a_picture_of_it_can_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = MetricsApp(Looks())  # type: ignore[arg-type]
    async with app.run_test(size=(120, 40)) as pilot:
        for _ in range(2):
            await pilot.press("s")
            await pilot.pause()
    first, second = sorted(tmp_path.iterdir(), key=lambda file: len(file.name))
    assert first.name == "metrics-http-127.0.0.1-8000-metrics.svg"
    assert second.name == "metrics-http-127.0.0.1-8000-metrics-2.svg"
    assert "full" in first.read_text()


async def test_one_look_is_enough_to_begin() -> None:
    feed = Looks()
    del feed.seen[1:]
    app = MetricsApp(feed)  # type: ignore[arg-type]
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.pause()
        assert "times since the server started" in text_of(app)


class Cache:
    """KV events of a server that was attached to late, and of which two batches were lost."""

    ended: str | None = None

    def state(self) -> CacheState:
        return CacheState(
            num_blocks=8_086, num_tokens=129_376, elsewhere=(("CPU", 12),), num_stored=9_000, num_removed=914,
            num_cleared=0, lifetimes_s=(10.0, 30.0, 50.0), shared=((1_024, 7),), num_batches=40, lost=2, replayed=0,
            restarts=0, from_start=False, quiet_s=0.1,
        )  # fmt: skip


async def test_kv_events_say_what_they_know_and_what_they_do_not() -> None:
    app = MetricsApp(Looks(), Cache())  # type: ignore[arg-type]
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.pause()
        shown = text_of(app)
    for words in (
        "At least 8,086 blocks of 80,864 keep a prefix, 10 % of the pool: 129,376 tokens",
        "9,000 blocks were stored and 914 removed since kvsim listens",
        "more than 30 s",
        "Not known: which request holds a block",
        "Not known: blocks that were cached before kvsim listened",
        "Not known: what 2 lost batches said",
        "metrics and KV events do not say",
    ):
        assert words in shown
