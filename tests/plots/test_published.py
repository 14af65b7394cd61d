"""Published figures beside ours, drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import UsageError
from kvsim.plots import save
from kvsim.plots.published import beside_published
from kvsim.published import Figure, PublishedRow, Reproduction

ROW = PublishedRow(
    name="made-up",
    title="Two figures",
    source="nobody",
    band="one either way",
    figures=tuple(Figure.of(label, at, {"within": 1, "unit": "s"}) for label, at in (("first", 10), ("second", 20))),
    reproduce=lambda progress: [10.5, 22.0],  # noqa: ARG005
)


def test_misses_are_counted_and_every_number_is_in_the_words(tmp_path: Path) -> None:
    picture = beside_published([Reproduction(row=ROW, ours=(10.5, 22.0)), Reproduction(row=ROW, ours=(10.0, 20.0))])
    assert "4 published figures and ours: 1 outside the band" in [text.get_text() for text in picture.texts]
    assert "first: published 10 s, ours 10.5; second: published 20 s, ours 22" in picture.alt_text
    assert len(picture.axes) == 2
    markers = [line.get_marker() for line in picture.axes[0].lines]
    assert markers == ["|", "o", "|", "X"]
    assert save(picture, tmp_path / "rows.png").stat().st_size > 5000


def test_all_inside_is_said_too() -> None:
    picture = beside_published([Reproduction(row=ROW, ours=(10.5, 20.0))], purpose="paper")
    assert any("all inside" in text.get_text() for text in picture.texts)


def test_nothing_cannot_be_drawn() -> None:
    with pytest.raises(UsageError, match="nothing to draw"):
        beside_published([])
