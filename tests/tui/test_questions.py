"""What a stranger asks of a picture, and where the screen answers: 24 questions, at two sizes where both can."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from kvsim.recording import find, read
from kvsim_tui import _opened
from kvsim_tui.app import KvsimApp
from kvsim_tui.lessons import Guided, find_lesson
from kvsim_tui.playback.compared_runs import ComparedRuns

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.pilot import Pilot

    from kvsim.recording import Recording

SMALL, LARGE = (80, 24), (120, 40)
BOTH = (SMALL, LARGE)


@dataclass(frozen=True)
class Question:
    """Asked of what is on the screen after some keys; the answer is a pattern that must be found there."""

    asked: str
    keys: str
    answer: str
    sizes: tuple[tuple[int, int], ...] = BOTH


def find_in(what: str) -> str:
    """The keys that find a request, or a block as #number."""
    return f"slash {' '.join(what.replace('#', '!'))} enter".replace("!", "number_sign")


PRESSURE = (
    Question("What am I looking at?", "", r"real run of vllm 0\.25\.1 · paged memory · llama-3-8b on (NVIDIA )?H200"),
    Question("Who holds most?", "", r"largest first.*\n.*most r149: 1,394( tokens)?.*\n ?r149 +1,394"),
    Question("What is shared?", "", r"81 requests(:| hold) 1,599 blocks · .*nothing (is )?shared"),
    Question("How much is free?", "", r"nothing (is )?shared · 0\.0% free"),
    Question("How much do the others hold?", "", r"64 more +11,144", (SMALL,)),
    Question("What does one cell stand for?", "v", r"1 cell = (1|3) blocks?"),
    Question("What does the colour mean?", "", r"colour: r149 and state"),
    Question("And which colour is what?", "", r"r149, which holds most.*tokens of others.*partly reserved"),
    Question("How full is the pool?", "", r"held +100\.0%"),
    Question("Where is the memory?", "", r"tokens +97\.9% written and needed"),
    Question("How many run?", "", r"running +81"),
    Question("How many wait?", "", r"121 waiting"),
    Question("What do they wait for?", "", r"121 waiting .*\n.*r269 needs 2 blocks, 0 free", (LARGE,)),
    Question("Who is next?", "", r"121 waiting +next first.*\n.*\n.*r269 +preempted, 2 blocks", (LARGE,)),
    Question(
        "What did the last step change?", "", r"last step .*r269 preempted for 4 requests, lost 2 blocks", (SMALL,)
    ),
    Question("And why?", "", r"no block is free until a request ends or is preempted", (SMALL,)),
    Question("What did the last step change?", "", r"last step .*r269 preempted, lost 2 blocks, 31 tokens", (LARGE,)),
    Question("And why?", "", r"last step .*short of blocks: r269", (LARGE,)),
    Question("Where in the run is this?", "", r"step 1,307 of 2,922"),
    Question("How fast does it play?", "", r"paused · 5 times slower"),
    Question("Who owns block 17?", find_in("#17"), r"(held by +r217|block 17: 16 tokens, held by r217)"),
    Question("Who had it before?", find_in("#17"), r"before +r180, 6\.78 s to 8\.44 s", (LARGE,)),
    Question("Why was r269 preempted?", find_in("r269"), r"because +short of blocks\s", (LARGE,)),
    Question("What did it lose?", find_in("r269"), r"lost +2 blocks, 31 tokens", (LARGE,)),
    Question("How much memory has r217?", find_in("r217"), r"(holds +\d+ blocks|r217: \d+ blocks = \d)"),
    Question("Which keys are there?", "", r"space Play o Colour"),
)
"""Of a real server under pressure, after nine and a half seconds."""


async def ask(pilot: Pilot[None], questions: tuple[Question, ...], size: tuple[int, int]) -> list[str]:
    """The questions that the screen does not answer."""
    unanswered = []
    for question in questions:
        if size not in question.sizes:
            continue
        for key in question.keys.split():
            await pilot.press(key)
        await pilot.pause()
        strips = pilot.app.screen._compositor.render_strips()
        screen = "\n".join(strip.text for strip in strips)
        if not re.search(question.answer, screen):
            unanswered.append(f"{question.asked} {question.answer} is not in\n{screen}")
    return unanswered


@pytest.mark.parametrize("size", BOTH, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_a_server_under_pressure(shipped: Callable[[str], Recording], size: tuple[int, int]) -> None:
    app = KvsimApp(_opened(shipped("paged"), 9.5))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        unanswered = await ask(pilot, PRESSURE, size)
    assert not unanswered, "\n\n".join(unanswered)


async def test_which_blocks_are_shared_and_with_whom() -> None:
    questions = (
        Question("How much does sharing save?", "o o o", r"sharing ×2\.1, with 1,590 blocks in place of 3,286"),
        Question("What does r105 share?", find_in("r105"), r"shares +32 blocks\s*\n.*with +\d+ requests"),
    )
    app = KvsimApp(_opened(read(find("vllm-h200-llama-3-8b-pressure-prefixes")), 3.5))
    async with app.run_test(size=LARGE) as pilot:
        await pilot.pause()
        assert not await ask(pilot, questions, LARGE)


@pytest.mark.parametrize("size", BOTH, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_what_happens_beyond_a_window(size: tuple[int, int]) -> None:
    guided = Guided(find_lesson("10"))
    guided.show(guided.captions[1].frame)
    question = Question(
        "What happens beyond a window?", "", r"windows\s+have\s+given\s+back\s+4\s+blocks(.|\n)*expired"
    )
    app = KvsimApp(guided)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        assert not await ask(pilot, (question,), size)


@pytest.mark.parametrize("size", BOTH, ids=lambda size: f"{size[0]}x{size[1]}")
async def test_who_wins_and_how_much_of_it_is_memory(three_runs: list[Recording], size: tuple[int, int]) -> None:
    comparison = ComparedRuns(three_runs)
    comparison.set_ample_throughput([1000.0, 1500.0, 2000.0])
    questions = (
        Question("Who wins?", "", r"Paged \d\S* m?s; .*contiguous .*×\d"),
        Question(
            "How much of it is memory?",
            "",
            r"memory alone|memory ×\d\S* of it|\(memory( ×\d\S*)?\)",
        ),
    )
    async with KvsimApp(comparison).run_test(size=size) as pilot:
        await pilot.pause()
        assert not await ask(pilot, questions, size)
