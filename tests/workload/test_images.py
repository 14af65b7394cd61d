"""Images of a workload: drawn, read from a file and written to one; what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import UsageError, WorkloadError
from kvsim.importers import read_workload, write_workload
from kvsim.workload import (
    Image,
    ImageDistribution,
    Images,
    ImageSize,
    Request,
    SharedPrefixes,
    Workload,
    converse,
    generate,
)

PIXELS, TOKENS = ImageSize(640, 480), ImageSize(tokens=50)


def workload(*rows: list[Image], text: int = 100) -> Workload:
    n = len(rows)
    images = Images.from_rows(rows)
    return Workload(arrival_s=np.zeros(n), prompt_tokens=[text] * n, output_tokens=[8] * n, images=images)


def test_images_in_tokens_are_part_of_the_prompt_and_those_in_pixels_come_on_top() -> None:
    plain = generate(200, prompt=100, output=10)
    drawn = plain.with_images(ImageDistribution(mean_images=1.25, sizes=(PIXELS, TOKENS), num_different=7), seed=1)
    images = drawn.images
    assert images is not None
    assert len(images.content) in range(230, 271)
    assert 1 <= images.content.min() <= images.content.max() <= 7
    np.testing.assert_array_equal(drawn.prompt_tokens, 100 + np.bincount(images.prompt_index, images.tokens, 200))
    served = drawn.with_image_tokens(lambda width, height: width * height // 1000)
    assert served.images is not None
    assert not served.images.in_pixels.any()
    added = np.where(images.in_pixels, 307 + 2, 0)
    np.testing.assert_array_equal(
        served.prompt_tokens, drawn.prompt_tokens + np.bincount(images.prompt_index, added, 200)
    )
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
        ("640x480@30", "follows 30 tokens, and the prompt has 20"),
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
    known = Request(id="a", arrival_s=0, prompt_tokens=2, output_tokens=1, max_tokens=1, prompt_token_ids=(1, 2))
    with pytest.raises(UsageError, match="have token ids"):
        Workload.from_requests([known]).with_images(ImageDistribution(mean_images=1, sizes=(TOKENS,)), seed=0)
    with pytest.raises(UsageError, match="give those, not pixels"):
        Workload.from_requests([replace(known, images=(Image(1, 0, PIXELS),))])
    with pytest.raises(UsageError, match="cuts no images"):
        replace(workload([Image(1, 0, TOKENS)], []), prompt_tokens=np.array([100, 20], np.int32)).cut(80)


def test_a_share_of_images_that_cannot_be_is_refused() -> None:
    for number, different in ((0.0, None), (float("nan"), None), (1e9, None), (1.0, 0)):
        with pytest.raises(UsageError, match="images"):
            ImageDistribution(mean_images=number, sizes=(TOKENS,), num_different=different)
    with pytest.raises(UsageError, match="at least one size"):
        ImageDistribution(mean_images=1.0, sizes=())


def test_a_turn_has_the_images_of_its_history_and_new_ones_behind_it() -> None:
    sessions = converse(3, turns=3, prompt=10, output=5, prefixes=SharedPrefixes(num_groups=1, tokens=4))
    for size in (ImageSize(tokens=50), ImageSize(640, 480)):
        known = sessions.with_images(ImageDistribution(mean_images=1, sizes=(size,)), seed=0).with_image_tokens(
            lambda *_: 48
        )
        assert known.turns is not None
        assert known.images is not None
        for row, after in enumerate(known.turns.after.tolist()):
            history, images = int(known.turns.history_tokens[row]), known.images[row]
            assert len(images) == known.turns.turn[row] + 1
            if after >= 0:
                assert history == known.prompt_tokens[after] + known.output_tokens[after]
                assert images[:-1] == known.images[after]
                assert images[-1].place == history + (size.width > 0)
            else:
                assert images[0].place == 4 + (size.width > 0)
        assert known.prompt_tokens.tolist()[:3] == [64, 129, 194]


def test_a_turn_without_the_images_of_its_history_is_refused() -> None:
    sessions = converse(1, turns=2, prompt=10, output=5)
    with pytest.raises(WorkloadError, match="its history of 15 tokens should have the images of request 'r0'"):
        replace(sessions, images=Images.from_rows([[Image(1, 2, ImageSize(tokens=3))], []]))


def test_json_lines_list_images_as_the_column_of_a_csv_file_does(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(
        '{"timestamp": 0, "input_length": 100, "output_length": 5, "images": ["640x480@20#cat", "50"]}\n'
        '{"timestamp": 1, "input_length": 100, "output_length": 5}\n'
    )
    read = read_workload(file)
    assert read.images is not None
    assert read.prompt_tokens.tolist() == [150, 100]
    assert [(image.place, image.size) for image in read.images[0]] == [(0, TOKENS), (70, PIXELS)]
    file.write_text(
        '{"timestamp": 9, "input_length": 1024, "output_length": 5, "hash_ids": [1, 2], "images": "50@600#dog"}\n'
    )
    hashed = read_workload(file)
    assert hashed.images is not None
    assert hashed.prompt_tokens.tolist() == [1024]
    assert [(image.place, image.size) for image in hashed.images[0]] == [(600, TOKENS)]
    file.write_text('{"timestamp": 0, "input_length": 100, "output_length": 5, "images": [50]}\n')
    with pytest.raises(WorkloadError, match="line 1: images should be a list of texts"):
        read_workload(file)


@pytest.mark.parametrize(
    "text",
    [
        """{"id": "a", "arrival_s": 0, "prompt_tokens": 20, "output_tokens": 5, "images": ["50@4#cat"]}
        {"id": "b", "after": "a", "new_tokens": 10, "output_tokens": 5, "images": ["640x480@10", "50#cat"]}
        {"id": "c", "after": "b", "prompt_tokens": 45, "output_tokens": 5}
        """.replace("        ", ""),
        """id,after,arrival_s,prompt_tokens,output_tokens,images
        a,,0,20,5,50@4#cat\nb,a,0,35,5,640x480@10 50#cat\nc,b,0,45,5,
        """.replace("        ", ""),
    ],
    ids=["JSON Lines", "CSV"],
)
def test_a_line_of_a_session_lists_what_is_new_and_has_what_is_in_its_history(text: str, tmp_path: Path) -> None:
    file = tmp_path / "talk"
    file.write_text(text)
    read = read_workload(file)
    assert read.images is not None
    assert read.turns is not None
    assert read.prompt_tokens.tolist() == [70, 135, 145]
    assert read.turns.history_tokens.tolist() == [0, 75, 140]
    places = [
        [(image.content, image.place, image.size) for image in images]
        for images in (read.images[row] for row in range(3))
    ]
    first, second = (1, 4, TOKENS), [(1, 75, TOKENS), (2, 135, PIXELS)]
    assert places == [[first], [first, *second], [first, *second]]
    assert read.with_image_tokens(lambda *_: 48).turns.history_tokens.tolist() == [0, 75, 190]  # type: ignore[union-attr]
