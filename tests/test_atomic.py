"""Files and folders appear whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.atomic import whole_file, whole_folder
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_takes_its_name_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    with whole_file(target) as file:
        file.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "a"
    target.write_text("old")
    with pytest.raises(KeyError), whole_file(target):
        raise KeyError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_replaces_only_its_own_kind(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "report"
    for text in ("one", "two"):
        with whole_folder(target, replacing="mark") as folder:
            (folder / "mark").write_text(text)
    assert (target / "mark").read_text() == "two"
    (target / "mark").unlink()
    with pytest.raises(UsageError, match="nothing was overwritten"), whole_folder(target, replacing="mark"):
        pass
    assert [path.name for path in target.parent.iterdir()] == ["report"]


def test_a_folder_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    target = tmp_path / "report"
    with whole_folder(target, replacing="mark") as folder:
        (folder / "mark").write_text("old")
    with pytest.raises(KeyError), whole_folder(target, replacing="mark"):
        raise KeyError
    assert (target / "mark").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_path_through_a_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file/x"), whole_folder(tmp_path / "file" / "x"):
        pass
    with pytest.raises(UsageError, match=r"cannot write .*file/x"), whole_file(tmp_path / "file" / "x"):
        pass
