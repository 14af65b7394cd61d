"""Adapters (LoRA) with random weights, for any model whose layers project queries and values as a Llama's do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_TARGETS = ("q_proj", "v_proj")


class RandomAdapters:
    """Writes an adapter when a request names it first."""

    def __init__(self, model_folder: Path, scratch: Path, rank: int) -> None:
        self._model_folder, self._scratch, self._rank = model_folder, scratch, rank
        self._requests: dict[int, Any] = {}

    def request(self, number: int) -> Any:
        """Return vLLM's `LoRARequest` for an adapter, numbered from 1 on."""
        if number not in self._requests:
            from vllm.lora.request import LoRARequest  # noqa: PLC0415  only where vLLM is

            folder = write_adapter(self._model_folder, self._scratch / f"adapter-{number}", self._rank, seed=number)
            self._requests[number] = LoRARequest(f"adapter-{number}", number, str(folder))
        return self._requests[number]


def write_adapter(model_folder: Path, folder: Path, rank: int, *, seed: int) -> Path:
    """Write an adapter of a model's shape into `folder`, in the format of PEFT, and return the folder."""
    import torch  # noqa: PLC0415  as vLLM
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
