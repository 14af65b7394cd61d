"""A radix tree of tokens: prefixes are found to the last token, and leaves are evicted, the least recently used first.

With blocks of one token the prefix cache is a tree with a token on every edge, as SGLang's `RadixAttention` is once its
nodes are taken apart. Beside it vLLM's blocks of 16 tokens, and the policy `radix` of kvsim, which is SGLang's own
scheduler and cache: `python examples/radix_tree.py`.
"""

import kvsim


class RadixTree(kvsim.CustomPolicy):
    """vLLM's schedule over a tree of tokens."""

    name = "radix-tree"
    cache = kvsim.PagedSettings(block_size=1)

    def eviction_rank(self, block):
        """Rank leaves first: a token that others continue stays until these are gone."""
        return block.tokens_below > 0, block.last_used_s


def main(num_requests=80):
    """Serve questions behind one of eight prompts, whose 46 tokens fill two blocks of 16."""
    requests = kvsim.generate(
        num_requests,
        arrivals=kvsim.Poisson(rate_per_s=3),
        prompt=kvsim.Uniform(low=10, high=60),
        output=kvsim.Uniform(low=5, high=40),
        prefixes=kvsim.SharedPrefixes(num_groups=8, tokens=46),
        seed=1,
    )
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=48)
    return kvsim.compare(requests, [kvsim.Paged(), RadixTree(), "radix"], machine, engine="interpreted")


if __name__ == "__main__":
    for name, run in main().items():
        print(f"{name:10} {run.requests.cached_tokens.sum():6,} prompt tokens found in the cache")
