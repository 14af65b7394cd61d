"""Find a small workload for each rule that releases decide in different ways, and keep it as kvsim's golden one.

python -m tests.conformance.rule_workloads

Of each rule there is the newest value, and others that it had: a workload is kept on which the two decide differently.
"""

from __future__ import annotations

import json
import sys
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import kvsim.conformance
from kvsim.conformance.answered_workload import AnsweredWorkload, compare
from kvsim.conformance.conformity import GROUPS, generated
from kvsim.conformance.oracle import OracleRun
from kvsim.conformance.oracle_files import parse_workload
from kvsim.conformance.variants import Variant, variants_of
from kvsim.errors import KvsimError
from kvsim.policies.releases import NEWEST

from .shrink import shrink

GOLDEN = Path(kvsim.conformance.__file__).with_name("golden.json")
_MOST_RECORDS = 100
_MOST_SMALLER = 120
_TRIED = 1_500


def told(document: dict[str, Any], release: str = NEWEST) -> AnsweredWorkload:
    """What kvsim itself decides by the rules of a release; nothing of a workload whose requests wait for ever."""
    run = OracleRun(parse_workload(document, "golden").of_release(release))
    records = list(islice(run.records(), _MOST_RECORDS))
    return AnsweredWorkload(name="golden", document=document, records=records if len(records) < _MOST_RECORDS else [])


@lru_cache(maxsize=1)
def _told(document: str) -> AnsweredWorkload:
    try:
        return told(json.loads(document))
    except KvsimError:
        return AnsweredWorkload(name="refused", document={}, records=[])


def shows(document: dict[str, Any], variant: Variant) -> bool:
    """Whether the variant of a rule decides otherwise."""
    newest = _told(json.dumps(document))
    return bool(newest.records) and not compare(newest, NEWEST, (variant,), decisions_only=True).equal


def main() -> None:
    missing = variants_of(NEWEST)
    golden = {}
    for number in range(_TRIED):
        document = generated(f"{GROUPS[number % 2]}-rules-{number}")[1]
        for variant in [each for each in missing if shows(document, each)]:
            missing.remove(variant)
            golden[name_of(variant)] = shrink(document, _Patient(variant))
            sys.stdout.write(f"{name_of(variant)}, from workload {number}\n")
            sys.stdout.flush()
            lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(golden[name])}" for name in sorted(golden))
            GOLDEN.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    sys.stdout.write(f"nothing shows {', '.join(map(name_of, missing))}\n")


def name_of(variant: Variant) -> str:
    return f"golden-{variant.name}-{getattr(variant.value, 'name', variant.value)}".lower()


class _Patient:
    """Whether a smaller workload still shows a variant; after many that were tried, none does."""

    def __init__(self, variant: Variant) -> None:
        self._variant, self._left = variant, _MOST_SMALLER

    def __call__(self, document: dict[str, Any]) -> bool:
        self._left -= 1
        return self._left > 0 and shows(document, self._variant)


if __name__ == "__main__":
    main()
