"""Keys of prompt blocks: equal keys exactly where everything up to the block's end is equal.

Only equality matters to a prefix cache, so a key is a small integer that stands for its prefix. It can be derived
from token ids, from chained hashes that a trace or an engine gives, or from a named prefix that several requests
share.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kvsim.errors import WorkloadError


class PrefixKeys:
    """Hands out keys for blocks of `block_size` tokens."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._keys: dict[Hashable, int] = {}

    def from_tokens(self, token_ids: Sequence[int]) -> list[int]:
        """Keys of the full blocks of a prompt given as token ids."""
        keys: list[int] = []
        before = -1
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            before = self._intern(("tokens", before, tuple(token_ids[end - self.block_size : end])))
            keys.append(before)
        return keys

    def from_hashes(self, hashes: Sequence[int], unit_tokens: int, prompt_tokens: int) -> list[int]:
        """Keys of the full blocks of a prompt given as one chained hash per `unit_tokens` tokens.

        The last unit may be partial. Where a unit is larger than a block, its blocks share its hash and differ by
        their place.

        Raises:
            WorkloadError: neither size divides the other, so blocks would straddle units.
        """
        num_blocks = prompt_tokens // self.block_size
        if self.block_size % unit_tokens == 0:
            per_block = self.block_size // unit_tokens
            known = min(num_blocks, len(hashes) // per_block)
            return [self._intern(("hash", hashes[(block + 1) * per_block - 1], 0)) for block in range(known)]
        if unit_tokens % self.block_size == 0:
            per_unit = unit_tokens // self.block_size
            known = min(num_blocks, len(hashes) * per_unit)
            return [self._intern(("hash", hashes[block // per_unit], block % per_unit)) for block in range(known)]
        raise WorkloadError(
            f"the workload has one hash per {unit_tokens} tokens, so the block size should divide it or be a multiple "
            f"of it, not {self.block_size}."
        )

    def from_prefix(self, group: Hashable, prefix_tokens: int) -> list[int]:
        """Keys of the full blocks that lie inside the first `prefix_tokens` tokens, which all of `group` share."""
        return [self._intern(("prefix", group, block)) for block in range(prefix_tokens // self.block_size)]

    def _intern(self, prefix: Hashable) -> int:
        return self._keys.setdefault(prefix, len(self._keys))
