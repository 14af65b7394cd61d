"""The public names: complete, lazy, and documented."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import kvsim

public: Any = kvsim
"""Its names as they are at run time; a type checker knows them one by one."""

if TYPE_CHECKING:
    from collections.abc import Callable


def type_checking_imports() -> dict[str, str]:
    """Name -> module, as a type checker sees the package."""
    tree = ast.parse(Path(kvsim.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


def test_what_a_type_checker_sees_is_what_there_is() -> None:
    assert type_checking_imports() == kvsim._HOME
    assert sorted(kvsim.__all__) == sorted({"__version__", *kvsim._HOME})
    assert len(set(kvsim.__all__)) == len(kvsim.__all__)
    assert dir(kvsim) == sorted(kvsim.__all__)


@pytest.mark.parametrize("name", sorted(kvsim._HOME))
def test_every_name_is_there_documented_and_public_at_home(name: str) -> None:
    value = getattr(kvsim, name)
    home = import_module(kvsim._HOME[name])
    assert value is getattr(home, name)
    assert value.__doc__
    assert name in getattr(home, "__all__", [name])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'kvsim' has no attribute 'simulte'"):
        kvsim.simulte  # noqa: B018


def test_the_version_is_that_of_the_project(repository: Path) -> None:
    project = (repository / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{kvsim.__version__}"' in project
    assert re.fullmatch(r"\d+\.\d+\.\d+", kvsim.__version__)


@pytest.mark.parametrize(
    "room",
    ["recording", "replay", "simulation", "metrics", "workload", "importers", "policies", "profiles", "hardware"],
)
def test_every_name_that_a_room_offers_is_there_and_documented(room: str) -> None:
    module = import_module(f"kvsim.{room}")
    assert module.__doc__
    assert len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, name


def test_a_run_with_public_names_alone(make_machine: Callable[[int], Any], tmp_path: Path) -> None:
    requests = [
        public.Request(id=f"r{row}", arrival_s=row / 50, prompt_tokens=20, output_tokens=10, max_tokens=10)
        for row in range(6)
    ]
    workload = public.Workload.from_requests(requests)
    recording = public.simulate(workload, public.Paged(), make_machine(1_000))
    again = public.read(public.write(recording, tmp_path / "rec"))
    assert public.summarize(again).as_dict() | {"name": ""} == public.summarize(recording).as_dict() | {"name": ""}
    assert public.Replay(again).num_frames == len(recording.steps) + 1
    assert len(public.workload_of(again)) == 6
