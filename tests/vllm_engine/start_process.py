"""vLLM's own arguments and configuration classes on a CPU: would an engine start with a command line?

Run with vLLM's files and kvsim on the path. Every line of its input is a JSON object: `command`, what follows
`vllm serve` as a list, and `config`, the fields of the checkpoint's config.json. Every line of its output says
`{"error": ...}`, empty where nothing is refused.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr
    from kvsim.conformance import vllm_driver  # first of all that imports vLLM

    # isort: split
    import vllm.platforms
    from vllm.platforms.cpu import CpuPlatform

    vllm.platforms._current_platform = CpuPlatform()
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    vllm_driver.register_decoders()
    parser = FlexibleArgumentParser(exit_on_error=False)
    parser.add_argument("model_tag")
    AsyncEngineArgs.add_cli_args(parser)
    with tempfile.TemporaryDirectory() as scratch:
        for line in sys.stdin:
            order, error = json.loads(line), ""
            Path(scratch, "config.json").write_text(json.dumps(order["config"]), encoding="utf-8")
            try:
                _start(parser, [scratch, *order["command"][1:]])
            except (Exception, SystemExit) as refused:  # whatever it is, it is the answer
                error = f"{type(refused).__name__}: {refused}"
            answers.write(json.dumps({"error": error}) + "\n")
            answers.flush()


def _start(parser: Any, command: list[str]) -> None:
    """Build the configuration of an engine, as far as no GPU is asked."""
    from vllm.config import CacheConfig, ParallelConfig, SchedulerConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    arguments = parser.parse_args(command)
    arguments.model, arguments.skip_tokenizer_init = arguments.model_tag, True
    told = AsyncEngineArgs.from_cli_args(arguments)
    model = told.create_model_config()
    told._set_default_chunked_prefill_and_prefix_caching_args(model)
    parallel = ParallelConfig(
        tensor_parallel_size=told.tensor_parallel_size,
        pipeline_parallel_size=told.pipeline_parallel_size,
        distributed_executor_backend="mp",
    )
    model.verify_with_parallel_config(parallel)
    told._set_default_max_num_seqs_and_batched_tokens_args(UsageContext.OPENAI_API_SERVER, model, parallel)
    CacheConfig(
        block_size=told.block_size,
        gpu_memory_utilization=told.gpu_memory_utilization,
        cache_dtype=told.kv_cache_dtype,
        enable_prefix_caching=told.enable_prefix_caching,
        num_gpu_blocks_override=told.num_gpu_blocks_override,
        kv_offloading_size=told.kv_offloading_size,
    )
    SchedulerConfig(
        max_num_seqs=told.max_num_seqs,
        max_num_batched_tokens=told.max_num_batched_tokens,
        max_model_len=model.max_model_len,
        is_encoder_decoder=False,
        enable_chunked_prefill=told.enable_chunked_prefill,
        long_prefill_token_threshold=told.long_prefill_token_threshold,
        watermark=told.watermark,
        async_scheduling=told.async_scheduling,
        disable_hybrid_kv_cache_manager=told.disable_hybrid_kv_cache_manager,
    )


if __name__ == "__main__":
    main()
