from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import UnknownNameError, UsageError
from kvsim.hardware import GIB, GPUS, Gpu, find_gpu, find_gpus, gpu_template


def test_twenty_eight_gpus_with_distinct_names_and_a_source_each() -> None:
    assert len({gpu.name for gpu in GPUS}) == len(GPUS) == 28
    assert all(gpu.sources for gpu in GPUS)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_the_driver_reports_no_more_than_the_box_says(gpu: Gpu) -> None:
    assert 0.9 * gpu.memory_gb * 1e9 < gpu.memory_bytes <= gpu.memory_gb * GIB


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_every_gpu_is_found_by_its_own_name(gpu: Gpu) -> None:
    assert find_gpu(gpu.name) is gpu
    assert find_gpu(gpu.name.upper()) is gpu


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA H200", "H200"),
        ("nvidia-h200", "H200"),
        ("h200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100-SXM4-80GB", "A100-80G"),
        ("a100-40gb", "A100-40G"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("a4000", "RTX A4000"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("L4", "L4"),
        ("AMD Instinct MI300X", "MI300X"),
        ("H100", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A30", "A30"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA L20", "L20"),
        ("NVIDIA GB300", "GB300"),
        ("AMD Instinct MI325X", "MI325X"),
        ("AMD Instinct MI355X", "MI355X"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GB200", "GB200"),
        ("NVIDIA B300 SXM6", "B300"),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"),
    ],
)
def test_names_as_people_and_drivers_write_them(name: str, found: str) -> None:
    assert find_gpu(name).name == found


def test_an_ambiguous_name_is_refused_and_names_both_cards() -> None:
    with pytest.raises(UnknownNameError, match=r"'a100'.*A100-80G or A100-40G"):
        find_gpu("a100")


@pytest.mark.parametrize("name", [
    "A100 80GB PCIe", "H100 CNX", "Tesla V100-SXM2-16GB", "H200 PCIe", "GB10", "", "NVIDIA", "Hopper", "RTX 6000",
    "80GB",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
])  # fmt: skip
def test_a_different_card_is_never_taken_for_a_listed_one(name: str) -> None:
    with pytest.raises(UnknownNameError):
        find_gpu(name)


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean .*H200"):
        find_gpu("H20O")


@pytest.mark.parametrize(
    ("name", "found"), [("4xH100", ("H100 SXM", 4)), ("2 x L40S", ("L40S", 2)), ("H200", ("H200", None))]
)
def test_several_gpus_are_counted(name: str, found: tuple[str, int | None]) -> None:
    gpu, number = find_gpus(name)
    assert (gpu.name, number) == found


def test_no_gpus_are_none() -> None:
    with pytest.raises(UsageError, match="at least 1"):
        find_gpus("0xH100")


OWN = """
name = "My card"
memory_gib = 47.5
bandwidth_gb_per_s = 960
dense_tflops = 181
num_processors = 142
boost_mhz = 2505
"""


def test_a_card_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    file.write_text(OWN)
    gpu = find_gpu(str(file))
    assert (gpu.name, gpu.memory_bytes, gpu.memory_gb) == ("My card", int(47.5 * GIB), 51)
    assert (gpu.bandwidth_bytes_per_s, gpu.dense_flops, gpu.fp8_dense_flops) == (960e9, 181e12, None)


@pytest.mark.parametrize(
    "key", ["name", "memory_gib", "bandwidth_gb_per_s", "dense_tflops", "num_processors", "boost_mhz"]
)
@pytest.mark.parametrize("value", [None, "true", "[]", "-1", "0", "nan", "inf"])
def test_a_card_with_a_wrong_figure_is_refused_by_name(tmp_path: Path, key: str, value: str | None) -> None:
    lines = [line for line in OWN.strip().splitlines() if not line.startswith(f"{key} ")]
    file = tmp_path / "card.toml"
    file.write_text("\n".join(lines if value is None else [*lines, f"{key} = {value}"]))
    with pytest.raises(UsageError, match=key):
        find_gpu(str(file))


def test_all_that_is_wrong_with_a_card_is_told_at_once(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    file.write_text('name = ""\nmemory_gib = "47"\nbandwith = 960\ndense_tflops = 1e9\nnum_processors = 14.5\n')
    with pytest.raises(UsageError) as error:
        find_gpu(str(file))
    for words in ("name = ''", "memory_gib = '47'", "bandwidth_gb_per_s is missing", "no 'bandwith'",
                  "dense_tflops = 1", "num_processors = 14.5", "boost_mhz is missing"):  # fmt: skip
        assert words in str(error.value)
    file.write_text(OWN + "fp8_dense_tflops = 90\n")
    with pytest.raises(UsageError, match="fp8_dense_tflops = 90 is less than dense_tflops = 181"):
        find_gpu(str(file))


def test_a_card_that_is_no_file_or_no_toml(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        find_gpu(str(tmp_path / "absent.toml"))
    (tmp_path / "wrong.toml").write_text("name = ")
    with pytest.raises(UsageError, match="is not TOML"):
        find_gpu(str(tmp_path / "wrong.toml"))


def test_the_template_of_a_gpu_file_has_every_key_and_describes_its_card(tmp_path: Path) -> None:
    file = tmp_path / "card.toml"
    file.write_text(gpu_template())
    read = find_gpu(str(file))
    listed = find_gpu(read.name)
    assert read.memory_bytes == pytest.approx(listed.memory_bytes, rel=1e-3)
    for name in ("bandwidth_bytes_per_s", "dense_flops", "fp8_dense_flops", "num_processors", "boost_hz"):
        assert getattr(read, name) == getattr(listed, name), name
    lines = gpu_template().splitlines()[1:]
    for line in lines:
        key = line.partition(" = ")[0]
        file.write_text("\n".join(other for other in lines if other != line))
        if "may be left out" in line:
            find_gpu(str(file))
        else:
            with pytest.raises(UsageError, match=f"{key} is missing"):
                find_gpu(str(file))
