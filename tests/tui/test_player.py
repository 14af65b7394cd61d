"""The transport, without a terminal."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim_tui.playback.player import DEFAULT_PLAY_S, Player, speed_at, speed_index


@pytest.fixture
def player() -> Player:
    """Ten frames, one every two seconds; frames 3 and 7 are notable."""
    return Player(np.linspace(0, 18, 10), np.array([7, 3, 3]))


def test_a_player_begins_paused_at_the_first_frame(player: Player) -> None:
    assert (player.frame, player.clock_s, player.playing) == (0, 0.0, False)


def test_a_paused_player_ignores_time(player: Player) -> None:
    assert not player.tick(100.0)
    assert player.frame == 0


def test_playing_follows_the_clock_at_the_current_speed(player: Player) -> None:
    player.toggle()
    wall_s = 5.0 / player.speed
    assert player.tick(wall_s)
    assert player.clock_s == pytest.approx(5.0)
    assert player.frame == 2


def test_ticks_inside_one_frame_add_up(player: Player) -> None:
    player.toggle()
    moved = [player.tick(0.5 / player.speed) for _ in range(4)]
    assert moved == [False, False, False, True]


def test_playing_stops_at_the_end_and_starts_again_from_the_beginning(player: Player) -> None:
    player.toggle()
    player.tick(1e9)
    assert (player.frame, player.playing, player.at_end) == (9, False, True)
    player.toggle()
    assert (player.frame, player.playing) == (0, True)


def test_steps_pause_and_stay_inside_the_recording(player: Player) -> None:
    player.toggle()
    player.step(4)
    assert (player.frame, player.clock_s, player.playing) == (4, 8.0, False)
    player.step(-10)
    assert player.frame == 0
    player.step(100)
    assert player.frame == 9


def test_jumps_visit_the_notable_frames_in_both_directions(player: Player) -> None:
    visited = []
    while player.jump(1):
        visited.append(player.frame)
    assert visited == [3, 7]
    assert player.jump(-1)
    assert player.frame == 3
    assert not player.jump(-1)
    assert player.frame == 3


def test_a_jump_from_between_two_notable_frames_finds_the_nearest(player: Player) -> None:
    player.go_to_frame(5)
    player.jump(-1)
    assert player.frame == 3
    player.go_to_frame(5)
    player.jump(1)
    assert player.frame == 7


@pytest.mark.parametrize(("time_s", "frame"), [(-5.0, 0), (0.0, 0), (3.999, 1), (4.0, 2), (18.0, 9), (99.0, 9)])
def test_a_time_means_the_frame_that_is_current_then(player: Player, time_s: float, frame: int) -> None:
    player.go_to_time(time_s)
    assert player.frame == frame


@pytest.mark.parametrize("duration_s", [1e-3, 0.7, 1.0, 20.0, 3_600.0])
def test_the_first_speed_plays_everything_in_about_45_seconds(duration_s: float) -> None:
    player = Player(np.array([0.0, duration_s]), np.array([], np.int64))
    assert DEFAULT_PLAY_S <= duration_s / player.speed <= 2.5 * DEFAULT_PLAY_S


def test_a_recording_without_duration_can_be_played() -> None:
    player = Player(np.zeros(3), np.array([], np.int64))
    player.toggle()
    player.tick(1.0)
    assert player.at_end


def test_speed_goes_up_and_down_the_same_way(player: Player) -> None:
    first = player.speed
    for _ in range(3):
        player.change_speed(1)
    assert player.speed == pytest.approx(10 * first)
    for _ in range(3):
        player.change_speed(-1)
    assert player.speed == first


def test_speed_has_limits(player: Player) -> None:
    first = player.speed
    for _ in range(100):
        player.change_speed(1)
    assert player.speed == pytest.approx(first * 1e4)
    for _ in range(100):
        player.change_speed(-1)
    assert player.speed == pytest.approx(first * 1e-4)


@settings(max_examples=100, deadline=None)
@given(st.floats(1e-8, 1e8))
def test_a_speed_on_the_scale_is_the_fastest_not_above(speed: float) -> None:
    index = speed_index(speed)
    assert speed_at(index) <= speed * 1.00001
    assert speed_at(index + 1) > speed
