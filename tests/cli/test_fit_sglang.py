"""`kvsim fit --policy radix` through the entry point."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.fitting.test_sglang import share_of

Run = Callable[..., tuple[int, str, str]]
FEW = ("--model", "Llama-3-8B", "--gpu", "H100", "--users", "6", "--num-requests", "24", "--prompt-tokens", "60",
       "--output-tokens", "30", "--max-model-len", "512", "--engine", "interpreted", "--jobs", "1")  # fmt: skip


def test_the_answer_on_the_command_line_has_the_form_of_vllms(type_command: Run) -> None:
    radix = ("fit", *FEW, "--policy", "radix", "--mem-fraction-static", f"{share_of(450):.6f}", "--points", "4")
    code, said, complaint = type_command(*radix)
    assert (code, complaint) == (0, "")
    lines = said.splitlines()
    assert lines[0].startswith("No: ")
    assert " of 6 users fit; " in lines[0]
    assert lines[1].startswith("Limit: memory: weights take 15.0 of ")
    assert any(line.startswith("1  python -m sglang.launch_server --model-path meta-llama/") for line in lines)
    assert " slots" in next(line for line in lines if line.startswith(" KV cache"))
    assert "the pace of SGLang's host" in said
    theirs, ours = (
        json.loads(type_command("fit", *FEW, "--policy", policy, "--points", "2", "--json")[1])
        for policy in ("radix", "paged")
    )
    assert [*theirs] == [*ours]
    assert [*theirs["outcome"]] == [*ours["outcome"]]
    assert theirs["command"].startswith("python -m sglang.launch_server ")


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--num-blocks", "60"), "--num-blocks is not searched by kvsim fit; give --mem-fraction-static."),
        (("--gpu-memory-utilization", "0.9"), "--gpu-memory-utilization is not searched by kvsim fit; give --mem-fr"),
        (("--max-num-seqs", "4"), "--max-num-seqs has no effect with --policy radix"),
        (("--prefill", "1", "--decode", "1"), "prefill and decode servers of SGLang are not modelled"),
        (("--data-parallel-size", "2"), "--data-parallel-size is not searched by kvsim fit; give --replicas."),
        (("--speculative-config", "{}"), "--speculative-config has no effect with --policy radix"),
        (("--profile", "nonsense"), "there is no profile 'nonsense'"),
        (("--page-size", "3"), "no multiple of --page-size 3"),
        (("--max-model-len", "99999"), "does not serve meta-llama/Meta-Llama-3-8B with --context-length 99999"),
        (("--model", "Qwen3-Next-80B-A3B-Instruct"), "keeps recurrent states, which kvsim does not follow in SGLang"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(type_command: Run, flags: tuple[str, ...], sentence: str) -> None:
    code, said, complaint = type_command("fit", "--policy", "radix", *FEW, *flags)
    assert (code, said) == (2, "")
    assert sentence in complaint
