"""Random workloads with one group of full attention, for comparisons of kvsim with a real engine.

Small workloads reach rare combinations of settings. Realistic ones have the sizes of real servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from random import Random

Document = dict[str, Any]


def small(random: Random) -> Document:
    """Generate a few requests for a pool that is too small for them, with random settings."""
    block_size = random.choice([1, 1, 2, 2, 3, 4, 4, 5, 8, 16])
    num_blocks = random.randint(4, 14) if random.random() < 0.5 else random.randint(8, 60)
    capacity = (num_blocks - 1) * block_size
    max_model_len = random.randint(4, max(4, capacity + 2))
    max_num_seqs = random.randint(1, 8)
    chunked = random.random() < 0.9
    least_budget = max(max_num_seqs, 1 if chunked else max_model_len)
    budget = random.choice([max_num_seqs, random.randint(2, 12), 16, 32, 64, 256])
    longest = max_model_len - 1
    if random.random() < 0.97:  # otherwise a request may never fit, and the engine waits forever
        longest = min(longest, capacity - 1)
    outputs = max(2, longest // random.choice([1, 2, 4]))
    requests = []
    for row in range(random.randint(1, 12)):
        prompt = random.randint(1, max(1, longest // random.choice([1, 1, 2, 4])))
        # Outputs beyond max_model_len are cut by the engine, but a request that exceeds the pool would never end.
        output = random.randint(1, outputs)
        if prompt + output > capacity and random.random() < 0.98:
            output = max(1, capacity - prompt)
        requests.append(random_request(random, row, prompt, output, span=random.choice([1, 5, 40])))
    document = random_settings(random, chunked=chunked) | {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max(budget, least_budget),
        "max_model_len": max_model_len,
        "long_prefill_token_threshold": random.choice([0, 0, 0, 1, 2, max_model_len // 3]),
        "watermark": random.choice([0.0, 0.0, 0.05, 0.1, 0.3]),
    }
    if random.random() < 0.1:
        _spell_out_prompts(random, requests)
    return document | {"requests": requests}


def staged(random: Random) -> Document:
    """Generate a workload as `small` does, and give it pipeline stages."""
    return with_stages(random, small(random))


def with_stages(random: Random, document: Document) -> Document:
    """Give `document` a pipeline of two to six stages, in place, and return it.

    With more than two stages, a synchronous scheduler may resume a sequence while one of its tokens is in flight. vLLM
    then outputs that token twice, and the output after it is unknown. So stop tokens, and prompts that contain an
    earlier answer, are removed.
    """
    document["pipeline_parallel_size"] = random.choice([2, 2, 2, 3, 3, 4, 5, 6])
    if not document["async_scheduling"] and document["pipeline_parallel_size"] > 2:
        for request in document["requests"]:
            request.pop("prompt_token_ids", None)
            request["stop_at"] = None
    return document


def realistic(random: Random) -> Document:
    """Generate requests with realistic lengths, which fill a pool of a few hundred blocks."""
    max_model_len = random.choice([2048, 4096, 8192])
    num_blocks = random.randint(150, 900)
    block_size = random.choice([16, 16, 16, 32])
    capacity = (num_blocks - 1) * block_size
    budget = random.choice([512, 2048, 2048, 8192])
    num_groups = random.randint(1, 6)
    prefix_tokens = [
        random.randint(0, 60) * 16 + random.choice([0, 0, random.randint(1, 15)]) for _ in range(num_groups)
    ]
    requests = []
    for row in range(random.randint(12, 60)):
        # Medians near ShareGPT's, with its long tails.
        prompt = min(int(random.lognormvariate(4.6, 1.1)) + 1, max_model_len - 64, capacity // 2)
        output = min(int(random.lognormvariate(5.2, 0.9)) + 1, 700, max_model_len - prompt, capacity - prompt - 16)
        request = random_request(random, row, prompt, max(1, output), span=random.choice([1, 100, 600]))
        if request["prefix_group"] is not None:
            request["prefix_group"] = row % num_groups
            request["prefix_len"] = min(prefix_tokens[row % num_groups], capacity // 3, max_model_len // 3)
            request["prompt_len"] = prompt = min(prompt + request["prefix_len"], max_model_len - 64, capacity - 64)
            request["output_len"] = max(1, min(output, max_model_len - prompt, capacity - prompt - 16))
        requests.append(request)
    return random_settings(random, chunked=random.random() < 0.95 or budget < max_model_len) | {
        "num_blocks": num_blocks,
        "block_size": block_size,
        "max_num_seqs": random.choice([16, 64, 128, 256]),
        "max_num_batched_tokens": budget,
        "max_model_len": max_model_len,
        "long_prefill_token_threshold": random.choice([0, 0, 0, 256, 600]),
        "watermark": random.choice([0.0, 0.0, 0.01, 0.02, 0.1]),
        "requests": requests,
    }


def random_settings(random: Random, *, chunked: bool) -> Document:
    """Generate random values of an engine's on/off settings and of the order of its queue."""
    return {
        "enable_prefix_caching": random.random() < 0.75,
        "async_scheduling": random.random() < 0.6,
        "policy": random.choice(["fcfs", "fcfs", "priority"]),
        "scheduler_reserve_full_isl": random.random() < 0.5,
        "enable_chunked_prefill": chunked,
        "v2_model_runner": random.random() < 0.7,
    }


def random_request(random: Random, row: int, prompt: int, output: int, *, span: int) -> Document:
    """Generate the request in `row`, which arrives before one of the first `span` engine calls.

    It has `prompt` prompt tokens and at most `output` output tokens.
    """
    grouped = random.random() < 0.7
    return {
        "id": f"r{row:02}",
        "arrival_step": random.randrange(span),
        "prompt_len": prompt,
        "output_len": output,
        "priority": random.choice([0, 0, 1, 2]),
        "prefix_group": random.randrange(2) if grouped else None,
        "prefix_len": random.randint(0, prompt) if grouped else 0,
        "stop_at": random.randint(1, output) if random.random() < 0.2 else None,
        "abort_step": random.randrange(span + 40) if random.random() < 0.08 else None,
    }


def _spell_out_prompts(random: Random, requests: list[Document]) -> None:
    """Replace prompts by token ids from a vocabulary of two tokens, so that many prompts share a prefix by chance.

    Some prompts begin with the prompt and the answer of an earlier request.
    """
    for row, request in enumerate(requests):
        tokens = [random.randrange(100, 102) for _ in range(request["prompt_len"])]
        if row and random.random() < 0.4:
            earlier = random.randrange(row)
            other = requests[earlier]
            answer = range(
                500_000_000 + 1_000_000 * (earlier + 1), 500_000_000 + 1_000_000 * (earlier + 1) + other["output_len"]
            )
            tokens = [*other["prompt_token_ids"], *answer][: request["prompt_len"]]
            request["prompt_len"] = len(tokens)
        request["prompt_token_ids"] = tokens
