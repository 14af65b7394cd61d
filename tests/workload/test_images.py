"""Images of a workload: drawn, read from a file and written to one; what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import UsageError, WorkloadError
from kvsim.importers import read_workload, write_workload
from kvsim.workload import Image, Images, ImageShare, ImageSize, Request, Workload, converse, generate

PIXELS, TOKENS = ImageSize(640, 480), ImageSize(tokens=50)


def workload(*rows: list[Image], text: int = 100) -> Workload:
    n = len(rows)
    images = Images.from_rows(rows)
    return Workload(arrival_s=np.zeros(n), prompt_tokens=[text] * n, output_tokens=[8] * n, images=images)


def test_images_in_tokens_are_part_of_the_prompt_and_those_in_pixels_come_on_top() -> None:
    plain = generate(200, prompt=100, output=10)
    drawn = plain.with_images(ImageShare(number=1.25, sizes=(PIXELS, TOKENS), num_different=7), seed=1)
    images = drawn.images
    assert images is not None
    assert len(images.content) in range(230, 271)
    assert 1 <= images.content.min() <= images.content.max() <= 7
    np.testing.assert_array_equal(drawn.prompt_tokens, 100 + np.bincount(images.row, images.tokens, 200))
    served = drawn.with_image_tokens(lambda width, height: width * height // 1000)
    assert served.images is not None
    assert not served.images.in_pixels.any()
    added = np.where(images.in_pixels, 307 + 2, 0)
    np.testing.assert_array_equal(served.prompt_tokens, drawn.prompt_tokens + np.bincount(images.row, added, 200))
    for row in range(200):
        end = 0
        for image in served.images[row]:
            assert image.place - end in (0, 1, 2), "they follow each other, with their marks"
            end = image.place + image.size.tokens


def test_rows_of_a_file_list_images_on_top_of_the_prompt(tmp_path: Path) -> None:
    table = tmp_path / "w.csv"
    rows = ("0,20,8,640x480@5#cat 50#b", "1,20,8,", "2,20,8,50#b 50")
    table.write_text("\n".join(("arrival_s,prompt_tokens,output_tokens,images", *rows)) + "\n")
    read = read_workload(table)
    assert read.images is not None
    assert read.prompt_tokens.tolist() == [70, 20, 120]
    assert read[0].images == (Image(2, 0, TOKENS), Image(1, 55, PIXELS))
    assert [image.content for image in read[2].images] == [2, 3]
    again = read_workload(write_workload(read, tmp_path / "w.parquet"))
    assert list(again) == list(read)
    assert Workload.from_requests(read)[2] == read[2]
    assert read.every(2, 0)[1].images == read[2].images


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("640x480@30", "follows 30 tokens of text, and the prompt has 20"),
        ("640x", "an image is 1920x1080"),
        ("0x3", "an image is 1920x1080"),
        ("@3", "images should be such as 1920x1080@20#cat"),
        ("50#a 51#a", "another size elsewhere"),
    ],
)
def test_a_field_that_is_no_image_is_refused(field: str, words: str, tmp_path: Path) -> None:
    table = tmp_path / "w.csv"
    table.write_text(f"arrival_s,prompt_tokens,output_tokens,images\n0,20,8,{field}\n")
    with pytest.raises(WorkloadError, match=words):
        read_workload(table)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([Image(0, 0, TOKENS)], "content is 0"),
        ([Image(1, 0, ImageSize())], "neither pixels nor tokens"),
        ([Image(1, -1, TOKENS)], "place is -1; it must be a number"),
        ([Image(1, 0, TOKENS), Image(2, 49, TOKENS)], "its image 2 place is 49, inside the image before it"),
        ([Image(1, 51, TOKENS)], "ends behind the prompt, which has 100 tokens"),
    ],
)
def test_an_image_that_cannot_be_is_refused(row: list[Image], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        workload([], row)


def test_images_do_not_go_with_what_says_what_prompts_are() -> None:
    with pytest.raises(UsageError, match="kvsim knows no images in turns of sessions"):
        converse(2, turns=2, prompt=10, output=10).with_images(ImageShare(number=1, sizes=(TOKENS,)), seed=0)
    known = Request(id="a", arrival_s=0, prompt_tokens=2, output_tokens=1, max_tokens=1, prompt_token_ids=(1, 2))
    with pytest.raises(UsageError, match="have token ids"):
        Workload.from_requests([known]).with_images(ImageShare(number=1, sizes=(TOKENS,)), seed=0)
    with pytest.raises(UsageError, match="give those, not pixels"):
        Workload.from_requests([replace(known, images=(Image(1, 0, PIXELS),))])
    with pytest.raises(UsageError, match="cuts no images"):
        replace(workload([Image(1, 0, TOKENS)], []), prompt_tokens=np.array([100, 20], np.int32)).cut(80)


def test_a_share_of_images_that_cannot_be_is_refused() -> None:
    for number, different in ((0.0, None), (float("nan"), None), (1e9, None), (1.0, 0)):
        with pytest.raises(UsageError, match="images"):
            ImageShare(number=number, sizes=(TOKENS,), num_different=different)
    with pytest.raises(UsageError, match="at least one size"):
        ImageShare(number=1.0, sizes=())
