"""Workloads for an oracle with blocks on the host, made at random; kvsim makes those of other kinds itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.conformance.generated import random_request, random_settings

if TYPE_CHECKING:
    from random import Random

    from kvsim.conformance.generated import Document


def offloaded(random: Random) -> Document:
    """A handful of requests that come again, in a pool that is too small for them, with blocks on the host."""
    block_size = random.choice([2, 2, 3, 4, 8])
    factor = random.choice([1, 1, 2, 3])
    num_blocks = random.randint(8, 40)
    capacity = (num_blocks - 1) * block_size
    max_model_len = random.randint(6, max(6, capacity))
    longest = min(max_model_len - 1, capacity - 1)
    requests = []
    for row in range(random.randint(4, 18)):
        prompt = random.randint(2, max(2, longest // random.choice([1, 1, 2])))
        output = max(1, min(random.randint(1, max(2, longest // 3)), capacity - prompt))
        request = random_request(random, row, prompt, output, span=1)
        request["arrival_step"] = random.choice([0, 0, 5, 10, 30, 31, 60, 61])
        request["priority"] = 0
        requests.append(request)
    settings = random_settings(random, chunked=random.random() < 0.9)
    budget = random.choice([8, 16, 33, 64, 1024]) if settings["enable_chunked_prefill"] else max_model_len
    settings["policy"] = "fcfs"
    return settings | {
        "groups": [{"type": "full", "num_layers": 2}],
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_num_seqs": random.choice([2, 4, 8]),
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len,
        "long_prefill_token_threshold": random.choice([0, 0, 0, 2, max_model_len // 3]),
        "watermark": random.choice([0.0, 0.0, 0.05, 0.1]),
        "requests": requests,
        "offload": {
            "host_blocks": random.choice([1, 3, 8, 20, 60]),
            "policy": random.choice(["lru", "arc"]),
            "factor": factor,
            "prompt_only": random.random() < 0.5,
            "load_delay": random.choice([1, 1, 2, 3, 6]),
            "store_delay": random.choice([1, 1, 2, 4, 9]),
        },
    }
