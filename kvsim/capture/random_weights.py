"""Configurations of models without weights, prompts of random token ids, and adapters with random weights.

Memory and speed depend on the shapes of weights, not on their values. An engine that finds only a configuration draws
the weights itself. Configurations are written for dense models whose layers all have the same grouped-query attention.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.errors import UsageError
from kvsim.models import Model, find_model
from kvsim.models.layers import FullAttention
from kvsim.workload import Workload

_SPECIAL_TOKENS = 10
"""Number of first ids of a vocabulary that are never drawn, because they may be special tokens."""
_MODEL_TYPES = {
    "LlamaForCausalLM": "llama",
    "GraniteForCausalLM": "llama",
    "Phi3ForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "": "llama",
}
"""`model_type` of the written configuration, by the model's class. Models of this type have the same matrices and
biases as those of the class.
"""
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def has_weights(folder: Path) -> bool:
    """Tell whether `folder` has files of weights."""
    return any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))


def model_folder(model: str, scratch: Path) -> Path:
    """Return the folder `model` if it has a `config.json`.

    Otherwise write the configuration of the model that kvsim lists as `model`, and return its folder in `scratch`.

    Raises:
        UnknownNameError: there is no such folder and no such model.
    """
    folder = Path(model)
    if (folder / "config.json").is_file():
        return folder
    shape = find_model(model)
    return write_config(shape, scratch / shape.name.rpartition("/")[2])


def write_config(model: Model, folder: Path) -> Path:
    """Write a `config.json` of the shape of `model` into `folder` and return the folder.

    Raises:
        UsageError: `model` has experts, images, quantized weights, a class that is not in `_MODEL_TYPES`, or a layer
            other than full attention with `num_kv_heads` and `head_dim`.
    """
    if special := _special_parts(model):
        raise UsageError(
            f"{model.name} is not a plain grouped-query decoder: it has {special}, so random weights "
            "cannot replace its own; give a folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_plain_config(model), indent=1) + "\n", encoding="utf-8")
    return folder


def _special_parts(model: Model) -> str:
    if model.num_experts:
        return f"{model.num_experts:,} experts"
    kinds = sorted({layer.kind for caches in model.layers for layer in caches} - {"full"})
    if kinds:
        return f"layers of the kind {' and '.join(kinds)}"
    full = FullAttention(num_kv_heads=model.num_kv_heads, head_dim=model.head_dim, value_head_dim=model.head_dim)
    if any(caches != (full,) for caches in model.layers):
        return "layers with heads of several sizes"
    if model.image_class:
        return "an encoder for images"
    if model.quantization is not None:
        return f"{model.quantization.method} weights"
    return "" if model.architecture in _MODEL_TYPES else f"the layers of {model.architecture}"


def shape_of(config: Any) -> dict[str, Any]:
    """Return the shape that a transformers configuration describes, with the names of a recording's `meta.json`."""
    text = config.get_text_config()
    num_heads = text.num_attention_heads
    num_kv_heads = getattr(text, "num_key_value_heads", None) or num_heads
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // num_heads
    return {
        "num_layers": text.num_hidden_layers,
        "hidden_size": text.hidden_size,
        "num_attention_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "intermediate_size": text.intermediate_size,
        "vocab_size": text.vocab_size,
        "max_position_embeddings": text.max_position_embeddings,
        "tie_word_embeddings": bool(text.tie_word_embeddings),
    }


def _plain_config(model: Model) -> dict[str, Any]:
    model_type = _MODEL_TYPES[model.architecture]
    return {
        "architectures": [_ARCHITECTURES[model_type]],
        "model_type": model_type,
        "num_hidden_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_attention_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "intermediate_size": model.intermediate_size,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_position_embeddings,
        "tie_word_embeddings": model.tie_word_embeddings,
        "dtype": model.dtype,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "sliding_window": None,
    }


def token_ids(workload: Workload, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Return the token ids of each request's prompt.

    Prompts in `workload.prompt_token_ids` are returned unchanged. All other ids are random. Each request of a prefix
    group begins with as many ids of the group as `workload.prefix_tokens` says for the request.
    """
    rng = np.random.default_rng(seed)
    prefixes: dict[int, npt.NDArray[np.int64]] = {}
    prompts = []
    for row in range(len(workload)):
        if workload.prompt_token_ids is not None and len(given := workload.prompt_token_ids[row]):
            prompts.append(given.tolist())
            continue
        tokens = rng.integers(_SPECIAL_TOKENS, vocab_size, int(workload.prompt_tokens[row]))
        group, shared = int(workload.prefix_group[row]), int(workload.prefix_tokens[row])
        if group >= 0:
            longest = int(workload.prefix_tokens[workload.prefix_group == group].max())
            if group not in prefixes:
                prefixes[group] = np.random.default_rng([seed, group]).integers(_SPECIAL_TOKENS, vocab_size, longest)
            tokens[:shared] = prefixes[group][:shared]
        prompts.append(tokens.tolist())
    return prompts


_TARGETS = ("q_proj", "v_proj")
"""Projections of each layer that an adapter changes."""


class RandomAdapters:
    """Adapters with random weights. Each is written into a folder when a request first needs it."""

    def __init__(self, model_folder: Path, scratch: Path, rank: int) -> None:
        self._model_folder, self._scratch, self._rank = model_folder, scratch, rank
        self._requests: dict[int, Any] = {}

    def request(self, number: int) -> Any:
        """Return vLLM's `LoRARequest` for adapter `number`, from 1."""
        if number not in self._requests:
            from vllm.lora.request import LoRARequest  # noqa: PLC0415  vLLM is an optional dependency

            folder = write_adapter(self._model_folder, self._scratch / f"adapter-{number}", self._rank, seed=number)
            self._requests[number] = LoRARequest(f"adapter-{number}", number, str(folder))
        return self._requests[number]


def write_adapter(model_folder: Path, folder: Path, rank: int, *, seed: int) -> Path:
    """Write an adapter of this `rank` for the model in `model_folder` to `folder`, as PEFT does. Return `folder`."""
    import torch  # noqa: PLC0415  vLLM is an optional dependency
    from safetensors.torch import save_file  # noqa: PLC0415

    config = json.loads((model_folder / "config.json").read_text(encoding="utf-8"))
    config = config.get("text_config", config)
    hidden, num_heads = int(config["hidden_size"]), int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or hidden // num_heads)
    outputs = {"q_proj": num_heads * head_dim, "v_proj": int(config.get("num_key_value_heads", num_heads)) * head_dim}
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(int(config["num_hidden_layers"])):
        for target in _TARGETS:
            name = f"base_model.model.model.layers.{layer}.self_attn.{target}"
            for part, shape in (("lora_A", (rank, hidden)), ("lora_B", (outputs[target], rank))):
                weights = torch.randn(shape, generator=generator) * 0.01
                tensors[f"{name}.{part}.weight"] = weights.to(torch.bfloat16)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": list(_TARGETS), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(about), encoding="utf-8")
    return folder
