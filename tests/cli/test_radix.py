"""SGLang's policy on the command line: beside vLLM's on one clock, swept, shown, drawn and exported."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import kvsim
from kvsim.cli import cli

FEW = ("--num-requests", "12", "--rate", "60", "--num-blocks", "120", "--model", "Llama-3-8B", "--gpu", "H200",
       "--shared-prefix", "2x100", "--prompt-tokens", "150:0.4", "--output-tokens", "40:0.4")  # fmt: skip


def typed(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments])


def test_two_servers_on_one_clock(tmp_path: Path) -> None:
    result = typed("compare", *FEW, "--policy", "paged", "--policy", "radix", "--json", "-o", str(tmp_path / "both"))
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [*document] == ["paged", "radix"]
    assert document["radix"]["num_finished"] == document["paged"]["num_finished"] == 12
    assert document["radix"]["prefix_hit_rate"] > 0
    assert typed("info", str(tmp_path / "both" / "radix"), "--check").exit_code == 0


def test_a_comparison_is_of_one_kind() -> None:
    result = typed("compare", *FEW, "--policy", "radix", "--ladder")
    assert result.exit_code != 0
    assert "--policy says what is compared" in str(result.exception or result.output)


def test_a_sweep_over_policies_and_orders(tmp_path: Path) -> None:
    table = str(tmp_path / "s.parquet")
    assert typed("sweep", *FEW, "--vary", "policy=paged,radix", "--jobs", "1", "-o", table).exit_code == 0
    assert pq.read_table(table)["policy"].to_pylist() == ["paged", "radix"]
    assert typed("sweep", *FEW, "--policy", "radix", "--vary", "page-size=1,16", "--jobs", "1", "-o", table,
                 "--overwrite").exit_code == 0  # fmt: skip


def test_it_is_shown_drawn_and_exported(tmp_path: Path) -> None:
    folder, picture = str(tmp_path / "rec"), tmp_path / "pool.svg"
    assert typed("run", *FEW, "--policy", "radix", "-o", folder, "--no-band").exit_code == 0
    assert typed("tui", folder, "--at", "0.3", "--screenshot", str(picture)).exit_code == 0
    assert "slots" in picture.read_text()
    for kind in ("memory-map", "waste-over-time", "free-runs", "lifetimes"):
        assert typed("plot", kind, folder, "-o", str(tmp_path / f"{kind}.png")).exit_code == 0
    assert typed("export", folder, "--to", "perfetto", "-o", str(tmp_path / "trace")).exit_code == 0


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_run_waits_for_what_admission_expects(page_size: int) -> None:
    """A prompt and its whole limit are to fit, so requests wait although memory is free."""
    result = typed("run", *FEW, "--policy", "radix", "--page-size", str(page_size), "--json", "--no-band")
    document = json.loads(result.stdout)
    assert document["verdict"]["limit"] == "memory"
    full = typed("run", *FEW, "--policy", "radix", "--max-running-requests", "2", "--num-blocks", "2000", "--json")
    assert "max_running_requests 2" in json.loads(full.stdout)["verdict"]["sentence"]


def test_it_goes_by_its_name_in_python() -> None:
    run = kvsim.simulate("vllm-h200-granite-350m-gsm8k", policy="radix")
    assert (run.requests["finished_s"] > 0).all()
