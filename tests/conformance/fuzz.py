"""Compare kvsim with the oracle on generated workloads; a difference is made small and kept beside the golden ones.

python -m tests.conformance.fuzz --workloads 5000 --seed 1 --oracle DIR --script vllm_oracle.py [--kind staged]
python -m tests.conformance.fuzz --workloads 3000 --seed 1 --oracle DIR --script vllm_oracle_groups.py --kind grouped
python -m tests.conformance.fuzz --workloads 5000 --seed 1 --oracle DIR --script vllm_oracle_offload.py --kind offloaded
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from kvsim.conformance import Verdict, parse_workload, verify_oracle
from kvsim.errors import WorkloadError

from .group_workloads import Document, grouped, staged_groups
from .oracle import Oracle, OracleFailedError
from .shrink import shrink
from .workloads import offloaded, realistic, small, staged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDEN = Path(__file__).with_name("golden")
GOLDEN_GROUPS = Path(__file__).with_name("golden_groups")
KINDS = {
    "small": small,
    "realistic": realistic,
    "grouped": grouped,
    "offloaded": offloaded,
    "staged": staged,
    "staged-groups": staged_groups,
}


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def compare(oracle: Oracle, document: dict[str, Any]) -> tuple[Verdict, str]:
    """Compare one workload; the second value says why the oracle did not reach its end, if so."""
    failure = ""

    def records() -> Iterator[tuple[int, dict[str, Any]]]:
        nonlocal failure
        try:
            for line, record in oracle.records(document):
                if record.get("deadlock"):  # requests that wait for ever: the oracle gave up
                    failure = "no progress"
                elif not failure:
                    yield line, record
        except OracleFailedError as error:
            failure = str(error)

    numbered = records()
    try:
        workload = parse_workload(document, "generated")
    except WorkloadError as error:
        if sum(1 for _ in numbered):
            raise AssertionError(f"vLLM serves what kvsim refuses: {json.dumps(document)}") from error
        return Verdict(
            num_steps=0, num_allocations=0, num_preemptions=0, num_hits=0, num_evictions=0, num_aborts=0
        ), failure
    verdict = verify_oracle(workload, numbered)
    for _ in numbered:  # what comes after a difference must be read, or the next answer would begin with it
        pass
    return verdict, failure


def keep(oracle: Oracle, document: dict[str, Any], name: str) -> Path:
    """Shrink a workload that shows a difference and store it, with what the oracle says, as a golden pair."""
    smallest = shrink(document, lambda candidate: not compare(oracle, candidate)[0].equal)
    file = (GOLDEN_GROUPS if "groups" in document else GOLDEN) / f"{name}.json"
    file.write_text(json.dumps(smallest) + "\n", encoding="utf-8")
    with gzip.open(file.with_suffix(".jsonl.gz"), "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for _, record in oracle.records(smallest))
    return file


def fuzz(oracle: Oracle, *, num_workloads: int, seed: int, generate: Callable[[Random], Document]) -> Counter[str]:
    """Compare `num_workloads` workloads and return what they amounted to."""
    counts: Counter[str] = Counter()
    for number in range(num_workloads):
        document = generate(Random(f"{seed}/{number}/{generate.__name__}"))
        verdict, failure = compare(oracle, document)
        counts["workloads"] += 1
        counts["requests"] += len(document["requests"])
        counts.update({f"with {kind}": 1 for kind in _kinds(document)})
        for name in ("steps", "allocations", "preemptions", "hits", "evictions", "aborts"):
            counts[name] += getattr(verdict, f"num_{name}")
        if failure:
            counts["waited for ever" if "no progress" in failure else f"refused by the oracle: {failure[:90]}"] += 1
        if not verdict.equal:
            counts["differences"] += 1
            _say(f"workload {number}: {verdict}\n  kept as {keep(oracle, document, f'fuzz-{seed}-{number}')}")
        if number % 100 == 99:
            _say(dict(counts))
    return counts


def _kinds(document: Document) -> set[str]:
    """The kinds of layers of a workload, if it lists any."""
    mode = document.get("mamba_cache_mode", "")
    return {f"{each['type']} {mode if each['type'] == 'mamba' else ''}".strip() for each in document.get("groups", ())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS, default="small")
    parser.add_argument(
        "--oracle", type=Path, default=os.environ.get("KVSIM_ORACLE"), help="folder with src and venv in it"
    )
    parser.add_argument("--script", type=Path, default=os.environ.get("KVSIM_ORACLE_SCRIPT"), help="vllm_oracle.py")
    options = parser.parse_args()
    if options.oracle is None or options.script is None:
        parser.error("the oracle is needed: give --oracle and --script, or set KVSIM_ORACLE and KVSIM_ORACLE_SCRIPT")
    with Oracle(options.oracle, options.script) as oracle:
        counts = fuzz(oracle, num_workloads=options.workloads, seed=options.seed, generate=KINDS[options.kind])
    _say(json.dumps(counts, indent=2))


if __name__ == "__main__":
    main()
