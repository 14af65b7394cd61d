"""Every command once through the real entry point, as a process of its own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest

from kvsim import __version__
from kvsim.metrics import summarize
from kvsim.metrics.steady import steady_part
from kvsim.recording import MemoryKind, Recording, read, shipped_names, write

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

Kvsim = Callable[..., "subprocess.CompletedProcess[str]"]
PRESSURE = "vllm-h200-llama-3-8b-sharegpt-pressure"
FEW = ("--num-requests", "12")
STATES = ("tokens", "reserved", "never written", "padding", "cached", "external", "free")


def succeed(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stderr
    beyond = [line for line in result.stderr.splitlines() if "the times extrapolate" not in line]
    assert beyond == [], "nothing else is worth a word"
    return result.stdout


def strict_json(text: str) -> Any:
    """The document, which must be JSON as the standard has it: no NaN, no Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def figures(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [figure for item in value.values() for figure in figures(item)]
    if isinstance(value, list):
        return [figure for item in value for figure in figures(item)]
    return [value] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


def test_version_and_help(kvsim: Kvsim) -> None:
    assert succeed(kvsim("--version")) == f"kvsim, version {__version__}\n"
    text = succeed(kvsim("--help"))
    for command in ("run", "compare", "tui", "plot", "info", "size"):
        assert f"  {command} " in text
        assert "Usage: kvsim " + command in succeed(kvsim(command, "--help"))
    assert kvsim("-h").stdout == text


def test_shell_completion(kvsim: Kvsim) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = kvsim(_KVSIM_COMPLETE=f"{shell}_source")
        assert script.returncode == 0
        assert "_KVSIM_COMPLETE" in script.stdout
    words = kvsim(_KVSIM_COMPLETE="bash_complete", COMP_WORDS="kvsim co", COMP_CWORD="1")
    assert words.stdout.split() == ["plain,compare", "plain,conform"]
    words = kvsim(_KVSIM_COMPLETE="bash_complete", COMP_WORDS="kvsim run --poli", COMP_CWORD="2")
    assert words.stdout.split() == ["plain,--policy"]


@pytest.mark.parametrize("policy", ["paged", "contiguous", "static"])
def test_run(kvsim: Kvsim, tmp_path: Path, policy: str) -> None:
    arguments = ("run", "--policy", policy, *FEW, "-o", "rec")
    text = succeed(kvsim(*arguments, folder=tmp_path))
    assert "12 requests" in text or "400 requests" in text
    found = r"(Nothing is held back|The batch is full \(batch_size\)|Memory is short): .* All 12 requests are served "
    assert re.match(found, text)
    assert re.search(r"times +measured on this GPU with this model: throughput is typically within \d+ %", text)
    assert re.search(r"class +Hopper GH100, dense, 1 GPU", text)
    assert "calibrated on" not in text, "that is for --all"
    without = succeed(kvsim("run", "--policy", policy, *FEW, "--profile", "none", "--all"))
    assert "uncalibrated" in without, "a time that was never calibrated says so"
    for state in STATES:
        assert f"{state}, % of the pool" in without
    recording = read(tmp_path / "rec")
    assert recording.meta.policy_name == policy
    assert recording.meta.command == f"kvsim run --policy {policy} {' '.join(FEW)} -o rec"
    assert [entry.name for entry in tmp_path.iterdir()] == ["rec"]


def flat(document: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def test_run_json_agrees_with_the_recording_that_it_wrote(kvsim: Kvsim, tmp_path: Path) -> None:
    document = strict_json(succeed(kvsim("run", *FEW, "--json", "-o", "rec", folder=tmp_path)))
    again = json.loads(json.dumps(summarize(read(tmp_path / "rec")).as_dict()))
    assert "machine and model measured" in document.pop("times")
    assert document.pop("settings")["num_units"] == read(tmp_path / "rec").meta.pool.num_units
    assert document.pop("verdict")["is_good"]
    assert document.pop("steady") == steady_part(read(tmp_path / "rec").requests).as_dict()
    ours, theirs = dict(flat(document | {"name": ""})), dict(flat(again | {"name": "", "extrapolates": []}))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        # The command adds up the steps as they come, and a reader adds up a recording: sums over time are rounded.
        assert ours[name] == (pytest.approx(value, rel=1e-9, abs=1e-9) if isinstance(value, float) else value), name
    assert document["num_finished"] == 12
    told = " ".join(succeed(kvsim("info", "rec", folder=tmp_path)).split())
    assert "store_gb_per_s 50.4, " in told, "50.400000000000006 is the number that a float stores"
    assert "speculative_config" not in told, "it is empty"
    assert sum(document["waste"]["pool_percent"].values()) == pytest.approx(100)


@pytest.mark.slow
def test_the_same_command_gives_the_same_bytes_in_any_process(kvsim: Kvsim, tmp_path: Path) -> None:
    arguments = ("run", "--arrivals", "gamma", "--shared-prefix", "2x64", "--rate", "300", "--num-requests", "80",
                 "--num-blocks", "200", "--seed", "5", "--check", "--json", "-o", "rec")  # fmt: skip
    outputs = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        outputs.append(succeed(kvsim(*arguments, folder=folder, PYTHONHASHSEED=seed)))
    assert outputs[0] == outputs[1]
    for file in (tmp_path / "1" / "rec").iterdir():
        assert file.read_bytes() == (tmp_path / "2" / "rec" / file.name).read_bytes(), file.name


def test_compare(kvsim: Kvsim, tmp_path: Path) -> None:
    text = succeed(kvsim("compare", *FEW, folder=tmp_path))
    rows = {
        line.rpartition("  ")[0].split("  ")[0].strip(): line.split()[-4:] for line in text.splitlines() if "  " in line
    }
    assert rows["sum, %"] == ["100.0"] * 4
    assert text.count("in full: calibrated on H200") == 2, "one engine for all; the pace of SGLang's is not measured"
    for whose in ("paged, contiguous, static", "radix"):
        assert f"\ntimes of {whose}: measured on this GPU with this model" in text
    own = succeed(kvsim("compare", *FEW, "--times", "own"))
    assert own.count("in full: calibrated on H200") == 3, "one engine for paged and contiguous, one for static"
    document = strict_json(succeed(kvsim("compare", *FEW, "--json", "-o", "all", folder=tmp_path)))
    assert list(document) == ["paged", "contiguous", "static", "radix"]
    for policy, summary in document.items():
        assert sum(summary["waste"]["pool_percent"].values()) == pytest.approx(100)
        assert summary["num_finished"] + summary["num_refused"] == 12
        assert read(tmp_path / "all" / policy).meta.policy_name == policy
        assert f"{policy}: {summary['verdict']['sentence']}\n" in text
    assert len({summary["output_tokens"] for summary in document.values()}) == 1, "the same requests under each"


def test_info(kvsim: Kvsim, pressure: Recording) -> None:
    assert succeed(kvsim("info")).split() == shipped_names()
    assert strict_json(succeed(kvsim("info", "--json"))) == {"shipped": shipped_names()}
    assert "none: the cache grows with the batch" in succeed(kvsim("info", "hf-h200-granite-350m-batch500"))
    document = strict_json(succeed(kvsim("info", pressure.name, "--json")))
    assert document["requests"] == len(pressure.requests) == 400
    assert document["num_preemptions"] == 685
    assert document["source"] == "vllm"
    assert document["gpu"] == pressure.meta.gpu
    assert "measured on NVIDIA H200" in kvsim("info", f"traces/{pressure.name}").stdout


def test_the_help_of_a_simulation_has_its_flags_below_headings(kvsim: Kvsim) -> None:
    headings = ["Options", "Requests", "Machine and memory", "Paged cache", "Contiguous reservations"]
    headings += ["Static batches", "SGLang: radix cache", "Scheduling", "Several servers"]
    text = succeed(kvsim("run", "--help"))
    assert re.findall(r"(?m)^(\S.*):$", text) == headings
    parts = re.split(r"(?m)^\S.*:$", text)[1:]
    flags = {
        heading: set(re.findall(r"(?m)^  (?:-\w, )?(--[a-z-]+)", part))
        for heading, part in zip(headings, parts, strict=True)
    }
    own = {"--policy", "--engine", "--no-band", "--front-end", "--output", "--overwrite", "--json"}
    fleet = {"--replicas", "--route", "--route-lag", "--prefill", "--decode", "--failed-loads", "--prefix-store-gib"}
    fleet |= {"--kv-link-gb-per-s", "--kv-link-latency", "--kv-transfers", "--kv-load-failure-policy"}
    assert flags["Options"] == own | {"--all", "--from", "--help"}
    assert flags["Several servers"] == fleet
    assert {"--workload", "--rate", "--users", "--think-time"} < flags["Requests"]
    assert {"--batch-size", "--cache"} < flags["Static batches"]


def test_size_lists_what_it_knows_and_knows_what_it_lists(kvsim: Kvsim) -> None:
    gpus, _, models = succeed(kvsim("size", "--list")).removeprefix("GPUs\n").partition("models\n")
    assert "  H200\n" in gpus
    assert "  meta-llama/Meta-Llama-3-8B\n" in models
    succeed(kvsim("size", "--model", models.split()[0], "--gpu", gpus.strip().splitlines()[-1].strip()))


def test_size(kvsim: Kvsim) -> None:
    arguments = ("size", "--model", "Meta-Llama-3-8B", "--gpu", "H200")
    text = succeed(kvsim(*arguments))
    for line in ("weights", "activations", "one token", "128.00 KiB", "one block", "2.00 MiB", "914,400", "111.62x"):
        assert line in text
    document = strict_json(succeed(kvsim(*arguments, "--json", "--kv-gib", "2", "--tokens", "100")))
    assert document["kv_bytes"] == 2 << 30
    assert document["num_blocks"] == 1024
    assert document["capacity_tokens"] == 1023 * 16
    assert document["max_sequences"] == {"100": 1023 // 7}
    by_default = strict_json(succeed(kvsim(*arguments, "--json")))
    assert sum(term["bytes"] for term in by_default["terms"]) == by_default["kv_bytes"], "the lines add up"


@pytest.mark.parametrize(
    "arguments",
    [("run",), ("compare",), ("info", PRESSURE), ("size", "--model", "granite-4.0-350m", "--gpu", "L4")],
    ids=lambda arguments: arguments[0],
)
def test_json_is_stable_and_has_no_hole(kvsim: Kvsim, arguments: tuple[str, ...]) -> None:
    arguments = (*arguments, *(FEW if arguments[0] in {"run", "compare"} else ()), "--json")
    first = succeed(kvsim(*arguments))
    assert first == succeed(kvsim(*arguments))
    document = strict_json(first)
    assert figures(document)
    assert all(math.isfinite(figure) for figure in figures(document))
    assert first.endswith("}\n")


def test_a_simulation_can_be_served_again(kvsim: Kvsim, tmp_path: Path) -> None:
    """Its own requests, machine, memory and longest sequence, from the recording alone."""
    settings = ("--max-model-len", "4096", "--num-blocks", "600")
    first = strict_json(succeed(kvsim("run", *FEW, *settings, "--json", "-o", "rec", folder=tmp_path)))
    again = strict_json(succeed(kvsim("run", "--workload", "rec", "--json", "-o", "again", folder=tmp_path)))
    assert again["duration_s"] == first["duration_s"]
    one, two = read(tmp_path / "rec").meta, read(tmp_path / "again").meta
    assert one.policy == two.policy
    assert one.pool == two.pool


def test_a_recording_can_be_replaced_and_described(kvsim: Kvsim, tmp_path: Path) -> None:
    for count in ("3", "4"):
        succeed(kvsim("run", "--num-requests", count, "-o", "deep/er/rec", folder=tmp_path))
    assert len(read(tmp_path / "deep" / "er" / "rec").requests) == 4
    document = strict_json(succeed(kvsim("info", "deep/er/rec", "--json", folder=tmp_path)))
    assert (document["policy"], document["policy_settings"]["name"]) == ("paged", "paged")
    assert document["requests"] == 4


def test_refused_requests_are_counted(kvsim: Kvsim) -> None:
    arguments = ("run", *FEW, "--max-model-len", "300", "--refuse-misfits", "--json")
    document = strict_json(succeed(kvsim(*arguments)))
    assert document["num_refused"] > 0
    assert document["num_refused"] + document["num_finished"] == 12


def test_whoever_stops_reading_gets_no_traceback(repository: Path, run_python: Callable[..., Any]) -> None:
    code = (
        "import subprocess, sys\n"
        "process = subprocess.Popen([sys.executable, '-m', 'kvsim', 'info', '--json'],"
        " stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "process.stdout.close()\n"
        "sys.stderr.write(process.stderr.read().decode())\n"
        "sys.exit(process.wait())"
    )
    result = run_python("-c", code, folder=repository)
    assert result.returncode in {0, 1}
    assert result.stderr == ""


class TestTui:
    def test_a_screenshot_of_a_shipped_recording(self, kvsim: Kvsim, tmp_path: Path) -> None:
        arguments = ("tui", "traces/vllm-h200-llama-3-8b-sharegpt-pressure", "--screenshot", "a.svg", "--at", "9.5")
        assert succeed(kvsim(*arguments, "--size", "100x30", folder=tmp_path)) == "a.svg\n"
        picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
        assert picture.startswith("<svg")
        assert ElementTree.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.svg"]

    def test_a_screenshot_of_a_simulation(self, kvsim: Kvsim, tmp_path: Path) -> None:
        arguments = ("tui", "--policy", "static", *FEW, "--screenshot", "b.svg", "--ascii")
        succeed(kvsim(*arguments, folder=tmp_path))
        assert (tmp_path / "b.svg").stat().st_size > 1_000

    def test_without_a_terminal_a_sentence_says_so(self, kvsim: Kvsim) -> None:
        result = kvsim("tui")
        assert result.returncode == 2
        assert (
            result.stderr == "kvsim: kvsim tui needs a terminal; without one, --screenshot FILE.svg writes a picture.\n"
        )


@pytest.mark.parametrize(
    ("kind", "names"), [("waste-bars", 2), ("waste-over-time", 1), ("occupancy", 2), ("memory-map", 1)]
)
def test_plot(kvsim: Kvsim, tmp_path: Path, pressure: Recording, kind: str, names: int) -> None:
    write(pressure, tmp_path / "rec")
    recordings = ("rec", "traces/hf-h200-granite-350m-batch500")[:names]
    assert succeed(kvsim("plot", kind, *recordings, "-o", "figure.svg", folder=tmp_path)) == "figure.svg\n"
    assert "<svg" in (tmp_path / "figure.svg").read_text(encoding="utf-8")
    assert not list(tmp_path.glob(".*")), "nothing half-written is left"


def test_a_figure_is_named_after_its_kind(kvsim: Kvsim, tmp_path: Path) -> None:
    assert succeed(kvsim("plot", "waste-bars", PRESSURE, "--for", "paper", folder=tmp_path)) == "waste-bars.png\n"
    assert (tmp_path / "waste-bars.png").read_bytes().startswith(b"\x89PNG")


def test_the_ladder_is_printed_and_written(kvsim: Kvsim, tmp_path: Path) -> None:
    few = ["--num-requests", "40", "--arrivals", "at-once", "--model", "Meta-Llama-3-8B", "--gpu", "H200"]
    few += ["--kv-gib", "1", "--max-model-len", "1024"]
    printed = succeed(kvsim("compare", "--ladder", *few, "-o", str(tmp_path / "rungs")))
    assert ", all at once, 1.00 GiB of KV memory\n" in printed
    for name in ("one by one", "static", "continuous", "paged", "asynchronous"):
        assert name in printed
    assert len([path for path in (tmp_path / "rungs").iterdir() if path.is_dir()]) == 8
    document = strict_json(succeed(kvsim("compare", "--ladder", *few, "--json")))
    assert [round(rung["memory_gain"] * rung["time_gain"] / rung["gain"], 6) for rung in document["rungs"]] == [1] * 8
    rungs = [str(path) for path in (tmp_path / "rungs").iterdir() if path.is_dir()]
    succeed(kvsim("plot", "ladder", *rungs, "-o", str(tmp_path / "ladder.png")))
    assert (tmp_path / "ladder.png").stat().st_size > 10_000


def test_the_servers_of_a_fleet_are_compared_with_their_kind(kvsim: Kvsim) -> None:
    load = ("--rate", "20", "--arrivals", "poisson", "--num-requests", "12", "--prompt-tokens", "300")
    apart = succeed(kvsim("run", "--prefill", "1", "--decode", "1", *load, "--output-tokens", "20"))
    assert apart.count(" times the mean of its kind") == apart.count(" times the mean") == 2
    alike = succeed(kvsim("run", "--replicas", "2", *load, "--output-tokens", "20"))
    assert (alike.count(" times the mean of its kind"), alike.count(" times the mean")) == (0, 2)


def test_a_recording_is_checked_unit_by_unit(kvsim: Kvsim, pressure: Recording, tmp_path: Path) -> None:
    said = succeed(kvsim("info", pressure.name, "--check"))
    assert "keeps to the format (400 requests, 2,922 steps" in said
    assert "kvsim info FOLDER --check" in kvsim("info", "--check").stderr
    # The reader compares totals; that a block is in two tables at once shows when every unit is followed.
    memory = pressure.memory
    appended = np.flatnonzero(memory.kind == MemoryKind.APPEND)
    address = memory.address.copy()
    address[appended[1]] = address[appended[0]]
    wrong = replace(pressure, memory=replace(memory, address=address))
    write(wrong, tmp_path / "wrong")
    result = kvsim("info", tmp_path / "wrong", "--check")
    assert result.returncode == 1
    assert "should be free" in result.stderr
