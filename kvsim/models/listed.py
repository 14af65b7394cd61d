"""The models that can be named: `listed.toml` beside this file, where each begins with a line for its name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from kvsim.errors import UnknownNameError, UsageError
from kvsim.files.contents import content_of
from kvsim.models.huggingface import from_fields, read_config
from kvsim.models.shape import Model
from kvsim.models.weights import find_quantization

_VARIANTS = frozenset(("instruct", "it", "pt", "chat", "hf", "base", "bf16", "meta", "nvidia", "c4ai"))
"""Words that tell variants of one shape apart, or name who made it."""
_TOKEN = re.compile(r"v\d+(?:\.\d+)*|a?\d+(?:\.\d+)?[bmke](?![a-z])|\d+x\d+b|[a-z]+|\d+(?:\.\d+)*")
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[bm]")
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


def find_model(name: str, longest: int | None = None) -> Model:
    """The model of that name, in any case: all of it, the part after the slash, or that without words for variants.

    "meta-llama/Meta-Llama-3-8B", "Meta-Llama-3-8B-Instruct" and "llama-3-8b" are one model. A name with a size may
    leave out words at its ends, if one model has the others; one without a size may not: "mistral" could be any. A path
    to a `config.json`, to a folder that holds one, or to the folder of a model in Hugging Face's cache, is the model
    that it describes. An ending such as "-AWQ" says how the weights are stored. `longest` is the longest sequence in
    tokens, for a configuration that does not say.

    Raises:
        UnknownNameError: if no listed model, or more than one, goes by that name.
        UsageError: if the file at that path describes no model that kvsim knows.
    """
    if _names_a_path(name) and (file := _config_of(name)) is not None:
        return read_config(file, longest)
    matches = _matches(name)
    if len(matches) == 1:
        return _sibling(name, _model(matches[0]))
    bare, quantization = _quantized(name)
    of_bare = _matches(bare) if quantization else []
    if len(of_bare) == 1:
        return _sibling(bare, _model(of_bare[0])).served(quantization=find_quantization(quantization))
    if (file := _config_of(name)) is not None:  # a folder here, whose name is no listed model's
        return read_config(file, longest)
    if _names_a_path(name) and Path(name).expanduser().is_dir():
        raise UsageError(f"the folder {name} has no config.json; --model takes a folder with one.")
    raise UnknownNameError("model", name, matches or _nearest(name), listed_by="kvsim size --list")


def taken_for(name: str, model: Model) -> str:
    """A sentence that says which model was taken where its name is not all that was asked for; else empty."""
    if _names_a_path(name) and _config_of(name) is not None:
        return ""
    bare, quantization = _quantized(name)
    if name.casefold() in (model.name.casefold(), _title(model.name)) or model.name not in _tables():
        return ""
    asked, found = (frozenset(_words(_title(text))) - {"meta", "nvidia"} for text in (bare, model.name))
    if asked == found and not quantization:
        return ""
    weights = f" with {quantization} weights" if quantization else ""
    return (
        f"{name} is taken for {model.name}{weights}: its shape, and a longest sequence of "
        f"{model.max_position_embeddings:,} tokens."
    )


def _sibling(name: str, model: Model) -> Model:
    """The model under a name of which the table says that it differs in its longest sequence."""
    siblings = _siblings(model.name)
    found = [full for full in siblings if name.strip().casefold() in (full.casefold(), _title(full))]
    return replace(model, name=found[0], max_position_embeddings=siblings[found[0]]) if found else model


@cache
def _siblings(name: str) -> dict[str, int]:
    (entry,) = tomllib.loads(_tables()[name])["model"]
    return dict(entry.get("siblings", {}))


def _matches(name: str) -> list[str]:
    """The listed models that go by that name."""
    owner, _, title = name.strip().casefold().rpartition("/")
    listed = [full for full in _tables() if not owner or full.casefold().startswith(f"{owner}/")]
    if exact := [full for full in listed if _title(full) == title]:
        return exact
    asked = _identity(title)
    if len(asked) < 2:
        return []
    same = [full for full in listed if _identity(_title(full)) == asked]
    if same or not any(_SIZE.fullmatch(word) for word in asked):
        return same
    return [full for full in listed if f" {' '.join(asked)} " in f" {' '.join(_identity(_title(full)))} "]


def _nearest(name: str) -> list[str]:
    """The listed models that share most words with a name that none goes by; all, where none shares any."""
    asked = set(_identity(_title(name.strip())))
    shared = {full: len(asked & set(_identity(_title(full)))) for full in _tables()}
    most = max(shared.values())
    return [full for full, number in shared.items() if number == most]


def _quantized(name: str) -> tuple[str, str]:
    """A name without the ending that says how the weights of a variant are stored, and what it says."""
    for ending, quantization in _QUANTIZED.items():
        if name.casefold().endswith(ending):
            return name[: -len(ending)], quantization
    return name, ""


def _names_a_path(name: str) -> bool:
    return "/" in name or name.endswith(".json") or name in (".", "..")


def _config_of(name: str) -> Path | None:
    """The file of a configuration at a path, in the folder there, or in the newest snapshot of Hugging Face's cache."""
    try:
        path = Path(name).expanduser()
        if path.is_file():
            return path
        if (path / "config.json").is_file():
            return path / "config.json"
        snapshots = sorted(path.glob("snapshots/*/config.json"))
        main = path / "refs" / "main"
        if len(snapshots) > 1 and main.is_file():
            commit = content_of(main, 1 << 10).decode().strip()
            snapshots = [file for file in snapshots if file.parent.name == commit] or snapshots
    except (OSError, ValueError, RuntimeError):  # a name that no path could have
        return None
    if len(snapshots) > 1:
        folders = ", ".join(file.parent.name for file in snapshots[:4])
        raise UsageError(f"{name} has {len(snapshots)} snapshots, {folders}; --model takes one of their folders.")
    return snapshots[0] if snapshots else None


def _title(name: str) -> str:
    return name.casefold().rpartition("/")[2]


def _words(title: str) -> list[str]:
    return _TOKEN.findall(title.casefold())


def _identity(title: str) -> tuple[str, ...]:
    """The words of a title that tell shapes apart."""
    parts = [part for part in re.split(r"[-_ ]", title.casefold()) if part not in _VARIANTS]
    return tuple(word for part in parts for word in _TOKEN.findall(part))
