"""The encoder cache: the vision encoder's outputs for images of prompts, kept while sequences need them.

A step encodes an image as a whole, before it computes the image's tokens in the prompt. If the step's budget or the
cache has no room for an image, the chunk of the prompt is cut right before it. Equal images are encoded once, and
shared. Images that no sequence uses are evicted when room is needed, in the order in which they became unused. An
occurrence of an image in a prompt is called an input.

`plan` cuts a chunk and chooses the images to encode for it. `encode` puts them into the cache as it is scheduled.
"""

from __future__ import annotations

from kvsim.engine import linked_list
from kvsim.engine.arrays import Records
from kvsim.engine.encoder_records import EncodedImage, EncoderInput
from kvsim.engine.linked_list import HEAD
from kvsim.engine.machine_code.compiled import part
from kvsim.engine.ownership import ImageEventKind
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine

_COMPUTE, _HOLD, _RELEASE, _EVICT = map(int, ImageEventKind)


@part
def _write(engine: Engine, kind: int, request: int, image: int) -> None:
    if not engine.settings.records_memory:
        return
    row = engine.encoder.rows[engine.encoder.state.num_rows]
    engine.encoder.state.num_rows += 1
    row.seq, row.step = engine.state.seq, engine.state.num_steps
    row.kind, row.request, row.image = kind, request, image


@part
def begin_step(engine: Engine) -> None:
    """Reset the budget of encoder outputs, and the counts of images, for the step being scheduled."""
    state = engine.encoder.state
    state.budget = engine.settings.encoder_tokens
    state.num_evicted = state.num_planned = state.planned_tokens = 0
    state.step_images = state.step_tokens = state.step_pairs = 0


@part
def plan(engine: Engine, sequence: Sequence, computed: int, num_tokens: int) -> int:
    """Choose the images to encode for a chunk of `num_tokens` tokens after `computed` ones.

    Return the length of the chunk. It is cut before an image for which there is no room and, with
    `Settings.keeps_images_whole`, before an image that it would split.
    """
    settings, state = engine.settings, engine.encoder.state
    state.num_plans += 1
    state.num_planned = state.planned_tokens = 0
    ahead = settings.prompt_ahead_tokens
    seen_until = computed + num_tokens + ahead
    for index in range(engine.encoder.first_inputs[sequence.number], engine.encoder.first_inputs[sequence.number + 1]):
        image_input = engine.encoder.inputs[index]
        if image_input.end <= computed:
            continue
        if image_input.offset >= seen_until:
            break
        may_wait = computed < image_input.offset or (settings.cuts_before_images and computed == image_input.offset)
        is_cut = settings.keeps_images_whole and may_wait and computed + num_tokens < image_input.end
        if is_cut and settings.keeps_cached_whole:
            return max(0, image_input.offset - computed - ahead)
        if _reuse(engine, sequence, index):
            continue
        if is_cut:
            return max(0, image_input.offset - computed - ahead)
        image = engine.encoder.images[image_input.content]
        if not _make_room(engine, image.num_tokens):
            return _tokens_before(engine, image_input, computed, num_tokens)
        until = seen_until if settings.cuts_before_images else computed + num_tokens
        if _has_output(engine, image_input, computed, until):
            image.planned_in = state.num_plans
            state.planned_tokens += image.num_tokens
            _add_to_plan(engine, index)
    return num_tokens


@part
def _reuse(engine: Engine, sequence: Sequence, index: int) -> bool:
    """Tell whether the image of input number `index` is already planned for this chunk or cached. If it is cached, the
    sequence becomes a user of it.
    """
    image = engine.encoder.images[engine.encoder.inputs[index].content]
    if image.planned_in == engine.encoder.state.num_plans:
        if engine.settings.counts_repeated_images:
            _add_to_plan(engine, -index)  # negative: used again, but not encoded again
        return True
    if not image.is_cached:
        return False
    if image.num_users == 0:
        linked_list.remove(engine.encoder.images, engine.encoder.inputs[index].content)
        engine.encoder.state.num_reclaimable -= image.num_tokens
    _hold(engine, sequence, index)
    return True


@part
def _add_to_plan(engine: Engine, index: int) -> None:
    engine.encoder.planned[engine.encoder.state.num_planned] = index
    engine.encoder.state.num_planned += 1


@part
def _make_room(engine: Engine, num_tokens: int) -> bool:
    """Make room in the cache for `num_tokens` encoder outputs, by evicting unused images. Return False, and evict
    nothing, if evictions do not suffice or if the step's budget is too small.
    """
    state = engine.encoder.state
    if num_tokens > state.budget - state.planned_tokens:
        return False
    needed = num_tokens + state.planned_tokens
    if needed <= state.num_free:
        return True
    if needed > state.num_reclaimable:
        return False
    while needed > state.num_free:
        number = engine.encoder.images[HEAD].next
        image = engine.encoder.images[number]
        linked_list.remove(engine.encoder.images, number)
        image.is_cached = False
        state.num_free += image.num_tokens
        _write(engine, _EVICT, -1, number)
        if state.num_evicted < len(engine.encoder.evicted):
            engine.encoder.evicted[state.num_evicted] = number
            state.num_evicted += 1
    return True


@part
def _tokens_before(engine: Engine, image_input: EncoderInput, computed: int, num_tokens: int) -> int:
    """Return the length of a chunk that is cut because there is no room for the image of `image_input`."""
    if engine.settings.cuts_before_images:
        return min(num_tokens, image_input.offset - computed) if computed < image_input.offset else 0
    return max(0, image_input.offset - computed - engine.settings.prompt_ahead_tokens)


@part
def _has_output(engine: Engine, image_input: EncoderInput, begin: int, end: int) -> bool:
    for run in range(image_input.first_run, image_input.first_run + image_input.num_runs):
        first = image_input.offset + engine.encoder.runs[2 * run]
        if first < end and begin < first + engine.encoder.runs[2 * run + 1]:
            return True
    return False


@part
def encode(engine: Engine, sequence: Sequence) -> None:
    """Put the images that were planned for a sequence into the cache. The step encodes them."""
    state = engine.encoder.state
    if engine.settings.encoder_tokens == 0 or state.planned_tokens == 0:
        return
    state.budget -= state.planned_tokens
    for planned in range(state.num_planned):
        index = engine.encoder.planned[planned]
        if index > 0:
            image_input = engine.encoder.inputs[index]
            image = engine.encoder.images[image_input.content]
            image.is_cached = True
            state.num_free -= image.num_tokens
            state.num_reclaimable -= image.num_tokens
            state.step_images += 1
            state.step_tokens += image.num_tokens
            state.step_pairs += image.num_tokens**2
            state.num_encoded += 1
            image_input.encoded_in = engine.state.num_scheduled
            _write(engine, _COMPUTE, -1, image_input.content)
        _hold(engine, sequence, abs(index))


@part
def return_budget(engine: Engine, sequence: Sequence) -> None:
    """Add a preempted sequence's images of this step to the step's budget again. As in vLLM, they stay cached."""
    for index in range(engine.encoder.first_inputs[sequence.number], engine.encoder.first_inputs[sequence.number + 1]):
        image_input = engine.encoder.inputs[index]
        if image_input.encoded_in == engine.state.num_scheduled:
            engine.encoder.state.budget += engine.encoder.images[image_input.content].num_tokens
            image_input.encoded_in = 0


@part
def settle(engine: Engine, launched: int, begin: int, last_number: int, num_rejected: int) -> int:
    """Release images whose tokens were computed by the step at index `launched` of `Engine.launched`. The output of
    this step is being processed.

    One call does this for some of the step's sequences: from the one at index `begin` up to the one with number
    `last_number`; up to the last one of the step if `last_number` is 0. The step has rejected `num_rejected` drafts of
    the sequence with number `last_number`, which do not count as computed. Return the next call's `begin`.
    """
    first, place = launched * engine.settings.max_num_seqs, begin
    while place < engine.launched[launched].num_computing:
        sequence = engine.sequences[engine.computing[first + place]]
        place += 1
        is_last = sequence.number == last_number
        processed = sequence.computed - (sequence.placeholders if engine.settings.images_wait else 0)
        if is_last and sequence.placeholders == 0:
            processed -= num_rejected
        release_computed(engine, sequence, processed)
        if is_last:
            break
    return place


@part
def release_computed(engine: Engine, sequence: Sequence, processed: int) -> None:
    """Release the images of a sequence that end within its first `processed` tokens. Without
    `Settings.cuts_before_images`, an image is released only after `prompt_ahead_tokens` further tokens.
    """
    if not engine.settings.cuts_before_images:
        processed -= engine.settings.prompt_ahead_tokens
    for index in range(engine.encoder.first_inputs[sequence.number], engine.encoder.first_inputs[sequence.number + 1]):
        if engine.encoder.inputs[index].end <= processed and _is_in_use(engine, index):
            _release(engine, sequence, index)


@part
def release(engine: Engine, sequence: Sequence) -> None:
    """Release all images of a sequence."""
    if engine.settings.encoder_tokens == 0:
        return
    for index in range(engine.encoder.first_inputs[sequence.number], engine.encoder.first_inputs[sequence.number + 1]):
        if _is_in_use(engine, index):
            _release(engine, sequence, index)


@part
def _is_in_use(engine: Engine, index: int) -> bool:
    """Tell whether a sequence uses input number `index`; with `any_place_frees`, any input with the same image."""
    image_input = engine.encoder.inputs[index]
    return image_input.is_held or (
        engine.settings.any_place_frees and engine.encoder.inputs[image_input.first_same].is_user
    )


@part
def _hold(engine: Engine, sequence: Sequence, index: int) -> None:
    """Record that a sequence uses an image for input number `index`, which makes it a user of the image."""
    image_input = engine.encoder.inputs[index]
    first = engine.encoder.inputs[image_input.first_same]
    if not first.is_user:
        first.is_user = True
        engine.encoder.images[image_input.content].num_users += 1
        engine.encoder.state.num_holds += 1
        _write(engine, _HOLD, sequence.number - 1, image_input.content)
    if not image_input.is_held:
        image_input.is_held = True
        first.num_uses += 1


@part
def _release(engine: Engine, sequence: Sequence, index: int) -> None:
    """Record that a sequence uses the image of input `index` no longer. An image without users can be evicted."""
    image_input = engine.encoder.inputs[index]
    first = engine.encoder.inputs[image_input.first_same]
    if image_input.is_held:
        image_input.is_held = False
        first.num_uses -= 1
    if not first.is_user or (engine.settings.keeps_repeated_images and first.num_uses > 0):
        return
    first.is_user = False
    image = engine.encoder.images[image_input.content]
    image.num_users -= 1
    _write(engine, _RELEASE, sequence.number - 1, image_input.content)
    if image.num_users == 0:
        linked_list.push_back(engine.encoder.images, image_input.content)
        engine.encoder.state.num_reclaimable += image.num_tokens


def reclaimable(images: Records[EncodedImage]) -> list[int]:
    """Return the numbers of the images that can be evicted, in order of eviction."""
    listed: list[int] = []
    number = int(images[HEAD].next)
    while number != HEAD:
        listed.append(number)
        number = int(images[number].next)
    return listed
