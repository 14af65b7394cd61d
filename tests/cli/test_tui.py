"""What `kvsim tui` shows, and what it says where it cannot."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest
import textual.constants  # noqa: F401  reads TEXTUAL_DRIVER when it is first imported, and tests below change that

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., tuple[int, str, str]]
FEW = ("--num-requests", "6")


@pytest.fixture
def run(type_command: Run) -> Run:
    """`kvsim tui` in an empty folder: exit code, output and complaint."""
    return partial(type_command, "tui")


def text_of(svg: str) -> str:
    return " ".join(re.findall(r">([^<]+)</text>", svg))


def test_three_policies_in_one_picture(run: Run, tmp_path: Path) -> None:
    code, output, _ = run("--compare", *FEW, "--screenshot", "c.svg", "--at", "0.5")
    assert (code, output) == (0, "c.svg\n")
    picture = text_of((tmp_path / "c.svg").read_text())
    for words in (
        "static",
        "contiguous",
        "paged",
        "served: of output tokens; memory: of ",
        "the fastest",
        "the same 6 requests, fastest first",
    ):
        assert words in picture


def test_a_lesson_in_a_picture(run: Run, tmp_path: Path) -> None:
    code, output, _ = run("--lesson", "1", "--screenshot", "l.svg")
    assert (code, output) == (0, "l.svg\n")
    assert "Four short requests take everything" in text_of((tmp_path / "l.svg").read_text())


def test_lessons_are_listed(run: Run) -> None:
    code, output, _ = run("--lesson")
    assert code == 0
    assert "3  A page at a time" in output


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--compare", "--policy", "paged"), 2, "--policy and --compare each say what to show; give only one."),
        (("--lesson", "1", "--attach", "5"), 2, "--lesson and --attach each say what to show"),
        (("rec", "--lesson", "1"), 2, "--lesson says what to show, so it takes no recording 'rec'; leave one"),
        (("-o", "out"), 2, "-o requires --attach; give both."),
        (("--kv-events", "5557"), 2, "--kv-events requires --attach; give both."),
        (("--size", "80x24"), 2, "--size requires --screenshot; give both."),
        (("--overwrite",), 2, "--overwrite requires -o or --screenshot; give one."),
        (("--screenshot", "x.svg", "--calm"), 2, "--screenshot has no effect with --calm; leave one out."),
        (("--attach", "5", "--at", "3"), 2, "--at has no effect with --attach; leave one out."),
        (("--attach", "5", "--screenshot", "x.svg"), 2, "--screenshot has no effect with --attach; leave one out."),
        (("--lesson", "1", "--num-blocks", "9"), 2, "--num-blocks has no effect with --lesson; leave one out."),
        (("--lesson", "--screenshot", "x.svg"), 2, "--lesson without a number lists the lessons; give a number"),
        (("rec", "--workload", "w"), 2, "--workload has no effect with the recording 'rec'; leave one out."),
        (("rec", "--screenshot", "x.svg", "--num-blocks", "9"), 2, "no effect with a picture of the recording 'rec'"),
        (("--lesson", "99", "--screenshot", "x.svg"), 2, "there is no lesson '99'"),
        (("--replicas", "2"), 2, "kvsim run --replicas ... -o FOLDER records a fleet, and kvsim tui FOLDER shows it."),
        (
            ("--prefill=1", "--decode", "1"),
            2,
            "kvsim tui simulates one server, and --prefill is for several; kvsim run ",
        ),
        (("--compare",), 2, "kvsim tui needs a terminal"),
    ],
)
def test_misuse_is_a_sentence(run: Run, tmp_path: Path, arguments: tuple[str, ...], code: int, sentence: str) -> None:
    found, output, complaint = run(*arguments)
    assert (found, output) == (code, "")
    assert complaint.startswith("kvsim: ")
    assert sentence in complaint
    assert not list(tmp_path.iterdir())


def test_a_server_that_hangs_up_at_once_is_told_of_once(
    run: Run, publisher: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEXTUAL_DRIVER", "none")
    code, _, complaint = run("--attach", publisher(b"nonsense\n"))
    assert code == 1
    assert complaint.count("is not followed further: 'nonsense' is no line of JSON") == 1


def test_nobody_publishes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.headless_driver:HeadlessDriver")
    code, _, complaint = run("--attach", "127.0.0.1:1")
    assert code == 1
    assert "nothing is published at 127.0.0.1:1" in complaint
    code, _, complaint = run("--attach", "http://127.0.0.1:1/metrics")
    assert code == 1
    assert "cannot be read" in complaint


def test_a_web_server_is_asked_for_its_metrics(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """`vllm serve` answers in HTTP at its HOST:PORT; events that it does not publish would never come."""
    watched: list[str] = []
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.headless_driver:HeadlessDriver")
    monkeypatch.setattr("kvsim.cli.attach._watch_metrics", lambda _, page, *__, **___: watched.append(page))
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        assert run("--attach", address)[0] == 0
        code, _, complaint = run("--attach", address, "-o", "out")
        server.shutdown()
    assert watched == [f"http://{address}/metrics"]
    assert (code, "-o should end in .csv, not out" in complaint) == (2, True)


def test_serving_needs_its_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textual_serve.server", None)
    monkeypatch.delitem(sys.modules, "kvsim.cli.serve", raising=False)
    code, _, complaint = run("--serve")
    assert code == 2
    assert complaint == "kvsim: --serve needs an optional part that is not installed: pip install 'kvsim[web]'.\n"


def test_serving_runs_the_same_command_on_loopback(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("textual_serve")
    served: list[tuple[str, int]] = []
    monkeypatch.setattr("kvsim.cli.serve.LocalServer", lambda line, port: served.append((line, port)) or Silent())
    code, _, _ = run("--lesson", "2", "--serve")
    assert code == 0
    ((line, port),) = served
    assert line.endswith("-m kvsim tui --lesson 2")
    assert port == 8000


class Silent:
    """A server that serves nobody."""

    def serve(self) -> None:
        pass


def test_a_picture_is_png_where_its_name_says_so(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("rsvg-convert"):
        assert run(*FEW, "--screenshot", "a.png")[0] == 0
        assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, complaint = run(*FEW, "--screenshot", "b.png")
    assert (code, (tmp_path / "b.png").exists()) == (2, False)
    assert "PNG needs rsvg-convert: install librsvg2-bin" in complaint
