"""Text from files is data: nothing that stands in a name acts on a terminal, a page, a figure or a folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.display.text import (
    file_stem,
    filled,
    html_text,
    markdown_code,
    message,
    printable,
    printable_lines,
    printable_values,
    script_json,
    size_column,
)
from kvsim.plots import FIGURES, film_of, save
from kvsim.plots.film_page import page_of
from kvsim.plots.report_page import write_report
from kvsim.recording import Recording, find, read, write

EVIL = (
    "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b]0;PWNED\x07\x1b[31mRED[red]mk[/red] $\\foo$ |`x` "
    "../../x @DATA@ \"q\" 's' --><!--<script>\u202e\x9b31m"
)
"""As in a recording that was made to harm whoever looks at it."""
ACTS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording that says it everywhere."""
    recording = read(find("vllm-h200-granite-350m-gsm8k"))
    meta = recording.meta
    ids = np.array([f"{EVIL}{number}" for number in range(len(recording.requests))])
    evil = replace(
        recording,
        name="evil",
        requests=replace(recording.requests, id=ids),
        meta=replace(
            meta,
            gpu=EVIL,
            notes=EVIL,
            command=f"kvsim run {EVIL}",
            engine={**meta.engine, "name": EVIL, EVIL: EVIL, "step_time": EVIL},
            model={**meta.model, "name": EVIL},
            extra={"extrapolates": [EVIL]},
        ),
    )
    return write(evil, tmp_path_factory.mktemp("evil") / "cost$x^$@DATA@<b>")


@settings(max_examples=60)
@given(st.text() | st.text(alphabet="\x1b[31m]0;\x07\u202e\n\t\x9b\ud800ab"))
def test_nothing_that_is_printable_acts_on_a_terminal(text: str) -> None:
    assert not ACTS.search(printable(text))
    assert not set("\n\t") & set(printable(text))
    assert not ACTS.search(printable_lines(text))
    assert printable_lines(text).count("\n") == text.count("\n")
    printable(text).encode()


@given(st.text(alphabet=st.characters(whitelist_categories=["L", "N", "P", "S"])))
def test_what_can_be_seen_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


def test_values_are_printable_to_the_last_key() -> None:
    assert printable_values({"\x1b": ["\x07", {"a": "\x9b", "b": 3}]}) == {"\\x1b": ["\\x07", {"a": "\\x9b", "b": 3}]}


def test_a_sentence_does_not_repeat_a_value_that_fills_the_screen() -> None:
    assert message("x.toml: 'a' is no number.") == "x.toml: 'a' is no number."
    assert len(message(f"{'9' * 100_000} is no number, and {'8' * 5000} neither.")) < 900
    assert len(message("many words " * 10_000)) < 2_500


@given(st.text())
def test_json_in_a_page_stays_json_and_has_no_markup(text: str) -> None:
    inside = script_json({"name": text})
    assert json.loads(inside) == {"name": text}
    assert not set("<>&") & set(inside)


def test_marks_are_replaced_in_one_pass() -> None:
    assert filled("@A@ and @B@", {"@A@": "@B@", "@B@": "@A@"}) == "@B@ and @A@"


@given(st.text() | st.sampled_from(["../../etc/passwd", "..", ".", "", "a/b", "-rf", ".hidden", "http://h:8/metrics"]))
def test_a_name_makes_a_name_of_a_file_in_its_folder(text: str) -> None:
    stem = file_stem(text)
    assert Path(stem).name == stem
    assert not stem.startswith((".", "-"))
    assert 0 < len(stem) <= 100


@given(st.text(alphabet="`a\n"))
def test_code_in_markdown_does_not_end_before_its_end(text: str) -> None:
    code = markdown_code(text)
    ticks = code[: len(code) - len(code.lstrip("`"))] if text.strip("`") else ""
    assert not ticks or ticks not in code.strip("`")


class Tags(HTMLParser):
    """The elements of a page, and what its scripts say."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.data: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag == "script":
            self.data.append("")

    def handle_data(self, data: str) -> None:
        if self.data and self.lasttag == "script":
            self.data[-1] += data


def harmless(recording: Recording) -> Recording:
    meta = replace(recording.meta, gpu="G", notes="", engine={"name": "e"}, model={**recording.meta.model, "name": "m"})
    return replace(recording, name="good", meta=meta)


def test_a_film_shows_the_names_and_runs_nothing(evil: Path) -> None:
    recording = read(evil)
    page = Tags(page_of(film_of([recording], num_frames=3), frames_per_s=4))
    plain = Tags(page_of(film_of([harmless(recording)], num_frames=3), frames_per_s=4))
    assert page.tags == plain.tags
    assert page.attributes == plain.attributes
    assert json.loads(page.data[0])["reels"][0]["name"] == "cost$x^$@DATA@<b>"


def test_a_report_shows_the_names_runs_nothing_and_counts_its_figures_while_it_draws(
    evil: Path, tmp_path: Path
) -> None:
    drawn: list[tuple[int, int]] = []
    write_report([read(evil)], tmp_path / "report", progress=lambda done, total: drawn.append((done, total)))
    assert drawn == [(number, 9) for number in range(9)]
    page = Tags((tmp_path / "report" / "report.html").read_text())
    assert "script" not in page.tags
    assert "onerror" not in page.attributes
    assert "b" not in page.tags
    text = (tmp_path / "report" / "report.md").read_text()
    assert not ACTS.search(text)
    prose = re.sub(r"(?s)(`+)(?!`).*?(?<!`)\1(?!`)", "", text.replace("\\`", ""))
    assert not re.search(r"(?<!\\)<(script|img|b)", prose)


@pytest.mark.parametrize("kind", ["waste-bars", "latency", "queue", "waste-over-time", "lifetimes"])
def test_a_figure_shows_the_names_as_they_are(evil: Path, kind: str, tmp_path: Path) -> None:
    save(FIGURES[kind](read(evil)), tmp_path / "figure.svg")
    assert not ACTS.search((tmp_path / "figure.svg").read_text())
    assert "mathdefault" not in (tmp_path / "figure.svg").read_text()


@pytest.mark.parametrize("command", [("info",), ("verify",), ("plot", "waste-bars"), ("export", "csv")])
def test_no_command_lets_a_name_act_on_the_terminal(
    evil: Path, command: tuple[str, ...], type_command: Callable[..., tuple[int, str, str]]
) -> None:
    _, output, complaint = type_command(*command, str(evil))
    assert not ACTS.search(output + complaint)


def test_what_another_library_says_of_a_file_is_printable_too(
    type_command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "bad\x1b[31m.parquet").write_bytes(b"PAR1\x1b[31m" * 4)
    code, output, complaint = type_command("import", "bad\x1b[31m.parquet")
    assert code != 0
    assert not ACTS.search(output + complaint)
    code, output, complaint = type_command("info", "\x1b]0;PWNED\x07")
    assert code == 2
    assert not ACTS.search(output + complaint)


def test_the_interface_draws_nothing_that_acts(evil: Path, tmp_path: Path) -> None:
    import kvsim_tui as tui

    for ascii_only in (False, True):
        tui.screenshot(read(evil), tmp_path / "screen.svg", at_s=0.5, size=(200, 60), ascii=ascii_only)
        assert not ACTS.search((tmp_path / "screen.svg").read_text())


def test_a_lesson_of_ones_own_prints_nothing_that_acts(
    type_command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    lesson = """
title = "T\\u001b[31m"
summary = "S\\u0007"
machine = {model = "Qwen3-8B", gpu = "H200", kv_tokens = 384}
run = [{policy = "paged"}]
request = [{id = "A\\u001b]0;x\\u0007", prompt = 20, answer = 60}]
caption = [{at = "start", title = "C\\u001b", text = "text \\u009b31m"}]
"""
    (tmp_path / "9-evil.toml").write_text(lesson)
    code, output, complaint = type_command("explain", "9-evil.toml")
    assert (code, complaint) == (0, "")
    assert "T\\x1b[31m" in output
    assert not ACTS.search(output)


def test_names_are_kept_as_they_are_where_nobody_looks(evil: Path) -> None:
    recording = read(evil)
    assert recording.requests.id[3] == f"{EVIL}3"
    assert recording.meta.gpu == EVIL
    assert html_text("<a>") == "&lt;a&gt;"


def test_sizes_of_a_column_have_the_unit_of_the_largest() -> None:
    assert size_column([79 << 30, -(358 << 20), -1500]) == ["79.00 GiB", "-0.35 GiB", "0.00 GiB"]
    assert size_column([512 << 20, -(3 << 19)]) == ["512.00 MiB", "-1.50 MiB"]
    assert size_column([]) == []
