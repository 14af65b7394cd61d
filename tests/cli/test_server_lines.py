"""The command lines of servers, taken as they are: flags, scripts, Docker, Compose, Kubernetes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from .conftest import Run

LINES = [
    line
    for line in Path(__file__).with_name("server_lines.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]


def taken(errors: str) -> str:
    """The flags that kvsim says it took."""
    first = errors.splitlines()[0]
    assert first.startswith("Taken from the server's command line: "), errors
    return first.partition(": ")[2].removesuffix(".")


@pytest.fixture
def size(type_command: Run) -> Run:
    return partial(type_command, "size", "--gpu", "H200")


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
def test_a_line_that_people_use_is_taken(line: str, size: Run) -> None:
    code, _, errors = size("--from", line)
    assert "--model" in taken(errors)
    assert code == 0 or "on each H200" in errors.splitlines()[-1], errors  # too little memory


@pytest.mark.parametrize(
    ("line", "flags"),
    [
        ("vllm serve Qwen/Qwen3-8B -tp 2", "--tensor-parallel-size 2"),
        ("vllm serve Qwen/Qwen3-8B --max_model_len=8k", "--max-model-len 8000"),
        ("vllm serve Qwen/Qwen3-8B --max-model-len 8K", "--max-model-len 8192"),
        ("vllm serve Qwen/Qwen3-8B --kv-cache-memory-bytes 21474836480", "--kv-gib 20"),
        ("vllm serve Qwen/Qwen3-8B --kv-cache-memory-bytes 20G", "--kv-gib 20"),
        ("vllm serve Qwen/Qwen3-8B --enable-prefix-caching False", "--no-enable-prefix-caching"),
        ("VLLM_USE_V1=1 nohup vllm serve Qwen/Qwen3-8B --max-num-seqs 8 > log 2>&1 &", "--max-num-seqs 8"),
        ("docker run --gpus all vllm/vllm-openai:v0.30.0 --model Qwen/Qwen3-8B", "--vllm 0.30.0 --model Qwen/Qwen3-8B"),
    ],
)
def test_flags_keep_their_meaning(line: str, flags: str, size: Run) -> None:
    code, _, errors = size("--from", line)
    assert code == 0, errors
    assert taken(errors).endswith(flags)


def test_a_flag_of_kvsim_beside_the_line_is_said_to_replace_it(type_command: Run) -> None:
    ours = ("--gpu", "H200", "--model", "Llama-3-8B", "--max-num-seqs=4")
    code, said, errors = type_command(
        "size", *ours, "vllm", "serve", "Qwen/Qwen3-8B", "-tp", "2", "--max-num-seqs", "8"
    )
    assert (code, errors.splitlines()[1]) == (0, "Replaced by the flags of kvsim: --model --max-num-seqs.")
    assert "meta-llama/Meta-Llama-3-8B on 2 x H200" in said


PROMPT = "root@6aa49b1572ea:~/llm/command-a# CUDA_VISIBLE_DEVICES=1,2  vllm serve /root/Qwen3-8B -tp=2 --swap-space 8"
DOCKERFILE = """FROM vllm/vllm-openai:v0.30.0
ENTRYPOINT [ "python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "Qwen/Qwen3-8B", \\
  "--tensor-parallel-size", "2", "--host", "0.0.0.0" ]
"""
ONE_ITEM = """
spec:
  containers:
  - image: vllm/vllm-openai:v0.30.0
    command:
    - "python3 -m vllm.entrypoints.openai.api_server  --port 8080 --model /mnt/Qwen3-8B --tensor-parallel-size 2"
"""
ENVIRONMENT = """
containers:
- image: vllm/vllm-openai:v0.30.0
  env: [{name: MODEL, value: Qwen/Qwen3-8B}, {name: TOKEN, valueFrom: {secretKeyRef: {name: hf}}}]
  args: ["--model", "$(MODEL)", "--max-model-len", "8192"]
"""
COMPOSE_ENVIRONMENT = """
services:
  llm:
    image: vllm/vllm-openai:v0.30.0
    environment: ["MODEL=Qwen/Qwen3-8B", HF_TOKEN]
    command: --model ${MODEL} --max-model-len ${LENGTH:-8192}
"""
VARIABLES = """export MODEL_NAME="Qwen3-8B"
docker run --gpus all --rm \\
  lmsysorg/sglang:v0.5.5 \\
  python -m sglang.launch_server --model-path /models/$MODEL_NAME --tp 2 --enable-torch-compile >log.txt 2>&1 &
"""
SERVE = """docker run --gpus all --env “HF_TOKEN=<secret>” --ipc=host lmsysorg/sglang:dev \\
  sglang serve --trust-remote-code --model-path Qwen/Qwen3-8B --tp 2 --cuda-graph-max-bs-decode 32
"""
TWO = (
    '$ docker stop v; docker rm v; docker run -e "A=b" vllm/vllm-openai --model Qwen/Qwen3-8B --tensor-parallel-size 2'
)
CONDA = (
    "(vllm) cheng@cheng:~$ python -m vllm.entrypoints.openai.api_server \\\n--model /m/Qwen3-8B \\\n--max-num-seqs 10\n"
)
TRUE = (
    "export  CUDA_VISIBLE_DEVICES=1,2\n\nvllm serve /mnt/models/Qwen3-8B  \\\n--port 8011 \\\n--enforce_eager true \n"
)


@pytest.mark.parametrize(
    ("name", "text", "flags"),
    [
        ("prompt.sh", PROMPT, "--model /root/Qwen3-8B --tensor-parallel-size 2"),
        ("Dockerfile", DOCKERFILE, "--vllm 0.30.0 --model Qwen/Qwen3-8B --tensor-parallel-size 2"),
        ("one.yaml", ONE_ITEM, "--vllm 0.30.0 --model /mnt/Qwen3-8B --tensor-parallel-size 2"),
        ("env.yaml", ENVIRONMENT, "--vllm 0.30.0 --model Qwen/Qwen3-8B --max-model-len 8192"),
        ("compose.yml", COMPOSE_ENVIRONMENT, "--vllm 0.30.0 --model Qwen/Qwen3-8B --max-model-len 8192"),
        ("run.sh", VARIABLES, "--policy radix --model /models/Qwen3-8B --tensor-parallel-size 2"),
        ("serve.sh", SERVE, "--policy radix --model Qwen/Qwen3-8B --tensor-parallel-size 2"),
        ("two.sh", TWO, "--model Qwen/Qwen3-8B --tensor-parallel-size 2"),
        ("conda.sh", CONDA, "--model /m/Qwen3-8B --max-num-seqs 10"),
        ("true.sh", TRUE, "--model /mnt/models/Qwen3-8B --enforce-eager"),
    ],
)
def test_what_people_paste_into_issues_is_taken(name: str, text: str, flags: str, tmp_path: Path, size: Run) -> None:
    """Prompts, variables, container environments, redirections and lists of words, as issues have them."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    code, _, errors = size("--from", name)
    assert code == 0, errors
    assert taken(errors).removeprefix("--defaults server ") == flags


def test_a_dockerfile_whose_words_are_no_list_is_refused(tmp_path: Path, size: Run) -> None:
    (tmp_path / "Dockerfile").write_text('FROM vllm/vllm-openai\nCMD ["--model", Qwen]\n', encoding="utf-8")
    code, _, errors = size("--from", "Dockerfile")
    assert (code, "which is no list of words" in errors) == (2, True)


def test_a_line_needs_no_quotes_and_own_flags_win(size: Run) -> None:
    line = ["vllm", "serve", "Qwen/Qwen3-8B", "--max-num-seqs", "8", "--block-size", "32", "--port", "8000"]
    code, output, errors = size("--block-size", "64", *line)
    assert code == 0, errors
    own = ["--model", "Qwen3-8B", "--max-num-seqs", "8", "--block-size", "64", "--defaults", "server"]
    assert output == size(*own)[1]
    assert output != size(*line)[1]


def test_a_line_of_sglang_runs_the_radix_policy(type_command: Run) -> None:
    flags = "--tp 1 --schedule-policy lpm --max-running-requests 8"
    line = f"python -m sglang.launch_server --model-path Qwen/Qwen3-8B {flags}"
    code, _, errors = type_command("run", "--num-requests", "5", "--engine", "interpreted", "--no-band", "--from", line)
    assert code == 0, errors
    own = "--tensor-parallel-size 1 --schedule-policy lpm --max-running-requests 8"
    assert taken(errors) == f"--policy radix --model Qwen/Qwen3-8B {own}"


def test_sglang_takes_abbreviations_and_a_checkpoint_knows_its_bits(size: Run) -> None:
    code, _, errors = size("--from", "python -m sglang.launch_server --model Qwen/Qwen3-8B --context-len 4096 --tp 2")
    own = "--max-model-len 4096 --tensor-parallel-size 2"
    assert (code, taken(errors)) == (0, f"--policy radix --model Qwen/Qwen3-8B {own}")
    code, _, errors = size("--from", "vllm serve Qwen/Qwen3-8B --quantization compressed-tensors")
    assert code == 0
    assert "Not followed: --quantization; the bits of compressed-tensors are those of the checkpoint" in errors


def test_flags_that_are_not_taken_are_named(size: Run) -> None:
    flags = "--enable-eplb --swap-space 4 --port 80 --max-num-partial-prefills 2"
    code, _, errors = size("--from", f"vllm serve Qwen/Qwen3-8B {flags}")
    assert code == 0
    assert "Not followed: --enable-eplb; " in errors
    assert "Passed over: --swap-space, which vLLM does not have" in errors
    assert "--max-num-partial-prefills, which vLLM does not have since 0.27" in errors
    assert errors.count("--port") == 1


COMPOSE = """
services:
  db:
    image: postgres:15
  vllm:
    image: vllm/vllm-openai:v0.26.0
    command: >
      --model Qwen/Qwen3-8B
      --max-num-seqs 8
"""
POD = """
kind: Pod
spec:
  containers:
  - image: vllm/vllm-openai:v0.26.0
    args: ["--model", "Qwen/Qwen3-8B", "--max-num-seqs", "8"]
---
kind: Service
spec: {ports: [{port: 80}]}
"""
SHELL_IN_A_POD = """
spec:
  containers:
  - image: vllm/vllm-openai:v0.26.0
    command: [/bin/sh, -c]
    args: ["vllm serve Qwen/Qwen3-8B --max-num-seqs 8"]
"""
CONFIG = """
model: Qwen/Qwen3-8B
max-num-seqs: 8
enable-auto-tool-choice: true
"""
SCRIPT = """#!/bin/bash
# the server
export A=1
exec vllm serve Qwen/Qwen3-8B \\
  --max-num-seqs 8 \\
  --port 80
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("compose.yaml", COMPOSE),
        ("pod.yml", POD),
        ("shell.yaml", SHELL_IN_A_POD),
        ("config.yaml", CONFIG),
        ("start.sh", SCRIPT),
    ],
)
def test_a_file_names_a_line(name: str, text: str, tmp_path: Path, size: Run) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    code, _, errors = size("--from", name)
    assert code == 0, errors
    assert taken(errors).endswith("--model Qwen/Qwen3-8B --max-num-seqs 8")
    assert ("--vllm 0.26.0" in taken(errors)) == ("v0.26.0" in text)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("vllm bench serve --model x", "has no command line of a server"),
        ("vllm serve 'Qwen/Qwen3-8B", "a quotation mark without its end"),
        ("vllm serve Qwen/Qwen3-8B && vllm serve Qwen/Qwen3-14B", "has 2 command lines of servers"),
        ("vllm serve Qwen/Qwen3-8B --max-num-seqs", "--max-num-seqs in the server's command line has no value"),
        ("vllm serve Qwen/Qwen3-8B --kv-cache-memory-bytes many", "should be a whole number, not 'many'"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused(line: str, words: str, size: Run) -> None:
    code, _, errors = size("--from", line)
    assert code == 2
    assert words in errors


def test_an_alias_in_yaml_is_read_once(tmp_path: Path, size: Run) -> None:
    """Ten levels of ten aliases would be ten billion values."""
    lists = ["a: &a0 [x, x]"] + [f"b{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11)]
    (tmp_path / "bomb.yaml").write_text("\n".join(lists), encoding="utf-8")
    code, _, errors = size("--from", "bomb.yaml")
    assert code == 2
    assert "has no command line of a server" in errors
