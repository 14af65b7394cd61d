"""Workloads with features of vLLM's scheduler, decided as vLLM decided them: every field of every record.

Each folder is of a release and of a feature: adapters (`lora`), images (`mm`), options of the scheduler, speculative
decoding (`spec`), KV connectors (`kv`), a prefill beside a decode server (`pd`), the choice of data-parallel ranks
(`dp`), and groups with the two caches of sparse attention, with draft layers and with decode context parallelism.
"""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from kvsim.conformance import read_records, verify_answer, verify_oracle
from kvsim.conformance.oracle import OracleRun, difference_of
from kvsim.conformance.oracle_files import parse_workload, read_pair_records
from kvsim.conformance.oracle_pd import verify_pair
from kvsim.errors import RecordingError, UsageError, WorkloadError

from .modes import both_engines

FOLDER = Path(__file__).with_name("golden_features")
WORKLOADS = sorted(FOLDER.glob("*/*/*.json"))
LORA = sorted(FOLDER.glob("*/lora/*.json"))
KV = sorted(FOLDER.glob("*/kv/*.json"))
PD = sorted(FOLDER.glob("*/pd/*.json"))
SPEC = sorted(FOLDER.glob("*/spec/*.json"))
PLAIN: dict[str, Any] = {"num_blocks": 8, "requests": [{"id": "r0", "prompt_len": 4, "output_len": 2}]}


@pytest.mark.parametrize(("workload", "compiled"), both_engines(WORKLOADS))
def test_every_decision_is_the_one_that_vllm_made(workload: Path, compiled: bool) -> None:
    verdict = verify_answer(workload, workload.with_suffix(".jsonl.gz"), compiled=compiled)
    assert verdict.equal, verdict
    assert verdict.num_steps > 0


def test_the_workloads_cover_what_they_are_kept_for() -> None:
    assert {file.parts[-2] for file in WORKLOADS} == {"lora", "options", "groups", "spec", "kv", "pd", "dp", "mm"}
    documents = [json.loads(file.read_text()) for file in WORKLOADS]
    settings = {name for document in documents for name in document}
    assert settings >= {"max_num_active_seqs", "long_prefill_token_threshold_adaptive", "prefill_schedule_interval"}
    kinds = {group["type"] for document in documents for group in document.get("groups", ())}
    assert kinds >= {"mla", "indexer"}
    assert {document.get("dcp") for document in documents} >= {2}
    drafts = [document["spec"] for document in documents if "spec" in document]
    methods = {"eagle", "eagle3", "mtp", "mtp_multi", "dflash", "draft_model", "ngram", "ngram_gpu"}
    assert {each["method"] for each in drafts} >= methods
    assert {"per_batch", "disable_block_drop", "disable_lookahead_hashes"} <= {name for each in drafts for name in each}
    assert {document["async_scheduling"] for document in documents if "spec" in document} == {False, True}


def test_drafts_decide_in_every_workload_that_has_them() -> None:
    """With drafts that are never right, or with one fewer, workloads are decided otherwise."""
    num_different = [0, 0]
    for file in SPEC:
        for index in range(2):
            document = json.loads(file.read_text())
            if index == 0:
                for request in document["requests"]:
                    request["accept"] = [0]
            else:
                document["spec"]["k"] += 1
            records = read_records(file.with_suffix(".jsonl.gz"))
            num_different[index] += not verify_oracle(parse_workload(document, "workload"), records).equal
    assert len(SPEC) == 48
    assert num_different[0] > 30
    assert num_different[1] > 44


def test_adapters_decide_in_most_workloads_that_have_them() -> None:
    """Without adapters and salts, the same workloads are decided otherwise: by slots, or by keys."""
    num_different = 0
    for file in LORA:
        document = json.loads(file.read_text())
        for request in document["requests"]:
            request.pop("lora", None)
            request.pop("salt", None)
        records = []
        for line, record in read_records(file.with_suffix(".jsonl.gz")):
            record.pop("adapters", None)
            records.append((line, record))
        num_different += not verify_oracle(parse_workload(document, "workload"), records).equal
    assert len(LORA) == 26
    assert num_different > 18


@pytest.mark.parametrize(("release", "num_left"), [("0.25.1", 1), ("0.33.0", 0)])
def test_a_request_that_ends_while_it_waits_for_its_adapter_is_counted(release: str, num_left: int) -> None:
    """vLLM 0.25.1 ends with "Invalid request status: FINISHED_LENGTH_CAPPED" in this workload."""
    file = FOLDER.with_name("golden_ends") / "adapter-left-skipped-0.25.1.json"
    run = OracleRun(parse_workload(json.loads(file.read_text()), "workload").of_release(release))
    assert list(run.records())
    assert run._driver.engine.state.num_left_skipped == num_left


def _without(file: Path, *names: str) -> dict[str, Any]:
    """A workload whose requests lack some fields."""
    document: dict[str, Any] = json.loads(file.read_text())
    for request in document["requests"]:
        for name in names:
            request.pop(name, None)
    return document


def test_connectors_decide_in_every_workload_that_has_them() -> None:
    """With transfers that take a step more, or none that fails, workloads are decided otherwise."""
    num_slower = num_sound = num_bad = 0
    for file in KV:
        document = json.loads(file.read_text())
        for request in document["requests"]:
            for name in ("load", "send"):
                if name in request:
                    request[name] += 1
            request["match"] = max(request.get("match", 0) - document["block_size"], 0)
        records = list(read_records(file.with_suffix(".jsonl.gz")))
        num_slower += not verify_oracle(parse_workload(document, "workload"), records).equal
        if any("bad" in request for request in json.loads(file.read_text())["requests"]):
            num_bad += 1
            num_sound += not verify_oracle(parse_workload(_without(file, "bad"), "workload"), records).equal
    assert len(KV) == 56
    assert num_slower > 48
    assert num_bad == 19
    assert num_sound > 16  # one names a block that is not loaded


def test_only_failed_requests_may_finish_in_another_order() -> None:
    """vLLM walks a set of failed requests, in an order that differs from run to run."""

    def finished(*ends: list[str]) -> dict[str, Any]:
        return {"kind": "update", "i": 1, "finished": list(ends)}

    first, *failed = ["r1", "length"], ["r96", "error"], ["r107", "error"]
    assert difference_of(1, finished(first, *failed), finished(first, *failed[::-1])) is None
    assert difference_of(1, finished(first, failed[0]), finished(first, failed[1])) is not None
    assert difference_of(1, finished(first, ["r2", "stop"]), finished(["r2", "stop"], first)) is not None


@pytest.mark.parametrize("field", ["router", "load", "lease"])
def test_a_pair_of_servers_follows_what_it_is_told_of_transfers(field: str) -> None:
    num_different = 0
    for file in PD:
        document = json.loads(file.read_text())
        document[field] = 3 if field == "lease" else document.get(field, 0) + 1
        for request in document["requests"]:
            request.pop("load", None)
        records = read_pair_records(file.with_suffix(".jsonl.gz"))
        num_different += not verify_pair(document, "workload", records).equal
    assert len(PD) == 30
    assert num_different > 24


@pytest.mark.parametrize(
    ("kv", "words"),
    [
        ({"connector": "lmcache"}, "one of store, nixl"),
        ({"connector": "store", "policy": "retry"}, "one of fail, recompute, not 'retry'"),
        ({"connector": "store", "role": "kv_reader"}, "'kv_reader' is not a valid Role"),
        ({"connector": "nixl", "extra": {"bidirectional_kv_xfer": True}}, "leave out kv.extra"),
    ],
)
def test_connectors_that_are_not_known_are_refused(kv: dict[str, Any], words: str) -> None:
    with pytest.raises(WorkloadError, match=words):
        parse_workload(PLAIN | {"kv": kv}, "workload.json")


def test_drafts_in_a_pipeline_are_refused() -> None:
    document = PLAIN | {"spec": {"method": "eagle", "k": 2}, "pipeline_parallel_size": 2}
    with pytest.raises(UsageError, match="speculative decoding is modelled where one stage holds all layers"):
        OracleRun(parse_workload(document, "workload.json").of_release("0.33.0"))


def test_loads_in_deep_pipelines_are_refused_where_requests_with_steps_in_flight_are_preempted() -> None:
    """In vLLM 0.25 such a request may be admitted again before its earlier blocks are free."""
    document = PLAIN | {"kv": {"connector": "store"}, "pipeline_parallel_size": 2}
    for release, ahead, refused in (("0.25.1", True, True), ("0.25.1", False, False), ("0.33.0", True, False)):
        workload = parse_workload(document | {"async_scheduling": ahead}, "workload.json").of_release(release)
        with pytest.raises(UsageError, match="has 3 steps in flight") if refused else nullcontext():
            assert OracleRun(workload).has_work() is False


def test_connectors_of_other_releases_and_models_are_refused() -> None:
    document = PLAIN | {"kv": {"connector": "store"}}
    with pytest.raises(RecordingError, match=r"kvsim knows KV connectors of vLLM 0\.25 and 0\.33, not of 0\.30\.0"):
        parse_workload(document, "workload.json").of_release("0.30.0")
    groups = [{"type": "sliding_window", "window": 8}, {"type": "full"}]
    with pytest.raises(RecordingError, match="this one has 2 KV-cache groups"):
        parse_workload(document | {"groups": groups}, "workload.json").of_release("0.33.0")


@pytest.mark.parametrize("folder", ["pd", "dp"])
def test_a_damaged_answer_of_two_engines_or_of_a_front_end_is_refused(folder: str, tmp_path: Path) -> None:
    workload = sorted(FOLDER.glob(f"0.33.0/{folder}/*.json"))[0]
    for name, text in (("cut", '{"kind"'), ("other", '{"kind": "meta"}\n'), ("list", "[]\n"), ("empty", "")):
        answer = tmp_path / f"{name}.jsonl"
        answer.write_text(text)
        if folder == "dp" and not text:
            continue  # no request was sent
        with pytest.raises(RecordingError, match=str(answer)):
            verify_answer(workload, answer)


@pytest.mark.parametrize(
    ("more", "feature"),
    [
        ({"pcp": 2}, "prefill context parallelism (pcp)"),
    ],
)
def test_what_is_not_followed_is_refused_by_its_name(more: dict[str, Any], feature: str) -> None:
    with pytest.raises(WorkloadError) as refused:
        parse_workload(PLAIN | more, "workload.json")
    assert str(refused.value) == f"workload.json: kvsim does not follow {feature}."


@pytest.mark.parametrize(
    ("drafting", "release", "words"),
    [
        ({"method": "eagle", "k": 2}, "0.30.0", "knows speculative decoding of vLLM 0.25 and 0.33, not of 0.30.0"),
        ({"method": "medusa", "k": 2}, "0.33.0", "kvsim does not follow drafts of the method 'medusa'"),
        ({"method": "ngram", "k": 0}, "0.33.0", "num_speculative_tokens should be at least 1 and at most 256, not 0"),
    ],
)
def test_drafts_that_are_not_known_are_refused(drafting: dict[str, Any], release: str, words: str) -> None:
    with pytest.raises((RecordingError, WorkloadError), match=words):
        parse_workload(PLAIN | {"spec": drafting}, "workload.json").of_release(release)


@pytest.mark.parametrize(
    ("kind", "word"),
    [({"type": "mamba", "num_layers": 1}, "recurrent"), ({"type": "chunked_local", "window": 16}, "chunked")],
)
def test_a_last_hit_that_is_computed_again_is_followed_with_windows_alone(kind: dict[str, Any], word: str) -> None:
    plain_keys = {"method": "eagle", "k": 2, "disable_lookahead_hashes": True}
    windows = [{"type": "sliding_window", "window": each} for each in (8, 12)]
    document = PLAIN | {"spec": plain_keys, "groups": [*windows, {"type": "full"}]}
    for release in ("0.25.1", "0.33.0"):
        assert parse_workload(document, "workload.json").of_release(release).drafting
    words = f"computes the last block of a hit again where a model has {word} layers"
    refused = parse_workload(document | {"groups": [kind, {"type": "full"}]}, "workload.json")
    with pytest.raises(RecordingError, match=words):
        refused.of_release("0.33.0")


def test_windows_are_not_served_in_decode_context_parallelism() -> None:
    groups = [{"type": "sliding_window", "window": 8}, {"type": "full"}]
    with pytest.raises(WorkloadError, match="decode context parallelism is followed where layers keep all tokens"):
        parse_workload(PLAIN | {"dcp": 2, "groups": groups}, "workload.json")


@pytest.mark.parametrize(
    ("name", "value", "since"),
    [
        ("max_num_active_seqs", 2, "0.31.0"),
        ("long_prefill_token_threshold_adaptive", True, "0.31.0"),
        ("prefill_schedule_interval", 4, "0.33.0"),
    ],
)
def test_an_option_is_refused_where_the_release_has_none(name: str, value: Any, since: str) -> None:
    workload = parse_workload(PLAIN | {"long_prefill_token_threshold": 4, name: value}, "workload.json")
    assert workload.of_release("0.33.0").scheduler.vllm == "0.33.0"
    with pytest.raises(RecordingError, match=rf"vLLM 0\.25\.1 has no {name}: {since} is the first that has it"):
        workload.of_release("0.25.1")


@pytest.mark.parametrize(("release", "ends"), [("0.25.1", True), ("0.32.0", True), ("0.33.0", False)])
def test_it_is_counted_where_a_hidden_adapter_ends_vllm(release: str, ends: bool) -> None:
    """The third request waits for room for its image, and the fourth takes the slot of its adapter meanwhile.

    So it is in the engines of these releases: all but the last end with an AssertionError.
    """
    requests = [
        {"id": "r0", "prompt_len": 9, "output_len": 2, "mm": [{"hash": "a", "offset": 0, "length": 8}]},
        {"id": "r1", "prompt_len": 9, "output_len": 2, "mm": [{"hash": "b", "offset": 0, "length": 8}]},
        {"id": "r2", "prompt_len": 12, "output_len": 2, "mm": [{"hash": "c", "offset": 3, "length": 8}], "lora": 1},
        {"id": "r3", "prompt_len": 20, "output_len": 2, "lora": 2, "arrival_step": 4},
    ]
    document = {"num_blocks": 64, "block_size": 4, "max_num_seqs": 4, "max_model_len": 60, "requests": requests}
    document |= {"long_prefill_token_threshold": 1, "async_scheduling": False, "mm": {"compute": 24, "cache": 16}}
    run = OracleRun(parse_workload(document | {"lora": {"max_loras": 1}}, "workload").of_release(release))
    assert sum(1 for _ in run.records()) > 20
    assert (run._driver.engine.state.num_adapter_failures > 0) == ends
