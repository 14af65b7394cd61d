"""What cannot be done is said in one sentence on standard error, with the right exit code and nothing half-written."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsim.cli import main
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings
from kvsim.recording import write
from kvsim.simulation import Machine, simulate
from kvsim.workload import Workload

Kvsim = Callable[..., "subprocess.CompletedProcess[str]"]
Complain = Callable[..., str]


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A folder with a small recording `rec`, damaged ones beside it, and a file."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, make_machine: Callable[[int], Machine]) -> Path:
    folder = tmp_path_factory.mktemp("made")
    workload = Workload(arrival_s=[0.0, 0.1], prompt_tokens=[20, 30], output_tokens=[5, 4], ids=["a", "b"])
    recording = simulate(workload, Paged(scheduler=ContinuousSettings(max_model_len=64)), make_machine(320))
    for name in ("rec", "cut", "newer"):
        write(recording, folder / name)
    steps = folder / "cut" / "steps.parquet"
    steps.write_bytes(steps.read_bytes()[:200])
    meta = folder / "newer" / "meta.json"
    meta.write_text(meta.read_text().replace('"version": 1', '"version": 2'))
    (folder / "file").write_text("thesis")
    return folder


@pytest.fixture
def complain(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Complain:
    """Run the entry point inside `folder`, expect it to fail, and return its sentence."""

    def run(*arguments: str, code: int) -> str:
        before = sorted(folder.rglob("*"))
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["kvsim", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        output, complaint = capsys.readouterr()
        assert exit_.value.code == code, complaint
        assert output == ""
        assert complaint.startswith("kvsim: ")
        assert complaint.count("\n") == 1
        assert complaint.endswith((".\n", "?\n"))
        assert sorted(folder.rglob("*")) == before, "nothing is left behind"
        return complaint.removeprefix("kvsim: ").rstrip("\n")

    return run


COMMANDS_THAT_READ = (
    ("info",),
    ("run", "--workload"),
    ("compare", "--workload"),
    ("tui", "--screenshot", "x.svg"),
    ("plot", "waste-bars"),
)
MACHINE = ("--model", "Meta-Llama-3-8B", "--gpu", "H200")
BOTH_LIMITS = ("--max-num-seqs", "8", "--max-num-batched-tokens", "2048")


@pytest.mark.parametrize("command", COMMANDS_THAT_READ, ids=lambda command: command[0])
class TestRecordings:
    def test_a_missing_one(self, complain: Complain, command: tuple[str, ...]) -> None:
        sentence = complain(*command, "vllm-h200-llama3-sharegpt", code=2)
        assert sentence.startswith(
            "there is no recording 'vllm-h200-llama3-sharegpt'; did you mean vllm-h200-llama-3-8b"
        )
        assert "'some/where'" in complain(*command, "some/where", code=2)

    def test_a_truncated_one(self, complain: Complain, command: tuple[str, ...]) -> None:
        assert complain(*command, "cut", code=1).startswith("cut/steps.parquet is damaged or truncated: ")

    def test_one_of_another_version(self, complain: Complain, command: tuple[str, ...]) -> None:
        sentence = "newer/meta.json has version 2, and this kvsim reads version 1; a newer kvsim may read it."
        assert complain(*command, "newer", code=1) == sentence

    def test_a_file(self, complain: Complain, command: tuple[str, ...]) -> None:
        problem = (
            "begins no known format" if "--workload" in command else "is a file, not a folder; a recording is a folder"
        )
        assert problem in complain(*command, "file", code=1)

    def test_a_folder_that_is_none(self, complain: Complain, command: tuple[str, ...]) -> None:
        assert complain(*command, ".", code=1).startswith("meta.json is missing; a recording is a folder")

    def test_a_name_too_long_for_a_file(self, complain: Complain, command: tuple[str, ...]) -> None:
        assert complain(*command, "x" * 300, code=2).startswith("there is no recording 'xxx")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (
            ("size", "--model", "./my-model", "--gpu", "H200"),
            2,
            "./my-model does not exist; --model takes a folder with",
        ),
        (("run", "--model", "lama-3-8b"), 2, "there is no model 'lama-3-8b'; did you mean meta-llama/"),
        (("run", "--gpu", "H20O"), 2, "there is no GPU 'H20O'; did you mean H20"),
        (
            ("size", "--model", "mistral-7", "--gpu", "H200"),
            2,
            "there is no model 'mistral-7'; did you mean mistralai/",
        ),
        (("size", "--model", "Meta-Llama-3-8B", "--gpu", "A11"), 2, "there is no GPU 'A11'; did you mean A10"),
        (("size", "--tokens", "134217729"), 2, "--tokens should be at most 134,217,728, not 134217729."),
        (
            ("validate", "auto", "rec", "rec", "--plot", "errors.svg"),
            2,
            "--plot draws one recording; give one.",
        ),
        (
            ("run", "--num-blocks", "1"),
            1,
            "the stated KV memory, 2.00 MiB, is too small for llama-3-8b: two blocks take 4.00 MiB",
        ),
        (
            ("run", "--kv-gib", "0.02"),
            1,
            "request 'r0' (row 0) with 8 prompt tokens, 267 of output and a limit of 267 does ",
        ),
        (("run", "--policy", "static", "--kv-gib", "0.02"), 1, "request 'r0' (row 0) with 8 prompt tokens"),
        (("run", "--policy", "contiguous", "--num-blocks", "100"), 1, "request 'r0' (row 0) with 8 prompt tokens"),
        (
            ("run", "--kv-gib", "999999"),
            1,
            "take 14.96 GiB on each H200, and the KV cache leaves 0 B of its 139.80 GiB",
        ),
        (("run", "--num-blocks", "99999999999", "--oversize"), 1, "bytes of KV memory are 99,999,999,998 units"),
        (("run", "--num-blocks", "0"), 2, "--num-blocks should be at least 1, not 0."),
        (("run", "--num-blocks", "-3"), 2, "--num-blocks should be at least 1, not -3."),
        (("run", "--kv-gib", "0"), 2, "--kv-gib should be above 0, not 0.0."),
        (("run", "--kv-gib", "-1"), 2, "--kv-gib should be above 0, not -1.0."),
        (("run", "--kv-gib", "nan"), 2, "--kv-gib should be above 0, not nan."),
        (("run", "--kv-gib", "inf"), 2, "--kv-gib should be below 1,000,000, not inf."),
        (
            ("run", "--gpu-memory-utilization", "nan"),
            2,
            "--gpu-memory-utilization should be above 0, not nan.",
        ),
        (
            ("run", "--gpu-memory-utilization", "1.5"),
            2,
            "--gpu-memory-utilization should be at most 1, not 1.5.",
        ),
        (
            ("run", "--kv-gib", "1", "--num-blocks", "5"),
            2,
            "--kv-gib and --num-blocks say the same thing; give only one.",
        ),
        (("run", "--block-size", "0"), 2, "--block-size should be at least 1, not 0."),
        (
            ("run", "--policy", "static", "--num-blocks", "9", "--block-size", "-16"),
            2,
            "--block-size should be at least 1",
        ),
        (("run", "--watermark", "nan"), 2, "--watermark should be at least 0, not nan."),
        (("run", "--max-num-seqs", "0"), 2, "--max-num-seqs should be at least 1, not 0."),
        (("run", "--max-num-batched-tokens", "0"), 2, "--max-num-batched-tokens should be at least 1, not 0."),
        (("run", "--max-model-len", "0"), 2, "--max-model-len should be a whole number of at least 1, or auto, not 0."),
        (
            ("run", "--max-model-len", "-4"),
            2,
            "--max-model-len should be a whole number of at least 1, or auto, not -4.",
        ),
        (("run", "--policy", "static", "--batch-size", "0"), 2, "--batch-size should be at least 1, not 0."),
        (("run", "--num-requests", "0"), 2, "the first 0 requests were asked for; ask for at least 1."),
        (
            ("run", "--num-requests", "1000"),
            2,
            "-pressure has only 400; leave it out to take all; --arrivals poisson generates any number.",
        ),
        (
            ("import", "rec", "--num-requests", "3"),
            2,
            "--num-requests asks for the first 3 requests, and rec has only 2; leave it out to take all.",
        ),
        (
            ("run", "--arrivals", "poisson", "--num-requests", "-1"),
            2,
            "-1 requests were asked for; ask for at least 1.",
        ),
        (
            ("run", "--rate", "nan"),
            2,
            "the arrival rate (--rate) is nan requests per second; it must be a finite number above 0.",
        ),
        (("run", "--rate", "2", "--arrivals", "at-once"), 2, "--rate has no effect on --arrivals at-once; leave one"),
        (("run", "--users", "2", "--arrivals", "poisson"), 2, "so --arrivals has no effect; leave one out"),
        (("run", "--seed", "3"), 2, "--seed has no effect on recorded requests: nothing is drawn at random"),
        (("compare", "--seed", "3"), 2, "--seed has no effect on recorded requests: nothing is drawn at random"),
        (("compare", "--seed", "3", "4"), 2, "--seed has no effect on recorded requests: nothing is drawn at random"),
        (("sweep", "--seed", "3", "-o", "t.parquet"), 2, "--seed has no effect on recorded requests: nothing is drawn"),
        (
            ("sweep", "--vary", "seed=3,4", "-o", "t.parquet"),
            2,
            "--seed has no effect on recorded requests: nothing is",
        ),
        (("run", "--replicas", "2", "--no-band"), 2, "--no-band has no effect with several servers, whose runs are"),
        (("run", "--data-parallel-size", "2", "--no-band"), 2, "--no-band has no effect with several servers"),
        (("run", *BOTH_LIMITS, "--defaults", "server"), 2, "--defaults has no effect with --max-num-seqs and"),
        (("size", *MACHINE, *BOTH_LIMITS, "--defaults", "llm"), 2, "--defaults has no effect with --max-num-seqs and"),
        (
            (
                "sweep",
                *BOTH_LIMITS[:2],
                "--vary",
                "max-num-batched-tokens=2048,4096",
                "--defaults",
                "llm",
                "-o",
                "t.parquet",
            ),
            2,
            "--defaults has no effect with --max-num-seqs and --max-num-batched-tokens; leave it out.",
        ),
        (("compare", "--ladder", *BOTH_LIMITS, "--defaults", "llm"), 2, "--defaults has no effect with"),
        (("compare", "--vllm", "0.25.1", "0.33.0", "--reserve", "doubling"), 2, "--reserve has no effect with"),
        (
            ("run", "--route", "prefix"),
            2,
            "--route is for several servers; give --replicas N or --data-parallel-size N",
        ),
        (("run", "--replicas", "2", "--route-lag", "1"), 2, "--route-lag is for routers that see prefix caches"),
        (
            ("run", "--workload", "rec", "--columns", "arrival_s=ts"),
            2,
            "a CSV file, and rec is a recording; leave them",
        ),
        (("run", "--overwrite"), 2, "--overwrite requires -o; give both."),
        (("run", "--policy", "contiguous", "--growth", "fail"), 2, "give --reserve doubling as well"),
        (("run", "--policy", "static", "--enforce-eager"), 2, "--enforce-eager has no effect with --policy static"),
        (("run", "--policy", "radix", "--adapters", "3"), 2, "--adapters has no effect with --policy radix"),
        (("run", "--policy", "radix", "--block-size", "32"), 2, "give --page-size, or leave it out"),
        (("size", *MACHINE, "--max-loras", "2"), 2, "--max-loras requires --enable-lora; give both."),
        (("compare", "--ladder", "--swap-gib", "1"), 2, "--swap-gib has no effect with --ladder; leave one out."),
        (("compare", "--ladder", "--enforce-eager"), 2, "--enforce-eager has no effect with --ladder; leave one out."),
        (("run", "--all", "--json"), 2, "--all has no effect with --json; leave one out."),
        (("run", "--prefill", "1", "--decode", "1", "--kv-load-failure-policy", "fail"), 2, "requires --failed-loads"),
        (("run", "--profile", "hf-h200-granite-350m-dynamic"), 2, "hf-h200-granite-350m-dynamic"),
        (("import", "file", "--seed", "3"), 2, "--seed requires --arrivals, --burstiness, --ramp or"),
        (
            ("sweep", "--vary", "num-blocks=9", "--vary", "num-blocks=8", "-o", "t.parquet"),
            2,
            "--num-blocks is given twice",
        ),
        (("run", "--arrivals", "poisson", "--prompt-tokens", "0"), 2, "--prompt-tokens 0: tokens is 0; it must be a"),
        (("run", "--sessions", "2", "--pause", "-1"), 2, "--pause -1: the mean pause is -1.0; it must be a number"),
        (("run", "--arrivals", "poisson", "--shared-prefix", "5x0"), 2, "--shared-prefix 5x0: the shared prefix is 0"),
        (
            ("run", "--model", "Qwen2.5-VL-7B-Instruct", "--arrivals", "poisson", "--images", "0@5x5"),
            2,
            "--images '0@5x5': the mean number of images of a",
        ),
        (("sweep", "--vary", "num-blocks=9,8,09", "-o", "t.parquet"), 2, "=9,8,09' has the value 09 twice; give each"),
        (("sweep", "--vary", "num-blocks=9,8", "-o", "no/t.parquet"), 2, "cannot write no/t.parquet: No such file or"),
        (("sweep", "--num-blocks", "7", "--vary", "num-blocks=9", "-o", "t.parquet"), 2, "--num-blocks is given twice"),
        (("sweep", "--scheduler", "a:1", "-o", "t.parquet"), 2, "give --backend dask or ray as well"),
        (("size", "--list", "--model", "opt-125m"), 2, "--model has no effect with --list; leave one out."),
        (("size", *MACHINE, "--policy", "radix", "--image", "8x8"), 2, "--image has no effect with --policy radix"),
        (
            ("size", *MACHINE, "--policy", "radix", "--data-parallel-size", "2"),
            2,
            "--data-parallel-size has no effect with --policy radix",
        ),
        (("animate", "rec", "-o", "x.svg", "--max-mib", "3"), 2, "--max-mib is for films"),
        (("reproduce", "--list", "--plot", "x.png"), 2, "--list has no effect with --plot; leave one out."),
        (("run", "--rate", "0"), 2, "the arrival rate (--rate) is 0.0 requests per second; it must be"),
        (("run", "--rate", "-2", "--arrivals", "constant"), 2, "the arrival rate (--rate) is -2.0 requests per second"),
        (("run", "--rate", "inf", "--arrivals", "gamma"), 2, "the arrival rate (--rate) is inf requests per second"),
        (("run", "--arrivals", "gamma", "--burstiness", "nan"), 2, "--burstiness should be from 0.000001 to 1,000,000"),
        (("run", "--prompt-tokens", "0"), 2, "tokens is 0; it must be a whole number of tokens from 1"),
        (("run", "--prompt-tokens", "nan:0.5"), 2, "mean_tokens is nan; it must be a finite number above 0."),
        (("run", "--output-tokens", "200:nan"), 2, "sigma is nan"),
        (("run", "--output-tokens", "many"), 2, "--output-tokens should be a number of tokens such as 200, or a mean"),
        (("run", "--turns", "x"), 2, "--turns should be a number of turns such as 200, or a mean and a sigma"),
        (("run", "--pause", "soon"), 2, "--pause should be a number of seconds such as 5, or a mean and a sigma such"),
        (("run", "--pause=-1"), 2, "the mean pause is -1.0; it must be a number of seconds, 0 to"),
        (("run", "--sessions", "3", "--num-requests", "3"), 2, "--num-requests does not limit sessions; give"),
        (
            ("run", "--sessions", "3", "--max-concurrency", "3"),
            2,
            "turns of sessions wait for answers, so they take no",
        ),
        (("run", "--sessions", "3", "--answers", "2x"), 2, "answers are part of the prompts of later turns, so those"),
        (
            ("pack", "--sessions", "3"),
            2,
            "turns of sessions wait for answers, and this command takes only requests that wait for none",
        ),
        (("fit", "--turns", "0", "--users", "3"), 2, "tokens is 0; it must be a whole number of tokens from 1"),
        (
            ("run", "--shared-prefix", "4"),
            2,
            "--shared-prefix should be a number of groups and of tokens such as 4x512",
        ),
        (("run", "--seed", "-1", "--arrivals", "poisson"), 2, "the seed is -1; it must be a whole number, 0 or more."),
        (
            ("run", "--max-model-len", "10"),
            1,
            "request 'r1' (row 1) has a prompt of 22 tokens, and with a maximum length of 10",
        ),
        (
            ("run", "--prompt-tokens", "9000", "--output-tokens", "5"),
            1,
            "request 'r0' (row 0) has a prompt of 9000 tokens",
        ),
        (
            ("run", "--no-chunked-prefill", "--max-num-batched-tokens", "8"),
            2,
            "vLLM does not start with max_num_batched_tokens (8) below max_model_len (8,192) where prompts are not",
        ),
        (
            ("run", "--max-num-batched-tokens", "10", "--max-num-seqs", "11"),
            2,
            "vLLM does not start with max_num_batched_tokens (10) below max_num_seqs (11)",
        ),
        (("compare", "--block-size", "10"), 2, "vLLM has no attention kernel for blocks of 10 tokens"),
        (("run", "--max-model-len", "9000"), 2, "its configuration allows 8,192 tokens (max_position_embeddings)"),
        (("run", "--swap-space", "4"), 2, "vLLM dropped --swap-space with its V1 engine"),
        (
            ("run", "--model", "deepseek-v3", "--kv-cache-dtype", "int8_per_token_head"),
            2,
            "--kv-cache-dtype int8_per_token_head is not for multi-head latent attention in vLLM",
        ),
        (
            ("run", "--workload", "rec", "--arrivals", "poisson"),
            2,
            "--workload serves recorded requests, so it excludes",
        ),
        (
            ("run", "--workload", "hf-h200-granite-350m-batch500", "--rate", "2"),
            2,
            "--rate rescales arrivals",
        ),
        (("size", *MACHINE, "--kv-gib", "nan"), 2, "--kv-gib should be above 0, not nan."),
        (("size", *MACHINE, "--kv-gib", "-1"), 2, "--kv-gib should be above 0, not -1.0."),
        (("size", *MACHINE, "--block-size", "0"), 2, "--block-size should be at least 1, not 0."),
        (("size", *MACHINE, "--tokens", "0"), 2, "--tokens should be at least 1, not 0."),
        (("size", *MACHINE, "--tensor-parallel-size", "0"), 2, "--tensor-parallel-size should be at least 1"),
        (("size", *MACHINE, "--tensor-parallel-size", "3"), 2, "--tensor-parallel-size is 3; it must divide the 32"),
        (("size", *MACHINE, "--pipeline-parallel-size", "99"), 2, "--pipeline-parallel-size is 99; it must be at most"),
        (("size", *MACHINE, "--data-parallel-size", "0"), 2, "--data-parallel-size should be at least 1"),
        (("size", *MACHINE, "--speculative-config", "{}"), 2, "--speculative-config should say num_spec"),
        (
            ("size", *MACHINE, "--gpu-memory-utilization", "nan"),
            2,
            "--gpu-memory-utilization should be above 0, not nan",
        ),
        (
            ("size", "--model", "Meta-Llama-3-8B", "--gpu", "T4", "--json"),
            1,
            "the weights of meta-llama/Meta-Llama-3-8B take",
        ),
        (
            ("tui", "rec", "--policy", "paged", "--screenshot", "x.svg"),
            2,
            "give a recording to replay or --policy to simulate",
        ),
        (
            ("tui", "rec", "--screenshot", "x.svg", "--size", "0x20"),
            2,
            "--size should be columns and rows such as 120x40",
        ),
        (
            ("tui", "rec", "--screenshot", "x.svg", "--size", "59x16"),
            2,
            "--size should be columns and rows such as 120x40, from 60x16 to 1000x1000, not '59x16'.",
        ),
        (
            ("tui", "rec", "--screenshot", "x.svg", "--size", "big"),
            2,
            "--size should be columns and rows such as 120x40",
        ),
        (
            ("tui", "rec", "--screenshot", "x.svg", "--at", "nan"),
            2,
            "--at should be a time of 0 seconds or more, not nan.",
        ),
        (
            ("tui", "rec", "--screenshot", "x.svg", "--at", "-1"),
            2,
            "--at should be a time of 0 seconds or more, not -1.0.",
        ),
        (
            ("tui", "rec", "--screenshot", "x.bmp"),
            2,
            "x.bmp ends in .bmp; a picture of the screen is written as .svg, ",
        ),
        (("tui", "rec", "--screenshot", "nowhere/x.svg"), 2, "cannot write nowhere/x.svg: No such file or directory"),
        (("sweep", "--vary", "num-blocks=9,8", "-o", "t.csv"), 2, "t.csv ends in .csv; a table of runs is written as"),
        (("sweep", "--vary", "nosuch=9", "-o", "t.parquet"), 2, "--vary 'nosuch=9' names no flag that can vary"),
        (("import", "rec", "-o", "w.csv"), 2, "w.csv ends in .csv; a workload is written as .parquet."),
        (("import", "rec", "-o", "nowhere/w.parquet"), 2, "cannot write nowhere/w.parquet: No such file or directory"),
        (("plot", "--all", "rec", "-o", "file"), 2, "cannot write file: it is a file; name a folder."),
        (
            ("plot", "waste-bars", "rec", "--label", "a", "--label", "b"),
            2,
            "1 recording and 2 names were given; give a name for each recording.",
        ),
        (("fit", "--users", "3", "--jobs", "0"), 2, "--jobs should be at least 1, or -1 for one run on each core"),
        (("fit", "--users", "3", "--figure", "nowhere/x.svg"), 2, "cannot write nowhere/x.svg: No such file or"),
        (("run", "--workload", "rec", "--rate-profile", "file"), 2, "requests, so it excludes --rate-profile; kvsim"),
        (("run", "--workload", "rec", "--pause", "5", "--ramp", "3"), 2, "so it excludes --ramp and --pause; kvsim"),
        (("size", "--from", "nosuch.sh"), 2, "--from 'nosuch.sh' is no file; give one, or the quoted command line of"),
        (("size", "--from", "."), 2, "--from '.' is no file; give one, or the quoted command line of a server."),
        (
            ("size", "--model", "Qwen2.5-VL-7B-Instruct", "--gpu", "H200", "--image", "0x9"),
            2,
            "--image should be width and height in pixels, such as 1920x1080, not '0x9'.",
        ),
        (("compare", "--policy", "paged", "--policy", "paged"), 2, "different policies to compare, not paged paged."),
        (("verify", "rec", "--oracle", "file"), 1, "rec cannot be read as text: Is a directory; give the workload"),
        (("animate", "rec", "-o", "x.gif", "--until", "0"), 2, "--until should be a time above 0 s, not 0.0."),
        (("animate", "rec", "-o", "nowhere/x.gif"), 2, "cannot write nowhere/x.gif: No such file or directory"),
        (("pack", "--workload", "rec", "--row-tokens", "9"), 2, "cut it, or make rows longer (--row-tokens)."),
        (("fit", "--users", "3", "--num-requests", "0"), 2, "0 requests were asked for; ask for at least 1."),
        (
            ("run", "--kv-offloading-size", "1", "--kv-offloading-gb-per-s", "nan"),
            2,
            "--kv-offloading-gb-per-s should be above 0, not nan.",
        ),
        (
            ("compare", "--ladder", *MACHINE, "--prompt-tokens", "9000", "--num-requests", "3"),
            1,
            "no request can be served on the ladder: each is longer than max_model_len or than the memory; give",
        ),
        (("diagnose", "http://"), 2, "'http://' is no address of a page: it has no host, as in http://127.0.0.1:8000/"),
        (("tui", "--serve", "nosuch"), 2, "there is no recording 'nosuch'"),
        (("tui", "--serve", "cut"), 1, "cut/steps.parquet is damaged or truncated"),
        (("tui", "--serve", "--lesson", "99"), 2, "there is no lesson '99'"),
        (("tui", "--serve", "--compare", "--workload", "nosuch"), 2, "there is no recording 'nosuch'"),
        (("tui", "--serve", "--policy", "static", "--workload", "file"), 1, "file, line 1: 'thesis' begins no known"),
        (("diagnose", "http://127.0.0.1:1/metrics"), 1, "/metrics cannot be read: Connection refused."),
        (("plot", "pie", "rec"), 2, "there is no kind of figure 'pie'; there are agreement, "),
        (("plot", "memory-map", "rec", "rec"), 2, "a figure of memory-map shows one recording, and 2 were given."),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_sentence_says_what_would_be_right(
    complain: Complain, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    assert sentence in complain(*arguments, code=code)


@pytest.mark.parametrize(
    ("output", "sentence"),
    [
        ("file", "cannot write file: it is a file; name a folder."),
        (".", ". is a folder that holds something else; choose another name, nothing was overwritten."),
        ("file/rec", "cannot write file/rec: a part of its path is a file, not a folder."),
        ("x" * 300, f"cannot write {'x' * 300}: File name too long; choose a folder that may be written."),
        ("/proc/kvsim/rec", "cannot write /proc/kvsim/rec: "),
    ],
    ids=["a file", "a folder", "under a file", "too long", "unwritable"],
)
def test_an_output_that_cannot_be_written(complain: Complain, output: str, sentence: str) -> None:
    assert complain("run", "--workload", "rec", "-o", output, code=2).startswith(sentence)


def test_compare_into_a_file(complain: Complain, folder: Path) -> None:
    assert "cannot write file: it is a file; name a folder." in complain(
        "compare", "--workload", "rec", "--max-model-len", "64", "-o", "file", code=2
    )
    assert (folder / "file").read_text() == "thesis"


@pytest.mark.parametrize("picture", ["file/x.svg", "nowhere/x.svg"])
def test_a_picture_that_cannot_be_written(complain: Complain, picture: str) -> None:
    complain("tui", "rec", "--screenshot", picture, code=2)


def test_a_figure_that_cannot_be_written(complain: Complain) -> None:
    complain("plot", "waste-bars", "rec", "-o", "file/x.png", code=2)
    complain("plot", "waste-bars", "rec", "-o", "x.docx", code=2)


@pytest.mark.parametrize(
    "arguments", [("--frobnicate",), ("frobnicate",), ("run", "extra"), ("size",), ("run", "--policy", "magic"), ()]
)
def test_misuse_of_the_command_line_itself_exits_with_2(kvsim: Kvsim, arguments: tuple[str, ...]) -> None:
    result = kvsim(*arguments)
    assert result.returncode == 2
    assert "Usage: kvsim" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_sentence_and_no_traceback_from_the_real_process(kvsim: Kvsim, folder: Path) -> None:
    failed = kvsim("info", "cut", folder=folder)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("kvsim: cut/steps.parquet is damaged or truncated: ")
    assert failed.stderr.count("\n") == 1
    misused = kvsim("run", "--rate", "nan", folder=folder)
    assert (misused.returncode, misused.stdout) == (2, "")


@pytest.mark.parametrize(("command", "said"), [("plott", "'plott'. Did you mean 'plot'?\n"), ("zebra", "'zebra'.\n")])
def test_an_unknown_command(kvsim: Kvsim, command: str, said: str) -> None:
    done = kvsim(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("Error: No such command " + said)


def test_an_interrupt_leaves_nothing_and_says_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvsim.recording import RecordingWriter

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(RecordingWriter, "append", interrupted)
    monkeypatch.setattr(sys, "argv", ["kvsim", "run", "--workload", str(folder / "rec"), "-o", str(folder / "new")])
    before = sorted(folder.rglob("*"))
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 130
    assert "".join(capsys.readouterr()).strip() == ""
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "made_of_it", [ImportError("initialization failed"), RuntimeError("cannot join thread")], ids=repr
)
def test_an_error_that_a_library_makes_of_an_interrupt_is_not_shown(
    folder: Path, made_of_it: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvsim.recording import RecordingWriter

    def interrupted(*_: object) -> None:
        raise made_of_it from KeyboardInterrupt()

    monkeypatch.setattr(RecordingWriter, "append", interrupted)
    monkeypatch.setattr(sys, "argv", ["kvsim", "run", "--workload", str(folder / "rec"), "-o", str(folder / "new")])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 130
    assert "".join(capsys.readouterr()).strip() == ""


def test_an_error_without_an_interrupt_is_shown_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvsim.recording import RecordingWriter

    def defective(*_: object) -> None:
        raise RuntimeError("defect")

    monkeypatch.setattr(RecordingWriter, "append", defective)
    monkeypatch.setattr(sys, "argv", ["kvsim", "run", "--workload", str(folder / "rec"), "-o", str(folder / "new")])
    with pytest.raises(RuntimeError, match="defect"):
        main()


LONG = [
    *("--arrivals", "poisson", "--rate", "20", "--num-requests", "200000"),
    *("--prompt-tokens", "200", "--output-tokens", "200", "--engine", "interpreted"),
]


def test_a_run_that_is_terminated_leaves_nothing(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kvsim", "run", *LONG, "-o", str(tmp_path / "new")],
        cwd=Path(__file__).parent.parent.parent,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not any(tmp_path.iterdir()):  # the recording is written beside its name, and renamed in the end
            assert process.poll() is None  # no pause: the signal comes right after the folder was created
        process.terminate()
        assert process.wait() == 128 + signal.SIGTERM
    assert not any(tmp_path.iterdir())
