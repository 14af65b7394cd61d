"""Figures are asked for the data that they draw, never for their pixels."""

from __future__ import annotations

import re
from dataclasses import replace
from io import BytesIO
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer
from matplotlib.patches import StepPatch
from matplotlib.text import Text
from PIL import Image

from kvsim.display.palette import channels_of
from kvsim.errors import RecordingError, UnknownNameError, UsageError
from kvsim.hardware import find_gpu
from kvsim.machines import card_of, from_card
from kvsim.memory.waste import SlotState
from kvsim.metrics import waste, waste_shares
from kvsim.models import find_model
from kvsim.plots import FIGURES, OF_A_SWEEP, figure_of
from kvsim.plots.colors import THEMES
from kvsim.plots.everything import OF_ONE, OF_SEVERAL
from kvsim.plots.ladder_gains import ladder
from kvsim.plots.latency import latency
from kvsim.plots.memory_map import MAX_COLUMNS, MAX_ROWS, memory_map, pixel_states
from kvsim.plots.occupancy import occupancy
from kvsim.plots.sampling import TimeBins
from kvsim.plots.style import STATE_LABELS, style
from kvsim.plots.waste_bars import _LETTER_EM, _draw_bars, waste_bars
from kvsim.plots.waste_over_time import waste_over_time
from kvsim.plots.words import ByteUnit, distinct_names, each_named, memory, provenance, spaced
from kvsim.policies import Contiguous
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, Reserve
from kvsim.replay import Replay
from kvsim.simulation import Machine, simulate
from kvsim.workload import AllAtOnce, LogNormal, generate

from ..thinned import one_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from kvsim.plots import Picture, Purpose, Theme
    from kvsim.recording import Recording

ALONE = [name for name in OF_SEVERAL | OF_ONE | OF_A_SWEEP if name != "roofline"]
"""What draws a single recording, on a GPU that nobody knows."""
OVER_TIME = ["waste-over-time", "occupancy", "queue", "memory-map"]


def bars(axes: Axes) -> list[BarContainer]:
    return [container for container in axes.containers if isinstance(container, BarContainer)]


def words_on(picture: Picture) -> str:
    return " ".join(text.get_text() for text in picture.texts).replace("\n", " ")


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("purpose", ["paper", "paper-wide", "slide", "web"])
def test_every_figure_says_what_it_shows_and_where_that_comes_from(by_hand: Recording, name: str, purpose: str) -> None:
    picture = FIGURES[name](by_hand, purpose=purpose)
    assert "Source: simulated by kvsim, contiguous (reserve max), tiny, A GPU." in words_on(picture)
    labels = [label for axes in picture.axes for label in (axes.get_xlabel(), axes.get_ylabel()) if label]
    units = ("(s)", "seconds", "KiB)", "%", "sequences", "requests", "tokens")
    assert labels
    assert all(any(unit in label for unit in units) for label in labels), labels
    assert picture.alt_text.endswith(".")


@pytest.mark.parametrize("name", ALONE)
def test_a_clock_that_nobody_calibrated_is_named(uncalibrated: Recording, name: str) -> None:
    assert "uncalibrated" in words_on(FIGURES[name](uncalibrated))


@pytest.mark.parametrize("name", ALONE)
def test_a_size_that_is_asked_for_is_used(by_hand: Recording, name: str) -> None:
    assert FIGURES[name](by_hand, size=(5, 4)).get_size_inches().tolist() == [5, 4]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2."""
    levels = []
    for color in (one, other):
        parts = np.array(to_rgb(color))
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        levels.append(float(linear @ (0.2126, 0.7152, 0.0722)) + 0.05)
    return max(levels) / min(levels)


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_and_lines_stand_out_from_the_ground_of_every_theme(by_hand: Recording, name: str, theme: Theme) -> None:
    colors, picture = THEMES[theme], FIGURES[name](by_hand, theme=theme)
    assert to_rgb(picture.get_facecolor()) == to_rgb(colors.ground)  # type: ignore[arg-type]
    for axes in picture.axes:
        assert to_rgb(axes.get_facecolor()) == to_rgb(colors.ground)
        on_areas = {text for text in axes.texts if text.get_bbox_patch() or name == "waste-bars"}
        for text in axes.findobj(Text):
            if text.get_text() and text not in on_areas:
                assert contrast(text.get_color(), colors.ground) >= 4.5, text.get_text()
        for line in axes.get_lines():
            assert contrast(line.get_color(), colors.ground) >= 3
    for text in (*picture.texts, *(each for legend in picture.legends for each in legend.get_texts())):
        assert contrast(text.get_color(), colors.ground) >= 4.5
    if theme == "light" and name != ALONE[0]:
        return  # one file shows that a white ground is written; a dark one is asked for in every kind
    drawn = BytesIO()
    picture.write(drawn, "png", {})
    with Image.open(drawn) as image:
        assert image.getpixel((1, 1)) == tuple(round(255 * part) for part in to_rgb(colors.ground))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_numbers_on_bars_can_be_read(by_hand: Recording, paged: Recording, theme: Theme) -> None:
    colors = THEMES[theme]
    for state in SlotState:
        ink = colors.on(colors.states[state])
        other = "white" if ink != "white" else "#1f2328"
        assert contrast(ink, colors.states[state]) >= min(4.5, contrast(other, colors.states[state])) / 1.6
    waste_bars(by_hand, paged, theme=theme).write(BytesIO(), "svg", {})


def test_an_unknown_theme_is_refused(by_hand: Recording) -> None:
    with pytest.raises(UnknownNameError, match="no theme of a figure"):
        waste_bars(by_hand, theme="solarized")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", OVER_TIME)
def test_what_lasts_no_time_cannot_be_drawn_over_time(frozen: Recording, name: str) -> None:
    with pytest.raises(RecordingError, match="lasts no time"):
        FIGURES[name](frozen)


def test_bars_add_up_to_100_percent(by_hand: Recording, paged: Recording) -> None:
    axes = waste_bars(by_hand, paged).axes[0]
    assert len(bars(axes)) == np.count_nonzero(
        waste_shares(waste(by_hand)).pool_percent + waste_shares(waste(paged)).pool_percent
    )
    for row, recording in enumerate((by_hand, paged)):
        patches = [container.patches[row] for container in bars(axes)]
        assert sum(patch.get_width() for patch in patches) == pytest.approx(100)
        for container, patch in zip(bars(axes), patches, strict=True):
            state = next(state for state, label in STATE_LABELS.items() if label == container.get_label())
            assert patch.get_width() == pytest.approx(waste_shares(waste(recording)).pool_percent[state])


def test_bars_of_the_allocated_part_leave_out_what_is_free(by_hand: Recording) -> None:
    axes = waste_bars(by_hand, of="allocated").axes[0]
    assert {container.get_label() for container in bars(axes)} == {
        STATE_LABELS[state] for state in (SlotState.TOKEN, SlotState.RESERVED, SlotState.INTERNAL)
    }
    assert sum(container.patches[0].get_width() for container in bars(axes)) == pytest.approx(100)
    assert "allocated" in axes.get_xlabel()


def test_bars_carry_their_names_and_numbers(by_hand: Recording) -> None:
    texts = [text.get_text() for text in waste_bars(by_hand, names=("Orca",)).axes[0].texts]
    assert "Orca, 40 KiB" in texts
    assert "25.0" in texts, "of 40 slots, 2 x 5 are never written"


@pytest.mark.parametrize(("number", "names"), [(0, ()), (1, ("a", "b"))])
@pytest.mark.parametrize("figure", [waste_bars, occupancy])
def test_as_many_names_as_recordings(by_hand: Recording, figure: type, number: int, names: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"were given; (give|a bar)"):
        figure(*[by_hand] * number, names=names)


def test_more_lines_than_can_be_told_apart_are_refused(by_hand: Recording) -> None:
    with pytest.raises(UsageError, match="5 recordings"):
        occupancy(*[by_hand] * 5)


@pytest.mark.parametrize("kind", ["by_hand", "paged", "static"])
def test_areas_cover_the_pool_at_every_moment(kind: str, request: pytest.FixtureRequest) -> None:
    recording = request.getfixturevalue(kind)
    axes = next(axes for axes in waste_over_time(recording).axes if axes.collections)
    unit = 2**10 if kind == "by_hand" else 2**30
    capacity = waste(recording).capacity * recording.meta.pool.bytes_per_unit / recording.meta.pool.unit_tokens / unit
    assert axes.get_ylim() == pytest.approx((0, capacity))
    outline = np.asarray(axes.collections[-1].get_paths()[0].vertices, np.float64)
    for moment in np.unique(outline[:, 0]):
        assert outline[outline[:, 0] == moment, 1].max() == pytest.approx(capacity)


def test_the_mean_in_time_bins_keeps_sums_and_areas(paged: Recording) -> None:
    slots, bins = waste(paged), TimeBins.of(paged, 37)
    mean = bins.mean(slots.time_s, slots.slots)
    assert mean.shape == (37, 8)
    assert mean.sum(axis=1) == pytest.approx(slots.capacity)
    assert mean.mean(axis=0) == pytest.approx(slots.mean_slots(), rel=1e-6)


def test_preemptions_are_counted_in_a_panel_of_their_own(paged: Recording, static: Recording) -> None:
    (counts,) = bars(waste_over_time(paged).axes[0])
    assert sum(bar.get_height() for bar in counts.patches) == 685
    assert all(not axes.containers for axes in waste_over_time(static).axes)


def test_lines_are_the_columns_of_the_recording(by_hand: Recording) -> None:
    panels = [axes.patches[0] for axes in occupancy(by_hand).axes]
    held, batch, waiting = (panel.get_data()[0] for panel in panels if isinstance(panel, StepPatch))
    assert held == pytest.approx(np.full(600, 80.0))
    assert batch == pytest.approx(np.full(600, 2.0))
    assert waiting[[0, 200, 400, 599]] == pytest.approx([3, 2, 1, 0])


def test_several_recordings_are_told_apart_by_dashes_too(by_hand: Recording, uncalibrated: Recording) -> None:
    picture = occupancy(by_hand, uncalibrated)
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["by-hand", "guess"]
    first, second = picture.axes[0].patches
    assert first.get_linestyle() != second.get_linestyle()


def test_a_small_pool_is_mapped_unit_by_unit(by_hand: Recording) -> None:
    replay = Replay(by_hand)
    states, owners, bins = pixel_states(replay)
    assert states.shape == (40, MAX_COLUMNS)
    for column in (0, 500, 1499):
        replay.seek(replay.frame_at(float(bins.edges_s[column])))
        assert states[:, column].tolist() == replay.slots().argmax(axis=1).tolist()
        assert owners[:, column].tolist() == replay.owner.tolist()


@pytest.mark.parametrize("kind", ["paged", "static"])
def test_a_big_pool_is_mapped_in_few_pixels_of_about_the_right_shares(
    kind: str, request: pytest.FixtureRequest
) -> None:
    recording = request.getfixturevalue(kind)
    states, _, _ = pixel_states(Replay(recording))
    assert states.shape == (MAX_ROWS, MAX_COLUMNS)
    percent = 100 * np.bincount(states.ravel(), minlength=7) / states.size
    assert percent == pytest.approx(waste_shares(waste(recording)).pool_percent, abs=2.5)


def test_a_map_is_drawn_in_the_hues_of_owners_and_the_colours_of_other_states(by_hand: Recording) -> None:
    picture = memory_map(by_hand)
    image = picture.axes[0].images[0]
    drawn = image.to_rgba(np.asarray(image.get_array()), bytes=True, norm=False)[..., :3]
    colours = {tuple(pixel) for pixel in drawn.reshape(-1, 3).tolist()}
    named = {text.get_text() for text in picture.legends[0].get_texts()}
    of_states = {channels_of(THEMES["light"].states[state]) for state, label in STATE_LABELS.items() if label in named}
    of_owners = {channels_of(colour) for colour in THEMES["light"].owners}
    assert of_states <= colours <= of_states | of_owners
    assert colours & of_owners
    assert "tokens, by request" in named
    assert list(image.get_extent()) == [0, 4, 0, 40]


def test_states_can_be_told_apart_in_grey() -> None:
    def lightness(colour: str) -> float:
        parts = np.array(to_rgb(colour))
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(116 * np.cbrt(linear @ (0.2126, 0.7152, 0.0722)) - 16)

    levels = [lightness(colour) for colour in THEMES["light"].states.values()]
    assert min(abs(a - b) for a, b in combinations(levels, 2)) >= 7.9
    assert set(THEMES["light"].states) == set(STATE_LABELS) == set(SlotState)


def test_an_unknown_purpose_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="slide"):
        style("slides")  # type: ignore[arg-type]


def test_provenance_of_a_real_run(paged: Recording) -> None:
    assert provenance(paged) == "measured on vLLM 0.25.1, paged, llama-3-8b, NVIDIA H200"


def test_provenance_says_once_what_several_runs_share(by_hand: Recording, static: Recording) -> None:
    oracle = replace(by_hand, meta=replace(by_hand.meta, policy={"name": "contiguous", "reserve": "oracle"}))
    said = provenance(by_hand, static, oracle)
    assert said == (
        "simulated by kvsim, contiguous (reserve max) and contiguous (reserve oracle), tiny, A GPU; "
        "measured on Transformers 5.17.0, static, granite-4.0-350m, NVIDIA H200"
    )


def test_recordings_of_the_same_name_are_called_by_their_policies(by_hand: Recording, uncalibrated: Recording) -> None:
    assert distinct_names((by_hand, uncalibrated)) == ("by-hand", "guess")
    assert distinct_names((by_hand, by_hand)) == ("contiguous (reserve max)",) * 2


@pytest.mark.parametrize(
    ("num_bytes", "said"),
    [
        (0, "0 bytes"),
        (1023, "1.02e+03 bytes"),
        (1024, "1 KiB"),
        (3 << 19, "1.5 MiB"),
        (12 << 30, "12 GiB"),
        (2**41, "2 TiB"),
    ],
)
def test_memory_is_said_in_the_units_of_the_field(num_bytes: int, said: str) -> None:
    assert memory(num_bytes) == said
    assert ByteUnit.for_size(num_bytes).name == said.split()[1]


def test_a_title_that_is_dropped_leaves_its_room_to_the_panels(by_hand: Recording, paged: Recording) -> None:
    picture = waste_bars(by_hand, paged)
    picture.draw_without_rendering()
    title, height = picture.texts[0].get_text(), picture.axes[0].get_position().height
    picture.set_title("")
    picture.draw_without_rendering()
    assert title not in words_on(picture)
    assert "Source:" in words_on(picture), "where it comes from stays"
    assert picture.axes[0].get_position().height > height
    legend = picture.legends[0].get_window_extent()
    assert legend.y1 <= picture.bbox.y1
    assert legend.y0 >= picture.axes[0].get_window_extent().y1
    picture.set_title("")  # once is enough


def test_a_title_of_several_lines_has_no_lonely_word(by_hand: Recording) -> None:
    for purpose in ("paper", "paper-wide", "slide", "web"):
        lines = waste_bars(by_hand, purpose=purpose).texts[0].get_text().split("\n")
        assert min(map(len, lines)) > 0.6 * max(map(len, lines)), lines


def test_what_belongs_together_stays_in_one_line() -> None:
    said = each_named(("116 s", "2 s"), ("contiguous", "a name that is longer than any column of a paper"))
    assert "116\N{NO-BREAK SPACE}s\N{NO-BREAK SPACE}(contiguous), 2 s (a name" in said


def test_a_logarithmic_axis_writes_its_numbers_out(paged: Recording) -> None:
    picture = latency(paged)
    picture.draw_without_rendering()
    axes = picture.axes[0]
    low, high = axes.get_xlim()
    shown = [label.get_text() for label in axes.get_xticklabels() if low <= label.get_position()[0] <= high]
    assert len(shown) >= 2
    assert all(float(text.replace(",", "")) > 0 for text in shown), shown


def test_provenance_names_whole_clauses_of_long_step_times(by_hand: Recording) -> None:
    clauses = ("card of H200", "with " + 150 * "m", "typical error 2 %")
    meta = replace(by_hand.meta, engine={"name": "kvsim", "step_time": "; ".join(clauses)})
    assert provenance(replace(by_hand, meta=meta)).endswith(f"step time: {clauses[0]}")
    meta = replace(by_hand.meta, engine={"name": "kvsim", "step_time": "; ".join(clauses[::2])})
    assert provenance(replace(by_hand, meta=meta)).endswith("step time: card of H200; typical error 2 %")


def test_numbers_are_written_alike_in_all_languages() -> None:
    assert spaced("6,400 slots, 1,234,567 tokens; A, B, 12,34") == (
        "6\u2009400 slots, 1\u2009234\u2009567 tokens; A, B, 12,34"
    )


@pytest.mark.parametrize("kind", ["memory-map", "occupancy", "queue"])
def test_no_figure_has_a_comma_between_thousands(kind: str, paged: Recording) -> None:
    picture = figure_of(kind, [paged])
    picture.axes[0].set_xlim(0, 20_000)
    picture.axes[0].xaxis.set_major_formatter("{x:,.10g}")
    picture.fix_layout()
    picture.draw_without_rendering()
    texts = [text.get_text() for text in picture.findobj(Text)]
    assert "20\u2009000" in texts
    assert not [text for text in texts if re.search(r"\d,\d{3}", text)]
    assert kind != "memory-map" or any("\u2009" in text for text in texts)


def test_a_map_draws_external_fragmentation_where_it_is_counted() -> None:
    """Reservations of several lengths leave holes in which the next request does not fit."""
    workload = generate(
        60,
        arrivals=AllAtOnce(),
        prompt=LogNormal(mean_tokens=150, sigma=0.8),
        output=LogNormal(mean_tokens=120, sigma=0.8),
        seed=1,
    )
    policy = Contiguous(
        cache=ContiguousSettings(reserve=Reserve.ORACLE), scheduler=ContinuousSettings(max_model_len=2048)
    )
    model = find_model("Meta-Llama-3-8B")
    machine = Machine(
        gpu=find_gpu("H200"), model=model, kv_bytes=4096 * model.kv_bytes_per_token,
        step_time=from_card(card_of(find_gpu("H200")), find_gpu("H200"), model, "vllm"),
    )  # fmt: skip
    recording = simulate(workload, policy, machine)
    counted = waste_shares(waste(recording)).pool_percent[SlotState.EXTERNAL]
    assert counted > 3
    states, _, _ = pixel_states(Replay(recording))
    drawn = 100 * (states == SlotState.EXTERNAL).mean()
    assert drawn == pytest.approx(counted, abs=2.5)


@pytest.mark.parametrize("purpose", ["paper", "paper-wide", "web"])
def test_words_of_the_ladder_do_not_run_into_each_other(by_hand: Recording, purpose: Purpose) -> None:
    names = ("one by one", "static", "contiguous", "paged", "asynchronous scheduling")
    same = {"mean_batch": 12.0, "gain": 10.0, "memory_gain": 2.0, "time_gain": 5.0}
    rungs = [
        {"rung": number, "name": name, "change": "a change that takes several words to say"}
        | {"tokens_per_s": 10.0**number, "ample_tokens_per_s": 2 * 10.0**number}
        | same
        for number, name in enumerate(names)
    ]
    runs = [replace(by_hand, meta=replace(by_hand.meta, extra={"ladder": rung})) for rung in rungs]
    picture = ladder(*runs, purpose=purpose)
    picture.fix_layout()
    FigureCanvasAgg(picture)
    words = [text for text in picture.axes[0].texts if text.get_text()]
    boxes = [text.get_window_extent() for text in words]
    assert not [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)]
    assert all(box.x1 <= picture.bbox.x1 + 1 for box in boxes)
    bars = [patch.get_window_extent().width for patch in picture.axes[0].patches]
    assert max(bars) > 0.3 * picture.bbox.width, "bars are seen"


@pytest.mark.parametrize("purpose", one_of(4, ["paper", "paper-wide", "web", "slide"]))
@pytest.mark.parametrize("name", [*OF_SEVERAL, *OF_ONE])
def test_all_words_lie_inside_the_figure_and_apart(
    paged: Recording, static: Recording, name: str, purpose: str
) -> None:
    runs = (paged, static) if name in OF_SEVERAL else (paged,)
    picture = FIGURES[name](*runs, purpose=purpose)
    picture.set_title("")
    picture.drop_source()
    picture.write(BytesIO(), "png", {})
    words = [text for axes in picture.axes for text in (*axes.texts, axes.xaxis.label, axes.yaxis.label, axes.title)]
    words += [text for legend in picture.legends for text in legend.get_texts()]
    boxes = {text.get_text(): text.get_window_extent() for text in words if text.get_text() and text.get_visible()}
    outside = [word for word, box in boxes.items() if min(box.x0, box.y0) < -1 or box.x1 > picture.bbox.x1 + 1]
    assert not outside
    pairs = combinations(boxes.items(), 2)
    assert not [(one, other) for (one, here), (other, there) in pairs if here.overlaps(there)]


def test_narrow_parts_of_a_bar_have_their_numbers_apart_below_it(by_hand: Recording) -> None:
    picture = waste_bars(by_hand, by_hand, purpose="paper", names=("one", "other"))
    picture.axes[0].clear()
    percent = np.array([[90.0, 3.0, 2.0, 5.0, 0.0, 0.0, 0.0, 0.0]] * 2)
    _draw_bars(picture.axes[0], percent, list(SlotState)[:4], 100 * _LETTER_EM / picture.width_em)
    picture.axes[0].set(xlim=(0, 100), ylim=(1.4, -0.7))
    picture.write(BytesIO(), "png", {})
    numbers = {text.get_text(): text.get_window_extent() for text in picture.axes[0].texts}
    assert set(numbers) == {"90.0", "3.0", "2.0", "5.0"}
    assert not [pair for pair in combinations(numbers.values(), 2) if pair[0].overlaps(pair[1])]


def test_a_legend_has_as_many_columns_as_fit(by_hand: Recording, uncalibrated: Recording) -> None:
    names = ("contiguous", "paged", "radix", "static")
    for purpose, num_rows in (("paper", 1), ("paper-wide", 1)):
        picture = occupancy(by_hand, uncalibrated, by_hand, uncalibrated, purpose=purpose, names=names)
        picture.fix_layout()
        FigureCanvasAgg(picture)
        boxes = [text.get_window_extent() for text in picture.legends[0].get_texts()]
        assert len({round(box.y0) for box in boxes}) == num_rows
        assert max(box.x1 for box in boxes) <= picture.bbox.x1
