"""State of the encoder cache. An input is an occurrence of an image in a prompt; several may have the same image."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from kvsim.engine.arrays import Numbers, Records, Tables, fill, make, make_growing, make_one, numbers
from kvsim.engine.records import Linked, Small
from kvsim.policies.encoding import Encoding, ImageInput

_NEVER_FULL = 1 << 62


@dataclass(slots=True, eq=False, repr=False)
class EncoderState:
    """Numbers of the encoder cache that change from step to step. A slot has room for one encoder output."""

    num_free: int = 0
    """Number of empty slots of the cache."""
    num_reclaimable: int = 0
    """Number of slots of the cache that are empty or hold images that no sequence uses."""
    budget: int = 0
    """Number of encoder outputs that the step being scheduled may still compute."""
    num_plans: int = 0
    """Number of calls of `encoder_cache.plan` since the run began. Each call plans one chunk, and its number marks the
    images of the plan (`EncodedImage.planned_in`).
    """
    num_planned: int = 0
    """Number of inputs in the last plan."""
    planned_tokens: int = 0
    """Number of encoder outputs in the last plan."""
    num_evicted: int = 0
    """Number of images that the step being scheduled has evicted."""
    step_images: int = 0
    """Number of images that the step being scheduled computes."""
    step_tokens: int = 0
    """Number of encoder outputs that the step being scheduled computes."""
    step_pairs: int = 0
    """Attention pairs of the encoder in the step being scheduled: the sum of the squared outputs of its images."""
    num_encoded: int = 0
    """Number of images computed since the run began."""
    num_holds: int = 0
    """Number of times that a sequence became a user of an image, since the run began."""
    num_rows: int = 0
    """Number of events in `EncoderCache.rows`."""
    most_rows: int = 0
    """Largest number of events with which a step may begin. With more, the slice ends and the caller reads the rows."""


@dataclass(slots=True, eq=False, repr=False)
class EncoderInput:
    """One occurrence of an image in a prompt."""

    content: Small = 0
    """Number of the image, counted from 1."""
    offset: Small = 0
    """Number of prompt tokens before the occurrence."""
    end: Small = 0
    """Number of prompt tokens up to the end of the occurrence."""
    first_run: Small = 0
    """Index in `EncoderCache.runs` of the first range of tokens that take an encoder output."""
    num_runs: Small = 0
    first_same: Small = 0
    """Index of the first input of the same sequence that has the same image."""
    is_held: bool = False
    """True if the sequence uses the image for this occurrence."""
    is_user: bool = False
    """True if the sequence uses the image for any occurrence. Set only in its first input with this image."""
    num_uses: Small = 0
    """Number of occurrences for which the sequence uses the image. Set only in its first input with this image."""
    encoded_in: Small = 0
    """Number of the last step that encodes the image, counted from 1; 0 if none does."""


@dataclass(slots=True, eq=False, repr=False)
class EncodedImage(Linked):
    """One distinct image. Unused images are linked in the order in which they became unused."""

    num_tokens: Small = 0
    """Number of encoder outputs of the image."""
    is_cached: bool = False
    """True if the image's encoder outputs are in the cache."""
    num_users: Small = 0
    """Number of sequences that use the image."""
    planned_in: Small = 0
    """Number of the last plan that encodes the image, as counted by `EncoderState.num_plans`."""


@dataclass(slots=True, eq=False, repr=False)
class EncoderRow:
    """Row of the table of encoder events: event number, step, kind (`ImageEventKind`), request (-1: none), image."""

    seq: int = 0
    step: int = 0
    kind: Small = 0
    request: Small = 0
    image: Small = 0


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EncoderCache(Tables):
    """The encoder cache; unused if prompts have no images."""

    state: EncoderState
    inputs: Records[EncoderInput]
    """Inputs of all sequences, end to end, from record 1 on."""
    first_inputs: Numbers
    """Index of the first input of each sequence, and at the end the index after the last input."""
    runs: Numbers
    """Ranges of tokens that take an encoder output, as pairs: entry `2 * i` is the offset of range `i` from the first
    token of the occurrence, entry `2 * i + 1` its length.
    """
    images: Records[EncodedImage]
    """Distinct images, from record 1 on. Record 0 is the head of the list of evictable images."""
    planned: Numbers
    """Indices of the last plan's inputs; negated if an earlier input of the chunk has the same image."""
    evicted: Numbers
    """Numbers of the images that the current step has evicted, in order. Images beyond the array's end are left out."""
    rows: Records[EncoderRow]
    """Events since the caller last read them; empty if they are not recorded."""


def encoder_cache(
    encoding: Encoding | None, max_num_seqs: int, first_rows: int, *, records: bool, compiled: bool
) -> EncoderCache:
    """Return an empty encoder cache; without images (`encoding` is None), one without slots. With `records`, there is
    room for `first_rows` events, and for those of one more step.
    """
    rows = encoding.inputs if encoding is not None else ()
    flat = [each for row in rows for each in row]
    starts = np.cumsum([1, *(len(row) for row in rows)])
    contents = {content: number for number, content in enumerate(dict.fromkeys(each.content for each in flat), 1)}
    runs = [run for each in flat for run in each.runs]
    num_runs = np.array([len(each.runs) for each in flat], np.int64)
    state = make_one(EncoderState, compiled=compiled)
    state.num_free = state.num_reclaimable = encoding.cache_embeddings if encoding is not None else 0
    inputs = make(EncoderInput, len(flat) + 1, compiled=compiled)
    images = make(EncodedImage, len(contents) + 1, compiled=compiled)
    fill(
        inputs,
        1,
        content=np.array([contents[each.content] for each in flat], np.int64),
        offset=np.array([each.offset for each in flat], np.int64),
        end=np.array([each.end for each in flat], np.int64),
        first_run=np.cumsum([0, *num_runs])[: len(flat)],
        num_runs=num_runs,
        first_same=np.array(_first_same(flat, starts.tolist()), np.int64),
    )
    sizes = {contents[each.content]: each.num_embeddings for each in flat}
    fill(images, 1, num_tokens=np.array([sizes[number] for number in range(1, len(images))], np.int64))
    most = max((len(row) for row in rows), default=0)
    state.most_rows = first_rows if records else _NEVER_FULL
    # Events of one step: sequences release images, are preempted and admitted; images are encoded and evicted.
    margin = 6 * min(len(flat), 2 * max_num_seqs * most) + 2 * len(contents)
    return EncoderCache(
        state=state,
        inputs=inputs,
        first_inputs=numbers(np.array([0, *starts] if rows else [], np.int64), compiled=compiled),
        runs=numbers(np.array(runs, np.int64).reshape(-1), compiled=compiled),
        images=images,
        planned=numbers(np.zeros(most, np.int64), compiled=compiled),
        evicted=numbers(np.zeros(2 * len(contents), np.int64), compiled=compiled),
        rows=make_growing(EncoderRow, first_rows + margin if records else 0, compiled=compiled),
    )


def _first_same(flat: list[ImageInput], starts: list[int]) -> list[int]:
    """Return, for each input, the index of the first input of the same sequence that has the same image."""
    found: list[int] = []
    for begin, end in pairwise(starts):
        first: dict[int | str, int] = {}
        found.extend(first.setdefault(flat[index - 1].content, index) for index in range(begin, end))
    return found
