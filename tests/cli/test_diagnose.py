"""`kvsim diagnose` through the entry point: a recording, and a page of metrics."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

Run = Callable[..., tuple[int, str, str]]
PAGE = b"""vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.99
vllm:num_requests_running{engine="0"} 40
vllm:num_requests_waiting{engine="0"} 3
vllm:num_preemptions_total{engine="0"} 5
"""


@pytest.fixture
def metrics_url() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


def test_a_recording(type_command: Run) -> None:
    assert type_command("run", "--num-requests", "60", "--num-blocks", "500", "-o", "rec", "--no-band")[0] == 0
    flags = ("diagnose", "rec", "--points", "3", "--jobs", "1", "--engine", "interpreted")
    code, said, complaint = type_command(*flags)
    assert (code, complaint) == (0, "")
    assert said.startswith("Memory is short: ")
    assert "\n- at " in said
    assert "Simulated on the same server: output " in said
    assert "vllm serve meta-llama/Meta-Llama-3-8B --num-gpu-blocks-override" in said
    document = json.loads(type_command(*flags, "--json")[1])
    assert document["verdict"]["limit"] == "memory"
    assert document["remedies"]


def test_a_page_of_metrics(type_command: Run, metrics_url: str) -> None:
    code, said, complaint = type_command("diagnose", metrics_url, "--seconds", "0.3")
    assert (code, complaint) == (0, "")
    assert said.startswith("Memory is short: the pool is full and 3 requests wait.\n")
    assert "Metrics cannot say:" in said
    assert "KVSIM_RECORD=runs/mine vllm serve m" in said


@pytest.mark.parametrize(
    ("source", "code", "sentence"),
    [
        ("nowhere", 2, "there is no recording 'nowhere'"),
        ("http://127.0.0.1:1/metrics", 1, "cannot be read"),
        ("http://[::1", 2, "is no address of a page"),
        ("127.0.0.1:1", 1, "nothing is published at 127.0.0.1:1 (Connection refused): is the server running?"),
        ("hf-h200-granite-350m-one-by-one", 2, "kvsim diagnose is for servers with a paged cache"),
    ],
)
def test_what_is_nothing_is_a_sentence(type_command: Run, source: str, code: int, sentence: str) -> None:
    ended, said, complaint = type_command("diagnose", source, "--seconds", "0.1")
    assert (ended, said) == (code, "")
    assert sentence in complaint


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (b"nonsense\n", "is not followed further: 'nonsense' is no line of JSON"),
        (b"", "has hung up."),
        (b'["refused","16 viewers are connected, and no more are served"]\n', "16 viewers are connected"),
    ],
)
def test_a_server_that_ends_the_feed_is_told_of_by_its_end(
    type_command: Run, publisher: Callable[[bytes], str], said: bytes, sentence: str
) -> None:
    code, output, complaint = type_command("diagnose", publisher(said), "--seconds", "30")
    assert (code, output) == (1, "")
    assert sentence in complaint
    assert "--seconds" not in complaint
    assert complaint.count(sentence) == 1
