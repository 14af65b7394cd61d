"""Name of the published checkpoint that `vllm serve` needs for a model.

vLLM can convert 16-bit weights to fp8 while loading. Every other weight format needs a checkpoint in that format.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import KvsimError
from kvsim.models import find_model

if TYPE_CHECKING:
    from kvsim.models import Model

_AWQ = {
    "meta-llama/Llama-2-7b-hf": "TheBloke/Llama-2-7B-AWQ",
    "meta-llama/Llama-3.1-8B": "hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4",
    "meta-llama/Llama-3.1-70B": "hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4",
    "meta-llama/Llama-3.1-405B": "hugging-quants/Meta-Llama-3.1-405B-Instruct-AWQ-INT4",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "TheBloke/Mixtral-8x7B-Instruct-v0.1-AWQ",
    "Qwen/Qwen2.5-7B-Instruct": "Qwen/Qwen2.5-7B-Instruct-AWQ",
    "Qwen/Qwen2.5-72B-Instruct": "Qwen/Qwen2.5-72B-Instruct-AWQ",
    "Qwen/Qwen3-8B": "Qwen/Qwen3-8B-AWQ",
    "Qwen/Qwen3-32B": "Qwen/Qwen3-32B-AWQ",
}
"""AWQ checkpoint of a listed model, by name. If the base model has none, it is that of an instruction-tuned sibling."""
_ONLINE = "fp8"
"""Format to which vLLM converts 16-bit weights while loading (`--quantization fp8`)."""


def hub_name(named: str) -> str:
    """Return the model's name with its organisation. A path or the name of an unlisted model is returned unchanged."""
    if "/" in named or Path(named).exists():
        return named
    try:
        listed = find_model(named).name
    except KvsimError:
        return named
    owner, slash, title = listed.rpartition("/")
    ending = named[len(title) :] if named.casefold().startswith(title.casefold()) else ""
    return f"{owner}{slash}{title}{ending}"


def checkpoint_of(model: Model, named: str) -> tuple[str, list[str]] | None:
    """Return the name of a checkpoint with the weights of `model`, and the flags that it needs; None if none is known.

    `named` is the user's name for the model, which may end in a quantization; empty for the model's own name.
    """
    name, wanted = hub_name(named or model.name), model.quantization
    stored = _stored(named or model.name)
    if stored == (wanted and wanted.method):
        is_bare = wanted is not None and "/" not in named and name.casefold() != model.name.casefold()
        return (name, []) if not is_bare else _sibling(model)
    if stored is None and wanted is not None and wanted.method == _ONLINE:
        return name, ["--quantization", _ONLINE]
    return _sibling(model)


def command_of(program: Sequence[str], model: Model, named: str, settings: Sequence[str]) -> str:
    """Return the command of `program` that serves `model` with the flags `settings`.

    If no checkpoint with the model's weights is known, return a sentence that says so. `named` is the user's name for
    the model; empty for the model's own name.
    """
    found, hub = checkpoint_of(model, named), hub_name(named or model.name)
    if found is None and model.quantization is not None:
        name = f"{hub} with {model.quantization.method} weights"
        return f"a checkpoint of {name} is needed, served with {shlex.join(settings)}"
    name, stored = found or (hub, [])
    return shlex.join([*program, name, *settings, *stored])


def _sibling(model: Model) -> tuple[str, list[str]] | None:
    method = model.quantization and model.quantization.method
    return (_AWQ[model.name], []) if method == "awq" and model.name in _AWQ else None


@lru_cache(maxsize=64)
def _stored(named: str) -> str | None:
    """Return the weight format that the name of a checkpoint states; None if it states none, or is not listed."""
    try:
        found = find_model(named).quantization
    except KvsimError:
        return None
    return None if found is None else found.method
