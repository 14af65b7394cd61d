"""Images in prompts, recorded: benchmarks/images.py record -o DIR, on a machine with a GPU and vLLM

The shape of Qwen2.5-VL-3B with random weights, its own processor, and a tokenizer of words. An image is at most 1,280
tokens and a step 1,024, so the encoder has room for one large image: it cuts chunks and makes images wait.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.capture.sinks import FileSink
from kvsim.metrics import summarize
from kvsim.recording import read, write
from kvsim.workload import Poisson

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "model_type": "qwen2_5_vl",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "vision_token_id": 151654,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_position_embeddings": 128000,
    "max_window_layers": 70,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151936,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "in_channels": 3,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
        "model_type": "qwen2_5_vl",
    },
}
PROCESSOR = {
    "min_pixels": 3136,
    "max_pixels": 1003520,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "image_processor_type": "Qwen2VLImageProcessor",
    "processor_class": "Qwen2_5_VLProcessor",
}
SPECIAL = {
    151643: "<|endoftext|>",
    151644: "<|im_start|>",
    151645: "<|im_end|>",
    151652: "<|vision_start|>",
    151653: "<|vision_end|>",
    151654: "<|vision_pad|>",
    151655: "<|image_pad|>",
    151656: "<|video_pad|>",
}
START, IMAGE, END = 151652, 151655, 151653
SIZES = ((8, 8), (16, 12), (23, 17), (30, 20), (36, 24), (40, 30))
"""Sides of images in units of 28 pixels, so that their product is their tokens."""
LOADS = {"light": (24, 3.0, 1), "busy": (120, 24.0, 2), "several": (60, 8.0, 3)}
"""Requests, requests a second, and how many images a prompt has at most."""
ENGINE = {
    "max_model_len": 8192,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 1024,
    "gpu_memory_utilization": 0.6,
    "limit_mm_per_prompt": {"image": 4, "video": 0},
    "mm_processor_cache_gb": 0,
    "mm_processor_kwargs": {"max_pixels": PROCESSOR["max_pixels"]},
}


def write_model(folder: Path) -> None:
    """Write configuration, tokenizer and processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    words = {SPECIAL.get(number, f"w{number}"): number for number in range(CONFIG["vocab_size"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL.values()),
    ).save_pretrained(folder)


def prompts(load: str) -> list[tuple[float, dict[str, Any], int]]:
    """Return arrival, prompt and answer of every request of a load; one image in three was in a prompt before."""
    from PIL import Image  # noqa: PLC0415

    count, rate, most = LOADS[load]
    numbers = np.random.default_rng([ord(letter) for letter in load])
    arrivals = Poisson(rate_per_s=rate).sample(count, numbers)
    pictures: list[Any] = []
    made = []
    for at_s in arrivals.tolist():
        ids = numbers.integers(10, 30_000, numbers.integers(20, 200)).tolist()
        images = []
        for _ in range(numbers.integers(1, most + 1)):
            if pictures and numbers.random() < 0.33:
                images.append(pictures[numbers.integers(len(pictures))])
            else:
                wide, high = SIZES[numbers.integers(len(SIZES))]
                color = tuple(numbers.integers(0, 256, 3).tolist())
                pictures.append(Image.new("RGB", (28 * wide, 28 * high), color))
                images.append(pictures[-1])
            ids += [START, IMAGE, END, *numbers.integers(10, 30_000, numbers.integers(5, 60)).tolist()]
        made.append(
            (at_s, {"prompt_token_ids": ids, "multi_modal_data": {"image": images}}, int(numbers.integers(20, 120)))
        )
    return made


def serve(engine: Any, rendered: list[tuple[float, Any, int]], name: str) -> None:
    """Send requests at their times, and run the engine until all are answered."""
    from vllm import SamplingParams  # noqa: PLC0415

    begin, sent = time.time(), 0
    while sent < len(rendered) or engine.has_unfinished_requests():
        while sent < len(rendered) and begin + rendered[sent][0] <= time.time():
            at_s, prompt, tokens = rendered[sent]
            settings = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0, detokenize=False)
            engine.add_request(f"{name}-{sent}", prompt, settings, arrival_time=begin + at_s)
            sent += 1
        if engine.has_unfinished_requests():
            engine.step()
        else:
            time.sleep(0.0005)
    while engine.engine_core.engine_core.scheduler.has_requests():
        engine.step()


def record(output: Path) -> None:
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import LLM  # noqa: PLC0415

    folder = output / "qwen2.5-vl-3b"
    write_model(folder)
    scheduler = "kvsim.capture.vllm.RecordingScheduler"
    llm = LLM(model=str(folder), load_format="dummy", dtype="bfloat16", scheduler_cls=scheduler, **ENGINE)
    engine = llm.llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    for load in LOADS:
        for number in range(2):  # kernels are compiled in the first
            made = prompts(load)
            inputs = engine.renderer.render_cmpl([prompt for _, prompt, _ in made])
            rendered = [(at_s, each, tokens) for (at_s, _, tokens), each in zip(made, inputs, strict=True)]
            engine.reset_prefix_cache()
            engine.reset_encoder_cache()
            if not number:
                serve(engine, rendered, f"warm-up-{load}")
                continue
            scratch = output / "log" / load
            scheduler.kvsim.start(FileSink(scratch), scheduler.kvsim_meta | {"command": f"python {' '.join(sys.argv)}"})
            serve(engine, rendered, load)
            scheduler.kvsim.stop()
            run = output / f"vllm-h100-qwen2.5-vl-3b-{load}"
            write(found := read(scratch), run)
            print(load, found, summarize(found).tpot_s.mean, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record",))
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    record(arguments.output)


if __name__ == "__main__":
    main()
