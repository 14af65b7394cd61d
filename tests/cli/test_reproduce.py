"""`kvsim reproduce` and `kvsim pack` as somebody at a terminal, or a script, meets them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kvsim.published
from kvsim.cli import main
from kvsim.published import ROWS, find_row

if TYPE_CHECKING:
    import subprocess

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.mark.slow
def test_the_rows_that_take_long_are_inside_their_bands(kvsim: Run) -> None:
    """The others are tested without the command."""
    done = kvsim("reproduce", "fig13", "shared-prefix", "block-size", "watermark", "--json")
    document = json.loads(done.stdout)
    misses = [
        (row["name"], figure["label"], figure["published"], figure["ours"])
        for row in document["rows"]
        for figure in row["figures"]
        if not figure["passed"]
    ]
    assert (done.returncode, done.stderr, misses) == (0, "", [])


def test_figures_are_shown_with_their_source_and_drawn(kvsim: Run, tmp_path: Path) -> None:
    done = kvsim("reproduce", "kv-per-token", "table1", "--plot", tmp_path / "rows.svg")
    assert (done.returncode, done.stderr) == (0, "")
    assert "vAttention" in done.stdout
    assert "15,728" in done.stdout
    assert done.stdout.endswith("2 rows, 6 figures; all figures are inside their bands.\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.alt.txt", "rows.svg"]


def test_rows_are_listed_without_running_them(kvsim: Run) -> None:
    done = kvsim("reproduce", "--list")
    assert done.returncode == 0
    assert all(row.name in done.stdout for row in ROWS)


def test_a_figure_outside_its_band_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = replace(find_row("kv-per-token"), reproduce=lambda progress: [64, 128, 241])  # noqa: ARG005
    monkeypatch.setattr(kvsim.published, "find_row", lambda name: wrong)  # noqa: ARG005
    monkeypatch.setattr(sys, "argv", ["kvsim", "reproduce", "kv-per-token"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 1
    output = capsys.readouterr().out
    assert "FAIL: 240 to 240" in output
    assert "outside their bands: kv-per-token" in output


def test_a_row_that_its_own_gpu_refutes_is_marked_and_is_no_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = find_row("kv-per-token")
    ours = [0.5 * figure.published for figure in row.figures]
    impossible = replace(row, reproduce=lambda progress: ours, ceilings=lambda: [1.0, 1e9, 1e9])  # noqa: ARG005
    monkeypatch.setattr(kvsim.published, "find_row", lambda name: impossible)  # noqa: ARG005
    monkeypatch.setattr(sys, "argv", ["kvsim", "reproduce", "kv-per-token"])
    main()
    output = capsys.readouterr().out
    assert "beyond the GPU: at most 1" in output
    assert output.count("another load") == 2
    assert "more is published than the source's own GPU can reach: kv-per-token; all other figures are inside" in output


@pytest.mark.parametrize("arguments", [("fig1",), ("table1", "--plot", "rows.jpeg")])
def test_what_cannot_be_is_refused_at_once(kvsim: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = kvsim("reproduce", *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_packing_beats_padding(kvsim: Run) -> None:
    arguments = ("pack", "--prompt-tokens", "200:0.8", "--output-tokens", "100:0.8", "--num-requests", "500")
    document = json.loads(kvsim(*arguments, "--json").stdout)
    used = [document[way]["used_percent"] for way in ("packed", "padded, sorted by length", "padded")]
    assert used == sorted(used, reverse=True)
    assert used[0] > 98
    assert {way["num_tokens"] for way in document.values()} == {document["packed"]["num_tokens"]}
    done = kvsim(*arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sorted by length" in done.stdout


def test_the_largest_batch_is_a_result(kvsim: Run) -> None:
    base = ("size", "--model", "opt-13b", "--gpu", "A100-40G", "--kv-gib", "12", "--tokens", "2048", "--json")
    fits = {
        policy: json.loads(kvsim(*base, "--policy", policy).stdout)["max_sequences"]["2048"]
        for policy in ("paged", "contiguous", "static")
    }
    assert fits == {"paged": 7, "contiguous": 7, "static": 7}
    short = json.loads(kvsim(*base[:-3], "--tokens", "100", "--json", "--policy", "static").stdout)
    assert short["max_sequences"]["100"] == 15_728 // 99
