"""What a recording says of its machine."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kvsim.capture import drive
from kvsim.capture.machine_id import machine
from kvsim.errors import MissingExtraError, UsageError


def torch_with(uuid: str | None) -> Any:
    """PyTorch on a machine whose GPU has that UUID, or with a driver that does not say."""
    properties = SimpleNamespace() if uuid is None else SimpleNamespace(uuid=uuid)
    cuda = SimpleNamespace(
        is_available=lambda: True, current_device=lambda: 0, get_device_properties=lambda _device: properties
    )
    return SimpleNamespace(cuda=cuda)


def said(monkeypatch: pytest.MonkeyPatch, uuid: str | None) -> dict[str, str]:
    monkeypatch.setitem(sys.modules, "torch", torch_with(uuid))
    return machine()


def test_a_gpu_is_known_again_and_told_from_others_without_saying_who_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    one = said(monkeypatch, "6d3a7c51-0000-1111-2222-333344445555")
    assert said(monkeypatch, "6d3a7c51-0000-1111-2222-333344445555") == one
    assert said(monkeypatch, "6d3a7c51-0000-1111-2222-333344445556") != one
    assert len(one["machine"]) == 8
    assert one["machine"] not in "6d3a7c51-0000-1111-2222-333344445555"


def test_without_a_gpu_or_its_number_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(monkeypatch, None) == {}
    no_gpu = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", no_gpu)
    assert machine() == {}


def test_a_release_that_is_asked_for_must_be_the_one_that_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "version", lambda _name: "0.30.0+cu129")
    drive.check_installed("0.30.0")
    with pytest.raises(UsageError, match=r"0\.30\.0\+cu129 is installed here, not 0\.33\.0"):
        drive.check_installed("0.33.0")
    with pytest.raises(UsageError, match="should be a release"):
        drive.check_installed("newest")

    def absent(_name: str) -> str:
        raise drive.PackageNotFoundError

    monkeypatch.setattr(drive, "version", absent)
    with pytest.raises(MissingExtraError):
        drive.check_installed("0.33.0")
