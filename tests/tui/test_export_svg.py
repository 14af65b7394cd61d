"""A screen as SVG: blocks are rectangles, and words stand at their columns whatever the viewer's font."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

from kvsim_tui.export.svg import CELL, svg_of_lines

NAMESPACE = "{http://www.w3.org/2000/svg}"


def _elements(*segments: Segment, kind: str) -> list[dict[str, str]]:
    root = ET.fromstring(svg_of_lines([Strip(segments)], "#000000"))
    found = list(root.iter(f"{NAMESPACE}{kind}"))
    return [element.attrib | {"content": element.text or ""} for element in found]


def test_no_text_is_stretched_to_a_length() -> None:
    assert "textLength" not in svg_of_lines([Strip([Segment("a line of words")])], "#000000")


def test_every_word_stands_at_its_column() -> None:
    words = _elements(Segment("running   59  "), Segment("r1 <b>", Style(color="#ff0000", bold=True)), kind="text")
    assert [(word["content"], int(word["x"]) // CELL[0]) for word in words] == [
        ("running", 0),
        ("59", 10),
        ("r1", 14),
        ("<b>", 17),
    ]
    assert words[2]["fill"] == "#ff0000"
    assert words[2]["class"] == "b"


def test_blocks_are_rectangles_of_their_colours() -> None:
    style = Style(color="#112233", bgcolor="#445566")
    ground, half = _elements(Segment("▀▀", style), kind="rect")[1:]
    assert (ground["fill"], ground["width"], ground["height"]) == ("#445566", str(2 * CELL[0]), str(CELL[1]))
    assert (half["fill"], half["width"], half["height"]) == ("#112233", str(2 * CELL[0]), str(CELL[1] // 2))
    eighths = _elements(Segment("▍", style), kind="rect")[-1]
    assert float(eighths["width"]) == CELL[0] * 3 / 8
    assert not _elements(Segment("▀█▍", style), kind="text")


def test_reverse_and_dim_are_drawn() -> None:
    reverse = _elements(Segment("x", Style(color="#ffffff", bgcolor="#ff0000", reverse=True)), kind="rect")[-1]
    assert reverse["fill"] == "#ffffff"
    dim = _elements(Segment("x", Style(color="#ffffff", bgcolor="#000000", dim=True)), kind="text")[0]
    assert dim["fill"] in ("#7f7f7f", "#808080")
