"""Keys of prompt blocks for the prefix cache: equal exactly if all tokens up to the ends of the blocks are equal.

Only equality matters to a prefix cache, so a key is a small integer instead of vLLM's block hash. Keys are made from
what the workload knows of its prompts: token ids, chained hashes of a trace or an engine, images, or a named prefix
that several requests share. Throughout, `ahead_tokens` is the number of tokens after a block that its key covers, too;
drafting may read them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import WorkloadError
from kvsim.policies.encoding import ImageInput
from kvsim.workload import Ragged, Turns, Workload

Column = npt.NDArray[np.int64]
_MARK, _IMAGE, _TEXT = 0, 1, 2
"""Token ids in place of unknown tokens: `_MARK` before and after an image, `_IMAGE` for a token of an image, and
`_TEXT` plus the number of a named prefix for the prefix's text.
"""


class _Codes(NamedTuple):
    """Codes of the full blocks of all prompts. Two blocks have the same code exactly if their prefixes are equal."""

    num_blocks: Column
    """Number of blocks of each prompt that have codes; -1 if the prompt lacks the data from which codes are made."""
    codes: Column
    """Codes of these blocks, prompt by prompt."""
    bound: int
    """A number that is larger than every code."""


class PrefixKeys:
    """Assigns keys to the prefixes that end with blocks of `block_size` tokens: each new prefix gets the next integer,
    from 0 on. Keys of `from_tokens` and of `from_hashes` never agree.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._keys: dict[Hashable, int] = {}

    def from_tokens(
        self,
        token_ids: Sequence[int],
        namespace: Hashable = None,
        ahead_tokens: int = 0,
        images: Sequence[ImageInput] = (),
    ) -> list[int]:
        """Return the keys of the full blocks of a prompt with these token ids.

        Blocks of prompts with different values of `namespace`, such as an adapter or a salt, never have equal keys. A
        key covers all tokens up to the end of its block and the `ahead_tokens` after it, and the `images` that overlap
        these tokens. A block with fewer tokens after it has no key.
        """
        keys: list[int] = []
        before = -1 if namespace is None else self._intern(("namespace", namespace))
        for end in range(self.block_size, len(token_ids) + 1 - ahead_tokens, self.block_size):
            begin = end - self.block_size
            inside = tuple(
                (image.content, image.offset - begin)
                for image in images
                if image.offset < end + ahead_tokens and begin < image.end
            )
            before = self._intern(("tokens", before, tuple(token_ids[begin : end + ahead_tokens]), inside))
            keys.append(before)
        return keys

    def from_hashes(self, hashes: Sequence[int], unit_tokens: int, prompt_tokens: int) -> list[int]:
        """Return the keys of the full blocks of a prompt of `prompt_tokens` tokens, with one chained hash for each
        `unit_tokens` tokens. The last hash may cover fewer tokens.

        The key of a block depends on the hash that covers its last token. If a hash covers more than one block, it also
        depends on the index of the block within the hash's tokens.

        Raises:
            WorkloadError: neither the block size nor `unit_tokens` is a multiple of the other.
        """
        _check_sizes(unit_tokens, self.block_size)
        num_blocks = min(prompt_tokens, len(hashes) * unit_tokens) // self.block_size
        last_tokens = range(self.block_size - 1, num_blocks * self.block_size, self.block_size)
        blocks_per_unit = max(unit_tokens // self.block_size, 1)
        return [
            self._intern(("hash", hashes[token // unit_tokens], block % blocks_per_unit))
            for block, token in enumerate(last_tokens)
        ]

    def _intern(self, prefix: Hashable) -> int:
        return self._keys.setdefault(prefix, len(self._keys))


def knows_prefixes(workload: Workload) -> bool:
    """Tell whether a workload's equal prefixes can be found: by token ids, hashes, turns, images or named prefixes."""
    known = workload.prompt_token_ids is not None or len(workload.prompt_hashes.values) > 0
    known |= workload.turns is not None or workload.images is not None
    return known or bool((workload.prefix_group >= 0).any())


def prompt_keys(workload: Workload, block_size: int, ahead_tokens: int = 0) -> Ragged[np.int64]:
    """Return the keys of the full blocks of every prompt: one row for each request, from the best data about it.

    In order of preference, these data are token ids, hashes, images and named prefixes. A prompt without such data has
    no keys. Keys are numbered in order of first appearance.

    Raises:
        WorkloadError: neither `block_size` nor the number of tokens per hash is a multiple of the other.
    """
    # Each prompt takes its codes from the first kind of data that it has (`rows`: those prompts). The codes of each
    # kind are shifted above those of the kinds before, so that codes of different kinds are never equal.
    without_codes = np.ones(len(workload), np.bool_)
    num_blocks, parts, num_codes = np.zeros(len(workload), np.int64), [], 0
    for lengths, codes, bound in (
        _codes_of_tokens(workload, block_size, ahead_tokens),
        _codes_of_hashes(workload, block_size, ahead_tokens),
        _codes_of_images(workload, block_size, ahead_tokens),
        _codes_of_prefixes(workload, block_size, ahead_tokens),
    ):
        rows = without_codes & (lengths >= 0)
        is_taken = np.repeat(rows, np.maximum(lengths, 0))
        parts.append((rows, codes[is_taken] + num_codes))
        num_blocks[rows] = lengths[rows]
        without_codes &= ~rows
        num_codes += bound
    all_codes = np.empty(num_blocks.sum(), np.int64)
    for rows, codes in parts:
        all_codes[np.repeat(rows, num_blocks)] = codes
    offsets = np.concatenate(([0], np.cumsum(num_blocks)))
    return Ragged(_by_first_appearance(all_codes, num_codes), offsets, np.int64)


def with_answers(
    turns: Turns | None, prompts: Ragged[np.int64], block_size: int, ahead_tokens: int = 0
) -> Ragged[np.int64]:
    """Return the keys of every request's full blocks: those of its prompt (`prompts`), and those of its answer if the
    prompt of a later turn repeats it.

    A later prompt begins with `turns.history_tokens` tokens of its conversation: the prompt and the answer of the turn
    before. A block in them has the same key in both turns: the key that one of the two prompts has, or else a new key.
    Keys that both prompts have are left as they are. If `turns` is None, return `prompts`.
    """
    if turns is None:
        return prompts
    # Numbers of blocks, by row: with known keys; in the history; in the prompt; in the prompt and the repeated answer.
    num_known = prompts.lengths
    num_repeated = _full_blocks(turns.history_tokens.astype(np.int64), block_size, ahead_tokens)
    num_in_prompt = np.maximum(num_known, num_repeated)
    num_blocks, later_rows = num_in_prompt.copy(), np.flatnonzero(turns.after >= 0)
    np.maximum.at(num_blocks, turns.after[later_rows], num_repeated[later_rows])
    # Every block gets a new key first. Known keys of prompts replace these.
    offsets = np.concatenate(([0], np.cumsum(num_blocks)))
    keys = np.arange(offsets[-1]) + prompts.values.max(initial=-1) + 1
    block, row_of_block = _blocks_of_rows(num_blocks)
    keys[block < num_known[row_of_block]] = prompts.values
    # Then both turns of a pair get the same keys for the blocks that they share.
    pairs = list(zip(later_rows.tolist(), turns.after[later_rows].tolist(), strict=True))
    begins = offsets.tolist()
    # Known keys of an answer go from the later turn to the earlier. In reverse, so that the first of several turns that
    # follow one answer is copied last and prevails.
    for later, earlier in reversed(pairs):
        first, end = num_in_prompt[earlier], min(num_known[later], num_repeated[later])
        _copy_keys(keys, begins[later], begins[earlier], first, end)
    # Unknown keys of a history go from the earlier turn, whose row is complete by now, to the later.
    for later, earlier in pairs:
        _copy_keys(keys, begins[earlier], begins[later], num_known[later], num_repeated[later])
    return Ragged(keys, offsets, np.int64)


def _copy_keys(keys: Column, source: int, target: int, first: int, end: int) -> None:
    """Copy keys of blocks [first, end) from the row at index `source` of `keys` to the row at index `target`."""
    if first < end:
        keys[target + first : target + end] = keys[source + first : source + end]


def _full_blocks(num_tokens: npt.NDArray[np.integer[Any]], block_size: int, ahead_tokens: int) -> Column:
    """Return, for each of `num_tokens`, the number of full blocks with at least `ahead_tokens` tokens after them."""
    return np.asarray(np.maximum(num_tokens - ahead_tokens, 0) // block_size)


def _no_codes(workload: Workload) -> _Codes:
    return _Codes(np.full(len(workload), -1), np.empty(0, np.int64), 0)


def _codes_of_tokens(workload: Workload, block_size: int, ahead_tokens: int) -> _Codes:
    token_ids, keys = workload.prompt_token_ids, PrefixKeys(block_size)
    if token_ids is None:
        return _no_codes(workload)
    codes = []
    for row in range(len(workload)):
        codes += keys.from_tokens(token_ids[row].tolist(), ahead_tokens=ahead_tokens)
    lengths = np.where(token_ids.lengths > 0, _full_blocks(token_ids.lengths, block_size, ahead_tokens), -1)
    return _Codes(lengths, np.array(codes, np.int64), len(codes))


def _codes_of_hashes(workload: Workload, block_size: int, ahead_tokens: int) -> _Codes:
    hashes, unit_tokens = workload.prompt_hashes, workload.hash_unit_tokens
    if not len(hashes.values):
        return _no_codes(workload)
    _check_sizes(unit_tokens, block_size)
    blocks_per_unit = max(unit_tokens // block_size, 1)
    covered = workload.hash_ahead_tokens
    known = np.minimum(workload.prompt_tokens, hashes.lengths * unit_tokens + covered).astype(np.int64)
    lengths = _full_blocks(known, block_size, ahead_tokens)
    block, row = _blocks_of_rows(lengths)
    # Two units with different hashes count as different from their first token on: no finer data is known.
    last_token = np.maximum((block + 1) * block_size - 1 + ahead_tokens - covered, 0)
    unit = hashes.offsets[row] + last_token // unit_tokens
    distinct, number = np.unique(hashes.values, return_inverse=True)
    codes = number[unit] * blocks_per_unit + block % blocks_per_unit
    return _Codes(np.where(hashes.lengths > 0, lengths, -1), codes, len(distinct) * blocks_per_unit)


def _codes_of_images(workload: Workload, block_size: int, ahead_tokens: int) -> _Codes:
    """Return codes for the known beginning of each prompt: its named prefix, and the images directly after it."""
    images, keys = workload.images, PrefixKeys(block_size)
    if images is None:
        return _no_codes(workload)
    lengths, codes = np.zeros(len(workload), np.int64), []
    for row in range(len(workload)):
        tokens = [_TEXT + int(workload.prefix_group[row])] * int(workload.prefix_tokens[row])
        inside = []
        for image in images[row]:
            has_marks = image.size.width > 0
            if image.place - has_marks != len(tokens):
                break
            inside.append(ImageInput(content=image.content, offset=image.place, length=image.size.tokens))
            tokens += [*[_MARK] * has_marks, *[_IMAGE] * image.size.tokens, *[_MARK] * has_marks]
        found = keys.from_tokens(tokens, ahead_tokens=ahead_tokens, images=inside)
        lengths[row] = len(found)
        codes += found
    return _Codes(lengths, np.array(codes, np.int64), len(codes))


def _codes_of_prefixes(workload: Workload, block_size: int, ahead_tokens: int) -> _Codes:
    groups = workload.prefix_group.astype(np.int64)
    lengths = np.where(groups >= 0, _full_blocks(workload.prefix_tokens, block_size, ahead_tokens), 0).astype(np.int64)
    block, row = _blocks_of_rows(lengths)
    longest = int(lengths.max(initial=0))
    return _Codes(np.where(groups >= 0, lengths, -1), groups[row] * longest + block, (int(groups.max()) + 1) * longest)


def _blocks_of_rows(lengths: Column) -> tuple[Column, Column]:
    """Return two arrays with a value for each block of all rows, where row `i` has `lengths[i]` blocks: the index of
    the block in its row, and the index of the row. The blocks of row 0 come first. A row is a prompt.
    """
    row = np.repeat(np.arange(len(lengths)), lengths)
    begins = np.cumsum(lengths) - lengths
    return np.arange(len(row)) - begins[row], row


def _by_first_appearance(codes: Column, num_codes: int) -> Column:
    """Return `codes`, which are below `num_codes`, renumbered from 0 on in the order in which they first appear."""
    if num_codes > 8 * len(codes):  # a table of all codes would be mostly empty
        distinct, codes = np.unique(codes, return_inverse=True)
        num_codes = len(distinct)
    places = np.arange(len(codes))
    first_place_of = np.empty(num_codes, np.int64)
    first_place_of[codes[::-1]] = places[::-1]  # reversed, since the last of several assignments prevails
    first_place = first_place_of[codes]
    # A code's number is the number of first appearances before its own.
    return (np.cumsum(first_place == places) - 1)[first_place]


def _check_sizes(unit_tokens: int, block_size: int) -> None:
    if block_size % unit_tokens and unit_tokens % block_size:
        raise WorkloadError(
            f"the workload has one hash per {unit_tokens} tokens, so the block size should divide it or be a multiple "
            f"of it, not {block_size}."
        )


def all_prompt_keys(known: Ragged[np.int64], num_blocks: npt.NDArray[np.integer[Any]], rows: range) -> Ragged[np.int64]:
    """Return the keys of the full blocks of every prompt, as `prefix_hits.key_of` computes them for a single group.

    Prompt `i` has `num_blocks[i]` full blocks. Those without a `known` key get a negative key that no other request
    has: it combines the index of the block and the request's row in the workload of the whole fleet (`rows[i]`). A
    prompt without any known key gets no keys.
    """
    lengths = np.where(known.lengths > 0, num_blocks, 0).astype(np.int64)
    block, row = _blocks_of_rows(lengths)
    keys = -1 - (rows.start + rows.step * row << 32 | block)
    is_known = block < known.lengths[row]
    known_block, known_row = _blocks_of_rows(known.lengths)
    keys[is_known] = known.values[known_block < lengths[known_row]]  # keys after the prompt are those of its answer
    return Ragged(keys, np.concatenate(([0], np.cumsum(lengths))), np.int64)
