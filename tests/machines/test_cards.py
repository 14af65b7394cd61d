"""Machine cards: what ships, what a file must say, and what a machine without a GPU answers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.cli.measure import command as measure_command
from kvsim.errors import KvsimError, UsageError
from kvsim.hardware import GPUS, Gpu, find_gpu
from kvsim.machines import card_of, is_card, sheet_card, shipped_cards
from kvsim.machines.cards import linked
from kvsim.models import find_model
from kvsim.steptime import StepShape, generate_times, reduce
from kvsim.steptime.card import load_card, save_card
from kvsim.steptime.curves import product_curve, reduce_s

H200 = find_gpu("H200")


def test_cards_of_three_machines_ship_and_say_how_they_were_measured() -> None:
    assert {(card.gpu, card.num_gpus) for card in shipped_cards()} == {("H100 SXM", 1), ("H200", 1), ("H200", 2)}
    for card in shipped_cards():
        assert card.measured
        assert "measured 2026" in card.source
        assert bool(card.all_reduce) == (card.num_gpus > 1)
        assert 0.8 < card.read_bytes_per_s / find_gpu(card.gpu).bandwidth_bytes_per_s < 1


@pytest.mark.parametrize("card", shipped_cards(), ids=lambda card: f"{card.num_gpus} {card.gpu}")
def test_a_card_comes_back_from_its_file(card: object, tmp_path: Path) -> None:
    file = save_card(replace(card, factors={"host": 1.25}), tmp_path / "mine.toml", "made by a test")  # type: ignore[type-var]
    again = load_card(file)
    assert again == load_card(save_card(again, tmp_path / "again.toml"))
    assert again.factors == {"host": 1.25}
    assert is_card(str(file))
    assert not is_card("vllm-h200-llama-3-8b")


def test_a_file_that_takes_minutes_to_read_is_refused_at_once(tmp_path: Path) -> None:
    file = tmp_path / "long.toml"
    file.write_text(f"x = [{'1,' * 600_000}]\n")
    with pytest.raises(UsageError, match="It has more than 1,048,576 bytes"):
        load_card(file)


@pytest.mark.parametrize(
    ("pattern", "wrong", "sentence"),
    [
        (r"^gpu = .*", "gpu = 5", "gpu should be text, not 5"),
        (r"^gpu = .*", "", "gpu is missing"),
        (r"^measured = .*", 'measured = "false"', "measured should be true or false, not 'false'"),
        (r"^gpu = ", "factors = 3\ngpu = ", "factors should be a table, not 3"),
        (r"^gpu = ", "factors = { speed = 3 }\ngpu = ", "factors has 'speed', which is none of gpu, host, woken"),
        (r"^gpu = ", 'fitted_to = ["x"]\ngpu = ', "fitted_to should be a table, not ['x']"),
        (r"^gpu = ", 'fitted_to = { x = "y" }\ngpu = ', "fitted_to.x should be a list of recordings' names, not 'y'"),
        (r"^gpu = ", "all_reduce = [3]\ngpu = ", "all_reduce should be a list of tables, not [3]"),
        (r"^launch_s = .*", "launch_s = nan", "launch_s should be a number from 1e-09 to 1000, not nan"),
        (r"^launch_s = .*", "launch_s = -1", "launch_s should be a number from 1e-09 to 1000, not -1"),
        (r"^num_gpus = .*", "num_gpus = 0", "num_gpus should be a whole number from 1 on, not 0"),
        (r"^kernel_s = .*", "kernel_s = 1e308", "kernel_s should be a number from 1e-09 to 1000, not 1e+308"),
        (r"^read_bytes_per_s = .*", "read_bytes_per_s = 1e-320", "read_bytes_per_s should be a number from 1000 to"),
        (r"us = \[[^,]*,", "us = [", "should have 57 times"),
        (r"us = \[[^,]*,", 'us = ["fast",', "us should be a number from 1e-06 to 1e+09, not 'fast'"),
        (r"^\[rates\]", "[rates", "is not TOML"),
    ],
)
def test_a_card_that_is_none_is_one_sentence(pattern: str, wrong: str, sentence: str, tmp_path: Path) -> None:
    text = save_card(card_of(H200), tmp_path / "good.toml").read_text()
    (tmp_path / "bad.toml").write_text(re.sub(pattern, wrong, text, count=1, flags=re.MULTILINE))
    with pytest.raises(UsageError, match=re.escape(sentence)):
        load_card(tmp_path / "bad.toml")


def test_products_between_measured_weights_lie_between_them() -> None:
    products = card_of(H200).products["bfloat16"]
    index = products.shapes.index((6144, 4096))
    assert product_curve(products, 6144, 4096)(32) == pytest.approx(products.seconds[index][products.sizes.index(32)])
    smaller, between, larger = (product_curve(products, n, 4096)(32) for n in (4096, 5120, 6144))
    assert smaller < between < larger
    assert product_curve(products, 6144, 4096)(33) == pytest.approx(product_curve(products, 6144, 4096)(40))
    assert product_curve(products, 6144, 4096)(32768) == pytest.approx(2 * product_curve(products, 6144, 4096)(16384))


def test_sums_over_gpus_grow_with_their_bytes() -> None:
    rows = card_of(H200, 2).all_reduce
    assert [reduce_s(rows, size) for size, _ in rows] == pytest.approx([seconds for _, seconds in rows])
    assert reduce_s(rows, 2 * rows[-1][0]) == pytest.approx(2 * rows[-1][1])


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_listed_gpu_has_a_card_and_a_data_sheet_says_that_it_is_one(gpu: object) -> None:
    card = card_of(gpu)  # type: ignore[arg-type]
    assert card.measured == (card.gpu in ("H100 SXM", "H200"))
    assert card.measured or "data sheet" in card.source
    four = card_of(gpu, 4)  # type: ignore[arg-type]
    assert not four.measured
    assert "sums over 4 GPUs guessed" in four.source


def test_sums_over_gpus_without_nvlink_cross_pcie() -> None:
    """An RTX PRO 6000 has a Blackwell chip, as a B200 has, but no NVLink."""
    seconds = {name: card_of(find_gpu(name), 2).all_reduce[-1][1] for name in ("RTX PRO 6000", "L40S", "B200")}
    assert seconds["RTX PRO 6000"] == seconds["L40S"] > 10 * seconds["B200"]


def test_the_data_sheet_of_an_h100_comes_close_to_the_measured_card() -> None:
    """Nothing of the H100 goes into its data-sheet card but the sheet: what is measured there is a check."""
    h100, llama = find_gpu("H100 SXM"), find_model("Meta-Llama-3-8B")
    guessed, measured = (reduce(card, llama) for card in (sheet_card(h100), card_of(h100)))
    for shape in (
        StepShape(1, 1, 0, 500, 0),
        StepShape(32, 32, 0, 16_000, 0),
        StepShape(128, 128, 0, 64_000, 0),
        StepShape(1, 4096, 4096, 4096, 4096 * 4097 // 2),
        StepShape(33, 232, 200, 16_200, 20_100),
    ):
        assert guessed.step_time(shape).gpu_s == pytest.approx(measured.step_time(shape).gpu_s, rel=0.1)


@pytest.mark.parametrize("weights", ["bfloat16", "fp8"])
def test_the_products_of_a_data_sheet_are_those_that_were_measured_there(weights: str) -> None:
    """On an H100, told by an H200: what starting a kernel takes is no longer where the memory is slower."""
    h100 = find_gpu("H100 SXM")
    guessed, measured = (card.products[weights] for card in (sheet_card(h100), card_of(h100)))
    off = np.log(np.array(guessed.seconds) / np.array(measured.seconds))
    decodes = np.array(measured.sizes) <= 128
    assert abs(np.median(off[:, decodes])) < 0.03
    assert np.abs(off[:, decodes]).mean() < 0.08


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_no_product_of_a_data_sheet_is_faster_than_the_memory_and_the_arithmetic_of_its_gpu(gpu: Gpu) -> None:
    for weights, products in sheet_card(gpu).products.items():
        item_bytes, peak = (2, gpu.dense_flops) if weights == "bfloat16" else (1, gpu.fp8_dense_flops)
        num_weights = np.prod(products.shapes, axis=1, dtype=float)[:, None]
        assert peak is not None
        streamed_s = item_bytes * num_weights / gpu.bandwidth_bytes_per_s
        computed_s = 2 * num_weights * np.array(products.sizes) / peak
        assert (np.array(products.seconds) >= np.maximum(streamed_s, computed_s)).all()


def test_a_gpu_that_was_measured_to_stream_slowly_streams_as_slowly() -> None:
    t4 = find_gpu("T4")
    assert sheet_card(t4).read_bytes_per_s < 0.75 * t4.bandwidth_bytes_per_s
    shape, llama = StepShape(1, 1, 0, 20, 0), find_model("Llama-2-7b-hf")
    for times in (reduce(sheet_card(t4), llama), generate_times(t4, llama)):
        assert times.step_time(shape).gpu_s > 13.4e9 / 234e9


def test_what_was_measured_on_two_gpus_is_not_guessed() -> None:
    card = card_of(H200, 2)
    assert linked(card, H200, 2) is card
    assert linked(card, H200, 1) is card


def test_measuring_without_a_gpu_is_a_sentence(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    result = CliRunner().invoke(measure_command, ["-o", str(tmp_path / "card.toml")])
    assert isinstance(result.exception, KvsimError)
    assert "no GPU" in str(result.exception)
    assert not list(tmp_path.iterdir())
