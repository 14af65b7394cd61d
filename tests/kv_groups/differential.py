"""Compares kvsim's groups and block counts with vLLM's own, on machines drawn at random.

python tests/kv_groups/differential.py PYTHON [COUNT [FIRST]]

PYTHON is an interpreter that can import vLLM 0.25.1; no GPU is needed. Says the first differences, and the count. With
KEEP=1 in the environment, vLLM's answers are kept as those that `test_differential.py` compares with.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cases import answer, differs, draw, draw_hybrid, hybrid_differs, hybrid_question, question

GOLDEN = Path(__file__).with_name("vllm-answers.jsonl.gz")


def answers_of_vllm(python: str, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What vLLM makes of every case."""
    script = Path(__file__).with_name("vllm_answers.py")
    lines = "\n".join(map(json.dumps, asked))
    result = subprocess.run([python, str(script)], input=lines, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(result.stderr[-2000:])
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]  # vLLM logs there, too


def main(python: str, count: int = 1000, first: int = 0) -> int:
    """Compare the cases of `count` seeds from `first` on; the exit code."""
    drawn = {seed: draw(seed) for seed in range(first, first + count)}
    asked = {seed: asks for seed, case in drawn.items() if (asks := question(*case)) is not None}
    hybrids = {seed: draw_hybrid(seed) for seed in range(first, first + count // 3)}
    answers = answers_of_vllm(python, [*asked.values(), *(hybrid_question(*case) for case in hybrids.values())])
    theirs = dict(zip(asked, answers, strict=False))
    blocks = dict(zip(hybrids, answers[len(asked) :], strict=True))
    outcomes, wrong = Counter[str](), 0
    for seed, made in theirs.items():
        outcomes["refused" if "error" in made else f"{len(made['groups'])} groups"] += 1
        case = drawn[seed]
        if difference := differs(answer(*case), made, several_stages=case[0].pipeline_parallel_size > 1):
            wrong += 1
            sys.stdout.write(f"seed {seed}: {difference[:400]}\n" if wrong <= 10 else "")
    for seed, made in blocks.items():
        if difference := hybrid_differs(*hybrids[seed], made):
            wrong += 1
            sys.stdout.write(f"hybrid of seed {seed}: {difference}\n")
    sys.stdout.write(
        f"{len(asked)} cases and {len(hybrids)} hybrids, {wrong} differ; {dict(sorted(outcomes.items()))}\n"
    )
    if os.environ.get("KEEP"):
        kept = [{"seed": seed, "answer": made} for seed, made in theirs.items()]
        kept += [{"hybrid": seed, "answer": made} for seed, made in blocks.items()]
        rows = "".join(json.dumps(row) + "\n" for row in kept)
        GOLDEN.write_bytes(gzip.compress(rows.encode(), mtime=0))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
