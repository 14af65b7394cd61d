"""A race: bars that grow as answers come out, in a file that every code host can show."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.plots import write_race
from kvsim.plots.race import answered

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.recording import Recording

NAMESPACE = "{http://www.w3.org/2000/svg}"


def test_bars_grow_with_the_answers(by_hand: Recording, tmp_path: Path) -> None:
    file = write_race([by_hand, by_hand], tmp_path / "race.svg", length_s=20)
    root = ET.fromstring(file.read_text(encoding="utf-8"))
    films = [
        [float(value) for value in animation.attrib["values"].split(";")]
        for animation in root.iter(f"{NAMESPACE}animate")
    ]
    assert len(films) == 3, "the clock and a bar for each run"
    for widths in films:
        assert widths == sorted(widths)
    assert {animation.attrib["dur"] for animation in root.iter(f"{NAMESPACE}animate")} == {"20s"}
    assert "textLength" not in file.read_text(encoding="utf-8")


def test_the_bars_are_dark_where_the_readers_system_is(by_hand: Recording, tmp_path: Path) -> None:
    root = ET.fromstring(write_race([by_hand], tmp_path / "race.svg", length_s=20).read_text(encoding="utf-8"))
    style = root.findtext(f"{NAMESPACE}style", "")
    assert style.startswith("@media (prefers-color-scheme:dark)")
    dark = dict(re.findall(r"\.([\w-]+)\{fill:(#\w+)\}", style))
    drawn = [element for element in root.iter() if "fill" in element.attrib]
    assert len(drawn) > 6
    for element in drawn:
        assert dark[element.attrib["class"]] != element.attrib["fill"]


def test_everything_is_answered_in_the_end(by_hand: Recording) -> None:
    shares = answered(by_hand, np.linspace(0, by_hand.duration_s, 5))
    assert shares[0] == 0
    assert shares[-1] == pytest.approx(1)
