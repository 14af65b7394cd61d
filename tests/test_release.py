"""What a release is made by: the versions that files state, its notes, and the workflows that build and publish it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path, PurePath

import pytest
import yaml

from .conftest import REPOSITORY

WORKFLOWS = REPOSITORY / ".github" / "workflows"


@pytest.fixture
def released(tmp_path: Path) -> Path:
    """A copy of what the script reads, with a changelog whose first version has been released."""
    for name in (".ci/release-notes", "pyproject.toml", "kvsim/__init__.py", "CITATION.cff"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    changelog = "# Changelog\n\n## 0.2.0 (unreleased)\n\n- Later.\n\n## 0.1.0\n\n- First.\n\n### Names\n\n- None.\n"
    (tmp_path / "CHANGELOG.md").write_text(changelog)
    return tmp_path


def notes(folder: Path, tag: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, folder / ".ci/release-notes", tag], capture_output=True, text=True, check=False
    )


def test_the_notes_of_a_release_are_its_section_of_the_changelog(released: Path) -> None:
    told = notes(released, "v0.1.0")
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout == "- First.\n\n### Names\n\n- None.\n"


@pytest.mark.parametrize("name", ["pyproject.toml", "kvsim/__init__.py", "CITATION.cff"])
def test_a_tag_that_one_file_does_not_state_is_refused(released: Path, name: str) -> None:
    file = released / name
    file.write_text(file.read_text().replace("0.1.0", "0.1.1"))
    told = notes(released, "v0.1.0")
    assert (told.returncode, told.stdout) == (1, "")
    assert told.stderr == f"{name} says 0.1.1, and the tag is v0.1.0; tag the commit that states the version.\n"


def test_a_release_without_notes_is_refused(released: Path) -> None:
    (released / "CHANGELOG.md").write_text("# Changelog\n\n## 0.1.0 (unreleased)\n\n- First.\n")
    told = notes(released, "v0.1.0")
    assert told.returncode == 1
    assert told.stderr.startswith("CHANGELOG.md has no section '## 0.1.0' with notes")


def test_what_is_published_was_built_and_smoke_tested_by_what_tests_every_change() -> None:
    ci, publish, wheels = (
        yaml.safe_load((WORKFLOWS / f"{name}.yml").read_text()) for name in ("ci", "publish", "wheels")
    )
    assert ci["jobs"]["wheels"]["uses"] == publish["jobs"]["wheels"]["uses"] == "./.github/workflows/wheels.yml"
    assert "workflow_call" in wheels[True]  # YAML 1.1 reads the key `on` as a truth value
    assert publish["jobs"]["pypi"]["needs"] == "wheels"
    assert publish["jobs"]["pypi"]["permissions"] == {"id-token": "write"}
    assert wheels["jobs"]["smoke"]["strategy"]["matrix"]["kind"] == ["whl", "tar.gz"]


@pytest.mark.parametrize("file", sorted(WORKFLOWS.glob("*.yml")), ids=lambda file: file.stem)
def test_scripts_that_a_workflow_runs_are_there(file: Path) -> None:
    jobs = yaml.safe_load(file.read_text())["jobs"].values()
    lines = [line for job in jobs for step in job.get("steps", ()) for line in step.get("run", "").splitlines()]
    scripts = {word for line in lines for word in line.split() if word.startswith((".ci/", "./", "benchmarks/"))}
    for script in scripts:
        assert (REPOSITORY / script).is_file(), script


@pytest.mark.parametrize("folder", ["kvsim", "tui"])
def test_every_file_of_a_package_is_installed(folder: str) -> None:
    """Packages are folders with an `__init__.py`; other files are installed where a pattern names them."""
    build = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = build["package-data"]["*"]
    root = REPOSITORY / folder
    files = [file for file in root.rglob("*") if file.is_file() and "__pycache__" not in file.parts]
    assert files
    for file in files:
        if file.suffix == ".py":
            assert all((each / "__init__.py").exists() for each in file.parents if each.is_relative_to(root)), file
        else:
            assert any(PurePath(file.name).match(pattern.removeprefix("**/")) for pattern in patterns), file
