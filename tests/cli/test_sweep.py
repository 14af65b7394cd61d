"""`kvsim sweep` as a process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import click
import pyarrow.parquet as pq
import pytest

from kvsim.cli import cli
from kvsim.cli.workload import workload_and_source

Kvsim = Callable[..., "CompletedProcess[str]"]
FLAGS = ("--num-requests", 20, "--arrivals", "poisson", "--rate", 20, "--max-model-len", 1024, "--refuse-misfits")


def test_a_grid_is_one_table_and_a_figure(kvsim: Kvsim, tmp_path: Path) -> None:
    table, figure = tmp_path / "t.parquet", tmp_path / "f.svg"
    grid = ("--vary", "num-blocks=200,400", "--vary", "policy=paged,contiguous", "--vary", "seed=0,1")
    done = kvsim("sweep", *map(str, FLAGS), *grid, "-o", table, "--figure", figure, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    points, best = document.pop("points"), document.pop("best")
    assert document == {"table": str(table), "done": 8, "kept": 0, "failed": 0, "lost": 0}
    assert best == max(points, key=lambda point: point["output_tokens_per_s"])
    rows = pq.read_table(table).to_pylist()
    assert {(row["num_blocks"], row["policy"], row["seed"]) for row in rows} == {
        (num_blocks, policy, seed) for num_blocks in (200, 400) for policy in ("paged", "contiguous") for seed in (0, 1)
    }
    assert figure.read_text().startswith("<?xml")
    again = kvsim("sweep", *map(str, FLAGS), *grid, "-o", table)
    said = again.stdout.splitlines()
    assert said[0].startswith("Most output: num-blocks ")
    assert f"{best['output_tokens_per_s']:,.0f} tokens/s; held back by {best['limit']}." in said[0]
    assert len([line for line in said if line.split()[:1] in (["200"], ["400"])]) == 8, "a row for each point"
    assert said[-1] == f"{table}: 0 done, 8 kept, 0 failed, 0 lost"


def test_a_column_has_the_name_of_its_setting(kvsim: Kvsim, tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    axes = ("--vary", "no-async-scheduling=true,false", "--vary", "enable-chunked-prefill=true")
    assert kvsim("sweep", *map(str, FLAGS), *axes, "--jobs", "1", "-o", table).returncode == 0
    rows = pq.read_table(table).to_pylist()
    assert [(row["async_scheduling"], row["enable_chunked_prefill"]) for row in rows] == [(False, True), (True, True)]


class Asked(dict[str, Any]):
    """Flags that remember which of them were asked for."""

    def __init__(self, flags: dict[str, Any]) -> None:
        super().__init__(flags)
        self.names = set[str]()

    def __getitem__(self, name: str) -> Any:
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return super().get(name, default)


@pytest.mark.parametrize("drawn", [(), ("--arrivals", "poisson", "--rate", "20", "--num-requests", "4")])
def test_flags_that_tell_requests_apart_stand_in_their_section(drawn: tuple[str, ...]) -> None:
    """Points that differ in no flag of that section share their requests."""
    command = cli.get_command(click.Context(cli), "sweep")
    assert command is not None
    flags = Asked(command.make_context("sweep", ["--vary", "seed=0", "-o", "t.parquet", *drawn]).params)
    workload_and_source(flags)
    asked = {option.name: getattr(option, "section", "") for option in command.params if option.name in flags.names}
    assert "seed" in asked or not drawn
    assert set(asked.values()) == {"Requests"}


def test_a_flag_that_cannot_vary_is_named(kvsim: Kvsim, tmp_path: Path) -> None:
    for text in ("colour=1,2", "num-blocks", "output=a,b"):
        done = kvsim("sweep", *map(str, FLAGS), "--vary", text, "-o", tmp_path / "t.parquet")
        assert done.returncode == 2
        assert "such as num-blocks=1000,2000" in done.stderr
        assert "Traceback" not in done.stderr
