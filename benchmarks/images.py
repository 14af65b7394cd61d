"""Images in prompts, recorded: benchmarks/images.py ACTION [MODEL] -o DIR, on a machine with a GPU and vLLM

record        an image is at most 1,280 tokens and a step 1,024, so the encoder has room for one large image: it cuts
              chunks and makes images wait
time          images of up to 4,096 tokens, and as many in a step; `encoder-times-LOAD.json` has when the encoder of
              each step ran, on the host and on the GPU, and `encoder-alone.json` what it takes by itself

The shape of Qwen2.5-VL-3B or Qwen2-VL-2B with random weights, its own processor, and a tokenizer of words.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
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
QWEN2_VL_2B: dict[str, Any] = CONFIG | {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "vision_config": {
        "depth": 32,
        "embed_dim": 1280,
        "mlp_ratio": 4,
        "num_heads": 16,
        "in_chans": 3,
        "in_channels": 3,
        "hidden_size": 1536,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
        "model_type": "qwen2_vl",
    },
}
MODELS = {"qwen2.5-vl-3b": CONFIG, "qwen2-vl-2b": QWEN2_VL_2B}
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
TIMED_SIZES = ((8, 8), (16, 16), (24, 24), (32, 32), (64, 32), (64, 64))
TIMED_COUNTS = (1, 2, 4)
"""Sides of images, and how many of equal size are in a prompt, of the load `sizes`: each prompt three times."""
MOST_TOKENS = 4096
OTHER_SIZES = ((6, 6), (12, 10), (20, 20), (28, 22), (48, 30), (56, 48))
"""Sides of images of the load `mixed`, none of which is in `sizes`."""
TIMED_LOADS = ("sizes", "mixed")
ENGINE = {
    "max_model_len": 8192,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 1024,
    "gpu_memory_utilization": 0.6,
    "limit_mm_per_prompt": {"image": 4, "video": 0},
    "mm_processor_cache_gb": 0,
    "mm_processor_kwargs": {"max_pixels": PROCESSOR["max_pixels"]},
}
TIMED_ENGINE = ENGINE | {
    "max_model_len": 16384,
    "max_num_batched_tokens": MOST_TOKENS,
    "mm_processor_kwargs": {"max_pixels": MOST_TOKENS * 28 * 28},
}


def write_model(folder: Path, config: Mapping[str, Any] = CONFIG) -> None:
    """Write configuration, tokenizer and processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    class_name = "Qwen2_5_VLProcessor" if config is CONFIG else "Qwen2VLProcessor"
    processor = PROCESSOR | {"processor_class": class_name}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
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


def timed_prompts(load: str) -> list[tuple[float, dict[str, Any], int]]:
    """Return arrival, prompt and answer of every request of a load; no image is in two prompts."""
    from PIL import Image  # noqa: PLC0415

    numbers = np.random.default_rng([ord(letter) for letter in load])
    if load == "sizes":
        shapes = [[size] * count for size in TIMED_SIZES for count in TIMED_COUNTS]
        shapes = [each for each in shapes for _ in range(3) if len(each) * each[0][0] * each[0][1] <= MOST_TOKENS]
        arrivals = 0.4 * np.arange(len(shapes))
    else:
        picked = [numbers.integers(len(OTHER_SIZES), size=numbers.integers(1, 4)) for _ in range(40)]
        shapes = [[OTHER_SIZES[index] for index in each] for each in picked]
        arrivals = Poisson(rate_per_s=3.0).sample(len(shapes), numbers)
    made = []
    for at_s, sizes in zip(arrivals.tolist(), shapes, strict=True):
        ids = numbers.integers(10, 30_000, numbers.integers(20, 100)).tolist()
        images = []
        for wide, high in sizes:
            color = tuple(numbers.integers(0, 256, 3).tolist())
            images.append(Image.new("RGB", (28 * wide, 28 * high), color))
            ids += [START, IMAGE, END, *numbers.integers(10, 30_000, 5).tolist()]
        answer = 8 if load == "sizes" else int(numbers.integers(20, 80))
        made.append((at_s, {"prompt_token_ids": ids, "multi_modal_data": {"image": images}}, answer))
    return made


class EncoderClock:
    """Times of every call of vLLM's encoder, on the host and on the GPU."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415
        from vllm.v1.worker.gpu.mm.encoder_runner import EncoderRunner  # noqa: PLC0415

        self.inputs: dict[tuple[int, ...], tuple[Any, Any]] = {}
        self._calls: list[tuple[float, float, Any, Any, tuple[int, ...]]] = []
        self._original = EncoderRunner.execute_mm_encoder

        def timed(runner: Any, mm_kwargs: Any) -> Any:
            if not mm_kwargs:
                return self._original(runner, mm_kwargs)
            events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            begin = time.monotonic()
            events[0].record()
            outputs = self._original(runner, mm_kwargs)
            events[1].record()
            tokens = tuple(len(each) for each in outputs)
            self._calls.append((begin, time.monotonic(), *events, tokens))
            self.inputs.setdefault(tokens, (runner, mm_kwargs))
            return outputs

        EncoderRunner.execute_mm_encoder = timed

    def begin(self) -> None:
        """Forget all calls, and compare the clocks of host and GPU."""
        import torch  # noqa: PLC0415

        self._calls = []
        torch.cuda.synchronize()
        self._event = torch.cuda.Event(enable_timing=True)
        self._event.record()
        torch.cuda.synchronize()
        self._at_s = time.monotonic()

    def calls(self, begin_s: float) -> list[dict[str, Any]]:
        """Return tokens, and times on the host and on the GPU of every call, in seconds since `begin_s`."""
        import torch  # noqa: PLC0415

        torch.cuda.synchronize()
        offset_s = self._at_s - begin_s
        return [
            {
                "tokens": tokens,
                "host_s": [round(begin - begin_s, 6), round(end - begin_s, 6)],
                "gpu_s": [round(offset_s + 1e-3 * self._event.elapsed_time(event), 6) for event in (first, last)],
            }
            for begin, end, first, last, tokens in self._calls
        ]

    def alone(self, folder: Path) -> list[dict[str, Any]]:
        """Return what the encoder takes by itself for each tuple of images: on the host, in all, and its kernels."""
        import torch  # noqa: PLC0415
        from torch.profiler import ProfilerActivity, profile  # noqa: PLC0415

        found = []
        for tokens, (runner, mm_kwargs) in sorted(self.inputs.items(), key=lambda item: sum(item[0])):
            host_s, wall_s = [], []
            for _ in range(8):
                torch.cuda.synchronize()
                begin = time.monotonic()
                self._original(runner, mm_kwargs)
                host_s.append(time.monotonic() - begin)
                torch.cuda.synchronize()
                wall_s.append(time.monotonic() - begin)
            row = {"tokens": tokens, "host_ms": 1e3 * median(host_s), "wall_ms": 1e3 * median(wall_s)}
            if len(set(tokens)) == 1 and sum(tokens) in (64, 256, 1024, 4096):
                with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
                    self._original(runner, mm_kwargs)
                    torch.cuda.synchronize()
                kernels = [event for event in profiled.events() if event.device_type.name == "CUDA"]
                row["kernels"] = len(kernels)
                row["kernels_ms"] = 1e-3 * sum(event.time_range.elapsed_us() for event in kernels)
                averages = profiled.key_averages()
                lists = [
                    averages.table(sort_by=by, row_limit=30, max_name_column_width=80)
                    for by in ("self_cuda_time_total", "self_cpu_time_total")
                ]
                name = "x".join(map(str, (len(tokens), tokens[0])))
                (folder / f"encoder-profile-{name}.txt").write_text("\n".join(lists))
            found.append(row)
        return found


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


def start(name: str, output: Path, engine_args: Mapping[str, Any]) -> Any:
    """Start an engine in this process, with the model's shape and random weights."""
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import LLM  # noqa: PLC0415

    folder = output / name
    write_model(folder, MODELS[name])
    scheduler = "kvsim.capture.vllm.RecordingScheduler"
    llm = LLM(model=str(folder), load_format="dummy", dtype="bfloat16", scheduler_cls=scheduler, **engine_args)
    return llm.llm_engine


def record(name: str, output: Path, loads: Iterable[str] = LOADS, clock: bool = False) -> None:
    """Record loads in an engine, with the times of its encoder if `clock` is True."""
    engine = start(name, output, TIMED_ENGINE if clock else ENGINE)
    scheduler = engine.engine_core.engine_core.scheduler
    encoder = EncoderClock() if clock else None
    for load in loads:
        for number in range(2):  # kernels are compiled in the first
            made = timed_prompts(load) if clock else prompts(load)
            begin = time.monotonic()
            inputs = engine.renderer.render_cmpl([prompt for _, prompt, _ in made])
            rendering_s = time.monotonic() - begin
            rendered = [(at_s, each, tokens) for (at_s, _, tokens), each in zip(made, inputs, strict=True)]
            engine.reset_prefix_cache()
            engine.reset_encoder_cache()
            if not number:
                serve(engine, rendered, f"warm-up-{load}")
                continue
            scratch = output / "log" / load
            scheduler.kvsim.start(FileSink(scratch), scheduler.kvsim_meta | {"command": f"python {' '.join(sys.argv)}"})
            if encoder is not None:
                encoder.begin()
            serve(engine, rendered, load)
            scheduler.kvsim.stop()
            run = output / f"vllm-h100-{name}-{load}"
            write(found := read(scratch), run)
            if encoder is not None:
                times = {"processor_s": rendering_s, "calls": encoder.calls(scheduler.kvsim._begin_s)}
                (output / f"encoder-times-{load}.json").write_text(json.dumps(times))
            print(load, found, summarize(found).tpot_s.mean, flush=True)
    if encoder is not None:
        (output / "encoder-alone.json").write_text(json.dumps(encoder.alone(output), indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("record", "time"))
    parser.add_argument("model", nargs="?", choices=MODELS, default="qwen2.5-vl-3b")
    parser.add_argument("-o", "--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    if arguments.action == "time":
        record(arguments.model, arguments.output, TIMED_LOADS, clock=True)
    else:
        record(arguments.model, arguments.output)


if __name__ == "__main__":
    main()
