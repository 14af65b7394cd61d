"""Figures of captions that no run of their lesson has: each is computed again, in another way."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.recording import read
from kvsim_tui.lessons import Guided, find_lesson
from kvsim_tui.lessons.beside_figures import with_drafts

if TYPE_CHECKING:
    from pathlib import Path


def text_of(number: str, title: str) -> str:
    [caption] = [caption for caption in Guided(find_lesson(number)).captions if caption.title == title]
    return " ".join(caption.text.split())


@pytest.mark.parametrize("acceptance", ["0", "0.7"])
def test_drafts_bring_a_preemption_sooner(acceptance: str, tmp_path: Path) -> None:
    """The command line serves the same requests in as many blocks."""
    table, folder = tmp_path / "w.csv", tmp_path / "run"
    table.write_text("arrival_s,prompt_tokens,output_tokens\n0,60,90\n0,70,80\n0,74,60\n")
    flags = ["--model", "Meta-Llama-3-8B", "--gpu", "H200", "--no-prefix-caching", "--max-model-len", "320"]
    drafts = ["--acceptance", acceptance, "--speculative-config"]
    drafts += [json.dumps({"method": "eagle", "model": "a draft model", "num_speculative_tokens": 3})]
    command = ["run", "--workload", str(table), *flags, "--num-blocks", "21", *drafts, "-o", str(folder)]
    done = CliRunner().invoke(cli, command)
    assert done.exit_code == 0, done.output
    drafted, lesson = read(folder), Guided(find_lesson("6")).sessions[0].recording
    assert drafted.meta.pool.num_units == lesson.meta.pool.num_units
    first, sooner = (int(np.flatnonzero(run.steps.preempted)[0]) for run in (lesson, drafted))
    said = text_of("6", "With drafts, the pool runs out sooner")
    assert f"runs out {first - sooner} steps earlier" in said
    if acceptance == "0.7":
        assert f"takes {100 * drafted.duration_s / lesson.duration_s:.0f}% of the time" in said
        assert with_drafts(lesson)[-1][1:3] == (sooner, drafted.duration_s)


def test_an_image_has_a_place_in_two_caches() -> None:
    size = ["size", "--model", "Qwen2.5-VL-7B-Instruct", "--gpu", "H100", "--image", "640x480", "--json"]
    image = json.loads(CliRunner().invoke(cli, size).output)["image"]
    token_bytes = image["encoder_bytes"] / image["tokens"]
    said = text_of("3", "A second cache, for images")
    assert f"640x480 pixels is {image['tokens']} tokens" in said
    assert f"{image['blocks']} blocks" in said
    assert f"{image['encoder_bytes'] / 2**20:.1f} MiB of the" in said
    assert f"{image['encoder_cache_tokens'] * token_bytes / 2**20:.0f} MiB that hold" in said
    assert f"{image['encoder_cache_tokens']:,} such tokens" in said
