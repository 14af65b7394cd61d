"""Names on the picture: whose row, which block, and nothing where there is no room."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.calibration.prior import vllm_prior
from kvsim.hardware import find_gpu
from kvsim.memory.waste import SlotState
from kvsim.models import find_model
from kvsim.policies import Contiguous
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, Reserve
from kvsim.simulation import Machine, simulate
from kvsim.workload import Request, Workload
from kvsim_tui.export.still import still
from kvsim_tui.lessons import Guided, find_lesson
from kvsim_tui.look.states import ASCII, COLOR, GLYPHS
from kvsim_tui.playback.session import Session
from kvsim_tui.pool import labels
from kvsim_tui.pool.brush import Brush
from kvsim_tui.pool.canvas import Canvas
from kvsim_tui.pool.labels import longest_name, names_every_line
from kvsim_tui.pool.levels import levels
from kvsim_tui.pool.line_lengths import LineLengths
from kvsim_tui.pool.paint import OWNER, ColorBy, paint_colors
from kvsim_tui.pool.tiling import Detail

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.recording import Recording
    from kvsim_tui.look.states import Symbols

LLAMA = find_model("Llama-3-8B")


def drawn(session: Session, symbols: Symbols, level: int, size: tuple[int, int], stride: int | None = None) -> str:
    replay = session.replay
    tilings = levels(
        replay.num_units,
        replay.unit_tokens,
        *size,
        stride=stride,
        half_blocks=symbols.color,
        names=longest_name(replay),
    )
    canvas = Canvas(replay, tilings[level], half_blocks=symbols.color)
    brush = Brush(symbols)
    return "\n".join("".join(brush[key][0] for key in row) for row in canvas.draw(0, size[1]).tolist())


@pytest.mark.parametrize("symbols", [COLOR, ASCII])
@pytest.mark.parametrize(("level", "size"), [(-1, (40, 16)), (-1, (40, 4)), (-2, (60, 8))])
def test_a_block_bears_its_number_and_its_holder(
    tiny: Recording, symbols: Symbols, level: int, size: tuple[int, int]
) -> None:
    session = Session(tiny)
    session.replay.seek(1)
    picture = drawn(session, symbols, level, size)
    for name in ("1 ", "2 ", "3 ", "4 ", "5", "8"):
        assert name in picture
    assert picture.index("first"[-2:]) < picture.index("second"[-2:])


def test_a_shared_block_says_how_many_hold_it() -> None:
    guided = Guided(find_lesson("5"))
    guided.show(guided.captions[2].frame)
    picture = drawn(guided.sessions[0], COLOR, -1, (80, 30))
    assert picture.count("+3") == 10


@pytest.mark.parametrize("symbols", [COLOR, ASCII])
def test_a_row_bears_the_name_of_its_request(symbols: Symbols) -> None:
    guided = Guided(find_lesson("2"))
    lines = drawn(guided.sessions[0], symbols, 0, (80, 20), stride=135).splitlines()
    named = [line[1] for line in lines if line[1:2].isalpha()]
    assert named == list("ABCDEF")


def test_sequences_packed_into_one_row_have_a_name_each() -> None:
    guided = Guided(find_lesson("8"))
    guided.show(guided.captions[-1].frame)
    packed = guided.sessions[1]
    assert packed.rows is not None
    picture = drawn(packed, COLOR, 0, (80, 20), stride=packed.rows.row_tokens)
    assert [line.split() for line in picture.splitlines() if any(map(str.isalpha, line))] == [
        ["C", "56"],
        ["D", "22", "E", "19", "H", "15"],
        ["A", "18", "G", "16", "F", "13", "B", "6"],
    ]
    narrow = drawn(packed, COLOR, 0, (39, 16), stride=packed.rows.row_tokens)
    assert re.search(r" B 6\W", narrow), "a length needs no blank behind it"


def test_every_block_bears_its_holder_beside_what_it_is_filled_to() -> None:
    guided = Guided(find_lesson("4"))
    guided.show(guided.captions[0].frame)
    first_row = drawn(guided.sessions[1], COLOR, -2, (40, 10)).splitlines()[0]
    assert "".join(filter(str.isalnum, first_row)) == "1AABBCCCDD"
    glyphs = drawn(guided.sessions[1], ASCII, -2, (40, 10))
    assert not any(map(str.isalpha, glyphs.splitlines()[0]))

    pictures = []
    for frame in range(guided.sessions[1].replay.num_frames):
        guided.sessions[1].replay.seek(frame)
        pictures.append(drawn(guided.sessions[1], COLOR, -2, (40, 10)))
    assert any(re.search("[A-H].*[▏▎▍▌▋▊▉]", picture) for picture in pictures)


def test_a_pool_too_large_for_names_has_none(shipped: Callable[[str], Recording]) -> None:
    session = Session(shipped("large"))
    session.replay.seek(60)
    lines = drawn(session, COLOR, 0, (80, 20)).splitlines()
    assert all(re.fullmatch(r" *[\d]+ |\D*", line[:6]) for line in lines), "the number of the first block"
    assert not any(map(str.isalnum, "".join(line[6:] for line in lines)))


def test_the_cursor_is_not_written_over(tiny: Recording) -> None:
    session = Session(tiny)
    session.replay.seek(1)
    tiling = levels(8, 4, 40, 4, stride=None, half_blocks=True)[-1]
    canvas = Canvas(session.replay, tiling, half_blocks=True)
    plain = canvas.draw(0, 4)
    canvas.cursor = 0
    marked = canvas.draw(0, 4)
    assert (plain != marked).sum() >= 4


def test_the_cursor_is_a_mark_of_its_own_at_every_level(shipped: Callable[[str], Recording]) -> None:
    replay, brush = Session(shipped("paged"), at_s=8.0).replay, Brush(COLOR)
    seen = set()
    sizes = ((84, 20), (34, 24), (80, 8))
    for tiling in (at for size in sizes for at in levels(replay.num_units, 16, *size, stride=None, half_blocks=True)):
        canvas = Canvas(replay, tiling, half_blocks=True)
        canvas.cursor = 400
        x, y = canvas.place_of(400)
        assert "■" in [brush[key][0] for key in canvas.draw(y, 1)[0, x : x + max(tiling.wide, 1)].tolist()]
        seen.add(tiling.detail)
    assert {Detail.MIX, Detail.PART, Detail.HALF} <= seen


def test_rows_that_share_a_character_are_above_each_other() -> None:
    """A row of memory that is taken lies above one that is free, as in the pool: no stripes, which look like pieces."""
    session = Session(
        simulate(
            Workload.from_requests(
                [Request(id="A", arrival_s=0.0, prompt_tokens=60, output_tokens=4, max_tokens=4)], name="rows"
            ),
            Contiguous(scheduler=ContinuousSettings(max_model_len=64), cache=ContiguousSettings(reserve=Reserve.MAX)),
            Machine(
                gpu=find_gpu("H200"),
                model=LLAMA,
                kv_bytes=128 * LLAMA.kv_bytes_per_token,
                step_time=vllm_prior(find_gpu("H200"), LLAMA),
            ),
        )
    )
    tiling = next(tiling for tiling in levels(128, 1, 20, 1, stride=64, half_blocks=True) if tiling.down == 2)
    canvas = Canvas(session.replay, tiling, half_blocks=True, color_by=ColorBy.OWNER)
    brush = Brush(COLOR)
    (line,) = canvas.draw(0, 1).tolist()
    characters = [brush[key] for key in line[:16]]  # before the reservation's last, unwritten slots
    assert {character for character, _ in characters} == {"▄"}
    front, back = (paint_colors(COLOR.palette)[paint] for paint in (SlotState.FREE, OWNER))
    assert {(style.color.name, style.bgcolor.name) for _, style in characters} == {(front, back)}


@pytest.mark.parametrize("lesson", ["1", "2"])
def test_a_name_is_beside_its_row_and_hides_nothing(lesson: str) -> None:
    guided = Guided(find_lesson(lesson))
    guided.show(guided.captions[1].frame)
    session = guided.sessions[0]
    stride = LineLengths(session.replay).length_at(int(session.replay.frame_seq[session.replay.frame]))
    tiling = levels(session.replay.num_units, 1, 84, 20, stride=stride, half_blocks=True, names=1)[0]
    assert names_every_line(tiling, session.replay)
    canvas = Canvas(session.replay, tiling, half_blocks=True, color_by=ColorBy.OWNER)
    session.followed = canvas.followed = int(session.replay.live_requests()[0])
    assert canvas.lit_request is None, "its name is marked instead"
    brush, picture = Brush(COLOR), canvas.draw(0, 20)
    beside = ["".join(brush[int(key)][0] for key in line[: tiling.margin]) for line in picture]
    inside = {brush[int(key)][0] for line in picture for key in line[tiling.margin :]}
    assert not any(character.isalpha() for character in inside)
    holders = {session.request_name(request) for request in session.replay.live_requests().tolist()}
    assert {line.strip(" >") for line in beside if line.strip()} == holders
    assert sum(">" in line for line in beside) == 1


@pytest.mark.parametrize("every", [9, pytest.param(3, marks=pytest.mark.slow)])
def test_a_run_too_narrow_for_a_name_has_no_part_of_it(every: int) -> None:
    guided = Guided(find_lesson("12"))
    radix = guided.sessions[1]
    names = set(radix.recording.requests.id.tolist())
    shown = set[str]()
    for frame in range(0, guided.player.last_frame, every):
        guided.show(frame)
        lines = ["".join(character for character, _ in line) for line in still(radix, GLYPHS, 78, 8)]
        shown |= set(re.findall(r"\w+", " ".join(lines)))
    assert shown
    assert shown <= names


def test_a_name_is_written_where_it_just_fits_into_equal_characters() -> None:
    place = np.array([1, 1, 1, 2, 2, 2, 2, 3], np.int32)
    labels._write_over_equal_characters(" ab ", place)
    assert np.flatnonzero(place != [1, 1, 1, 2, 2, 2, 2, 3]).tolist() == [3, 4, 5, 6]


def test_a_label_hides_no_written_slot_where_a_character_is_a_slot() -> None:
    lesson = Guided(find_lesson("3"))
    lesson.show(lesson.captions[2].frame - 3)  # C has one token in its last block
    (session,) = lesson.sessions
    replay = session.replay
    tiling = levels(replay.num_units, replay.unit_tokens, 84, 9, stride=None, half_blocks=True)[-1]
    canvas, brush = Canvas(replay, tiling, half_blocks=True, color_by=ColorBy.OWNER), Brush(COLOR)
    picture = canvas.draw(0, 9)
    request = session.recording.row_of("C")
    unit = int(replay.block_table(request)[1][-1]) - replay.first_unit
    x, y = canvas.place_of(unit)
    colors = [
        style.bgcolor.get_truecolor().hex if character.isalnum() else style.color.get_truecolor().hex
        for character, style in (brush[key] for key in picture[y, x : x + replay.unit_tokens].tolist())
        if style.color is not None and style.bgcolor is not None and character != " "
    ]
    own = paint_colors(COLOR.palette)[OWNER + request]
    assert colors.count(own) == int(replay.slots(np.array([unit]))[0, SlotState.TOKEN]) == 1


def test_a_reservation_with_tokens_shows_them_and_not_only_what_is_reserved() -> None:
    lesson = Guided(find_lesson("1"))
    (session,) = lesson.sessions
    lesson.show(lesson.captions[0].frame)
    replay = session.replay
    tiling = levels(replay.num_units, 1, 84, 15, stride=16384, half_blocks=True)[0]
    canvas, brush = Canvas(replay, tiling, half_blocks=True, color_by=ColorBy.OWNER), Brush(COLOR)
    picture = canvas.draw(0, 15)
    for request in replay.live_requests().tolist():
        x, y = canvas.place_of(int(replay.block_table(request)[1][0]) - replay.first_unit)
        style = brush[int(picture[y, x])][1]
        assert style.color is not None
        assert style.color.get_truecolor().hex == paint_colors(COLOR.palette)[OWNER + request]


def test_labels_side_by_side_name_the_number_of_other_holders() -> None:
    lesson = Guided(find_lesson("13"))
    caption = lesson.captions[3]
    lesson.show(caption.frame)
    session = next(each for each in lesson.sessions if each.replay.refs.max() == 5)
    replay = session.replay
    tiling = levels(replay.num_units, replay.unit_tokens, 29, 18, stride=None, half_blocks=True)[0]
    canvas, brush = Canvas(replay, tiling, half_blocks=True), Brush(COLOR)
    text = "\n".join("".join(brush[key][0] for key in row) for row in canvas.draw(0, 18).tolist())
    assert f"{session.request_name(int(replay.owner[int(replay.refs.argmax())]))}+4" in text


@pytest.mark.parametrize("size", [(29, 18), (40, 24), (60, 30)])
def test_no_label_of_a_block_is_a_part_of_a_name(size: tuple[int, int]) -> None:
    """A cut label names another request or none: `8+4` is not `P8+4`, and `0+2` is not `P10+2`."""
    lesson = Guided(find_lesson("13"))
    lesson.show(lesson.captions[3].frame)
    for session in lesson.sessions:
        replay, names = session.replay, set(session.recording.requests.id.tolist())
        tilings = levels(replay.num_units, replay.unit_tokens, *size, stride=None, half_blocks=True)
        canvas, brush = Canvas(replay, tilings[0], half_blocks=True), Brush(COLOR)
        text = "\n".join("".join(brush[key][0] for key in row) for row in canvas.draw(0, size[1]).tolist())
        labels = re.findall(r"[A-Z]?\d+(?:\+\d+)?", text)
        assert {label.partition("+")[0] for label in labels if not label.isdigit()} <= names
