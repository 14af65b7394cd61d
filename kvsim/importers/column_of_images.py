"""Reader of the images of a request: one CSV field such as `1920x1080@20#cat 576`, or a list of such texts in JSON."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvsim.errors import shortened
from kvsim.workload import Image, ImageSize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.importers.source import SourceRow

_ITEM = re.compile(r"(?P<size>[^@#]+)(?:@(?P<place>\d{1,10}))?(?:#(?P<name>.+))?")


class ImageColumn:
    """Reader of a column of images. Images with the same name are equal. An image without a name equals no other."""

    def __init__(self) -> None:
        self._number_of: dict[str, int] = {}
        self._num_images = 0

    def read(self, row: SourceRow, prompt_tokens: int, prefix_tokens: int) -> tuple[list[Image], int]:
        """Return the images of a request, and the tokens that they add to its prompt of `prompt_tokens`.

        An image is written as its size in pixels or tokens, then optionally `@` and the number of text tokens before
        the image, then optionally `#` and a name. Without `@`, the image follows the shared prefix.
        """
        images, added = [], 0
        for image in self._listed(row, prompt_tokens, prefix_tokens):
            images.append(image._replace(place=image.place + added))
            added += image.size.tokens
        return images, added

    def read_turn(
        self, row: SourceRow, new_tokens: int, prefix_tokens: int, before: Sequence[Image], history: int
    ) -> tuple[list[Image], int]:
        """Return the images of a turn, and the tokens that its new images add to its prompt.

        The first `history` tokens of the prompt repeat the turn before, with those images in `before` that begin there.
        The row lists the images among the `new_tokens` tokens of text after the history, and counts places from there.
        """
        new, added = self.read(row, new_tokens, prefix_tokens)
        repeated = [image for image in before if image.place < history]
        return [*repeated, *(image._replace(place=image.place + history) for image in new)], added

    def read_counted(self, row: SourceRow, prompt_tokens: int) -> list[Image]:
        """Return the images of a request whose prompt length and places of images already include image tokens."""
        return self._listed(row, prompt_tokens, 0)

    def _listed(self, row: SourceRow, prompt_tokens: int, prefix_tokens: int) -> list[Image]:
        given = row.fields.get("images", "")
        texts = given if isinstance(given, list) else given.split() if isinstance(given, str) else [given]
        if not all(isinstance(text, str) for text in texts):
            raise row.error(f"images should be a list of texts such as 1920x1080@20#cat, not {shortened(given)}")
        found = sorted((self._item(row, text, prefix_tokens) for text in texts), key=lambda image: image.place)
        for image in found:
            if image.place > prompt_tokens:
                raise row.error(f"an image follows {image.place:,} tokens, and the prompt has {prompt_tokens:,}")
        return found

    def _item(self, row: SourceRow, text: str, prefix_tokens: int) -> Image:
        item = _ITEM.fullmatch(text)
        if not item:
            raise row.error(f"images should be such as 1920x1080@20#cat, not {shortened(text)}")
        try:
            size = ImageSize.parse(item["size"])
        except ValueError as error:
            raise row.error(str(error)) from error
        return Image(self._number(item["name"]), int(item["place"] or prefix_tokens), size)

    def _number(self, name: str | None) -> int:
        if name is not None and name in self._number_of:
            return self._number_of[name]
        self._num_images += 1
        if name is not None:
            self._number_of[name] = self._num_images
        return self._num_images
