"""Models shared by two H100s, predicted before they are recorded: benchmarks/two_gpus.py

predict              the figures of every load by default and by kernel tables, as JSON
record NAME -o DIR   serve the loads in vLLM, with random weights, on a machine with two H100s

Loads, warm-up and engine are those of `experts.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from experts import ENGINE, MIXTRAL_16, predict, record

from kvsim.hardware import find_gpu
from kvsim.machines import step_times
from kvsim.models import Model
from kvsim.models.huggingface import from_fields
from kvsim.simulation import Machine

GPU, NUM_GPUS = "H100 SXM", 2
KV_BYTES = 20 << 30
"""Plenty: no load is short of memory."""
CODELLAMA_34B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 22016,
    "max_position_embeddings": 16384,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 48,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}
SHAPES = {"codellama-34b": CODELLAMA_34B, "mixtral-8x7b-16-layers": MIXTRAL_16}


def machine(model: Model, source: str | None) -> Machine:
    """Return two GPUs with the step times of `source`."""
    gpu = find_gpu(GPU)
    times = step_times(gpu, model, "vllm", source=source, max_num_seqs=ENGINE["max_num_seqs"], in_process=True)
    return Machine(gpu=gpu, model=model, kv_bytes=KV_BYTES, step_time=times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("predict", "record"))
    parser.add_argument("name", nargs="?", choices=SHAPES)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "record":
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, arguments.name)
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(SHAPES[arguments.name]), encoding="utf-8")
            record(folder, arguments.output, "2xh100", tensor_parallel_size=NUM_GPUS)
        return
    told: dict[str, dict[str, dict[str, float]]] = {}
    for name, fields in SHAPES.items():
        model = from_fields(fields, name=name, where="this file").served(tensor_parallel_size=NUM_GPUS)
        for words, source in (("default", None), ("kernels", "kernels")):
            loads = predict(machine(model, source))
            told.setdefault(words, {}).update({f"2x{GPU} {name} {load}": figures for load, figures in loads.items()})
    json.dump(told, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
