"""Longest prefix first: admit the request that finds the most tokens in the cache, as SGLang's `lpm` does.

Requests that share a prompt are served one behind the other, while their prompt is in the pool.
Beside it vLLM's order of arrival: `python examples/longest_prefix_first.py`.
"""

import kvsim


class LongestPrefixFirst(kvsim.CustomPolicy):
    """Admit the waiting request with the most tokens in the prefix cache."""

    name = "longest-prefix-first"

    def admit(self, step):
        """Return the request with the longest hit; of equal ones the first in the queue."""
        return max(step.waiting, key=lambda request: request.hit_tokens)


def main(num_requests=200):
    """Serve requests with 20 system prompts, faster than the server can, under both rules."""
    prompts = kvsim.SharedPrefixes(num_groups=20, tokens=2048)
    lengths = {"prompt": kvsim.Uniform(low=40, high=400), "output": kvsim.Uniform(low=20, high=200)}
    requests = kvsim.generate(num_requests, arrivals=kvsim.Poisson(rate_per_s=100), **lengths, prefixes=prompts, seed=1)
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=1500)
    return kvsim.compare(requests, [kvsim.Paged(), LongestPrefixFirst()], machine, engine="interpreted")


if __name__ == "__main__":
    for name, run in main().items():
        print(f"{name:22} {run.requests.cached_tokens.sum():9,} prompt tokens found in the cache")
