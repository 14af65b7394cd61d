"""Files and folders appear whole or not at all."""

from __future__ import annotations

import os
import stat
from errno import EACCES, ENOSPC
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


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o755])
@pytest.mark.parametrize("exchanges", [True, False])
def test_permissions_and_owners_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, exchanges: bool
) -> None:
    if not exchanges:
        monkeypatch.setattr(scratch, "_exchange", lambda _one, _other: False)
    file, folder = tmp_path / "a", tmp_path / "b"
    (folder / "figures").mkdir(parents=True)
    inside = folder / "figures" / "c"
    for path in (file, inside):
        path.write_text("old")
        path.chmod(mode)
    folder.chmod(0o700)
    paths, owner = (file, folder, inside), None
    if os.geteuid() == 0:  # nobody else may give a file away
        owner = (12345, 54321)
        for path in paths:
            os.chown(path, *owner)
    with whole_file(file) as new:
        new.write_text("new")
    with whole_folder(folder, replacing=True) as new:
        (new / "figures").mkdir(parents=True)
        (new / "figures" / "c").write_text("new")
        (new / "d").write_text("new")
    assert file.read_text() == inside.read_text() == "new"
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [mode, 0o700, mode]
    if owner is not None:
        assert {(path.stat().st_uid, path.stat().st_gid) for path in paths} == {owner}


def test_an_empty_folder_keeps_its_permissions(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o700)
    with whole_folder(tmp_path / "a", replacing=True) as new:
        new.mkdir(mode=0o755)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_a_symbolic_link_goes_on_pointing_to_what_is_replaced(tmp_path: Path) -> None:
    elsewhere = tmp_path / "disk"
    elsewhere.mkdir()
    for name in ("file", "folder"):
        (tmp_path / name).symlink_to(elsewhere / name)
    for text in ("one", "two"):  # the first time there is nothing where the links point
        with whole_file(tmp_path / "file") as new:
            new.write_text(text)
        if text == "one":
            (elsewhere / "folder").mkdir()
        with whole_folder(tmp_path / "folder", replacing=True) as new:
            new.mkdir()
            (new / "a").write_text(text)
        assert (elsewhere / "file").read_text() == (elsewhere / "folder" / "a").read_text() == text
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "folder").is_symlink()
    assert sorted(path.name for path in elsewhere.iterdir()) == ["file", "folder"]


def test_another_name_of_a_file_keeps_what_it_had(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    os.link(tmp_path / "a", tmp_path / "backup")
    with whole_file(tmp_path / "a") as new:
        new.write_text("new")
    assert [(tmp_path / name).read_text() for name in ("a", "backup")] == ["new", "old"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(ENOSPC, "free some, or choose another disk"), (EACCES, "choose a folder that exists and may be written")],
)
def test_what_helps_depends_on_what_is_wrong(tmp_path: Path, number: int, remedy: str) -> None:
    file = tmp_path / "file"
    with pytest.raises(UsageError) as error, whole_file(file):
        raise OSError(number, os.strerror(number))
    assert str(error.value) == f"cannot write {file}: {os.strerror(number)}; {remedy}."
