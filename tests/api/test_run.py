"""A run where a person works with it: short texts, tables, pictures, and the interface."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import kvsim
from kvsim.errors import MissingExtraError, UnknownNameError, UsageError
from kvsim.memory.waste import SlotState
from kvsim.metrics import latencies
from kvsim.recording import Recording

from ..conftest import PRESSURE

HF = "hf-h200-granite-350m-batch500"


@pytest.fixture(scope="module")
def run() -> kvsim.Run:
    return kvsim.read(PRESSURE)


def test_a_shipped_recording_is_found_by_the_names_of_the_readme(run: kvsim.Run, tmp_path: Path) -> None:
    again = kvsim.read(f"traces/{PRESSURE}")
    assert np.array_equal(again.requests.finished_s, run.requests.finished_s)
    assert isinstance(again, Recording)
    assert PRESSURE in kvsim.shipped_names()
    folder = run.save(tmp_path / "mine")
    assert len(kvsim.read(folder).steps) == len(run.steps)
    with pytest.raises(UnknownNameError, match="no recording 'nothing'"):
        kvsim.read("nothing")


def test_texts_are_short(run: kvsim.Run) -> None:
    for shown in (run, run.requests, run.steps, run.schedule, run.memory, run.summary(), kvsim.machine(run)):
        assert len(repr(shown)) < 400, type(shown)
    assert repr(run) == f"<Run {PRESSURE!r}: paged, 400 requests, 2,922 steps in 20 s (vllm)>"


@pytest.mark.parametrize("name", ["requests", "steps", "schedule", "memory"])
def test_a_table_is_an_arrow_table(run: kvsim.Run, name: str) -> None:
    table = getattr(run, name)
    arrow = table.to_arrow()
    assert arrow.num_rows == len(table)
    for column in arrow.column_names:
        if isinstance(value := getattr(table, column), np.ndarray) and column not in ("kind", "status"):
            assert np.array_equal(arrow[column].to_numpy(), value, equal_nan=value.dtype.kind == "f")


def test_a_column_or_a_latency_is_taken_by_its_name(run: kvsim.Run) -> None:
    requests, times = run.requests, latencies(run)
    assert requests["arrival_s"] is requests.arrival_s
    for name in ("wait_s", "ttft_s", "tpot_s", "e2e_s"):
        assert np.array_equal(requests[name][times.request], getattr(times, name), equal_nan=True)
    assert requests["ttft_s"][7] == requests.first_token_s[7] - requests.arrival_s[7]
    for name in ("ttft", "columns", "to_arrow", "_read"):
        with pytest.raises(UnknownNameError, match=f"no column '{name}'|column '{name}'"):
            requests[name]


def test_waste_over_time_is_a_table_that_accounts_for_every_slot(run: kvsim.Run) -> None:
    table = run.waste_over_time.to_arrow()
    assert table.column_names[0] == "time_s"
    states = [table[state.name.lower()].to_numpy() for state in SlotState]
    pool = run.meta.pool
    assert pool.num_units is not None
    assert set(np.sum(states, axis=0).tolist()) == {pool.num_units * pool.unit_tokens}
    assert table.num_rows == len(run.steps) + 1


def test_a_table_is_a_pandas_table_where_pandas_is_there(run: kvsim.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_pandas(name: str, *others: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError("No module named 'pandas'")
        return real(name, *others, **more)

    class Table:
        def to_pandas(self) -> Any:
            return __import__("pandas")

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(MissingExtraError, match=r"kvsim\[pandas\]"):
        kvsim.recording.tables.as_pandas(Table())
    monkeypatch.undo()
    pytest.importorskip("pandas")
    frame = run.requests.to_pandas()
    assert frame["status"].value_counts().to_dict() == {"finished": 400}


def test_a_figure_is_drawn_shown_and_written(run: kvsim.Run, tmp_path: Path) -> None:
    picture = run.plot("occupancy", file=tmp_path / "occupancy.svg")
    assert (tmp_path / "occupancy.alt.txt").read_text(encoding="utf-8").strip() == picture.alt_text
    assert picture._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(UnknownNameError, match="no kind of figure"):
        run.plot("waste")
    with pytest.raises(UsageError, match="shows one recording"):
        run.plot("memory-map", run)
    (tmp_path / "mine.png").write_bytes(b"mine")
    with pytest.raises(UsageError):
        run.plot("occupancy", file=tmp_path / "mine.png")
    assert (tmp_path / "mine.png").read_bytes() == b"mine"


def test_a_notebook_shows_the_pool_and_the_figures(run: kvsim.Run) -> None:
    html = run._repr_html_()
    svg = html[html.index("<svg") : html.index("</svg>") + 6]
    assert len(ElementTree.fromstring(svg)) > 2
    assert "output tokens/s" in html
    later = run.picture(at_s=10.0, width=40, height=4)
    assert str(later) != str(run.picture(at_s=1.0, width=40, height=4))
    ElementTree.fromstring(str(later))


def test_a_run_without_addresses_is_shown_without_a_picture() -> None:
    html = kvsim.read(HF)._repr_html_()
    assert "output tokens/s" in html


def test_playing_needs_a_terminal(run: kvsim.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="needs a terminal"):
        run.play()
    shown: list[Any] = []
    monkeypatch.setenv("TEXTUAL_DRIVER", "textual.drivers.headless_driver:HeadlessDriver")
    monkeypatch.setattr("kvsim_tui.run", lambda what, at_s: shown.append((what, at_s)))
    run.play(at_s=3.0)
    assert shown == [(run, 3.0)]


def test_nothing_heavy_is_loaded_before_it_is_used(run_python: Callable[..., Any]) -> None:
    code = f"import sys, kvsim; kvsim.read({PRESSURE!r}).summary(); print(*sys.modules)"
    modules = run_python("-c", code).stdout.split()
    assert "kvsim_tui" not in modules
    loaded = {name.partition(".")[0] for name in modules}
    assert "pyarrow" in loaded
    assert not loaded & {"textual", "matplotlib", "numba", "scipy"}
