"""The checkpoint that `vllm serve` is given for a model: its name on the hub, and whether it can be served so at all.

vLLM stores 16-bit weights in fp8 while it loads them. Every other format of weights is in the checkpoint itself, so
such weights are a checkpoint of their own.
"""

from __future__ import annotations

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
"""Checkpoints of listed models in AWQ, by name; those of instruction-tuned siblings where the base has none."""
_ONLINE = "fp8"
"""The format into which vLLM brings 16-bit weights while it loads them (`--quantization fp8`)."""


def hub_name(named: str) -> str:
    """The name with its organisation that vLLM finds a model by; a path, and a name that is not listed, as they are."""
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
    """The checkpoint that holds `model` as it is served, and the flags that make it so; None where none is known.

    Args:
        model: as it is served.
        named: the name that a user gave, which may end in how its weights are stored; empty for the model's own.
    """
    name, wanted = hub_name(named or model.name), model.quantization
    stored = _stored(named or model.name)
    if stored == (wanted and wanted.method):
        is_bare = wanted is not None and "/" not in named and name.casefold() != model.name.casefold()
        return (name, []) if not is_bare else _sibling(model)
    if stored is None and wanted is not None and wanted.method == _ONLINE:
        return name, ["--quantization", _ONLINE]
    return _sibling(model)


def _sibling(model: Model) -> tuple[str, list[str]] | None:
    method = model.quantization and model.quantization.method
    return (_AWQ[model.name], []) if method == "awq" and model.name in _AWQ else None


@lru_cache(maxsize=64)
def _stored(named: str) -> str | None:
    """The format of the weights in the checkpoint itself; None for the model's own type, or where it is not known."""
    try:
        found = find_model(named).quantization
    except KvsimError:
        return None
    return None if found is None else found.method
