"""Pages follow the code: tables that are made from it, and modules that are named on them."""

from __future__ import annotations

import re
from runpy import run_path

import pytest

from ..conftest import REPOSITORY

REFERENCE = REPOSITORY / "docs/reference"


@pytest.mark.parametrize("name", ["settings", "versions"])
def test_the_page_is_what_the_table_says(name: str) -> None:
    page = run_path(str(REFERENCE / f"make_{name}"))["page"]()
    assert (REFERENCE / f"{name}.md").read_text(encoding="utf-8") == page, f"run docs/reference/make_{name}"


_MODULE = re.compile(r"`((?:kvsim|tui)/[\w/]+\.(?:py|toml))`")
_HISTORY = "CHANGELOG.md"


def test_every_module_named_on_a_page_exists() -> None:
    pages = [page for page in [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")] if page.name != _HISTORY]
    named = {(page.name, path) for page in pages for path in _MODULE.findall(page.read_text(encoding="utf-8"))}
    assert named
    assert [each for each in sorted(named) if not (REPOSITORY / each[1]).exists()] == []
