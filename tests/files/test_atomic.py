"""Files and folders appear whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.errors import UsageError
from kvsim.files import scratch
from kvsim.files.atomic import whole_file, whole_folder

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


def test_a_folder_is_replaced_where_that_is_allowed(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "report"
    for text in ("one", "two"):
        with whole_folder(target, replacing=True) as folder:
            folder.mkdir()
            (folder / "mark").write_text(text)
    assert (target / "mark").read_text() == "two"
    with pytest.raises(UsageError, match="nothing was overwritten"), whole_folder(target):
        pass
    assert [path.name for path in target.parent.iterdir()] == ["report"]


def test_a_file_is_never_replaced_by_a_folder(tmp_path: Path) -> None:
    target = tmp_path / "thesis"
    target.write_text("thesis")
    with pytest.raises(UsageError, match="nothing was overwritten"), whole_folder(target, replacing=True):
        pass
    assert target.read_text() == "thesis"


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_folder_that_fails_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanges: bool
) -> None:
    """Where names can be exchanged in one step, and where it takes two."""
    if not exchanges:
        monkeypatch.setattr(scratch, "_exchange", lambda _one, _other: False)
    target = tmp_path / "report"
    for text in ("older", "old"):
        with whole_folder(target, replacing=True) as folder:
            folder.mkdir()
            (folder / "mark").write_text(text)
    with pytest.raises(KeyError), whole_folder(target, replacing=True):
        raise KeyError
    with pytest.raises(UsageError, match="cannot write"), whole_folder(target, replacing=True):
        pass  # nothing was made that could take the name
    assert (target / "mark").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_path_through_a_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write .*file/x"), whole_folder(tmp_path / "file" / "x"):
        pass
    with pytest.raises(UsageError, match=r"cannot write .*file/x"), whole_file(tmp_path / "file" / "x"):
        pass
