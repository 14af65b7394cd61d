"""`Demand`: the requests of a run as arrays of lengths, limits, priorities, arrivals and prefix keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.kv_groups import KVCacheLayout
from kvsim.policies import Contiguous, Pipeline, Policy, Radix, Static
from kvsim.policies.settings import Reserve
from kvsim.workload import Ragged

Column = npt.NDArray[np.int64]
BEGIN_TOKENS = 32
"""Number of leading tokens by which SGLang compares waiting requests. Of two requests with equal leading tokens, orders
such as `LPM` put the later one behind all others, unless more of its tokens than this number are cached.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Requests of a run, as they are known in advance. Lengths are in tokens: int64[num_requests]."""

    prompt: Column
    output: Column
    """Number of output tokens after which the request ends: by a stop token, its limit or `max_model_len`."""
    limit: Column
    """Largest number of output tokens that the request allows. The scheduler knows it in advance."""
    priority: Column
    arrival_s: npt.NDArray[np.float64]
    keys: Ragged[np.int64]
    """Keys of each prompt's full blocks for the prefix cache, equal for equal prefixes; none for unknown tokens."""
    adapter: Column | int = 0
    """Number of the request's adapter, from 1 on; 0 for none."""
    begins: Column | None = None
    """Key of the first `BEGIN_TOKENS` tokens of each request, equal for equal tokens. It is negative if the tokens are
    unknown or too few.

    None if no policy compares these tokens, or if only keys of whole pages are known; see `known_begins`.
    """

    def every(self, stride: int, first_row: int) -> Demand:
        """Return every `stride`-th request from row `first_row` on, with unchanged keys."""
        rows = slice(first_row, None, stride)
        return Demand(
            prompt=self.prompt[rows].copy(),
            output=self.output[rows].copy(),
            limit=self.limit[rows].copy(),
            priority=self.priority[rows].copy(),
            arrival_s=self.arrival_s[rows].copy(),
            keys=self.keys.take(np.arange(first_row, len(self.keys), stride)),
            adapter=self.adapter if isinstance(self.adapter, int) else self.adapter[rows].copy(),
            begins=None if self.begins is None else self.begins[rows].copy(),
        )

    def known_begins(self, unit_tokens: int) -> Column:
        """Return `begins`, but with a negative key of its own for each request whose tokens are unknown, so that it
        equals no other request.

        If `begins` is None, compare whole pages of `unit_tokens` tokens instead: return the key of the longest prefix
        of whole pages within the first `BEGIN_TOKENS` tokens. If a page is longer, return the first page's key.
        """
        keys = self.begins
        if keys is None:
            page = max(BEGIN_TOKENS // unit_tokens, 1) - 1
            is_known = self.keys.lengths > page
            keys = np.full(len(self.prompt), -1, np.int64)
            keys[is_known] = self.keys.values[self.keys.offsets[:-1][is_known] + page]
        return np.where(keys < 0, -1 - np.arange(len(keys)), keys)

    @property
    def stops_late(self) -> npt.NDArray[np.bool_]:
        """True for each request that ends before its limit: bool[num_requests]. Async scheduling notices such an end
        one step late.
        """
        return np.asarray(self.output < self.limit)

    def reservations(self, policy: Contiguous) -> Column:
        """Return the number of slots that each request reserves at its first admission: int64[num_requests]."""
        wanted = {
            Reserve.MAX: np.full_like(self.prompt, policy.max_model_len),
            Reserve.LIMIT: self.prompt + self.limit,
            Reserve.POW2: self.prompt + _power_of_two_from(self.output),
            # The last token's KV is never written, unless the stop is noticed one scheduled token late.
            Reserve.ORACLE: self.prompt + self.output - 1 + self.stops_late,
            Reserve.DOUBLING: _power_of_two_from(self.prompt + 1),
        }
        return np.asarray(np.minimum(wanted[policy.cache.reserve], policy.max_model_len))

    def misfits(self, policy: Policy, num_units: int, layout: KVCacheLayout | None = None) -> npt.NDArray[np.bool_]:
        """Return True for each request that a pool of `num_units` units could not serve even alone: bool[num_requests].

        With several KV-cache groups, a request can be served if the pool has all blocks that it may hold at once.
        """
        if isinstance(policy, Static):
            fits = self.prompt + self.limit - 1 <= num_units
        elif isinstance(policy, Contiguous):
            longest = self.reservations(policy)
            if policy.cache.reserve is Reserve.DOUBLING:
                last = _power_of_two_from(self.prompt + self.output + 1)
                longest = np.minimum(last, policy.max_model_len)
            fits = longest <= (1 << num_units.bit_length() - 1 if policy.cache.fit == "buddy" else num_units)
        elif isinstance(policy, Radix):
            fits = self.prompt < policy.refused_prompt_tokens(num_units * policy.unit_tokens)
        else:
            last = self.prompt + self.output - 1 + self.stops_late
            if (drafting := policy.scheduler.drafting) is not None:  # its last steps verify drafts after its end
                steps = 1 + policy.scheduler.async_scheduling
                last = last + drafting.most_past_end(steps) + drafting.lookahead_tokens
            last = np.minimum(last, policy.max_model_len)
            if layout is None or layout.is_uniform:
                fits = -(-last // policy.unit_tokens) <= num_units
            else:
                lengths, row = np.unique(last, return_inverse=True)
                most = Pipeline().max_in_flight_tokens(policy.scheduler)
                fits = np.array([layout.blocks_for(int(length), most) <= num_units for length in lengths])[row]
        return np.asarray(~fits)


def _power_of_two_from(values: Column) -> Column:
    """Return the smallest powers of two that are at least `values`."""
    # the exponent from `frexp` is the number of bits of `values - 1`
    return np.asarray(1 << np.frexp(values - 1)[1].astype(np.int64))
