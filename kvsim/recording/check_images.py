"""Check the images of prompts, and replay the events of the encoder cache to check that each is possible.

The cache holds encoder outputs: one for each image token, or only for those tokens of an image that need one.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from kvsim.errors import RecordingError
from kvsim.policies.releases import DEFAULT_RELEASE, rules_of
from kvsim.recording.by_request import computed_after
from kvsim.recording.check_image_events import check_image_events
from kvsim.recording.model import Recording
from kvsim.recording.rules import require, rises, within
from kvsim.recording.tables import EncoderEvents, ImageEventKind, PromptImages, RequestStatus


def check_images(recording: Recording, folder: Path) -> None:
    """Check that images lie inside their prompts, and are in the encoder cache when steps compute their tokens."""
    images, events = recording.images, recording.encoder
    if images is None:
        raise RecordingError(f"{folder / 'images.parquet'} is missing; encoder.parquet has events of its images.")
    _check_places(recording, images, folder / "images.parquet")
    if events is None:
        if recording.meta.encoder_cache_tokens and len(recording.schedule):
            raise RecordingError(f"{folder / 'encoder.parquet'} is missing; meta.json has an encoder cache.")
        return
    file = folder / "encoder.parquet"
    require(within(events.step, len(recording.steps) + 1), file, "step is not a row of steps.parquet")
    require(rises(events.seq), file, "seq should not decrease")
    require(rises(events.step), file, "step should not decrease")
    _Cache(recording, images, events, file).replay()
    _check_computed(recording, images, events, folder / "schedule.parquet")
    check_image_events(recording, images, events, file)


def _check_places(recording: Recording, images: PromptImages, file: Path) -> None:
    prompt = recording.requests.prompt_tokens
    require(within(images.request, len(prompt)), file, "request is not a row of requests.parquet")
    require(rises(images.request), file, "request should not decrease")
    require((images.image > 0) & (images.tokens > 0), file, "image and tokens should be positive")
    end = images.place.astype(np.int64) + images.tokens
    before = np.concatenate(([0], end[:-1]))[: len(end)]
    before[np.diff(images.request, prepend=-1) > 0] = 0
    require(images.place >= before, file, "place should be behind the image before it")
    require(end <= prompt[images.request], file, "an image should end inside its prompt")
    _, first, which = np.unique(images.image, return_index=True, return_inverse=True)
    require(images.tokens == images.tokens[first[which]], file, "equal images should take equally many tokens")
    if (ranges := images.embedded) is not None:
        are_ranges = [_are_sorted_ranges(ranges[row], length) for row, length in enumerate(images.tokens.tolist())]
        rule = "embedded should be runs of the image's tokens, in order and apart, each as first token and number"
        require(np.array(are_ranges), file, rule)
        alike = [np.array_equal(ranges[row], ranges[other]) for row, other in enumerate(first[which].tolist())]
        require(np.array(alike), file, "equal images should have equal embedded")


def _are_sorted_ranges(ranges: npt.NDArray[np.int64], length: int) -> bool:
    """Tell whether `ranges` are ascending ranges of an image's `length` tokens that do not overlap or touch.

    Each range has two numbers in the array: its first token and its number of tokens.
    """
    if len(ranges) % 2:
        return False
    begin, num_tokens = ranges[::2], ranges[1::2]
    are_inside = (begin >= 0) & (begin < length) & (num_tokens > 0) & (num_tokens <= length - begin)
    if not are_inside.all():
        return False  # the end of such a range may exceed int64
    return bool((begin[1:] > begin[:-1] + num_tokens[:-1]).all())


class _Cache:
    """State of the encoder cache, to which events are applied one by one.

    The method for each kind of event returns an error message, empty if the event is possible.
    """

    def __init__(self, recording: Recording, images: PromptImages, events: EncoderEvents, file: Path) -> None:
        self._recording, self._events, self._file = recording, events, file
        initial = recording.meta.initial_images
        self._outputs_of = initial | dict(zip(images.image.tolist(), images.outputs.tolist(), strict=True))
        self._images_of_prompts = set(zip(images.request.tolist(), images.image.tolist(), strict=True))
        self._users: dict[int, set[int]] = {image: set() for image in initial}
        self._idle: dict[int, None] = dict.fromkeys(initial)
        """Images in the cache that no request holds. The first is evicted first."""
        self._num_outputs = sum(initial.values())

    def replay(self) -> None:
        events = self._events
        methods = {
            ImageEventKind.COMPUTE: self._compute,
            ImageEventKind.HOLD: self._hold,
            ImageEventKind.LET_GO: self._let_go,
            ImageEventKind.EVICT: self._evict,
        }
        rows = zip(events.kind.tolist(), events.request.tolist(), events.image.tolist(), strict=True)
        for row, (kind, request, image) in enumerate(rows):
            if image not in self._outputs_of:
                wrong = "image is none of images.parquet"
            else:
                wrong = methods[kind](request, image)
            if wrong:
                raise RecordingError(f"{self._file}, row {row}: {wrong}.")
        self._check_budget()
        status = self._recording.requests.status
        for image, users in self._users.items():
            if any(status[user] != RequestStatus.UNFINISHED for user in users):
                raise RecordingError(f"{self._file}: image {image} is still held by a request that has ended.")

    def _compute(self, request: int, image: int) -> str:
        if image in self._users:
            return "an image is computed that is in the cache"
        self._users[image] = set()
        self._num_outputs += self._outputs_of[image]
        most = self._recording.meta.encoder_cache_tokens
        if self._num_outputs > most:
            return f"the images in the cache have {self._num_outputs:,} tokens, and meta.json gives it {most:,}"
        return "request should be -1" if request != -1 else ""

    def _hold(self, request: int, image: int) -> str:
        if (request, image) not in self._images_of_prompts:
            return "request has no such image"
        if image not in self._users or request in self._users[image]:
            return "an image is held that is not in the cache, or for the second time"
        self._users[image].add(request)
        self._idle.pop(image, None)
        return ""

    def _let_go(self, request: int, image: int) -> str:
        if request not in self._users.get(image, ()):
            return "a request releases an image that it does not hold"
        self._users[image].remove(request)
        if not self._users[image]:
            self._idle[image] = None
        return ""

    def _evict(self, request: int, image: int) -> str:
        if next(iter(self._idle), None) != image:
            return "the image that no request has held for the longest time should be evicted first"
        del self._idle[image], self._users[image]
        self._num_outputs -= self._outputs_of[image]
        return "request should be -1" if request != -1 else ""

    def _check_budget(self) -> None:
        """Check that no step computes more encoder outputs than the limit in `meta.json`.

        Steps with preemptions are skipped: what a preempted request had used of the limit is free for other requests.
        """
        events, steps = self._events, self._recording.steps
        rows = np.flatnonzero(events.kind == ImageEventKind.COMPUTE)
        most = self._recording.meta.engine.get("encoder_compute_tokens", 0)
        tokens = np.array([self._outputs_of[image] for image in events.image[rows].tolist()], np.int64)
        through = np.concatenate(([0], np.cumsum(tokens)))
        first_of_step = np.searchsorted(events.step[rows], events.step[rows])
        preempts = np.append(steps.preempted, 0)[events.step[rows]] > 0  # an event may come after the last step
        fits = preempts | (through[1:] - through[first_of_step] <= most)
        require(fits, self._file, f"a step should compute at most {most:,} tokens of images", rows)


def _check_computed(recording: Recording, images: PromptImages, events: EncoderEvents, file: Path) -> None:
    """Check that a request holds an image in the encoder cache while it computes the image's tokens."""
    held = _holding_steps(events, len(recording.steps))
    frees_repeated = not rules_of(recording.meta.stated_release or DEFAULT_RELEASE).counts_repeated_images
    # The first step of a recording that begins in the middle stands for all steps before it.
    first_step = int(recording.meta.begins_in_the_middle)
    seen = set[tuple[int, int]]()
    schedule = recording.schedule
    begin, end = schedule.computed_before.astype(np.int64), computed_after(schedule)
    by_request = np.argsort(schedule.request, kind="stable")
    # The schedule rows of an image's request are by_request[bounds[0, image_row]:bounds[1, image_row]].
    bounds = np.searchsorted(schedule.request[by_request], np.stack((images.request, images.request + 1)))
    for image_row in range(len(images)):
        pair = int(images.request[image_row]), int(images.image[image_row])
        if frees_repeated and pair in seen:
            continue  # this version of vLLM frees the image after its first place in the prompt
        seen.add(pair)
        for place, length in _places_of_outputs(images, image_row):
            rows = by_request[bounds[0, image_row] : bounds[1, image_row]]
            rows = rows[(begin[rows] < place + length) & (end[rows] > place) & (schedule.step[rows] >= first_step)]
            for row in rows.tolist():
                first, last = _steps_of_range(schedule.step[row], begin[row], schedule.tokens[row],
                                              schedule.repeats[row], place=place, length=length)  # fmt: skip
                if not any(since <= first and last < until for since, until in held[pair]):
                    raise RecordingError(
                        f"{file}, row {row}: it computes tokens of image {pair[1]}, which encoder.parquet "
                        "does not have its request hold."
                    )


def _places_of_outputs(images: PromptImages, row: int) -> list[tuple[int, int]]:
    place, length = int(images.place[row]), int(images.tokens[row])
    if images.embedded is None or not len(images.embedded[row]):
        return [(place, length)]
    return [(place + first, number) for first, number in images.embedded[row].reshape(-1, 2).tolist()]


def _holding_steps(events: EncoderEvents, num_steps: int) -> dict[tuple[int, int], list[tuple[int, int]]]:
    since: dict[tuple[int, int], int] = {}
    held: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    columns = (events.kind, events.step, events.request, events.image)
    for kind, step, request, image in zip(*(column.tolist() for column in columns), strict=True):
        if kind == ImageEventKind.HOLD:
            since[request, image] = step
        elif kind == ImageEventKind.LET_GO:
            held[request, image].append((since.pop((request, image)), step))
    for pair, step in since.items():
        held[pair].append((step, num_steps))
    return held


def _steps_of_range(step: int, begin: int, tokens: int, repeat: int, *, place: int, length: int) -> tuple[int, int]:
    """Return the first and the last step in which a schedule row computes any of the `length` prompt tokens from index
    `place` on.

    The row computes `tokens` tokens in each of `repeat` steps, from `step` on. `begin` tokens are computed before it.
    """
    first = max(int(place) - int(begin), 0) // int(tokens)
    last = min((int(place) + int(length) - int(begin) - 1) // int(tokens), int(repeat) - 1)
    return int(step) + first, int(step) + last
