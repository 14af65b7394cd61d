"""Images in an oracle's workload, and the fields of its records about the encoder and its cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.engine.encoder_cache import reclaimable
from kvsim.errors import WorkloadError
from kvsim.policies.encoding import Encoding, ImageInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvsim.engine.driver import Driver


def images_of(documents: Any, where: str) -> tuple[ImageInput, ...]:
    """Return the images of a request from their JSON. `where` begins every error."""
    try:
        images = [
            ImageInput(
                content=str(each["hash"]),
                offset=int(each["offset"]),
                length=int(each["length"]),
                embedded=tuple((int(first), int(number)) for first, number in each.get("embed") or ()),
            )
            for each in documents or ()
        ]
    except (TypeError, KeyError, ValueError) as error:
        raise WorkloadError(f"{where}: mm should be a list of images with hash, offset and length.") from error
    return tuple(sorted(images, key=lambda each: each.offset))


def encoding_of(settings: Mapping[str, Any], inputs: Sequence[Sequence[ImageInput]], where: str) -> Encoding | None:
    """Return the images of all requests, and the encoder's budget and cache size; None if `settings` is empty.

    `settings` is the object `mm` of the workload. `inputs` has the images of each request.
    """
    if not settings:
        return None
    compute, cache = settings.get("compute"), settings.get("cache")
    if type(compute) is not int or type(cache) is not int or min(compute, cache) < 1:
        raise WorkloadError(f"{where}: mm should have compute and cache, each a number of embeddings.")
    return Encoding(
        compute_embeddings=compute,
        cache_embeddings=cache,
        is_whole=bool(settings.get("whole", False)),
        inputs=inputs,
    )


class EncoderRecords:
    """Writer of the record fields about the encoder and its cache."""

    def __init__(self, encoding: Encoding, driver: Driver, name: Callable[[int], str]) -> None:
        self._driver, self._name = driver, name
        contents = dict.fromkeys(str(each.content) for row in encoding.inputs for each in row)
        self._hashes = ["", *contents]
        self._inputs = encoding.inputs

    def of_step(self, batch: Iterable[int]) -> dict[str, Any]:
        """Return the record fields with the images that a step encodes for each sequence, and evicted images."""
        engine = self._driver.engine
        cache, step = engine.encoder, int(engine.state.num_scheduled)
        encoded = {}
        for number in batch:
            first = int(cache.first_inputs[number])
            indices = range(len(self._inputs[number - 1]))
            places = [index for index in indices if int(cache.inputs[first + index].encoded_in) == step]
            if places:
                encoded[self._name(number)] = places
        evicted = [int(cache.evicted[index]) for index in range(int(cache.state.num_evicted))]
        if (
            engine.settings.aligns_before_images
        ):  # since the same release, an image that is cached again is not reported
            evicted = [number for number in evicted if not cache.images[number].is_cached]
        return {"encoder": encoded, "encoder_freed": [self._hashes[number] for number in evicted]}

    def state(self) -> dict[str, Any]:
        """Return the record fields with the cache's free slots, its order of eviction, and the users of each image."""
        cache = self._driver.engine.encoder
        users: dict[str, list[str]] = {
            self._hashes[number]: [] for number in range(1, len(self._hashes)) if cache.images[number].is_cached
        }
        for row, images in enumerate(self._inputs):
            first = int(cache.first_inputs[row + 1])
            for index, image in enumerate(images):
                if cache.inputs[first + index].is_user:
                    users[str(image.content)].append(self._name(row + 1))
        order = [self._hashes[number] for number in reclaimable(cache.images)]
        return {
            "enc": {
                "free": int(cache.state.num_free),
                "freeable": int(cache.state.num_reclaimable),
                "order": order,
                "refs": {name: sorted(names) for name, names in users.items()},
            }
        }
