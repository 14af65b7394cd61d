"""Allocate and free the tensors of one eager forward pass of a Llama-like decoder, to compute its GPU memory.

Sizes follow from the shapes. The order of allocations is that of transformers 5.17 with scaled-dot-product attention;
it matters because it decides which free pieces the allocator can reuse. Sampling is not part of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.memory.caching import SMALL_LIMIT_BYTES, CachingAllocator

if TYPE_CHECKING:
    from kvsim.models import Model

FLOAT32_BYTES = 4
INT64_BYTES = 8

_FULLY_SIMULATED_LAYERS = 2
"""Number of layers whose tensors are always allocated one by one.

If all temporary tensors are small, later layers would take the same pieces of PyTorch's pool of small blocks again. In
this case, later layers allocate only their keys and values and, with a mask, the copies of these for every query head.
"""


class Forward:
    """Allocations of forward passes over a batch of `rows` rows. Tensors are represented by their addresses."""

    def __init__(self, model: Model, allocator: CachingAllocator, *, rows: int, masked: bool) -> None:
        """Start with an empty KV cache.

        Args:
            model: the decoder.
            allocator: allocator of the tensors.
            rows: number of rows of the batch.
            masked: True if attention gets a mask; then keys and values are also copied for every query head.
        """
        self._model = model
        self._rows = rows
        self._masked = masked
        self._take = allocator.allocate
        self._give = allocator.free
        self.cache: list[tuple[int, int]] = []
        """Addresses of the keys and of the values of each layer."""

    def run(self, positions: int, keys: int, *, keep_cache: bool = False) -> int:
        """Run a forward pass of `positions` tokens per row, which attend to `keys` tokens per row. Return the address
        of the logits of the last position.

        The KV cache is replaced by one with `keys` tokens per row. With `keep_cache`, only the first pass allocates a
        cache, and later passes keep it unchanged.
        """
        take, give, model = self._take, self._give, self._model
        tokens = self._rows * positions
        embedded = hidden = take(tokens * model.hidden_size * model.dtype_bytes)
        mask = self._mask(positions, keys)
        rotary = self._rotary_angles(tokens)
        temporary = tokens * max(2 * model.hidden_size, model.intermediate_size, self._query_width) * model.dtype_bytes
        all_small = max(temporary, self._rows * positions * keys * model.dtype_bytes) <= SMALL_LIMIT_BYTES
        for number in range(model.num_layers):
            if all_small and number >= _FULLY_SIMULATED_LAYERS:
                self._store(number, keys, keep_cache=keep_cache)
                self._repeated(keys)
                continue
            before, hidden = hidden, self._layer(number, positions, keys, keep_cache=keep_cache)
            if before != embedded:  # the embeddings are referenced until the end of the pass
                give(before)
        normed = self._norm(tokens)
        for address in (hidden, embedded, *mask, *rotary):
            give(address)
        logits = take(self._rows * model.vocab_size * model.dtype_bytes)
        give(normed)
        return logits

    @property
    def _query_width(self) -> int:
        return self._model.num_attention_heads * self._model.head_dim

    @property
    def _key_width(self) -> int:
        return self._model.num_kv_heads * self._model.head_dim

    def _mask(self, positions: int, keys: int) -> tuple[int, ...]:
        """Allocate the boolean attention mask: whether each position may attend to each key. Return its address in a
        tuple, which is empty if there is no mask.
        """
        if not self._masked:
            return ()
        index = [self._take(self._rows * keys * INT64_BYTES) for _ in range(2)]
        seen = self._take(self._rows * keys)
        for address in reversed(index):
            self._give(address)
        mask = self._take(self._rows * positions * keys)
        self._give(seen)
        return (mask,)

    def _rotary_angles(self, tokens: int) -> tuple[int, int]:
        """Allocate the sines and cosines of the positions of `tokens` tokens. Return the addresses of both. They are
        computed in single precision and converted to the type of the weights.
        """
        take, give, width = self._take, self._give, self._model.head_dim
        double = tokens * width * FLOAT32_BYTES
        scratch = [take(tokens * FLOAT32_BYTES), take(double // 2), take(double)]
        for _ in range(2):
            unscaled = take(double)
            scratch.append(take(double))
            give(unscaled)
        cosines = take(tokens * width * self._model.dtype_bytes)
        sines = take(tokens * width * self._model.dtype_bytes)
        for address in scratch:
            give(address)
        return sines, cosines

    def _layer(self, number: int, positions: int, keys: int, *, keep_cache: bool) -> int:
        """Run layer `number` on `positions` tokens per row, attending to `keys` tokens. Return the output's address."""
        take, give, model = self._take, self._give, self._model
        tokens, element = self._rows * positions, model.dtype_bytes
        query_bytes, key_bytes = tokens * self._query_width * element, tokens * self._key_width * element
        normed = self._norm(tokens)
        query, key, value = take(query_bytes), take(key_bytes), take(key_bytes)
        rotated_query, rotated_key = self._rotated(query_bytes), self._rotated(key_bytes)
        give(query)
        give(key)
        self._store(number, keys, keep_cache=keep_cache)
        give(rotated_key)
        give(value)
        attended = self._attention(positions, keys, query_bytes)
        projected = take(tokens * model.hidden_size * element)
        for address in (attended, rotated_query, normed):
            give(address)
        middle = take(tokens * model.hidden_size * element)
        give(projected)
        normed = self._norm(tokens)
        projected = self._feed_forward(tokens)
        give(normed)
        output = take(tokens * model.hidden_size * element)
        give(projected)
        give(middle)
        return output

    def _norm(self, tokens: int) -> int:
        """Allocate tensors of an RMS norm in single precision. Return the result's address, of the weights' type."""
        take, give = self._take, self._give
        single = tokens * self._model.hidden_size * FLOAT32_BYTES
        converted, squared, mean = take(single), take(single), take(tokens * FLOAT32_BYTES)
        give(squared)
        shifted, root = take(tokens * FLOAT32_BYTES), take(tokens * FLOAT32_BYTES)
        give(shifted)
        scaled = take(single)
        give(root)
        give(converted)
        narrow = take(tokens * self._model.hidden_size * self._model.dtype_bytes)
        output = take(tokens * self._model.hidden_size * self._model.dtype_bytes)
        for address in (narrow, scaled, mean):
            give(address)
        return output

    def _rotated(self, num_bytes: int) -> int:
        """Allocate for rotary positions in queries or keys of `num_bytes`. Return the address of the new tensor."""
        take, give = self._take, self._give
        by_cosine, negated = take(num_bytes), take(num_bytes // 2)
        swapped = take(num_bytes)
        give(negated)
        by_sine = take(num_bytes)
        give(swapped)
        output = take(num_bytes)
        give(by_cosine)
        give(by_sine)
        return output

    def _store(self, number: int, keys: int, *, keep_cache: bool) -> None:
        """Allocate keys and values of `keys` tokens per row for layer `number`. If the layer already has keys and
        values, free these; with `keep_cache`, keep them and allocate nothing.
        """
        if keep_cache and number < len(self.cache):
            return
        num_bytes = self._rows * keys * self._key_width * self._model.dtype_bytes
        if number == len(self.cache):
            self.cache.append((self._take(num_bytes), self._take(num_bytes)))
            return
        old_keys, old_values = self.cache[number]
        new_keys = self._take(num_bytes)
        self._give(old_keys)
        new_values = self._take(num_bytes)
        self._give(old_values)
        self.cache[number] = new_keys, new_values

    def _attention(self, positions: int, keys: int, query_bytes: int) -> int:
        take, give = self._take, self._give
        if not self._masked:
            return take(query_bytes)
        copies = self._copies(keys)
        bias = take(self._rows * positions * keys * self._model.dtype_bytes)
        output = take(query_bytes)
        for address in (bias, *copies):
            give(address)
        return output

    def _copies(self, keys: int) -> tuple[int, ...]:
        """Allocate copies of keys and values for every query head; none if no heads share keys."""
        if self._query_width == self._key_width:
            return ()
        num_bytes = self._rows * keys * self._query_width * self._model.dtype_bytes
        return self._take(num_bytes), self._take(num_bytes)

    def _repeated(self, keys: int) -> None:
        if self._masked:
            for address in self._copies(keys):
                self._give(address)

    def _feed_forward(self, tokens: int) -> int:
        take, give = self._take, self._give
        wide = tokens * self._model.intermediate_size * self._model.dtype_bytes
        gate = take(wide)
        activated = take(wide)
        give(gate)
        up = take(wide)
        product = take(wide)
        give(activated)
        give(up)
        output = take(tokens * self._model.hidden_size * self._model.dtype_bytes)
        give(product)
        return output
