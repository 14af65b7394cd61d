"""Lookup of the model that `--model` names, in `listed.toml` or in a `config.json`.

`listed.toml` has one table per model. Parsing all tables would delay every command, so the file is split as text, and a
table is parsed only when its model is used.
"""

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
from kvsim.setting_fields import check_instance, whole_number

_VARIANTS = frozenset(("instruct", "it", "pt", "chat", "hf", "base", "bf16", "meta", "nvidia", "c4ai"))
"""Words in the name of a model that do not change its shape: names of variants and makers."""
_TOKEN = re.compile(r"v\d+(?:\.\d+)*|a?\d+(?:\.\d+)?[bmke](?![a-z])|\d+x\d+b|[a-z]+|\d+(?:\.\d+)*")
"""Pattern of one word in the name of a model, such as "v0.2", "7b", "8x7b", "llama" or "3.1"."""
_SIZE = re.compile(r"(?:\d+x)?\d+(?:\.\d+)?[bm]")
"""Pattern of a number of parameters in the name of a model, such as "7b" or "8x7b"."""
_QUANTIZED = (
    (re.compile(r"[-_.](?:quantized[.])?(?:fp8(?:-(?:dynamic|kv|block|static|static-per-tensor))?)$"), "fp8"),
    (re.compile(r"[-_.](?:quantized[.])?(?:gptq-int8|w8a8|w8a16|int8)$"), "int8"),
    (re.compile(r"[-_.](?:(?:int4[-_])?awq(?:[-_](?:int4|4bit|marlin))?|quantized[.]w4a16|w4a16)$"), "awq"),
    (re.compile(r"[-_.]gptq(?:[-_](?:int4|4bit|marlin))?$"), "gptq"),
    (re.compile(r"[-_.](?:nv)?fp4$"), "nvfp4"),
    (re.compile(r"[-_.](?:bnb|unsloth-bnb)-4bit$"), "bitsandbytes"),
)
"""Endings of the names of quantized checkpoints, each with its value of `--quantization`."""
_CACHED = re.compile(r"(?:^|/)models--([^/]+?)--([^/]+)")
"""Pattern of a model in the cache of Hugging Face, such as "models--Qwen--Qwen3-8B". Its groups: owner and title."""
_TABLE_BEGIN = "\n[[model]]\n"


def all_models() -> tuple[Model, ...]:
    """Return all listed models."""
    return tuple(each_model())


def each_model() -> Iterator[Model]:
    """Yield all listed models. Each is built when the iterator reaches it."""
    return (_model(name) for name in _tables())


@cache
def _tables() -> dict[str, str]:
    """Return the text of each table in `listed.toml`, by the name of the table's model."""
    _, *tables = Path(__file__).with_name("listed.toml").read_text(encoding="utf-8").split(_TABLE_BEGIN)
    # The first quoted text of a table is the model's name.
    return {table.partition('"')[2].partition('"')[0]: _TABLE_BEGIN + table for table in tables}


@cache
def _entry(name: str) -> dict[str, Any]:
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
    """Expand a text such as "mamba*5 attention" to a list of six names."""
    names = []
    for run in runs.split():
        name, _, times = run.partition("*")
        names += [name] * int(times or 1)
    return names


def find_model(name: str, longest: int | None = None) -> Model:
    """Return the model called `name`, or the one at this path. Upper and lower case are the same.

    - A path to a `config.json`, to its folder, or to a model folder in the cache of Hugging Face gives the model
      described there.
    - Owner and variant words may be left out: "meta-llama/Meta-Llama-3-8B", "Meta-Llama-3-8B-Instruct" and "llama-3-8b"
      are one model.
    - An unknown owner or folder is ignored: "unsloth/Llama-3.2-1B", "/models/Qwen3-8B".
    - Words at both ends of a name with a size may be left out, if only one listed model matches. A name without a size
      must have all words, because "mistral" would be ambiguous.
    - An ending such as "-AWQ" sets the quantization.

    `longest` is the number of tokens in the longest sequence, used if a `config.json` states none.

    Raises:
        UnknownNameError: the name matches no listed model, or more than one.
        UsageError: the file describes no model that kvsim knows.
    """
    check_instance("a model", name, str, "a name such as 'Llama-3-8B', or a path")
    if not name.strip():
        raise UnknownNameError("model", name, _tables(), listed_by="kvsim size --list")
    if longest is not None:
        longest = whole_number("longest", longest)
    if _names_a_path(name) and (file := _config_of(name)) is not None:
        return read_config(file, longest)
    name = _unfolded(name)
    bare, quantization = _quantized(name)
    matches = _matches(name)
    # The more of a name matches, the better: try the whole name before leaving out its ending, or its owner.
    for asked, method in ((name, ""), (bare, quantization), (_last(name), ""), (_last(bare), quantization)):
        matching = _matches(asked)
        if len(matching) == 1:
            model = _sibling(asked, _model(matching[0]))
            return model.served(quantization=find_quantization(method)) if method else model
    if (file := _config_of(name)) is not None:  # a folder whose name is not a listed model
        return read_config(file, longest)
    if _names_a_path(name) and Path(name).expanduser().is_dir():
        raise UsageError(f"the folder {name} has no config.json; --model takes a folder with one.")
    if name.startswith((".", "/", "~")):  # no name of a model begins so
        raise UsageError(
            f"{name} does not exist; --model takes a folder with a config.json, or a name that kvsim size --list lists."
        )
    raise UnknownNameError("model", name, matches or _nearest(name), listed_by="kvsim size --list")


def taken_for(name: str, model: Model) -> str:
    """Return a message that says which model `name` was taken for; empty if the name is exact or a path."""
    if _names_a_path(name) and _config_of(name) is not None:
        return ""
    bare, quantization = _quantized(_unfolded(name))
    is_listed = model.name in _tables() or any(model.name.casefold() in names for names in _siblings().values())
    if name.casefold() in (model.name.casefold(), _title(model.name)) or not is_listed:
        return ""
    written, resolved = (frozenset(_words(_title(text))) - {"meta", "nvidia"} for text in (bare, model.name))
    owner = bare.casefold().rpartition("/")[0]
    if written == resolved and not quantization and owner in ("", model.name.casefold().rpartition("/")[0]):
        return ""
    weights = f" with {quantization} weights" if quantization else ""
    return (
        f"{name} is taken for {model.name}{weights}: its shape, and a longest sequence of "
        f"{model.max_position_embeddings:,} tokens."
    )


def _sibling(name: str, model: Model) -> Model:
    """Return the sibling of `model` called `name`, or `model` if there is none.

    Siblings differ only in their names and longest sequences.
    """
    siblings = _entry(model.name).get("siblings", {})
    matching = [full for full in siblings if name.strip().casefold() in (full.casefold(), _title(full))]
    return replace(model, name=matching[0], max_position_embeddings=siblings[matching[0]]) if matching else model


def _matches(name: str) -> list[str]:
    """Return the names of the listed models that match `name`.

    Rules are tried from strict to loose. The first rule that matches any model decides.
    """
    owner, _, title = name.strip().casefold().rpartition("/")
    if of_sibling := [full for full, names in _siblings().items() if name.strip().casefold() in names]:
        return of_sibling
    listed = [full for full in _tables() if not owner or full.casefold().startswith(f"{owner}/")]
    if exact := [full for full in listed if _title(full) == title]:
        return exact
    words = _identity(title)
    if len(words) < 2:
        return []
    same = [full for full in listed if _identity(_title(full)) == words]
    if same or not any(_SIZE.fullmatch(word) for word in words):
        return same
    return _newest([full for full in listed if f" {' '.join(words)} " in f" {' '.join(_identity(_title(full)))} "])


def _newest(names: list[str]) -> list[str]:
    """Return only the newest name if `names` differ only in a version, such as v0.2 and v0.3; otherwise all names."""
    unversioned = {tuple(word for word in _identity(_title(name)) if word[0] != "v") for name in names}
    return [max(names)] if len(unversioned) == 1 and len(names) > 1 else names


@cache
def _siblings() -> dict[str, frozenset[str]]:
    """Return the names of siblings, with and without owners, by the name of the model that has them in its table."""
    siblings = {}
    for full, table in _tables().items():
        names = re.findall(r'^"(.+)" = \d+$', table.partition("[model.siblings]")[2], re.MULTILINE)
        if names:
            siblings[full] = frozenset(text for each in names for text in (each.casefold(), _title(each)))
    return siblings


def _last(name: str) -> str:
    return name.strip().rstrip("/").rpartition("/")[2]


def _unfolded(name: str) -> str:
    """Return the name of a model from its folder in a cache of Hugging Face or ModelScope; other names unchanged."""
    cached = _CACHED.search(name)
    # ModelScope writes a dot in a folder's name as three underscores.
    return (f"{cached[1]}/{cached[2]}" if cached else name).replace("___", ".")


def _nearest(name: str) -> list[str]:
    """Return the names of the listed models that have the most words in common with an unknown name."""
    words = set(_identity(_title(name.strip())))
    shared = {full: len(words & set(_identity(_title(full)))) for full in _tables()}
    most = max(shared.values())
    return [full for full, number in shared.items() if number == most]


def _quantized(name: str) -> tuple[str, str]:
    """Split a name into the part before an ending such as "-AWQ", and the quantization meant ("" if none)."""
    name = name.strip().rstrip("/")
    for ending, quantization in _QUANTIZED:
        if match := ending.search(name.casefold()):
            return name[: match.start()], quantization
    return name, ""


def _names_a_path(name: str) -> bool:
    return "/" in name or name.endswith(".json") or name in (".", "..")


def _config_of(name: str) -> Path | None:
    """Return the configuration file at path `name`, or in the folder `name`; None without one.

    A model folder in the cache of Hugging Face has snapshots. The file is in the only snapshot, or in the snapshot that
    `refs/main` names.

    Raises:
        UsageError: the folder has several snapshots, and `refs/main` does not name one.
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
    """Return the words in the title of a model without variant words. They are equal for models of the same shape."""
    parts = [part for part in re.split(r"[-_ ]", title.casefold()) if part not in _VARIANTS]
    return tuple(word for part in parts for word in _TOKEN.findall(part))
