"""Compare kvsim with vLLM's own scheduler on generated workloads; a difference is made small and kept as a golden pair.

python tests/vllm_engine/install.py
python -m tests.conformance.fuzz --workloads 5000 --seed 1 [--kind staged]
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from kvsim.conformance import Verdict, parse_workload, verify_oracle
from kvsim.conformance.driven import EngineFailedError
from kvsim.errors import WorkloadError

from ..vllm_engine.install import MAIN, missing
from ..vllm_engine.process import EngineProcess
from ..vllm_engine.recordings import KINDS
from .shrink import shrink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.conformance.generated import Document

GOLDEN = Path(__file__).with_name("golden")
GOLDEN_GROUPS = Path(__file__).with_name("golden_groups")


def _say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def compare(engine: EngineProcess, document: dict[str, Any]) -> tuple[Verdict, str]:
    """Compare one workload; the second value says why vLLM did not reach its end, if so."""
    failure = ""

    def records() -> Iterator[tuple[int, dict[str, Any]]]:
        nonlocal failure
        try:
            for line, record in engine.records(document):
                if record.get("deadlock"):  # requests that wait for ever: the engine gave up
                    failure = "no progress"
                elif not failure:
                    yield line, record
        except EngineFailedError as error:
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


def keep(engine: EngineProcess, document: dict[str, Any], name: str) -> Path:
    """Shrink a workload that shows a difference and store it, with what vLLM does, as a golden pair."""
    smallest = shrink(document, lambda candidate: not compare(engine, candidate)[0].equal)
    file = (GOLDEN_GROUPS if "groups" in document else GOLDEN) / f"{name}.json"
    file.write_text(json.dumps(smallest) + "\n", encoding="utf-8")
    with gzip.open(file.with_suffix(".jsonl.gz"), "wt", encoding="utf-8") as stream:
        stream.writelines(json.dumps(record) + "\n" for _, record in engine.records(smallest))
    return file


def fuzz(
    engine: EngineProcess, *, num_workloads: int, seed: int, generate: Callable[[Random], Document]
) -> Counter[str]:
    """Compare `num_workloads` workloads and return what they amounted to."""
    counts: Counter[str] = Counter()
    for number in range(num_workloads):
        document = generate(Random(f"{seed}/{number}/{generate.__name__}"))
        verdict, failure = compare(engine, document)
        counts["workloads"] += 1
        counts["requests"] += len(document["requests"])
        counts.update({f"with {kind}": 1 for kind in _kinds(document)})
        for name in ("steps", "allocations", "preemptions", "hits", "evictions", "aborts"):
            counts[name] += getattr(verdict, f"num_{name}")
        if failure:
            counts["waited for ever" if "no progress" in failure else f"vLLM failed: {failure[:90]}"] += 1
        if not verdict.equal:
            counts["differences"] += 1
            _say(f"workload {number}: {verdict}\n  kept as {keep(engine, document, f'fuzz-{seed}-{number}')}")
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
    parser.add_argument("--release", default=MAIN)
    parser.add_argument("--kind", choices=KINDS, default="small")
    options = parser.parse_args()
    if reason := missing(options.release):
        parser.error(reason)
    with tempfile.TemporaryDirectory() as folder, EngineProcess(options.release, Path(folder, "log")) as engine:
        counts = fuzz(engine, num_workloads=options.workloads, seed=options.seed, generate=KINDS[options.kind])
    _say(json.dumps(counts, indent=2))


if __name__ == "__main__":
    main()
