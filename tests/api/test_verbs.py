"""The functions of `import kvsim`: what they take, what they return, and that they do what the commands do."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.api.sweep_points import points_of
from kvsim.errors import KvsimError, UnknownNameError, UsageError

from ..conftest import PRESSURE

public: Any = kvsim


@pytest.fixture(scope="module")
def few() -> kvsim.Workload:
    return kvsim.workload_of(kvsim.read(PRESSURE)).head(40)


def test_a_run_in_one_call(few: kvsim.Workload) -> None:
    run = kvsim.simulate(few, "paged", kvsim.machine("H200/Llama-3-8B", num_blocks=500), check=True)
    assert isinstance(run, kvsim.Run)
    assert run.summary().num_finished == 40


def test_the_machine_is_that_of_the_recording_unless_another_is_named() -> None:
    recording = kvsim.read("vllm-h100-llama-3-8b-closed")
    run = kvsim.simulate(recording, users=32)
    assert run.meta.gpu == "H100 SXM"
    assert run.meta.pool.num_units == recording.meta.pool.num_units
    assert run.meta.policy["max_model_len"] == recording.meta.engine["max_model_len"]


def test_a_policy_without_limits_has_those_of_the_machine(few: kvsim.Workload) -> None:
    """`Paged()` is "paged": the model's longest sequence, and vLLM's limits on that GPU."""
    machine = kvsim.machine("A100-80G/Llama-3.1-8B-Instruct", kv_gib=4)
    named, given = (kvsim.simulate(few, policy, machine).meta.policy for policy in ("paged", kvsim.Paged()))
    assert named == given
    assert (given["max_model_len"], given["max_num_seqs"], given["max_num_batched_tokens"]) == (131_072, 256, 8192)


def test_requests_come_from_a_file_too(few: kvsim.Workload, tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    rows = [f"{few.arrival_s[row]},{few.prompt_tokens[row]},{few.output_tokens[row]}" for row in range(len(few))]
    file.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]), encoding="utf-8")
    run = kvsim.simulate(file, machine="H200/Llama-3-8B")
    assert run.requests.prompt_tokens.tolist() == few.prompt_tokens.tolist()


def test_the_same_as_the_command(few: kvsim.Workload) -> None:
    """`kvsim run` and `kvsim.simulate` of the default requests agree in every request's times."""
    from click.testing import CliRunner

    from kvsim.cli import cli

    ours = kvsim.simulate(few, "paged", kvsim.machine(kvsim.read(PRESSURE)), engine="interpreted").summary()
    flags = ["run", "--json", "--no-band", "--num-requests", "40", "--engine", "interpreted"]
    result = CliRunner().invoke(cli, flags)
    assert result.exit_code == 0, result.output
    assert f'"output_tokens_per_s": {ours.output_tokens_per_s}' in result.output


def test_policies_are_compared(few: kvsim.Workload, tmp_path: Path) -> None:
    found = kvsim.compare(
        few, ["paged", "contiguous"], kvsim.machine("H200/Llama-3-8B", kv_gib=3), engine="interpreted"
    )
    assert list(found) == ["paged", "contiguous"]
    assert (found[0], found[-1]) == (found["paged"], found["contiguous"])
    rows = found.summary()
    assert [row["policy"] for row in rows] == ["paged", "contiguous"]
    assert rows.to_arrow()["num_finished"].to_pylist() == [40, 40]
    assert "paged" in repr(found)
    assert "<td>contiguous</td>" in found._repr_html_()
    found.plot("waste-bars", file=tmp_path / "bars.png")
    named = kvsim.compare(few, {"small": kvsim.Paged(), "b32": kvsim.Paged(cache=kvsim.PagedSettings(block_size=32))})
    assert list(named) == ["small", "b32"]
    with pytest.raises(UsageError, match="have one name"):
        kvsim.compare(few, [kvsim.Paged(), "paged"])
    with pytest.raises(UsageError, match="nothing to compare"):
        kvsim.compare(few, [])


def test_a_grid_is_swept_and_kept(few: kvsim.Workload, tmp_path: Path) -> None:
    table = tmp_path / "sweep.parquet"
    grid = {"num_blocks": [600, 1200], "block_size": [16, 32]}
    rows = kvsim.sweep(few, vary=grid, table=table, num_jobs=2)
    assert [(row["num_blocks"], row["block_size"]) for row in rows] == [(600, 16), (600, 32), (1200, 16), (1200, 32)]
    assert {row["error"] for row in rows} == {""}
    calls: list[tuple[int, int]] = []
    again = kvsim.sweep(few, vary=grid, table=table, num_jobs=2, progress=lambda *done: calls.append(done))
    assert not calls
    assert again.to_arrow().equals(rows.to_arrow())
    with pytest.raises(UsageError, match="watermarks is no setting"):
        kvsim.sweep(few, vary={"watermarks": [0.1]})


@pytest.mark.parametrize(
    ("vary", "machine"),
    [
        ({"num_blocks": [600], "block_size": [16, 32]}, None),
        ({"num_blocks": [5000], "gpu": ["H200", "B200"]}, "H200/gpt-oss-20b"),
        ({"num_blocks": [600]}, "2xH200/gemma-3-27b"),
    ],
)
def test_blocks_of_a_sweep_are_those_of_the_policy(
    few: kvsim.Workload, vary: dict[str, list[object]], machine: str | None
) -> None:
    policy = kvsim.Paged(cache=kvsim.PagedSettings(block_size=64))
    points = points_of(few, None, policy, machine, vary, longest=None, refuse_misfits=False)
    for point in points:
        pool = point.machine.pool(point.policy)
        assert (pool.num_units or 0) + pool.first_unit == point.settings["num_blocks"]
        assert pool.unit_tokens == point.settings.get("block_size", 64)


def test_blocks_that_vllm_has_no_kernel_for_are_a_row_with_an_error(few: kvsim.Workload) -> None:
    rows = kvsim.sweep(few, vary={"num_blocks": [600], "block_size": [7]}, num_jobs=1)
    assert "not 7" in str(rows[0]["error"])


def test_a_recording_is_verified_and_validated() -> None:
    name = "vllm-h200-llama-3-8b-sharegpt-5"
    assert kvsim.verify(name).equal
    validation = kvsim.validate(name)
    assert {row.name for row in validation.rows} >= {"throughput", "TTFT, mean"}
    assert np.isfinite([row.error for row in validation.rows if row.name == "throughput"]).all()
    with pytest.raises(UsageError, match="simulation"):
        kvsim.validate(kvsim.simulate(kvsim.workload_of(kvsim.read(name)).head(5), machine="H200/Llama-3-8B"))


def test_a_machine_is_calibrated() -> None:
    card = Path(kvsim.__file__).parent / "machines" / "cards"
    file = next(file for file in sorted(card.glob("*.toml")) if 'gpu = "H200"' in file.read_text(encoding="utf-8"))
    fitted: Any = kvsim.calibrate("vllm-h200-qwen3-8b-light", card=file)
    assert {"gpu", "host"} <= set(fitted.factors)
    with pytest.raises(UsageError, match="at least one recording"):
        kvsim.calibrate()


def test_a_policy_that_is_not_there_is_a_sentence(few: kvsim.Workload) -> None:
    with pytest.raises(UnknownNameError, match="no policy 'page'"):
        kvsim.simulate(few, "page", "H200/Llama-3-8B")


@pytest.mark.parametrize("name", sorted(name for name in kvsim.__all__ if name != "__version__"))
def test_every_argument_is_documented(name: str) -> None:
    """A public function says what each of its arguments is; errors that it can raise are in the tree."""
    value = getattr(public, name)
    if not inspect.isfunction(value):
        return
    text = inspect.getdoc(value) or ""
    if "Args:" in text:
        for parameter in inspect.signature(value).parameters:
            assert f"{parameter}:" in text or parameter in ("self", "cls"), parameter
    for word in ("Error:",):
        for line in text.splitlines():
            if line.strip().partition(":")[0].endswith(word.rstrip(":")) and "Raises" not in line:
                for error in line.strip().partition(":")[0].split(", "):
                    assert issubclass(getattr(kvsim.errors, error), KvsimError)


def test_several_servers_in_one_call(few: kvsim.Workload, tmp_path: Path) -> None:
    """`kvsim.simulate(replicas=...)` is `kvsim run --replicas`: the fleet, and a run for each server."""
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=500)
    fleet = kvsim.simulate(few, "paged", machine, replicas=2, route="round-robin", check=True)
    assert [run.summary().num_finished for run in fleet] == [20, 20]
    assert fleet.summary().num_finished == 40
    assert fleet.servers()[1]["num_finished"] == 20
    assert "2 servers, 40 requests" in repr(fleet)
    fleet.save(tmp_path)
    assert kvsim.read(tmp_path / "1").requests.arrival_s.tolist() == fleet[1].requests.arrival_s.tolist()
    own = kvsim.simulate(few, "paged", machine, replicas=3, route=lambda request, servers: 2)  # noqa: ARG005
    assert [len(run.requests) for run in own] == [0, 0, 40]


def test_routes_without_servers_are_refused(few: kvsim.Workload) -> None:
    with pytest.raises(UsageError, match="give replicas as well"):
        public.simulate(few, route="session")
    with pytest.raises(UsageError, match="replicas is 0; it must be an integer of at least 1"):
        kvsim.simulate(few, replicas=0)
