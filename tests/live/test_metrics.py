"""A server's Prometheus metrics: what they say, what they cannot say, and pages that are none."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kvsim.errors import RecordingError
from kvsim.live import metrics_feed
from kvsim.live.metrics import Histogram, ServerMetrics, as_csv, parse_metrics
from kvsim.live.metrics_feed import MetricsFeed
from kvsim.live.server_load import load_of
from tests.waiting import until

PAGE = """# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 11.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} 2.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 640.0
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 64.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 640.0
vllm:generation_tokens_total{engine="0",model_name="tiny"} 500.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 4.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="tiny"} 5.0
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="101"} 1.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="tiny"} 2.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.5",model_name="tiny"} 9.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 10.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="tiny"} 3.5
vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 10.0
python_gc_objects_collected_total{generation="0"} 3.0
"""


def test_the_metrics_are_read() -> None:
    look = parse_metrics(PAGE)
    assert (look.usage, look.running, look.waiting, look.deferred, look.preemptions) == (0.25, 3, 11, 2, 7)
    assert (look.num_blocks, look.block_size, look.model, look.hit_tokens) == (101, 16, "tiny", 64)
    assert (look.finished, look.generation_tokens, look.num_engines) == (9, 500, 1)
    first_token = look.histograms["ttft"]
    assert (first_token.bounds_s, first_token.counts, first_token.sum_s) == ((0.1, 0.5, math.inf), (2, 9, 10), 3.5)
    assert look.histograms["queue"].count == 0


def test_hits_are_those_of_prompts_counted_once_where_the_metrics_tell() -> None:
    attempts = PAGE.replace('queries_total{engine="0",model_name="tiny"} 640', 'queries_total{engine="0"} 6400')
    once = "\n".join(
        f'vllm:prompt_tokens_by_source_total{{engine="0",source="{source}"}} {tokens}'
        for source, tokens in (("local_compute", 480), ("local_cache_hit", 160), ("external_kv_transfer", 0))
    )
    before, since = parse_metrics(attempts), parse_metrics(f"{attempts}{once}\n")
    assert (before.queried_tokens, before.hit_tokens) == (6400, 64)
    assert (since.queried_tokens, since.hit_tokens) == (640, 160)
    off = attempts.replace("} 6400", "} 0").replace(
        'hits_total{engine="0",model_name="tiny"} 64', 'hits_total{engine="0"} 0'
    )
    assert parse_metrics(f"{off}{once}\n").queried_tokens == 0, "prefix caching is off"
    with pytest.raises(RecordingError, match="held 9,999 tokens, of 640 looked up"):
        parse_metrics(f"{attempts}{once}\n".replace("} 160", "} 9999"))


def test_several_engines_are_added_up() -> None:
    look = parse_metrics(PAGE + PAGE.replace('engine="0"', 'engine="1"').replace("0.25", "0.75"))
    assert (look.num_engines, look.usage, look.fullest_usage, look.running, look.waiting) == (2, 0.5, 0.75, 6, 22)
    assert look.num_blocks == 202
    assert look.histograms["ttft"].counts == (4, 18, 20)


@pytest.mark.parametrize("text", ["", "up 1\n", "vllm:num_requests_running 3\n", "\x1b[31m", "<html>"])
def test_a_page_of_something_else(text: str) -> None:
    with pytest.raises(RecordingError, match="is this a vLLM V1 server"):
        parse_metrics(text)


@pytest.mark.parametrize("value", ["much", "", "NaN", "Inf", "-0.1", "2", "1e308", "9" * 5000, "0x1"])
def test_a_usage_that_cannot_be(value: str) -> None:
    with pytest.raises(RecordingError) as error:
        parse_metrics(f"vllm:kv_cache_usage_perc {value}\n")
    assert len(str(error.value)) < 250


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('running{engine="0",model_name="tiny"} 3.0', "running NaN"),
        ('waiting{engine="0",model_name="tiny"} 11.0', "waiting -1"),
        ("num_preemptions_total", 'num_preemptions_total{a="b'),
        ('le="0.5"', 'le="soon"'),
        ('le="0.5",model_name="tiny"} 9.0', 'le="0.5",model_name="tiny"} 99.0'),
        ('first_token_seconds_sum{engine="0",model_name="tiny"} 3.5', "first_token_seconds_sum Inf"),
        ("prompt_tokens_total{", "prompt_tokens_total{" + "a" * 40_000),
        ('hits_total{engine="0",model_name="tiny"} 64.0', 'hits_total{engine="0"} 641'),
        ('running{engine="0",model_name="tiny"} 3.0', 'running{engine="0"} 2.5'),
        ('running{engine="0",model_name="tiny"} 3.0', 'running{engine="1"} 3'),
        ('running{engine="0",model_name="tiny"} 3.0', 'running{engine="0"} 1_000'),
        ('running{engine="0",model_name="tiny"} 3.0', 'running{engine="0",engine="0"} 3'),
        ('reason="deferred"} 2.0', 'reason="deferred"} 12.0'),
        ('_sum{engine="0",model_name="tiny"} 3.5', '_sum{engine="0",model_name="tiny"} 0.5'),
        ('_sum{engine="0",model_name="tiny"} 3.5', '_sum{engine="0",model_name="tiny"} -1'),
        ('_count{engine="0",model_name="tiny"} 10.0', '_count{engine="0",model_name="tiny"} 11'),
        ('le="+Inf"', 'le="2"'),
        ('le="0.5"', 'le="0.10"'),
        ("usage_perc gauge", "usage_perc counter"),
        ("# TYPE", "# TYPE vllm:prompt_tokens_total gauge\n# TYPE"),
        ("prompt_tokens_total{", 'prompt_tokens_total{a="' + '\\\\"' * 20_000),
    ],
)
def test_a_page_that_contradicts_itself(old: str, new: str) -> None:
    assert old in PAGE
    with pytest.raises(RecordingError):
        parse_metrics(PAGE.replace(old, new))


@pytest.mark.parametrize("line", [line for line in PAGE.splitlines() if line.startswith("vllm:")])
def test_a_series_that_is_there_twice_is_refused(line: str) -> None:
    name, _, _ = line.rpartition(" ")
    for again in (line, f"{name} 0"):
        with pytest.raises(RecordingError, match="twice"):
            parse_metrics(f"{PAGE}{again}\n")


@pytest.mark.parametrize(
    ("page", "engine"), [("sglang:num_running_reqs 3\n", "SGLang"), ("x 1\ntgi_queue_size 0\n", "Text Generation")]
)
def test_another_engines_page_is_told(page: str, engine: str) -> None:
    with pytest.raises(RecordingError, match=engine):
        parse_metrics(page)


def test_a_time_and_an_exemplar_beside_a_value_are_passed_over() -> None:
    page = PAGE.replace('tiny"} 3.0', 'tiny"} 3.0 1763881200000')
    page = page.replace('+Inf",model_name="tiny"} 10.0', '+Inf",model_name="tiny"} 10.0 # {a="b"} 1')
    assert parse_metrics(page) == parse_metrics(PAGE)


def test_blocks_that_cannot_be_are_refused() -> None:
    for number in ("9" * 5000, "-3", "0", "many", "²"):
        with pytest.raises(RecordingError, match=r"cache_config_info with num_gpu_blocks = .*, which cannot be"):
            parse_metrics(PAGE.replace('num_gpu_blocks="101"', f'num_gpu_blocks="{number}"'))
    assert parse_metrics(PAGE.replace('num_gpu_blocks="101"', 'num_gpu_blocks="None"')).num_blocks is None


def test_labels_are_parsed_in_one_pass() -> None:
    """Forty thousand letters that are no label took seven seconds once; now they are looked at once."""
    letters = "a" * 8_000
    for labels in (letters, f'{letters}="', f'x="{letters}', f'x="{letters}" {letters}'):
        with pytest.raises(RecordingError, match="is not a sample"):
            parse_metrics(f"vllm:kv_cache_usage_perc{{{labels}}} 0.5\n")


def look(time_s: float, **values: Any) -> ServerMetrics:
    return replace(parse_metrics(PAGE, time_s), **values)


def test_rates_are_of_the_last_minute() -> None:
    looks = [look(second, preemptions=7 + second // 10, generation_tokens=500 + 100 * second) for second in range(121)]
    load = load_of(looks)
    assert load.preemptions_per_min == 6
    assert load.output_tokens_per_s == 100
    assert load.window_s == 60
    first = load_of(looks[:1])
    assert (first.preemptions_per_min, first.output_tokens_per_s, first.full_in_s) == (None, None, None)
    assert first.histograms["ttft"].count == 10, "since the server started"


@pytest.mark.parametrize(
    ("usage_at", "full_in_s"),
    [
        (lambda second: 0.2 + 0.01 * second, 50.0),
        (lambda _: 0.5, None),
        (lambda second: 0.8 - 0.01 * second, None),
        (lambda second: 0.5 + 0.1 * (second % 2), None),
        (lambda second: 0.5 + 0.0001 * second, None),
        (lambda _: 1.0, None),
    ],
)
def test_the_forecast_is_a_trend_or_nothing(usage_at: Callable[[int], float], full_in_s: float | None) -> None:
    looks = [look(second, usage=usage_at(second), fullest_usage=usage_at(second)) for second in range(31)]
    assert load_of(looks).full_in_s == (None if full_in_s is None else pytest.approx(full_in_s))
    assert load_of(looks[:4]).full_in_s is None, "three seconds are no trend"


def test_quantiles_are_known_between_buckets() -> None:
    histogram = Histogram((0.1, 0.5, 1.0, math.inf), (2.0, 5.0, 9.0, 10.0), 4.0)
    assert histogram.quantile_s(0.5) == (0.1, 0.5)
    assert histogram.quantile_s(0.9) == (0.5, 1.0)
    assert histogram.quantile_s(0.99) == (1.0, math.inf)
    assert Histogram().quantile_s(0.5) is None
    later = Histogram((0.1, 0.5, 1.0, math.inf), (2.0, 5.0, 10.0, 12.0), 7.0)
    assert later.since(histogram) == Histogram((0.1, 0.5, 1.0, math.inf), (0.0, 0.0, 1.0, 2.0), 3.0)


def test_what_was_seen_is_a_table() -> None:
    rows = as_csv([look(5.0), look(6.0, waiting=12)]).splitlines()
    assert rows[0].startswith("time_s,usage,")
    assert rows[1].split(",")[0] == "0.0"
    assert dict(zip(rows[0].split(","), rows[2].split(","), strict=True))["waiting"] == "12"


@contextmanager
def page_server(answer: Callable[[BaseHTTPRequestHandler, int], None]) -> Iterator[str]:
    """The address of a page that `answer` writes, given the number of the request."""

    class Page(BaseHTTPRequestHandler):
        number = 0

        def do_GET(self) -> None:
            Page.number += 1
            with suppress(OSError):
                answer(self, Page.number)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/metrics"
        server.shutdown()
        thread.join(10)


def send(handler: BaseHTTPRequestHandler, body: bytes, length: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def test_a_feed_polls() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        send(handler, re.sub(r"0\.25", f"{min(0.1 * number, 0.9):g}", PAGE).encode())

    with page_server(answer) as url:
        feed = MetricsFeed(url, period_s=0.01)
        until(lambda: len(feed.polls()) >= 5)
        feed.close()
        assert [look.usage for look in feed.polls()[:4]] == pytest.approx([0.1, 0.2, 0.3, 0.4])
        assert feed.ended is None


def test_a_server_that_starts_again_is_a_new_server() -> None:
    def answer(handler: BaseHTTPRequestHandler, number: int) -> None:
        send(handler, PAGE.replace("500.0", "900.0" if number < 3 else "10.0").encode())

    with page_server(answer) as url:
        feed = MetricsFeed(url, period_s=0.01)
        until(lambda: feed.restarts)
        feed.close()
        assert {look.generation_tokens for look in feed.polls()} == {10}


def test_a_server_that_is_gone_is_said_to_be_and_ends_the_feed() -> None:
    with page_server(lambda handler, _: send(handler, PAGE.encode())) as url:
        feed = MetricsFeed(url, period_s=0.01, patience_s=0.3)
    until(lambda: feed.quiet_s > 0.1)
    until(lambda: feed.ended)
    assert "cannot be read" in str(feed.ended)
    feed.close()


@pytest.mark.parametrize(
    ("body", "length", "sentence"),
    [
        (b"x" * 100_000, None, "page of more than 65,536 bytes"),
        (PAGE.encode(), 1 << 40, "cannot be read"),
        (b"vllm:kv_cache_usage_perc 2\n", None, "cannot be"),
        (b"", None, "is this a vLLM V1 server"),
    ],
)
def test_a_page_that_cannot_be_shown(
    body: bytes, length: int | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics_feed, "_MAX_BYTES", 1 << 16)
    raises = pytest.raises(RecordingError, match=sentence)
    with page_server(lambda handler, _: send(handler, body, length)) as url, raises:
        MetricsFeed(url)


def test_a_page_that_comes_a_byte_at_a_time_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_feed, "_TIMEOUT_S", 0.2)

    def trickle(handler: BaseHTTPRequestHandler, _: int) -> None:
        handler.send_response(200)
        handler.end_headers()
        for byte in PAGE.encode():
            handler.wfile.write(bytes([byte]))
            handler.wfile.flush()
            time.sleep(0.05)

    with page_server(trickle) as url, pytest.raises(RecordingError, match=r"takes more than 0\.2 s|cannot be read"):
        MetricsFeed(url)


@pytest.mark.parametrize("place", ["http://127.0.0.1:1/secret", "http://[no address/", "file:///etc/passwd"])
def test_a_page_that_sends_us_elsewhere_is_not_followed(place: str) -> None:
    def elsewhere(handler: BaseHTTPRequestHandler, _: int) -> None:
        handler.send_response(302)
        handler.send_header("Location", place)
        handler.end_headers()

    with page_server(elsewhere) as url, pytest.raises(RecordingError, match="cannot be read: 302"):
        MetricsFeed(url)


def test_no_page_there() -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        MetricsFeed("http://127.0.0.1:9/metrics")
