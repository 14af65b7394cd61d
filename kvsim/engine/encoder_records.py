"""Records of the encoder cache: places of images in prompts, and the images themselves."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from kvsim.engine.arrays import Numbers, Records, fill, make, make_growing, make_one, numbers
from kvsim.engine.records import Linked, Small
from kvsim.policies.encoding import Encoding, ImageInput

_NEVER_FULL = 1 << 62


@dataclass(slots=True, eq=False, repr=False)
class EncoderState:
    """Numbers of the encoder cache that change from step to step, in outputs of the encoder."""

    num_free: int = 0
    """Slots that hold nothing."""
    num_reclaimable: int = 0
    """Slots that hold nothing, or what no sequence uses."""
    budget: int = 0
    """Outputs that the step being scheduled may still compute."""
    num_calls: int = 0
    """Plans made so far."""
    num_planned: int = 0
    """Inputs in the plan that was made last."""
    planned_tokens: int = 0
    """Outputs that it computes."""
    num_evicted: int = 0
    """Images that the step being scheduled has evicted."""
    num_encoded: int = 0
    """Images computed so far."""
    encoded_tokens: int = 0
    """Their outputs."""
    num_held: int = 0
    """Images that sequences began to use, counted for each."""
    num_rows: int = 0
    """Events in `rows`."""
    most_rows: int = 0
    """Events with which another step may begin."""


@dataclass(slots=True, eq=False, repr=False)
class EncoderInput:
    """One image at one place of a prompt."""

    content: Small = 0
    """The image, from 1 on."""
    offset: Small = 0
    """Tokens of the prompt before it."""
    end: Small = 0
    """Tokens of the prompt up to its end."""
    first_run: Small = 0
    """Index of its first run of tokens that carry an output."""
    num_runs: Small = 0
    first_alike: Small = 0
    """The first input of the same sequence with the same image."""
    is_held: bool = False
    """The sequence uses the image for this place."""
    is_user: bool = False
    """The sequence uses the image at all; kept at the first input with this image."""
    num_held: Small = 0
    """Places for which it does; kept there, too."""
    encoded_in: Small = 0
    """The step that was to compute it last, counted from 1."""


@dataclass(slots=True, eq=False, repr=False)
class EncodedImage(Linked):
    """One image. Unused images are linked in the order in which their last sequence freed them."""

    num_tokens: Small = 0
    """Outputs of the encoder."""
    is_cached: bool = False
    num_users: Small = 0
    """Sequences that use it."""
    planned_in: Small = 0
    """The plan that was last to compute it."""


@dataclass(slots=True, eq=False, repr=False)
class EncoderRow:
    """One event, as in the recording."""

    seq: int = 0
    step: int = 0
    kind: Small = 0
    request: Small = 0
    image: Small = 0


class EncoderCache(NamedTuple):
    """The encoder cache; of no use where prompts have no images."""

    state: EncoderState
    inputs: Records[EncoderInput]
    """Inputs of all sequences, end to end; record 0 is none."""
    first_inputs: Numbers
    """Index of the first input of each sequence; behind the last one, of the end."""
    runs: Numbers
    """Runs of tokens that carry an output: first token and number of tokens, in turn."""
    images: Records[EncodedImage]
    """Record 0 is the head of the list of those that can be evicted."""
    planned: Numbers
    """Inputs in the plan that was made last; one that repeats an image of the plan is negative."""
    evicted: Numbers
    """Images that the step being scheduled has evicted, in order, as far as there is room; one may be there again."""
    rows: Records[EncoderRow]
    """Events of the slice, if they are recorded."""


def encoder_cache(
    encoding: Encoding | None, max_num_seqs: int, first_rows: int, *, records: bool, compiled: bool
) -> EncoderCache:
    """Return the cache of an engine that has begun nothing; without images, nothing has a place in it.

    If it `records`, a step may begin with `first_rows` events of the slice, and room is left for those of that step.
    """
    rows = encoding.inputs if encoding is not None else ()
    flat = [each for row in rows for each in row]
    starts = np.cumsum([1, *(len(row) for row in rows)])
    contents = {content: number for number, content in enumerate(dict.fromkeys(each.content for each in flat), 1)}
    runs = [run for each in flat for run in each.runs]
    num_runs = np.array([len(each.runs) for each in flat], np.int64)
    state = make_one(EncoderState, compiled=compiled)
    state.num_free = state.num_reclaimable = encoding.cache_tokens if encoding is not None else 0
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
        first_alike=np.array(_first_alike(flat, starts.tolist()), np.int64),
    )
    sizes = {contents[each.content]: each.num_embeddings for each in flat}
    fill(images, 1, num_tokens=np.array([sizes[number] for number in range(1, len(images))], np.int64))
    most = max((len(row) for row in rows), default=0)
    state.most_rows = first_rows if records else _NEVER_FULL
    # In a step, sequences let go of images, are preempted, and are admitted; images are computed and evicted.
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


def _first_alike(flat: list[ImageInput], starts: list[int]) -> list[int]:
    """Return, for each input, the first of its sequence with the same image."""
    found: list[int] = []
    for begin, end in pairwise(starts):
        first: dict[int | str, int] = {}
        found.extend(first.setdefault(flat[index - 1].content, index) for index in range(begin, end))
    return found
