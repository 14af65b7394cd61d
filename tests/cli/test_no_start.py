"""`kvsim size` of a server that does not start: the reason, the account, and flags with which it starts."""

from __future__ import annotations

import json
import re

import pytest

from .conftest import Run

SHARE = ("--model", "Qwen3-32B", "--gpu", "A100-80G", "--gpu-memory-utilization", "0.75")
WEIGHTS = ("--model", "Llama-3.1-70B", "--gpu", "H100")
LENGTH = ("--model", "Llama-3.1-8B", "--gpu", "L4", "--max-model-len", "65536")
CASES = {
    "share": (SHARE, "No available memory for the cache blocks", "--gpu-memory-utilization"),
    "weights": (WEIGHTS, "CUDA out of memory", "--tensor-parallel-size"),
    "length": (LENGTH, "To serve at least one request with the model's max seq len", "--max-model-len"),
}


def starting(output: str) -> list[list[str]]:
    """The flags of each line that says what starts."""
    lines = output.partition("It starts with one of:\n")[2].splitlines()
    return [line.partition(":")[0].split() for line in lines if line.startswith("  --")]


@pytest.mark.parametrize("case", CASES)
def test_the_reason_comes_first_and_every_remedy_starts(case: str, type_command: Run) -> None:
    flags, logged, remedy = CASES[case]
    code, output, complaint = type_command("size", *flags)
    assert code == 1
    assert complaint.startswith("kvsim: ")
    assert f'"{logged}"' in output
    found = starting(output)
    assert remedy in [change[0] for change in found]
    for change in found:
        code, sized, _ = type_command("size", *flags, *change)
        assert code == 0, change
        assert "refuses" not in sized, change


def test_the_account_adds_up(type_command: Run) -> None:
    output = type_command("size", *SHARE)[1]
    terms = re.findall(r"^ [\w ]+? +(-?[\d,.]+) (\w?i?B) ", output, re.MULTILINE)
    assert {unit for _, unit in terms} == {"GiB"}
    figures = [float(size.replace(",", "")) for size, _ in terms]
    assert sum(figures[:-1]) == pytest.approx(figures[-1], abs=0.02)
    assert figures[-1] < 0


def test_a_model_without_a_stated_length_says_so_in_its_first_sentence(type_command: Run) -> None:
    code, output, _ = type_command("size", "--model", "Llama-3.1-8B", "--gpu", "A10G")
    assert code == 0
    assert output.startswith("vLLM refuses to start: one sequence of 131,072 tokens does not fit; --max-model-len ")
    assert ["--tensor-parallel-size", "2"] in starting(output)


def test_types_that_a_gpu_does_not_multiply_are_not_advised(type_command: Run) -> None:
    flags = ("size", "--model", "Llama-2-13b-chat-hf", "--max-model-len", "2048")
    assert not any("fp8" in change for change in starting(type_command(*flags, "--gpu", "A10")[1]))
    assert any("fp8" in change for change in starting(type_command(*flags, "--gpu", "L4")[1]))


def test_a_stated_pool_has_no_account(type_command: Run) -> None:
    code, output, complaint = type_command("size", "--model", "Qwen3-32B", "--gpu", "A100-80G", "--kv-gib", "30")
    assert (code, output) == (1, "")
    assert "the KV cache leaves" in complaint


def test_for_machines_there_is_one_sentence(type_command: Run) -> None:
    code, output, complaint = type_command("size", *WEIGHTS, "--json")
    assert (code, output) == (1, "")
    assert len(complaint.splitlines()) == 1


@pytest.mark.parametrize(("model", "tokens", "state"), [("Qwen3.5-27B", 784, 3132), ("Qwen3-Next-80B-A3B", 544, None)])
def test_a_large_block_has_its_reason(model: str, tokens: int, state: int | None, type_command: Run) -> None:
    flags = ("size", "--model", model, "--gpu", "H200", "--tensor-parallel-size", "1" if state else "2")
    first = type_command(*flags)[1].splitlines()[0]
    said = re.search(r"has ([\d,]+) tokens because .* layer has ([\d,]+) KiB, a token .* layer ([\d.]+) KiB", first)
    assert said is not None, first
    state_kib, token_kib = float(said[2].replace(",", "")), float(said[3])
    assert int(said[1].replace(",", "")) == tokens
    assert (tokens - 16) * token_kib < state_kib <= tokens * token_kib
    assert state is None or state_kib == state


def test_a_block_that_nothing_made_large_has_no_reason(type_command: Run) -> None:
    for flags in (("--model", "Qwen3-8B"), ("--model", "Qwen3.5-27B", "--block-size", "2048")):
        assert "because" not in type_command("size", "--gpu", "H200", *flags)[1].splitlines()[0]


@pytest.mark.parametrize(
    ("flags", "state", "words"),
    [
        (("--model", "Qwen3-8B"), "on", "no prefix under 16 tokens is found"),
        (("--model", "Qwen3-8B", "--no-enable-prefix-caching"), "off", "--enable-prefix-caching turns it on"),
        (("--model", "Qwen3.5-27B"), "off", "off by default with recurrent layers"),
        (("--model", "Qwen3.5-27B", "--enable-prefix-caching"), "on", "no prefix under 784 tokens is found"),
    ],
)
def test_whether_a_prefix_can_be_found(flags: tuple[str, ...], state: str, words: str, type_command: Run) -> None:
    output = type_command("size", "--gpu", "H200", *flags)[1]
    (line,) = [line for line in output.splitlines() if line.startswith(" prefix caching")]
    assert line.split()[2] == state
    assert words in line


def test_the_reading_of_doctor_says_what_starts(type_command: Run, tmp_path_factory: pytest.TempPathFactory) -> None:
    log = tmp_path_factory.mktemp("log") / "server.log"
    log.write_text(
        "Initializing a V1 LLM engine (v0.25.1) with config: model='Qwen/Qwen3-32B', max_seq_len=40960\n"
        "Available KV cache memory: -3.30 GiB\nValueError: No available memory for the cache blocks. Try\n",
        encoding="utf-8",
    )
    flags = ("doctor", str(log), "--gpu", "A100-80G", "--gpu-memory-utilization", "0.75")
    code, output, _ = type_command(*flags)
    assert code == 0
    assert starting(output)
    figures = json.loads(type_command(*flags, "--json")[1])["figures"]
    assert figures["available"]["log"] == pytest.approx(-3.3 * 2**30)


def test_the_longest_sequence_is_the_first_thing_said_where_it_was_asked_for(type_command: Run) -> None:
    flags = ("size", "--model", "Llama-3.1-8B", "--gpu", "A10G")
    output = type_command(*flags, "--max-model-len", "auto")[1]
    longest = int(output.split()[6].replace(",", ""))
    assert output.startswith(f"The longest sequence that fits has {longest:,} tokens; ")
    assert type_command(*flags, "--max-model-len", str(longest))[0] == 0
    assert type_command(*flags, "--max-model-len", str(longest + 16))[0] == 1


def test_a_policy_without_blocks_is_answered_in_slots(type_command: Run) -> None:
    flags = ("size", "--policy", "static", "--gpu", "H200", "--model", "Llama-3-8B")
    code, output, _ = type_command(*flags)
    assert code == 0
    found = re.match(r"(\d+) rows of 2,048 tokens fit at once, in ([\d,]+) slots\.", output)
    assert found
    num_rows, num_slots = int(found[1]), int(found[2].replace(",", ""))
    assert num_rows * 2048 <= num_slots < (num_rows + 1) * 2048
    assert " blocks" not in output.replace("whole blocks", "")
    code, output, complaint = type_command(*flags, "--max-model-len", "99999999")
    assert code == 1
    assert f"needs 99,999,999 slots of the KV cache, and there is room for {num_slots:,};" in complaint
    assert "blocks" not in complaint + output
    assert "vLLM" not in output
    code, output, _ = type_command(*flags, "--max-model-len", str(num_slots), "--json")
    assert code == 0
    sizes = json.loads(type_command("size", *flags[3:], "--json")[1])
    assert json.loads(output)["num_blocks"] == sizes["num_blocks"], "the memory is the same"
