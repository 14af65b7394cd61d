"""The models that can be named: `listed.toml` beside this file, where each begins with a line for its name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from kvsim.errors import UnknownNameError
from kvsim.models.huggingface import from_fields, read_config
from kvsim.models.shape import Model
from kvsim.models.weights import find_quantization

_SUFFIXES = ("-instruct", "-it", "-chat", "-hf", "-base")
"""Endings that tell variants of one shape apart."""
_QUANTIZED = {"-fp8": "fp8", "-awq": "awq", "-gptq-int4": "gptq", "-gptq": "gptq"}
"""Endings of variants whose weights are stored otherwise, and how."""
_BEGIN = "\n[[model]]\n"


def all_models() -> tuple[Model, ...]:
    """Every model that can be named on a command line."""
    return tuple(each_model())


def each_model() -> Iterator[Model]:
    """Every model that can be named on a command line, one after the other, each made when it is asked for."""
    return (_model(name) for name in _tables())


@cache
def _tables() -> dict[str, str]:
    """The tables of `listed.toml`, by the models' names; each is parsed when its model is asked for."""
    _, *tables = Path(__file__).with_name("listed.toml").read_text(encoding="utf-8").split(_BEGIN)
    return {table.partition('"')[2].partition('"')[0]: _BEGIN + table for table in tables}


@cache
def _model(name: str) -> Model:
    """The model of a table; made when it is asked for, since most are not."""
    (entry,) = tomllib.loads(_tables()[name])["model"]
    fields = entry["config"]
    if isinstance(fields.get("layer_types"), str):
        fields = fields | {"layer_types": _expanded(fields["layer_types"])}
    return replace(
        from_fields(fields, name=name, where=f"the entry of {name}"),
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
    refused. A path to a `config.json`, or to a folder that holds one, is the model that it describes. An ending such as
    "-AWQ" says how the weights are stored.

    Raises:
        UnknownNameError: if no listed model, or more than one, goes by that name.
        UsageError: if the file at that path describes no model that kvsim knows.
    """
    if _names_a_path(name) and _is_config(name):
        return read_config(Path(name).expanduser())
    matches = _matches(name)
    if len(matches) == 1:
        return _model(matches[0])
    bare, quantization = _quantized(name)
    of_bare = _matches(bare) if quantization else []
    if len(of_bare) == 1:
        return _model(of_bare[0]).served(quantization=find_quantization(quantization))
    if _is_config(name):  # a folder here, whose name is no listed model's
        return read_config(Path(name).expanduser())
    raise UnknownNameError("model", name, matches or list(_tables()), listed_by="kvsim size --list")


def _matches(name: str) -> list[str]:
    """The listed models that go by that name."""
    owner, _, title = name.strip().casefold().rpartition("/")
    listed = [full for full in _tables() if not owner or full.casefold().startswith(f"{owner}/")]
    bare = _bare(title)
    return (
        [full for full in listed if _title(full) == title]
        or [full for full in listed if _bare(_title(full)) == bare]
        or [full for full in listed if f"-{title}-" in f"-{_title(full)}-"]
        or [full for full in listed if f"-{bare}-" in f"-{_title(full)}-"]
    )


def _quantized(name: str) -> tuple[str, str]:
    """A name without the ending that says how the weights of a variant are stored, and what it says."""
    for ending, quantization in _QUANTIZED.items():
        if name.casefold().endswith(ending):
            return name[: -len(ending)], quantization
    return name, ""


def _names_a_path(name: str) -> bool:
    return "/" in name or name.endswith(".json") or name in (".", "..")


def _is_config(name: str) -> bool:
    try:
        path = Path(name).expanduser()
        return path.is_file() or (path / "config.json").is_file()
    except (OSError, ValueError, RuntimeError):  # a name that no path could have
        return False


def _title(name: str) -> str:
    return name.casefold().rpartition("/")[2]


def _bare(title: str) -> str:
    """A title without the endings that variants of one shape carry, and without the dates of their versions."""
    title = re.sub(r"-(v\d+(\.\d+)?)$", "", title)
    for suffix in _SUFFIXES:
        title = title.removesuffix(suffix)
    return title
