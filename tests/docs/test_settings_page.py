"""The page of the settings follows their declarations."""

from __future__ import annotations

from runpy import run_path

from ..conftest import REPOSITORY

REFERENCE = REPOSITORY / "docs/reference"


def test_the_page_is_what_the_declarations_say() -> None:
    page = run_path(str(REFERENCE / "make_settings"))["page"]()
    assert (REFERENCE / "settings.md").read_text(encoding="utf-8") == page, "run docs/reference/make_settings"
