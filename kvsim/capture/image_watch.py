"""Recorder of images inside vLLM's scheduler: their places in prompts, and the events of the encoder cache.

All inputs of vLLM's encoder count as images, also video and audio. Equal images have equal hashes in vLLM, and equal
numbers in a recording.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from typing import Any

import numpy as np

from kvsim.errors import RecordingError, UsageError
from kvsim.policies.encoding import Encoding
from kvsim.recording.tables import ImageEventKind

_CHANGING = ("check_and_update_cache", "can_allocate", "allocate", "free_encoder_input")
"""Methods of vLLM's encoder cache that change it; each takes a request and the index of one of its images."""
_FOLLOWED = ("EncoderCacheManager",)
_NOBODY = -1


def encoder_settings(scheduler: Any) -> dict[str, Any]:
    """Return the encoder's limits by kvsim's names of settings, for a recording's metadata; {} without an encoder."""
    compute_tokens = int(getattr(scheduler, "max_num_encoder_input_tokens", 0) or 0)
    if not compute_tokens:
        return {}
    whole = bool(getattr(scheduler.scheduler_config, "disable_chunked_mm_input", False))
    cache_tokens = int(scheduler.encoder_cache_manager.cache_size)
    limits: dict[str, Any] = {"encoder_compute_tokens": compute_tokens, "encoder_cache_tokens": cache_tokens}
    return limits | ({"disable_chunked_mm_input": True} if whole else {})


class ImageWatch:
    """Reporter of the images of one scheduler. `report` is called with the name of an event and its fields."""

    def __init__(self, scheduler: Any, report: Callable[..., None], changed: Callable[..., None]) -> None:
        """Watch the encoder cache of `scheduler`.

        After every call that may change the cache, `changed` is called with the arguments of `ImageWatch.changed`. It
        is this method, wrapped by the recorder so that an error ends only the recording.
        """
        self._scheduler, self._report = scheduler, report
        self._cache = scheduler.encoder_cache_manager
        self._numbers: dict[str, int] = {}
        """Number of each image in the recording, from 1, by the image's hash."""
        self._outputs: dict[str, int] = {}
        self._cached: set[str] = set()
        self._held: set[tuple[str, str]] = set()
        for name in _CHANGING:
            setattr(self._cache, name, self._watched(getattr(self._cache, name), changed))

    def _watched(self, method: Callable[..., Any], changed: Callable[..., None]) -> Callable[..., Any]:
        @wraps(method)
        def watched(request: Any, input_id: int, *args: Any, **kwargs: Any) -> Any:
            num_freed = len(self._cache.freed)
            answer = method(request, input_id, *args, **kwargs)
            changed(request, input_id, self._cache.freed[num_freed:])
            return answer

        return watched

    def start(self, rows: dict[str, int]) -> None:
        """Begin a recording. `rows` has the rows of its requests by name.

        Raises:
            RecordingError: the encoder cache is not empty.
        """
        if self._cache.cached:
            raise RecordingError(
                "the encoder cache already holds images; empty it (reset_encoder_cache), or record from the start."
            )
        self._rows = rows
        for each in (self._numbers, self._outputs, self._cached, self._held):
            each.clear()

    def arrived(self, request: Any, release: str) -> None:
        """Report the images of a request, as vLLM `release` has them.

        Raises:
            RecordingError: kvsim cannot simulate an image of the request.
        """
        features = sorted(request.mm_features, key=lambda each: each.mm_position.offset)
        self._check(request.request_id, features, release)
        rows: list[list[Any]] = []
        for feature in features:
            place, number = feature.mm_position, self._numbers.setdefault(feature.identifier, len(self._numbers) + 1)
            runs = _runs(place.is_embed)
            rows.append([number, int(place.offset), int(place.length), *([runs] if runs else [])])
        self._report("images", self._rows[request.request_id], rows)

    def _check(self, name: str, features: list[Any], release: str) -> None:
        """Raise a `RecordingError` if kvsim cannot follow the images of request `name`."""
        problem = ""
        if type(self._cache).__name__ not in _FOLLOWED or getattr(self._scheduler, "ec_connector", None) is not None:
            problem = "the engine keeps encoder outputs in another place than vLLM's own encoder cache"
        places = [each.mm_position for each in features]
        if any(after.offset < place.offset + place.length for place, after in pairwise(places)):
            problem = "some images overlap"
        sizes = [(each.identifier, int(each.mm_position.get_num_embeds())) for each in features]
        if any(not size or self._outputs.setdefault(image, size) != size for image, size in sizes):
            problem = "one is empty, or differs in size from an equal image before it"
        try:
            limits = encoder_settings(self._scheduler)
            Encoding(
                compute_embeddings=limits["encoder_compute_tokens"], cache_embeddings=limits["encoder_cache_tokens"]
            ).check(release)
        except UsageError as error:
            problem = str(error).rstrip(".")
        if problem:
            raise RecordingError(f"request {name} has images, and {problem}.")

    def changed(self, request: Any, input_id: int, evicted: list[str]) -> None:
        """Report what a call for image `input_id` of a request did to the cache. `evicted` has hashes of images."""
        for each in evicted:
            self._cached.discard(each)
            self._happened(ImageEventKind.EVICT, _NOBODY, each)
        image, name = request.mm_features[input_id].identifier, request.request_id
        users = self._cache.cached.get(image)
        if users is not None and image not in self._cached:
            self._cached.add(image)
            self._happened(ImageEventKind.COMPUTE, _NOBODY, image)
        use, holds = (name, image), users is not None and name in users
        if holds and use not in self._held:
            self._held.add(use)
            self._happened(ImageEventKind.HOLD, self._rows[name], image)
        elif use in self._held and not holds:
            self._held.remove(use)
            self._happened(ImageEventKind.LET_GO, self._rows[name], image)

    def check_unchanged(self) -> None:
        """Check that nothing but the scheduler has changed the encoder cache.

        Raises:
            RecordingError: it was emptied.
        """
        if len(self._cached) != len(self._cache.cached):
            raise RecordingError("the encoder cache was emptied (reset_encoder_cache), which a recording cannot hold.")

    def _happened(self, kind: ImageEventKind, row: int, image: str) -> None:
        self._report("encoder", kind.name.lower(), row, self._numbers[image])


def _runs(mask: Any) -> list[int]:
    """Return first index and length of each range of true entries in a mask, as a flat list.

    The list is empty without a mask, or if all entries are true.
    """
    if mask is None:
        return []
    edges = np.flatnonzero(np.diff(np.asarray(mask, np.int8), prepend=0, append=0))
    begin, end = edges[::2], edges[1::2]
    runs = np.stack((begin, end - begin), axis=1).reshape(-1).tolist()
    return [] if runs == [0, len(mask)] else runs
