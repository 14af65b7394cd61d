"""Images of a workload in the form that an engine takes: tokens, positions, and the limits of the encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import UsageError
from kvsim.models.image_rules import image_rule
from kvsim.policies import Paged, Radix
from kvsim.policies.custom import CustomPolicy
from kvsim.policies.encoding import Encoding, ImageInput
from kvsim.recording.tables import PromptImages
from kvsim.sizing.budget_terms import encoder_cache_tokens

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.models import Model
    from kvsim.policies import AnyPolicy, Policy
    from kvsim.workload import Workload


def with_image_tokens(workload: Workload, model: Model) -> Workload:
    """Return the workload with the number of tokens that `model` makes of each image.

    It is computed for images given by their size in pixels, and added to the length of their prompts. Images given by
    their number of tokens stay as they are.

    Raises:
        UsageError: the workload has images, and `model` takes only text.
    """
    if workload.images is None:
        return workload
    if not model.image_class:
        raise UsageError(f"{model.name} is a model for text, as far as its configuration says, and requests have "
                         "images; name a model for images, or leave them out.")  # fmt: skip
    if not workload.images.in_pixels.any():
        return workload
    return workload.with_image_tokens(image_rule(model.image_class).num_tokens)


def encoding_of(workload: Workload, policy: AnyPolicy, base: Policy, model: Model) -> Encoding | None:
    """Return the images of each request, and the limits of their encoder; None without images or encoder cache.

    `base` is the built-in policy that `policy` is based on.
    """
    images = workload.images
    if images is None:
        return None
    if isinstance(policy, Radix | CustomPolicy):
        name = "SGLang" if isinstance(policy, Radix) else f"the policy {policy.name!r}"
        raise UsageError(f"kvsim follows images as vLLM's scheduler serves them, not under {name}; take paged.")
    if not isinstance(base, Paged):
        return None
    limits = encoder_limits(workload, base, model)
    rows = [
        [ImageInput(content=image.content, offset=image.place, length=image.size.tokens) for image in images[row]]
        for row in range(len(workload))
    ]
    return Encoding(
        compute_embeddings=limits["encoder_compute_tokens"],
        cache_embeddings=limits["encoder_cache_tokens"],
        inputs=rows,
    )


def encoder_limits(workload: Workload, base: Policy, model: Model) -> dict[str, int]:
    """Return two limits by their names in metadata: `encoder_compute_tokens`, the image tokens that a step may encode,
    and `encoder_cache_tokens`, those that the encoder cache holds.

    Both limits are the maximum number of tokens of a step, or the number of tokens of the largest image if that is
    more. The largest image is the largest that the model allows; if this is unknown, the largest of the workload. The
    result is empty without images, and for policies other than `Paged`, which have no encoder cache.
    """
    if workload.images is None or not isinstance(base, Paged):
        return {}
    tokens = base.scheduler.max_num_batched_tokens
    most = encoder_cache_tokens(model, tokens) or max(tokens, int(workload.images.tokens.max(initial=0)))
    return {"encoder_compute_tokens": most, "encoder_cache_tokens": most}


def image_numbers_of(workload: Workload) -> npt.NDArray[np.int64]:
    """Return the workload's numbers of its distinct images, in the order of their first use.

    An engine numbers images in this order, from 1.
    """
    assert workload.images is not None
    content, first = np.unique(workload.images.content, return_index=True)
    return np.asarray(content[np.argsort(first)])


def recorded_images(workload: Workload, rows: npt.NDArray[np.int64]) -> PromptImages | None:
    """Return the images of the requests in `rows` of the workload, as a table of a recording; None without images."""
    if workload.images is None:
        return None
    images = workload.images.take(rows)
    return PromptImages(
        request=images.prompt_index.astype(np.int32),
        image=images.content.astype(np.int32),
        place=images.place.astype(np.int32),
        tokens=images.tokens.astype(np.int32),
    )
