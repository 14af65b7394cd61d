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
    "../README.md",
    *(
        "index.md",
        "answers.md",
        "figures.md",
        "fleets.md",
        "hf-memory.md",
        "how-to.md",
        "sizing.md",
        "upgrades.md",
        *(
            f"policies/{name}.md"
            for name in ("contiguous", "eviction", "packing", "paged", "radix", "sharing", "static")
        ),
        "reference/recordings.md",
    ),
    *(f"tutorials/{name}.md" for name in ("learner", "writer", "engineer", "researcher")),
    *sorted(f"questions/{file.name}" for file in (DOCS / "questions").glob("*.md") if file.name != "README.md"),
]
_BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
_SHELL = ("printf ",)
_INSTALLS = ("pip install ",)
_OF_SEVERAL_SERVERS = ("--replicas", "--prefill", "--decode", "--data-parallel-size", "--prefix-store-gib")
"""Flags beside which --no-band is refused, because runs of several servers are not repeated."""
_CARD = """name = "mine"
memory_gib = 79.6
bandwidth_gb_per_s = 3350
dense_tflops = 989
num_processors = 132
boost_mhz = 1980
"""


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of each block that a reader may copy; `console` blocks need a server of one's own."""
    return _BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


def run_line(line: str) -> None:
    command, _, comment = line.partition("  #")
    for part in command.strip().split(" && "):
        if part and not part.startswith(_INSTALLS):
            run_shell(part, int(comment.partition("exit status ")[2] or 0))


def run_shell(line: str, code: int) -> None:
    if line.startswith(_SHELL):
        subprocess.run(["bash", "-c", line], check=True)
        return
    program, command, *words = shlex.split(line)
    assert program == "kvsim", line
    arguments = [name for word in words for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
    if command == "tui":  # without a terminal, the same as a picture
        arguments += ["--screenshot", "tui.svg", "--overwrite"]
    if command in {"fit", "diagnose"}:  # the load alone, and few requests of it
        arguments += ["--points", "0", "--jobs", "1", "--engine", "interpreted"]
        arguments += ["--num-requests", "30"] if command == "fit" and "--sessions" not in arguments else []
    if "1000000" in arguments:  # as many again, a few at a time
        arguments[arguments.index("1000000")] = "1000"
    if command == "animate" and "--length" not in arguments:
        arguments += ["--length", "2"]
    if command == "run" and not {"--no-band", *_OF_SEVERAL_SERVERS} & set(arguments):
        arguments.append("--no-band")
    result = CliRunner().invoke(cli, [command, *arguments])
    assert result.exit_code == code, f"{line}\n{result.output}\n{result.exception!r}"


def put_files_of_a_reader() -> None:
    """What pages speak of as the reader's own, in the current folder: requests, a model, a card."""
    for folder in ("traces", "examples"):
        Path(folder).symlink_to(REPOSITORY / folder)
    Path("requests.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,100,20\n0.5,300,10\n", encoding="utf-8")
    detail = {"total_input_tokens": 400, "input_lens": [100, 300], "output_lens": [20, 10], "start_times": [5.0, 5.5]}
    Path("result.json").write_text(json.dumps({"backend": "vllm", **detail}), encoding="utf-8")
    Path("mine.toml").write_text(_CARD, encoding="utf-8")
    shape = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}
    sizes = {"intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192}
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16"}
    Path("my-model").mkdir()
    Path("my-model", "config.json").write_text(json.dumps(config | shape | sizes), encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_on_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, names = blocks(page), {"__name__": page}
    assert found
    put_files_of_a_reader()
    for language, text in found:
        if language == "sh":
            for line in text.splitlines():
                run_line(line)
        elif not text.startswith("--8<--"):  # an example, which has a test of its own
            exec(compile(text, page, "exec"), names)


def test_every_page_with_commands_is_run() -> None:
    pages = [file for file in DOCS.glob("**/*.md") if _BLOCK.search(file.read_text(encoding="utf-8"))]
    assert {str(file.relative_to(DOCS)) for file in pages} <= set(PAGES)


def test_every_command_on_a_page_is_in_a_block_that_is_run() -> None:
    for file in DOCS.glob("**/*.md"):
        beside = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.findall(r"^ {4}kvsim .*", beside, re.MULTILINE), file


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
    small = {"ContinuousSettings", "PagedSettings", "ContiguousSettings", "StaticSettings",
             "AllAtOnce", "Budget", "Constant", "Empirical", "Fixed", "Gamma", "Gpu", "Growth", "LogNormal", "Model",
             "Order", "Poisson", "PrefixEviction", "Reserve", "Roofline", "StepTimeModel", "Uniform", "all_models",
             "shipped_names", "summarize", "KvsimError"}  # fmt: skip
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


@pytest.mark.parametrize("file", sorted((DOCS / "notebooks").glob("*.ipynb")), ids=lambda file: file.stem)
def test_a_notebook_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The assertions in its cells hold, such as the figures of published results."""
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    names: dict[str, object] = {"__name__": file.stem}
    for cell in json.loads(file.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), file.name, "exec"), names)


def test_the_first_notebook_has_twelve_cells() -> None:
    assert len(json.loads((DOCS / "notebooks" / "first-hour.ipynb").read_text(encoding="utf-8"))["cells"]) == 12
