"""Find a listed model by name; `listed.toml` has one table per model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.errors import UnknownNameError, UsageError
from kvsim.files.contents import content_of
from kvsim.models.huggingface import from_fields, read_config
from kvsim.models.shape import Model
from kvsim.models.weights import find_quantization

_VARIANTS = frozenset(("instruct", "it", "pt", "chat", "hf", "base", "bf16", "meta", "nvidia", "c4ai"))
"""Words for variants of one shape, or for their maker."""
_TOKEN = re.compile(r"v\d+(?:\.\d+)*|a?\d+(?:\.\d+)?[bmke](?![a-z])|\d+x\d+b|[a-z]+|\d+(?:\.\d+)*")
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[bm]")
_QUANTIZED = {"-fp8": "fp8", "-awq": "awq", "-gptq-int4": "gptq", "-gptq": "gptq"}
"""Endings of variants with quantized weights, and the method."""
_BEGIN = "\n[[model]]\n"


def all_models() -> tuple[Model, ...]:
    """Return every listed model."""
    return tuple(each_model())


def each_model() -> Iterator[Model]:
    """Yield every listed model; each is built on demand."""
    return (_model(name) for name in _tables())


@cache
def _tables() -> dict[str, str]:
    """Return the texts of the tables in `listed.toml`, by model name."""
    _, *tables = Path(__file__).with_name("listed.toml").read_text(encoding="utf-8").split(_BEGIN)
    return {table.partition('"')[2].partition('"')[0]: _BEGIN + table for table in tables}


@cache
def _entry(name: str) -> dict[str, Any]:
    """Return the parsed table of a model; most are never needed."""
    (entry,) = tomllib.loads(_tables()[name])["model"]
    return dict(entry)


@cache
def _model(name: str) -> Model:
    entry = _entry(name)
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
    """Expand a text such as "mamba*5 attention" to a list."""
    names = []
    for run in runs.split():
        name, _, times = run.partition("*")
        names += [name] * int(times or 1)
    return names


def find_model(name: str, longest: int | None = None) -> Model:
    """Return the model of that name, in any case: the full name, the part after the slash, or without variant words.

    "meta-llama/Meta-Llama-3-8B", "Meta-Llama-3-8B-Instruct" and "llama-3-8b" are one model. A name with a size may
    leave out words at its ends if one model matches; a name without a size may not, since "mistral" is ambiguous. A
    path to a `config.json`, to its folder, or to a model folder in Hugging Face's cache gives the model described
    there. An ending such as "-AWQ" gives the quantization. `longest` is the longest sequence in tokens, for a
    configuration without one.

    Raises:
        UnknownNameError: the name matches no listed model, or more than one.
        UsageError: the file describes no model that kvsim knows.
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
    if (file := _config_of(name)) is not None:  # a folder whose name is not a listed model
        return read_config(file, longest)
    if _names_a_path(name) and Path(name).expanduser().is_dir():
        raise UsageError(f"the folder {name} has no config.json; --model takes a folder with one.")
    raise UnknownNameError("model", name, matches or _nearest(name), listed_by="kvsim size --list")


def taken_for(name: str, model: Model) -> str:
    """Return a sentence that names the model used for a partial name; empty for an exact name."""
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
    """Return the model under the name of a sibling, which differs in its longest sequence."""
    siblings = _entry(model.name).get("siblings", {})
    found = [full for full in siblings if name.strip().casefold() in (full.casefold(), _title(full))]
    return replace(model, name=found[0], max_position_embeddings=siblings[found[0]]) if found else model


def _matches(name: str) -> list[str]:
    """Return the listed models that match the name."""
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
    """Return the listed models that share most words with an unknown name; all if none shares any."""
    asked = set(_identity(_title(name.strip())))
    shared = {full: len(asked & set(_identity(_title(full)))) for full in _tables()}
    most = max(shared.values())
    return [full for full, number in shared.items() if number == most]


def _quantized(name: str) -> tuple[str, str]:
    """Return the name without the ending for its quantization, and the quantization."""
    for ending, quantization in _QUANTIZED.items():
        if name.casefold().endswith(ending):
            return name[: -len(ending)], quantization
    return name, ""


def _names_a_path(name: str) -> bool:
    return "/" in name or name.endswith(".json") or name in (".", "..")


def _config_of(name: str) -> Path | None:
    """Return the configuration file at a path, in the folder there, or in the newest snapshot of Hugging Face's
    cache.
    """
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
    """Return the words of a title that tell shapes apart."""
    parts = [part for part in re.split(r"[-_ ]", title.casefold()) if part not in _VARIANTS]
    return tuple(word for part in parts for word in _TOKEN.findall(part))
