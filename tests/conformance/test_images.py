"""Images of prompts and the encoder cache: who decides, and what is refused. The golden pairs run with all others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.conformance import read_records, verify_oracle
from kvsim.conformance.oracle import OracleRun
from kvsim.conformance.oracle_files import parse_workload
from kvsim.errors import RecordingError, WorkloadError

IMAGES = sorted(Path(__file__).with_name("golden_features").glob("*/mm/*.json"))
ONE: dict[str, Any] = {
    "num_blocks": 16,
    "block_size": 4,
    "mm": {"compute": 8, "cache": 12},
    "requests": [
        {"id": "r0", "prompt_len": 20, "output_len": 4, "mm": [{"hash": "a", "offset": 2, "length": 8}]},
        {"id": "r1", "prompt_len": 20, "output_len": 4, "mm": [{"hash": "b", "offset": 6, "length": 8}]},
    ],
}


def differs(file: Path, document: dict[str, Any]) -> bool:
    """Tell whether a changed workload is decided otherwise than vLLM decided the golden one."""
    records = read_records(file.with_suffix(".jsonl.gz"))
    decided = (
        {name: value for name, value in record.items() if name not in ("enc", "encoder")} for _, record in records
    )
    return not verify_oracle(parse_workload(document, "workload"), enumerate(decided, 1)).equal


def test_the_budget_the_cache_and_the_keys_decide() -> None:
    """With more for the encoder, or with equal images, most workloads are decided otherwise."""
    num_roomy = num_alike = 0
    for file in IMAGES:
        document = json.loads(file.read_text())
        num_roomy += differs(file, document | {"mm": {"compute": 1000, "cache": 1000}})
        for request in document["requests"]:
            request.pop("mm", None)
        num_alike += differs(file, document)
    assert len(IMAGES) == 50
    assert num_roomy > 12
    assert num_alike > 20


@pytest.mark.parametrize("release", ["0.22.1", "0.25.1", "0.30.0", "0.33.0"])
def test_the_cache_holds_what_is_used_or_can_be_evicted(release: str) -> None:
    """At every moment the slots add up, and nothing is used by a request that has ended."""
    for file in IMAGES:
        if release not in file.parts and "groups" in file.stem:
            continue  # in another release, a workload with recurrent layers may wait for ever
        document = json.loads(file.read_text())
        if document.get("spec", {}).get("method", "eagle") not in ("eagle", "dflash"):
            continue
        if "spec" in document and release not in ("0.25.1", "0.33.0"):
            continue
        live: set[str] = set()
        for record in OracleRun(parse_workload(document, "workload").of_release(release)).records():
            if "enc" not in record:
                continue
            cache, live = record["enc"], set(record["computed"])
            assert 0 <= cache["free"] <= cache["freeable"] <= document["mm"]["cache"]
            assert all(set(users) <= live for users in cache["refs"].values())
            assert sorted(cache["order"]) == sorted(name for name, users in cache["refs"].items() if not users)


def test_a_chunk_ends_right_before_an_image_that_has_no_room() -> None:
    steps = [
        record
        for record in OracleRun(parse_workload(ONE, "workload").of_release("0.33.0")).records()
        if record["kind"] == "schedule"
    ]
    assert steps[0]["scheduled"] == [["r0", 20], ["r1", 6]]
    assert steps[0]["encoder"] == {"r0": [0]}
    assert next(step["encoder"] for step in steps[1:] if step["encoder"]) == {"r1": [0]}


@pytest.mark.parametrize(
    ("more", "release", "words"),
    [
        ({}, "0.19.1", r"kvsim knows the encoder cache of vLLM 0\.20\.0 to 0\.33\.0, not of 0\.19\.1"),
        ({"mm": {"compute": 4, "cache": 12}}, "0.33.0", "an image of 8 embeddings never fits: a step computes 4"),
    ],
)
def test_images_that_are_not_known_are_refused(more: dict[str, Any], release: str, words: str) -> None:
    with pytest.raises(RecordingError, match=words):
        parse_workload(ONE | more, "workload").of_release(release)


@pytest.mark.parametrize("settings", [{"compute": 8}, {"compute": 0, "cache": 8}, {"compute": True, "cache": 8}, [8]])
def test_settings_of_an_encoder_that_are_none_are_refused(settings: Any) -> None:
    with pytest.raises(WorkloadError, match="mm should"):
        parse_workload(ONE | {"mm": settings}, "workload")


@pytest.mark.parametrize("images", [[{"hash": "a"}], [{"hash": "a", "offset": "x", "length": 2}], [3], 3])
def test_images_that_are_none_are_refused(images: Any) -> None:
    with pytest.raises(WorkloadError, match="request 0: mm should be a list of images"):
        parse_workload(ONE | {"requests": [{"id": "r0", "prompt_len": 4, "output_len": 1, "mm": images}]}, "workload")
