"""The paper of examples/paper has every kind of figure, and its script draws what it includes."""

from __future__ import annotations

import re

from kvsim.plots import FIGURES

from ..conftest import REPOSITORY

PAPER = REPOSITORY / "examples" / "paper"


def test_the_paper_has_every_kind_of_figure_and_its_script_draws_them() -> None:
    script = (PAPER / "make").read_text("utf-8")
    drawn = set(re.findall(r"^plot ([a-z-]+) ", script, re.MULTILINE))
    looped = re.search(r"^for kind in (.+); do plot \$kind paper", script, re.MULTILINE)
    assert looped is not None
    drawn |= set(looped[1].split())
    included = re.findall(r"^\\(?:column|wide)\{([a-z-]+)\}", (PAPER / "paper.tex").read_text("utf-8"), re.MULTILINE)
    assert drawn == set(FIGURES)
    assert sorted(included) == sorted(FIGURES)
