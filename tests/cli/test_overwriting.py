"""Every command that writes keeps what it did not write, and replaces what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FLAG = "--overwrite replaces it"
SHIPPED = "hf-h200-granite-350m-batch500"
FEW = ("--num-requests", "3")
WRITES = {
    "rec": ("run", *FEW, "-o", "rec"),
    "compared": ("compare", *FEW, "-o", "compared"),
    "w.parquet": ("import", "rec", "-o", "w.parquet"),
    "f.png": ("plot", "queue", "rec", "-o", "f.png"),
    "s.svg": ("tui", "rec", "--screenshot", "s.svg"),
}
FILES = ("w.parquet", "f.png", "s.svg")


def test_again_is_fine_and_over_another_commands_is_not(
    type_command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    for name, arguments in WRITES.items():
        for _ in range(2):
            assert type_command(*arguments)[0] == 0, name
    for name in FILES:
        before = (tmp_path / name).read_bytes()
        for other in FILES:
            if name != other and not (other == "f.png" and name == "w.parquet"):
                code, _, complaint = type_command(*WRITES[other][:-1], name)
                assert code == 2, (name, other)
                assert FLAG in complaint or "a figure is written as" in complaint, (name, other)
        assert (tmp_path / name).read_bytes() == before
    for arguments in (WRITES["rec"], WRITES["compared"]):
        other = "compared" if arguments[0] == "run" else "rec"
        code, _, complaint = type_command(*arguments[:-1], other)
        assert (code, FLAG in complaint) == (2, True), complaint


def test_a_file_that_cannot_say_who_wrote_it_needs_the_flag(
    type_command: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    (tmp_path / "table.csv").write_text("mine")
    export = ("export", SHIPPED, "--to", "azure", "-o", "table.csv")
    code, _, complaint = type_command(*export)
    assert (code, FLAG in complaint) == (2, True)
    assert (tmp_path / "table.csv").read_text() == "mine"
    assert type_command(*export, "--overwrite")[0] == 0
    assert (tmp_path / "table.csv").read_text().startswith("TIMESTAMP,")
