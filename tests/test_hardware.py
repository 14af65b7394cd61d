from __future__ import annotations

import pytest

from kvsim.errors import UnknownNameError
from kvsim.hardware import GIB, GPUS, Gpu, find_gpu


def test_fourteen_gpus_with_distinct_names_and_a_source_each() -> None:
    assert len({gpu.name for gpu in GPUS}) == len(GPUS) == 14
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
    ],
)
def test_names_as_people_and_drivers_write_them(name: str, found: str) -> None:
    assert find_gpu(name).name == found


def test_an_ambiguous_name_is_refused_and_names_both_cards() -> None:
    with pytest.raises(UnknownNameError, match=r"'a100'.*A100-80G or A100-40G"):
        find_gpu("a100")


@pytest.mark.parametrize("name", ["A100 80GB PCIe", "H100 PCIe", "Tesla V100-SXM2-16GB", "A10", "H20", "", "NVIDIA"])
def test_a_different_card_is_never_taken_for_a_listed_one(name: str) -> None:
    with pytest.raises(UnknownNameError):
        find_gpu(name)


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean .*H200"):
        find_gpu("H20O")
