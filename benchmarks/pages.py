"""Tables of the pages that commands in this folder make."""

from __future__ import annotations

from collections.abc import Sequence


def with_rows(page: str, head: str, rows: Sequence[str]) -> str:
    """`page` with `rows` below the head, that begins so, and the rule of a table."""
    begin = page.index("\n", page.index("\n", page.index(head)) + 1) + 1
    return page[:begin] + "\n".join(rows) + page[page.index("\n\n", begin) :]
