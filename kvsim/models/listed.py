"""The models that can be named: `listed.toml` beside this file, read when the first one is asked for."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.errors import UnknownNameError
from kvsim.models.huggingface import from_fields, read_config
from kvsim.models.shape import Model

_SUFFIXES = ("-instruct", "-it", "-chat", "-hf", "-base")
"""Endings that tell variants of one shape apart."""


@cache
def all_models() -> tuple[Model, ...]:
    """Every model that can be named on a command line."""
    table = tomllib.loads(Path(__file__).with_name("listed.toml").read_text(encoding="utf-8"))
    return tuple(_model(entry) for entry in table["model"])


def _model(entry: dict[str, Any]) -> Model:
    fields = entry["config"]
    if isinstance(fields.get("layer_types"), str):
        fields = fields | {"layer_types": _expanded(fields["layer_types"])}
    return replace(
        from_fields(fields, name=entry["name"], where=f"the entry of {entry['name']}"),
        sources=tuple(entry["sources"]),
        from_memory=tuple(entry.get("from_memory", ())),
        note=entry.get("note", ""),
    )


def _expanded(runs: str) -> list[str]:
    """The list that a text such as "mamba*5 attention" stands for."""
    names = []
    for run in runs.split():
        name, _, times = run.partition("*")
        names += [name] * int(times or 1)
    return names


def find_model(name: str) -> Model:
    """The model of that name, in any case: all of it, the part after the slash, or whole words of that part.

    "meta-llama/Meta-Llama-3-8B", "Meta-Llama-3-8B-Instruct" and "llama-3-8b" are one model; "llama-3" could be several:
    refused. A path to a `config.json`, or to a folder that holds one, is the model that it describes.

    Raises:
        UnknownNameError: if no listed model, or more than one, goes by that name.
        UsageError: if the file at that path describes no model that kvsim knows.
    """
    if _is_file(name):
        return read_config(Path(name).expanduser())
    owner, _, title = name.strip().casefold().rpartition("/")
    listed = [model for model in all_models() if not owner or model.name.casefold().startswith(f"{owner}/")]
    for matches in (
        [model for model in listed if _title(model) == title],
        [model for model in listed if _bare(_title(model)) == _bare(title)],
        [model for model in listed if f"-{title}-" in f"-{_title(model)}-"],
        [model for model in listed if f"-{_bare(title)}-" in f"-{_title(model)}-"],
    ):
        if len(matches) == 1:
            return matches[0]
        if matches:
            break
    names = [model.name for model in matches or all_models()]
    raise UnknownNameError("model", name, names, listed_by="kvsim size --list")


def _is_file(name: str) -> bool:
    if "/" not in name and not name.endswith(".json") and name not in (".", ".."):
        return False
    try:
        path = Path(name).expanduser()
        return path.is_file() or (path / "config.json").is_file()
    except (OSError, ValueError, RuntimeError):  # a name that no path could have
        return False


def _title(model: Model) -> str:
    return model.name.casefold().rpartition("/")[2]


def _bare(title: str) -> str:
    """A title without the endings that variants of one shape carry, and without the dates of their versions."""
    title = re.sub(r"-(v\d+(\.\d+)?)$", "", title)
    for suffix in _SUFFIXES:
        title = title.removesuffix(suffix)
    return title
