"""The first screen says what is wrong and what to do; `d` shows what each remedy would do."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvsim.memory.waste import SlotState
from kvsim.metrics import summarize
from kvsim.metrics.run_verdict import Limit, limit_of
from kvsim.policies import ContinuousSettings, Paged, Radix, SGLangSettings, Static, StaticSettings
from kvsim.simulation import simulate
from kvsim.workload import generate
from kvsim_tui.dialogs.remedies import RemediesScreen, diagnosed
from kvsim_tui.facts.judgement import judgement_of
from kvsim_tui.facts.telling import begin_story
from kvsim_tui.playback.session import Session
from kvsim_tui.widgets.story_line import StoryLine

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from kvsim.recording import Recording
    from kvsim.simulation import Machine
    from kvsim_tui.app import KvsimApp


def test_a_short_pool_is_full_for_so_long_and_wants_memory(shipped: Callable[[str], Recording]) -> None:
    recording = shipped("paged")
    summary = summarize(recording)
    assert limit_of(summary) is Limit.MEMORY
    found = judgement_of(Session(recording))
    assert found.long.startswith("full for ")
    assert f"{100 * summary.vain_tokens / summary.computed_tokens:.0f}% computed in vain" in found.long
    assert found.long.endswith(": more memory (press d)")
    assert len(found.short) < 79


def test_a_full_batch_wants_a_larger_one(make_machine: Callable[[int], Machine]) -> None:
    work = generate(60, prompt=60, output=20, seed=1)
    policy = Paged(scheduler=ContinuousSettings(max_num_seqs=4, max_model_len=256))
    recording = simulate(work, policy, make_machine(20_000))
    assert limit_of(summarize(recording)) is Limit.BATCH
    found = judgement_of(Session(recording))
    assert found.long.endswith("wait for a place in the batch: a larger max_num_seqs (press d)")


def test_short_slots_of_adapters_want_more_of_them(make_machine: Callable[[int], Machine]) -> None:
    work = replace(generate(40, prompt=60, output=20, seed=1), adapter=[1 + row % 8 for row in range(40)])
    policy = Paged(scheduler=ContinuousSettings(enable_lora=True, max_loras=1, max_model_len=256))
    recording = simulate(work, policy, make_machine(20_000))
    assert limit_of(summarize(recording)) is Limit.ADAPTERS
    found = judgement_of(Session(recording))
    assert found.long.endswith(" wait for the slot of an adapter: a larger max_loras (press d)")
    assert found.short.endswith(" wait for an adapter: a larger max_loras (d)")


def test_padding_wants_another_policy(shipped: Callable[[str], Recording]) -> None:
    assert judgement_of(Session(shipped("static"))).long.endswith(": continuous batching (press c)")


def test_padding_in_a_large_pool_wants_another_policy_though_nothing_waits(
    make_machine: Callable[[int], Machine],
) -> None:
    policy = Static(scheduler=StaticSettings(batch_size=4))
    for output, is_padded in ([4, 16, 64, 64], True), ([60, 60, 60, 64], False):
        work = replace(generate(4, prompt=60, output=20, seed=1), output_tokens=output, max_tokens=[64] * 4)
        recording = simulate(work, policy, make_machine(20_000))
        assert limit_of(summarize(recording)) is None
        padded = summarize(recording).waste.allocated_percent[SlotState.PADDING]
        assert (padded >= 25) == is_padded
        found = judgement_of(Session(recording))
        if is_padded:
            batch = f"{padded:.0f}% of a batch is padding"
            assert found.long == f"nothing waits, and {batch}: continuous batching (press c)"
            assert found.short == f"{batch}: continuous batching (c)"
        else:
            assert found.short == "nothing waits: nothing to change"


def test_a_run_without_a_limit_wants_nothing(make_machine: Callable[[int], Machine]) -> None:
    recording = simulate(generate(4, prompt=60, output=20, seed=1), Paged(), make_machine(20_000))
    assert limit_of(summarize(recording)) is None
    session = Session(recording)
    assert judgement_of(session).short == "nothing waits: nothing to change"
    session.diagnosis = diagnosed(recording)
    assert judgement_of(session).short == "nothing waits: nothing to change", "whatever was tried"
    assert re.fullmatch(
        r"nothing waits, at most [1-9]\d*% of the pool is in use: nothing to change", judgement_of(session).long
    )


async def test_the_first_screen_shows_it_in_the_words_that_fit(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    for width, end in ((80, "more memory (press d)"), (120, "(press d) · 685 preemptions")):
        app = make_app(shipped("paged"))
        session = next(iter(app.get_default_screen().sessions()))  # type: ignore[attr-defined]
        session.story = begin_story(session, playing=False)
        async with app.run_test(size=(width, 30)) as pilot:
            await pilot.pause()
            assert end in app.screen.query_one(StoryLine).render_line(0).text


async def test_d_shows_the_remedies_and_the_verdict_then_names_the_one_that_the_page_calls_enough(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvsim_tui.dialogs.remedies.MAX_CHANGES", 6)
    app = make_app(shipped("paged"), at_s=4.0)
    session = next(iter(app.get_default_screen().sessions()))  # type: ignore[attr-defined]
    session.story = begin_story(session, playing=False)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("d")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert isinstance(app.screen, RemediesScreen)
        top = app.screen.query_one("#remedies").region.y
        lines = [strip.text for strip in app.screen._compositor.render_strips()[top:]]
        assert any("a pool of 3,200 blocks instead of 1,600" in line and " 0 " in line for line in lines)
        marks = ("measured  ", "simulated, as it is", " enough, simulated", "3,200 blocks")
        places = [next(at for at, line in enumerate(lines) if mark in line) for mark in marks]
        assert places == sorted(places), "measured figures come before simulated ones"
        assert any("vllm serve" in line and "--num-gpu-blocks-override 3200" in line for line in lines)
        assert any("The larger pool takes 6.25 GiB instead of 3.12 GiB of GPU memory" in line for line in lines)
        assert any("esc closes" in line for line in lines)
        await pilot.press("d")
        assert not isinstance(app.screen, RemediesScreen)
        await pilot.pause()
        assert session.diagnosis is not None
        first = session.diagnosis.remedies[0]
        assert first.fits
        assert first.change.words in app.screen.query_one(StoryLine).render_line(0).text


async def test_d_says_why_there_are_none(
    make_app: Callable[..., KvsimApp], shipped: Callable[[str], Recording]
) -> None:
    app = make_app(shipped("static"), at_s=4.0)
    async with app.run_test(size=(120, 40)) as pilot:
        await pilot.press("d")
        await app.workers.wait_for_complete()
        await pilot.pause()
        assert not isinstance(app.screen, RemediesScreen)
        assert [note.message for note in app._notifications if note.severity == "error"]


def test_a_short_pool_of_the_radix_policy_is_not_told_to_use_pages(make_machine: Callable[[int], Machine]) -> None:
    recording = simulate(generate(60, prompt=200, output=200, seed=1), Radix(), make_machine(6_000))
    assert limit_of(summarize(recording)) is Limit.MEMORY
    assert judgement_of(Session(recording)).long.endswith(": more memory")


def test_a_full_batch_of_the_radix_policy_is_told_in_its_own_setting(make_machine: Callable[[int], Machine]) -> None:
    policy = Radix(scheduler=SGLangSettings(max_running_requests=4))
    recording = simulate(generate(60, prompt=60, output=20, seed=1), policy, make_machine(20_000))
    assert limit_of(summarize(recording)) is Limit.BATCH
    assert judgement_of(Session(recording)).long.endswith(": a larger max_running_requests")
