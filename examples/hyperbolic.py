"""An eviction rule in machine code: hyperbolic caching, which evicts the block with the fewest hits for its age.

The rank of every block changes with the clock, so `eviction_rank` cannot say it; `evict` looks at all candidates. Their
columns are arrays, which a function compiled with numba reads as they are: a microsecond for a thousand blocks. The
rule: Blankstein, Sen and Freedman, "Hyperbolic Caching", USENIX ATC 2017.
`python examples/hyperbolic.py` puts vLLM's rule and the bound of every rule beside it.
"""

import numba

import kvsim


@numba.njit
def least_hits_for_its_age(num_hits, cached_s, now_s):
    """Return the index of the block with the fewest hits a second, the first of equal ones."""
    chosen, fewest = 0, 1e300
    for index in range(len(num_hits)):
        hits_per_s = (1 + num_hits[index]) / (1e-3 + now_s - cached_s[index])
        if hits_per_s < fewest:
            chosen, fewest = index, hits_per_s
    return chosen


class Hyperbolic(kvsim.CustomPolicy):
    """vLLM's schedule; a block is evicted by its hits and its age."""

    name = "hyperbolic"

    def evict(self, step, candidates):
        """Choose by the arrays of all candidates."""
        return candidates[
            least_hits_for_its_age(candidates.column("num_hits"), candidates.column("cached_s"), step.now_s)
        ]


def main(num_requests=200):
    """Serve requests behind one of forty system prompts, some far more popular than others."""
    prompts = kvsim.SharedPrefixes(num_groups=40, tokens=256, skew=1.0)
    lengths = {"prompt": kvsim.Uniform(low=40, high=400), "output": kvsim.Uniform(low=20, high=200)}
    requests = kvsim.generate(num_requests, arrivals=kvsim.Poisson(rate_per_s=8), **lengths, prefixes=prompts, seed=1)
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=500)
    bound = kvsim.Paged(cache=kvsim.PagedSettings(eviction="optimal"))
    found = kvsim.compare(requests, [kvsim.Paged(), Hyperbolic()], machine, engine="interpreted")
    return {**dict(found.items()), "optimal": kvsim.simulate(requests, bound, machine)}


if __name__ == "__main__":
    for name, run in main().items():
        print(f"{name:10} {run.requests.cached_tokens.sum():9,} prompt tokens found in the cache")
