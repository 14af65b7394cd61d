"""SGLang's policy on the command line: beside vLLM's on one clock, swept, shown, drawn and exported."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import kvsim
from kvsim.cli import cli
from kvsim.fitting import SGLangServer
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import Radix, RadixSettings, SGLangSettings

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
    assert "--policy, a flag with several values, servers, --ladder" in str(result.exception or result.output)


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


FLAGS: dict[str, object] = {
    "chunked_prefill_size": 64, "schedule_policy": "lpm", "schedule_conservativeness": 0.5, "page_size": 4,
    "radix_eviction_policy": "lfu", "disable_radix_cache": True, "disable_overlap_schedule": True,
    "enable_mixed_chunk": True, "max_prefill_tokens": 512, "max_running_requests": 7,
}  # fmt: skip
"""Arguments of SGLang's server, other than its defaults."""
SHARE = 0.5
"""A share of the memory that is free before the weights for these and the slots."""
MACHINE = ("--model", "Llama-3-8B", "--gpu", "H100", "--num-requests", "6")


def as_typed() -> list[str]:
    """Return the flags, and the share."""
    flags = ["--mem-fraction-static", str(SHARE)]
    for name, value in FLAGS.items():
        flags += ["--" + name.replace("_", "-"), *([] if value is True else [str(value)])]
    return flags


def recorded_settings(folder: Path) -> dict[str, object]:
    policy = json.loads((folder / "meta.json").read_text())["policy"]
    return {name: policy[name] for name in FLAGS}


@pytest.mark.parametrize("command", ["run", "compare"])
def test_arguments_of_the_server_are_taken_under_their_names(tmp_path: Path, command: str) -> None:
    beside = ("--policy", "paged") if command == "compare" else ("--no-band",)
    result = typed(command, *MACHINE, *as_typed(), *beside, "--policy", "radix", "-o", str(tmp_path / "rec"))
    assert result.exit_code == 0, result.output
    folder = tmp_path / "rec" / "radix" if command == "compare" else tmp_path / "rec"
    assert recorded_settings(folder) == FLAGS
    size = typed("size", "--policy", "radix", *MACHINE[:4], "--mem-fraction-static", str(SHARE), "--json")
    pool = json.loads((folder / "meta.json").read_text())["pool"]
    assert pool["num_units"] == json.loads(size.stdout)["num_slots"] // 4
    assert typed("info", str(folder), "--check").exit_code == 0


@pytest.mark.parametrize(("gpu", "wanted"), [("L4", [4096, 1]), ("B200", [16384, 64])])
def test_every_command_takes_the_defaults_of_the_card(gpu: str, wanted: list[int], tmp_path: Path) -> None:
    """`kvsim fit` prints them as arguments; those that are given stay."""

    def settings(folder: str) -> list[int]:
        policy = json.loads((tmp_path / folder / "meta.json").read_text())["policy"]
        return [policy["chunked_prefill_size"], policy["page_size"]]

    fit = kvsim.server(f"{gpu}/Llama-3.2-1B", policy="radix").policy()
    assert [fit.scheduler.chunked_prefill_size, fit.cache.page_size] == wanted
    on = ("--model", "Llama-3.2-1B", "--gpu", gpu, "--num-requests", "2", "--policy", "radix")
    given = ("--page-size", "16", "--chunked-prefill-size", "512")
    for folder, command in {
        "run": ("run", *on, "--no-band"),
        "both": ("compare", *on, "--policy", "paged"),
        "given": ("run", *on, "--no-band", *given),
    }.items():
        result = typed(*command, "-o", str(tmp_path / folder))
        assert result.exit_code == 0, result.output
    kvsim.simulate(kvsim.generate(2, prompt=50, output=20), "radix", f"{gpu}/Llama-3.2-1B").save(tmp_path / "python")
    assert settings("run") == settings("both/radix") == settings("python") == wanted
    assert settings("given") == [512, 16]


def test_they_are_taken_in_a_sweep_and_in_python(tmp_path: Path) -> None:
    table = str(tmp_path / "s.parquet")
    result = typed("sweep", *MACHINE, *as_typed()[2:], "--policy", "radix", "--vary", "mem-fraction-static=0.4,0.5",
                   "--jobs", "1", "-o", table)  # fmt: skip
    assert result.exit_code == 0, result.output
    assert pq.read_table(table)["mem_fraction_static"].to_pylist() == [0.4, 0.5]
    on = kvsim.machine("H100", "Llama-3-8B", mem_fraction_static=SHARE)
    chosen = {
        kind: {field.name: FLAGS[field.name] for field in fields(kind) if field.name in FLAGS}
        for kind in (SGLangSettings, RadixSettings)
    }
    policy = Radix(scheduler=SGLangSettings(**chosen[SGLangSettings]), cache=RadixSettings(**chosen[RadixSettings]))  # type: ignore[arg-type]
    run = kvsim.simulate("vllm-h200-granite-350m-gsm8k", policy, on)
    run.save(tmp_path / "rec")
    assert recorded_settings(tmp_path / "rec") == FLAGS


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--policy", "radix", "--mem-fraction-static", "0.9", "--kv-gib", "3"), "say the same thing"),
        (("run", "--policy", "radix", "--mem-fraction-static", "1.5"), "below 1"),
        (
            (
                *("run", "--policy", "radix", "--disable-radix-cache", "--model", "gpt-oss-20b", "--gpu", "H200"),
                *("--num-blocks", "8"),
            ),
            "the slots of layers with windows leave none",
        ),
        (("run", *MACHINE, "--policy", "radix", "--mem-fraction-static", "0.1"), "leaves no slot"),
        (("fit", *MACHINE, "--mem-fraction-static", "0.9"), "give --gpu-memory-utilization, or --policy radix"),
        (("fit", *MACHINE, "--schedule-policy", "lpm"), "it is for radix"),
        (
            ("run", "--model", "Llama-3-8B", "--gpu", "B200", "--policy", "radix", "--chunked-prefill-size", "100"),
            "--chunked-prefill-size 100, which is no multiple of --page-size 64; change one of the two",
        ),
    ],
)
def test_a_share_that_cannot_be_is_refused_in_a_sentence(arguments: tuple[str, ...], said: str) -> None:
    result = typed(*arguments)
    assert result.exit_code != 0
    assert said in str(result.exception or result.output)


def test_errors_of_vllms_runs_are_not_sglangs() -> None:
    """The error of such times was never measured."""
    ours, theirs = (
        json.loads(typed("run", *FEW, "--policy", policy, "--json").stdout) for policy in ("paged", "radix")
    )
    assert "recordings of this class" in ours["times"]
    assert "SGLang]; error never measured" in theirs["times"]


def test_a_run_alone_has_sglang_s_memory_and_number_of_requests() -> None:
    machine = ["--gpu", "H200", "--model", "Llama-3-8B"]
    load = [*machine, "--num-requests", "3", "--prompt-tokens", "20", "--output-tokens", "3", "--json"]
    alone = json.loads(CliRunner().invoke(cli, ["run", "--policy", "radix", *load]).output)["settings"]
    sized = json.loads(CliRunner().invoke(cli, ["size", "--policy", "radix", *machine, "--json"]).output)
    assert alone["num_units"] == sized["num_slots"]
    server = SGLangServer(gpu=find_gpu("H200"), model=find_model("Llama-3-8B"))
    assert alone["policy_settings"]["max_running_requests"] == server.max_running_requests == 4096
    halved = json.loads(CliRunner().invoke(cli, ["run", "--policy", "radix", *load, "--num-blocks", "100"]).output)
    assert halved["settings"]["policy_settings"]["max_running_requests"] == halved["settings"]["num_units"] // 2
