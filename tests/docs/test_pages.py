"""The pages of the documentation: every command and every program on them runs, in the order of the page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

import kvsim
from kvsim.cli import cli

from ..conftest import REPOSITORY

pytestmark = pytest.mark.slow

DOCS = REPOSITORY / "docs"
PAGES = [
    *("index.md", "answers.md", "how-to.md", "reference/recordings.md"),
    *(f"tutorials/{name}.md" for name in ("learner", "writer", "engineer", "researcher")),
]
_BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
_SHELL = ("printf ",)
_INSTALLS = ("pip install ",)


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block that a reader may copy; `console` blocks need a server of one's own."""
    return _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


def run_shell(line: str) -> None:
    line = line.partition("  #")[0].strip()
    if not line or line.startswith(_INSTALLS):
        return
    if line.startswith(_SHELL):
        subprocess.run(["bash", "-c", line], check=True)
        return
    program, command, *arguments = shlex.split(line)
    assert program == "kvsim", line
    if command == "tui":  # without a terminal, the same as a picture
        arguments += ["--screenshot", "tui.svg", "--overwrite"]
    if command in {"fit", "diagnose"}:  # the load alone, and few requests of it
        arguments += ["--points", "0", "--jobs", "1", "--engine", "interpreted"]
        arguments += ["--num-requests", "30"] if command == "fit" else []
    if command == "run" and "--no-band" not in arguments:
        arguments.append("--no-band")
    result = CliRunner().invoke(cli, [command, *arguments])
    assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(page)
    assert found
    for language, text in found:
        if language == "sh":
            for line in text.splitlines():
                run_shell(line)
        elif not text.startswith("--8<--"):  # an example, which has a test of its own
            exec(compile(text, page, "exec"), {"__name__": page})


def test_every_example_on_a_page_is_there() -> None:
    named = {name for page in PAGES for name in re.findall(r'--8<-- "(.+?)"', (DOCS / page).read_text("utf-8"))}
    assert named == {f"examples/{file.name}" for file in (REPOSITORY / "examples").glob("*.py")}


def test_every_page_is_in_the_contents() -> None:
    class Loader(yaml.SafeLoader):
        """Takes the tags of plugins as text."""

    contents = yaml.load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"), Loader)

    def files(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        items = entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else []
        return [name for item in items for name in files(item)]

    listed = files(contents["nav"])
    there = {str(file.relative_to(DOCS)) for ending in ("md", "ipynb") for file in DOCS.glob(f"**/*.{ending}")}
    assert sorted(listed) == sorted(there)


def test_every_public_function_and_class_is_in_the_reference() -> None:
    text = (DOCS / "reference" / "python.md").read_text(encoding="utf-8")
    documented = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    small = {"AllAtOnce", "Budget", "Constant", "Empirical", "Fixed", "Gamma", "Gpu", "Growth", "LogNormal", "Model",
             "Order", "Poisson", "Reserve", "Roofline", "StepTimeModel", "Uniform", "all_models", "shipped_names",
             "summarize", "KvsimError"}  # fmt: skip
    assert {*kvsim.__all__, "StepInMaking", "ServedRequest"} - {"__version__"} - small <= documented
    for name in small:
        assert f"`{name}`" in text, name


@pytest.mark.parametrize("file", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem)
def test_a_notebook_holds_no_results(file: Path) -> None:
    """They are made when the site is built, so that they are never those of an earlier version."""
    book = json.loads(file.read_text(encoding="utf-8"))
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert code
    assert not any(cell["outputs"] for cell in code)


def test_the_first_notebook_has_twelve_cells() -> None:
    assert len(json.loads((DOCS / "notebooks" / "first-hour.ipynb").read_text(encoding="utf-8"))["cells"]) == 12
