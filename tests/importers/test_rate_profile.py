"""Profiles of arrivals: what they say in seconds, and everything that is wrong with one in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.errors import WorkloadError
from kvsim.importers import read_profile

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "day.csv"


@pytest.mark.parametrize(
    ("text", "times", "rates"),
    [
        ("hour,rate_per_s\n0,0.5\n12,4\n", (0, 43200), (0.5, 4)),
        ("rate_per_min;minute\n60;0\n120;5\n", (0, 300), (1, 2)),
        ("time_s\trate_per_hour\tnote\n0\t3600\ta\n1e1\t7200\tb\n", (0, 10), (1, 2)),
    ],
)
def test_a_profile_in_any_of_its_units(
    file: Path, text: str, times: tuple[float, ...], rates: tuple[float, ...]
) -> None:
    file.write_text(text)
    profile = read_profile(file)
    assert tuple(profile.time_s) == times
    assert tuple(profile.rate_per_s) == pytest.approx(rates)
    assert profile.repeats


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("hour,minute,rate_per_s\n0,0,1\n", ["line 1: hour and minute are both there"]),
        ("hour,rate_per_s,rate_per_min\n0,0,1\n", ["line 1: rate_per_s and rate_per_min are both there"]),
        ("hour,hour,rate_per_s\n0,0,1\n", ["line 1: hour and hour are both there"]),
        ("hour,load\n0,1\n", ["line 1: the header is 'hour,load'; a profile has one of"]),
        (
            "hour,rate_per_s\n1,-1\n0.5,inf\n0.5,many\n3,1_0\n",
            [
                "the first hour", "line 2: rate_per_s should be",
                "line 3: hour is 0.5 after 1", "line 3: rate_per_s should be", "line 4: hour is", "; and 2 more.",
            ],
        ),
        ("hour,rate_per_s\n0,1\n2,1\n2,1\n1,1\n", ["line 4: hour is 2 after 2", "line 5: hour is 1 after 2"]),
        ('hour,rate_per_s\n"0,5",1\n', ["line 2: hour should be a finite number of at least 0, not '0,5'"]),
        ("hour,rate_per_s\n00:00,1\n", ["line 2: hour should be a finite number of at least 0, not '00:00'"]),
        ("hour,rate_per_s\n0x0,1\nnan,1\n", ["line 2: hour should be", "line 3: hour should be"]),
        ("hour,rate_per_s\n0,1\n1,1e300\n", ["all at most 1e+12"]),
        ("hour,rate_per_s\n0,1\n1e300,1\n", ["all at most 1e+12"]),
        ("hour,rate_per_s\n0,1\n", ["as many rates as times, at least two"]),
        ("hour,rate_per_s\n", ["as many rates as times, at least two"]),
        ("hour,rate_per_s\n0,0\n1,0\n", ["the last rate of a profile should be above 0"]),
        ("hour,rate_per_s\n" + "".join(f"{n},x\n" for n in range(9)), ["line 2:", "line 6:", "; and 4 more."]),
    ],
)  # fmt: skip
def test_all_that_is_wrong_is_said_at_once(file: Path, text: str, sentences: list[str]) -> None:
    file.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        read_profile(file)
    assert str(caught.value).startswith(str(file))
    for sentence in sentences:
        assert sentence in str(caught.value)
