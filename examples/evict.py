"""Eviction rules beside vLLM's: least often hit, time to live, pinned prompts, and tokens saved for each block.

Requests begin with one of twenty system prompts, some far more popular than others, and the pool keeps few of them.
`python examples/evict.py` compares the rules by the prompt tokens that they save.
"""

import kvsim


class LeastOftenHit(kvsim.CustomPolicy):
    """LFU: evict a block that was hit least often; among these, the end of a prefix first."""

    name = "least-often-hit"

    def eviction_rank(self, block):
        """Rank by hits."""
        return block.num_hits, -block.end_tokens


class TimeToLive(kvsim.CustomPolicy):
    """Evict a block that was cached more than five seconds ago, however often it was hit since."""

    name = "time-to-live"

    def evict(self, step, candidates):
        """Evict an expired block, or the least recently freed one."""
        expired = (step.now_s - candidates.column("cached_s") > 5).nonzero()[0]
        return candidates[int(expired[0])] if len(expired) else candidates[0]


class PinnedPrompts(kvsim.CustomPolicy):
    """Keep every block of a system prompt for as long as another block is free."""

    name = "pinned-prompts"
    system_prompt_tokens = 256

    def eviction_rank(self, block):
        """Rank blocks of a system prompt last."""
        return block.end_tokens <= self.system_prompt_tokens


class TokensSaved(kvsim.CustomPolicy):
    """Evict the block whose loss costs least: its hits, times the tokens that no request could hit without it."""

    name = "tokens-saved"

    def eviction_rank(self, block):
        """Rank by the product."""
        return block.num_hits * (16 + block.tokens_below)


RULES = (LeastOftenHit, TimeToLive, PinnedPrompts, TokensSaved)


def main(num_requests=150):
    """Serve the same requests under vLLM's rule and these."""
    prompts = kvsim.SharedPrefixes(num_groups=20, tokens=256, skew=1.0)
    lengths = {"prompt": kvsim.Uniform(low=40, high=400), "output": kvsim.Uniform(low=20, high=200)}
    requests = kvsim.generate(num_requests, arrivals=kvsim.Poisson(rate_per_s=8), **lengths, prefixes=prompts, seed=1)
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=300)
    return kvsim.compare(requests, [kvsim.Paged(), *(rule() for rule in RULES)], machine, engine="interpreted")


if __name__ == "__main__":
    for name, run in main().items():
        print(f"{name:16} {run.requests.cached_tokens.sum():9,} prompt tokens found in the cache")
