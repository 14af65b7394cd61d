"""The coarse view of a server, from a page that a small local server serves."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from kvsim.errors import RecordingError
from kvsim.metrics import summarize
from kvsim.recording import Replay
from kvsim.recording.prometheus import MetricsFeed, parse_metrics

PAGE = """# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{{engine="0",model_name="tiny"}} {usage}
vllm:num_requests_running{{engine="0",model_name="tiny"}} 3.0
vllm:num_requests_waiting{{engine="0",model_name="tiny"}} 2.0
vllm:num_preemptions_total{{engine="0",model_name="tiny"}} {preemptions}
vllm:prefix_cache_hits_total{{engine="0",model_name="tiny"}} 64.0
vllm:cache_config_info{{block_size="16",engine="0",num_gpu_blocks="101"}} 1.0
python_gc_objects_collected_total{{generation="0"}} 3.0
"""


def test_the_metrics_are_read() -> None:
    sample = parse_metrics(PAGE.format(usage=0.25, preemptions=7))
    assert (sample.usage, sample.running, sample.waiting, sample.preemptions) == (0.25, 3, 2, 7)
    assert (sample.num_blocks, sample.block_size, sample.model, sample.hit_tokens) == (101, 16, "tiny", 64)


@pytest.mark.parametrize("text", ["", "up 1\n", "vllm:num_requests_running 3\n"])
def test_a_page_of_something_else(text: str) -> None:
    with pytest.raises(RecordingError, match="is this a vLLM V1 server"):
        parse_metrics(text)


def test_a_number_that_is_none() -> None:
    with pytest.raises(RecordingError, match="is not a sample"):
        parse_metrics("vllm:kv_cache_usage_perc much\n")


class Page(BaseHTTPRequestHandler):
    polls = 0

    def do_GET(self) -> None:
        Page.polls += 1
        body = PAGE.format(usage=min(0.1 * Page.polls, 0.9), preemptions=Page.polls // 3).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Page.polls = 0
    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


def test_a_feed_becomes_a_recording_that_says_it_is_coarse(url: str) -> None:
    feed = MetricsFeed(url, period_s=0.01)
    for _ in range(500):
        recording = feed.recording()
        if recording is not None and len(recording.steps) >= 6:
            break
        time.sleep(0.01)
    feed.close()
    assert recording is not None
    assert recording.meta.extra["coarse"] is True
    assert "coarse" in recording.meta.engine["view"].lower()
    replay = Replay(recording)
    for frame in range(5):
        replay.seek(frame)
        assert int((replay.owner >= 0).sum()) == round(0.1 * (frame + 1) * 100)
    assert summarize(recording).num_preemptions == recording.num_preemptions > 0


def test_no_page_there() -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        MetricsFeed("http://127.0.0.1:9/metrics")
