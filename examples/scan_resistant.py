"""An allocator that shares prefixes: units that were never hit again are reused before those that were.

Long documents that come once push system prompts out of a cache that goes by the last use. Here a unit that was found
again is protected, up to half of the pool (segmented LRU; Karedla, Love and Wherry, Computer 27, 1994).
Beside it vLLM's cache: `python examples/scan_resistant.py`.
"""

from collections import OrderedDict
from itertools import islice

import kvsim


class SegmentedCache(kvsim.SharingAllocator):
    """Free units in order of reuse: empty ones, then those never found again, then the protected ones."""

    def __init__(self, num_units, unit_tokens):
        self.unit_tokens, self.most_protected = unit_tokens, num_units // 2
        self.empty, self.once, self.protected = OrderedDict.fromkeys(range(num_units)), OrderedDict(), OrderedDict()
        self.unit_of, self.key_of, self.was_found = {}, {}, set()

    def find_prefix(self, request):
        """Follow the keys of the request for as long as a unit has each."""
        units = []
        for key in request.prefix_keys:
            if key not in self.unit_of:
                break
            units.append(self.unit_of[key])
        return units

    def allocate(self, request, num_tokens, found=()):
        """Take the found units out of the free ones, and as many free units as are missing."""
        missing = -(-num_tokens // self.unit_tokens) - request.num_units - len(found)
        order = (*self.empty, *self.once, *self.protected) if missing > 0 else ()
        units = list(islice((unit for unit in order if unit not in found), max(missing, 0)))
        if len(units) < missing:
            return None
        for unit in units:
            self.was_found.discard(unit)
            self.unit_of.pop(self.key_of.pop(unit, None), None)
        for unit in (*units, *found):
            for segment in (self.empty, self.once, self.protected):
                segment.pop(unit, None)
        self.was_found.update(found)
        return units

    def cache(self, request, unit, key):
        """Let others find a full unit, unless another one holds the prefix."""
        if self.unit_of.setdefault(key, unit) == unit:
            self.key_of[unit] = key

    def free(self, request, units):
        """Keep every unit that can be found; the end of a prefix is reused first."""
        for unit in reversed(units):
            kept_in = self.protected if unit in self.was_found else self.once
            (kept_in if unit in self.key_of else self.empty)[unit] = None
        while len(self.protected) > self.most_protected:
            self.once[self.protected.popitem(last=False)[0]] = None
        return [unit for unit in units if unit in self.key_of]


class ScanResistant(kvsim.CustomPolicy):
    """vLLM's schedule over a segmented cache."""

    name, allocator = "scan-resistant", SegmentedCache


def main(num_requests=150):
    """Serve questions behind one of twenty prompts, every third of them with a long document that comes once."""
    prompts = kvsim.SharedPrefixes(num_groups=20, tokens=256)
    lengths = {"prompt": kvsim.Empirical(values=(50, 50, 2000)), "output": 20}
    requests = kvsim.generate(num_requests, arrivals=kvsim.Poisson(rate_per_s=8), **lengths, prefixes=prompts, seed=1)
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=500)
    return kvsim.compare(requests, [kvsim.Paged(), ScanResistant()], machine, engine="interpreted")


if __name__ == "__main__":
    for name, run in main().items():
        print(f"{name:15} {run.requests.cached_tokens.sum():9,} prompt tokens found in the cache")
