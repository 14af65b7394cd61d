"""Pages that are made from tables of the code are what the tables say."""

from __future__ import annotations

from runpy import run_path

import pytest

from ..conftest import REPOSITORY

REFERENCE = REPOSITORY / "docs/reference"


@pytest.mark.parametrize("name", ["settings", "versions"])
def test_the_page_is_what_the_table_says(name: str) -> None:
    page = run_path(str(REFERENCE / f"make_{name}"))["page"]()
    assert (REFERENCE / f"{name}.md").read_text(encoding="utf-8") == page, f"run docs/reference/make_{name}"
