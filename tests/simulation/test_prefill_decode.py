"""Prefill and decode servers: both hold a prompt while it is read, and nothing is lost on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.conformance import verify_recording
from kvsim.errors import UsageError
from kvsim.policies import Contiguous, Paged
from kvsim.policies.connectors import KvLink
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import MemoryKind, Recording, RequestStatus, read
from kvsim.recording.tables import TransferKind
from kvsim.simulation import Disaggregation, Machine, measure_fleet, record_fleet, simulate_fleet
from kvsim.workload import Poisson, SharedPrefixes, Uniform, Workload, generate

POLICY = Paged(
    scheduler=ContinuousSettings(max_model_len=64, max_num_seqs=8, max_num_batched_tokens=40),
    cache=PagedSettings(block_size=4),
)
OLD = replace(POLICY, scheduler=replace(POLICY.scheduler, vllm="0.25.1"))
SLOW = KvLink(gb_per_s=1e-4, latency_s=0.002)


def requests(number: int = 40, rate_per_s: float = 200.0) -> Workload:
    return generate(
        number,
        arrivals=Poisson(rate_per_s=rate_per_s),
        prompt=Uniform(low=4, high=24),
        output=Uniform(low=2, high=24),
        prefixes=SharedPrefixes(num_groups=4, tokens=16),
        seed=3,
    )


@pytest.fixture
def machine(make_machine: Callable[[int], Machine]) -> Machine:
    return make_machine(160)


@cache
def serve(
    machine: Machine, prefill: int, decode: int, policy: Paged = POLICY, *, engine: Any = "interpreted", **more: Any
) -> tuple[list[Recording], Any]:
    apart = Disaggregation(num_prefill=prefill, num_decode=decode, **more)
    check = engine == "interpreted"
    return simulate_fleet(requests(), policy, machine, apart, check=check, engine=engine)


@pytest.mark.parametrize("policy", [POLICY, OLD], ids=["0.33.0", "0.25.1"])
@pytest.mark.parametrize("more", [{}, {"link": SLOW}, {"failed_share": 0.4, "recomputes": True}, {"failed_share": 0.4}])
def test_every_request_is_prefilled_once_and_answered_once(
    machine: Machine, policy: Paged, more: dict[str, Any]
) -> None:
    """With `check`, the account of each server and what is left on prefill servers is checked on the way."""
    recordings, fleet = serve(machine, 2, 2, policy, **more)
    prefilled = np.concatenate([each.requests.id for each in recordings[:2]])
    answered = np.concatenate([each.requests.id for each in recordings[2:]])
    assert sorted(prefilled) == sorted(answered) == sorted(requests().ids)
    assert all((each.requests.output_tokens == 1).all() for each in recordings[:2])
    status = np.concatenate([each.requests.status for each in recordings[2:]])
    if more.get("failed_share") and not more.get("recomputes"):
        assert 4 < (status == RequestStatus.ABORTED).sum() < 30
    else:
        assert (status == RequestStatus.FINISHED).all()
    assert fleet.fetched_blocks > 0


def test_a_prompt_is_held_on_both_sides_while_it_is_read(machine: Machine) -> None:
    """A slower link holds the blocks of prefill servers for longer, and answers come later by that."""
    held_s, first_s = [], []
    for link in (KvLink(), SLOW):
        [prefill, decode], fleet = serve(machine, 1, 1, link=link)
        memory, steps = prefill.memory, prefill.steps
        ends = memory.end_rows
        freed_s = steps.start_s[np.minimum(memory.step[ends], len(steps) - 1)]
        held_s.append(float(np.mean(freed_s - prefill.requests.finished_s[memory.request[ends]])))
        [clients] = fleet.clients
        first_s.append(float(np.nanmean(clients.first_token_s - clients.arrival_s)))
        order = {name: row for row, name in enumerate(prefill.requests.id)}
        rows = [order[name] for name in decode.requests.id]
        assert (decode.requests.arrival_s >= prefill.requests.finished_s[rows] - 1e-9).all()
        begun = decode.memory.kind == MemoryKind.APPEND
        first = np.full(len(rows), np.inf)
        np.minimum.at(first, decode.memory.request[begun], decode.steps.start_s[decode.memory.step[begun]])
        assert (first < decode.requests.first_token_s).all()
    assert held_s[1] > held_s[0] + SLOW.latency_s / 2
    assert first_s[1] > first_s[0] + SLOW.latency_s / 2


def test_what_is_loaded_is_not_computed_again(machine: Machine) -> None:
    [_, decode], _ = serve(machine, 1, 1)
    calm = decode.requests.preemptions == 0
    assert (decode.requests.cached_tokens[calm] == decode.requests.prompt_tokens[calm] - 1).all()
    [_, failing], _ = serve(machine, 1, 1, failed_share=1.0, recomputes=True)
    assert (failing.requests.cached_tokens % 4 == 0).mean() > 0.6  # others hit the block that is said to fail
    assert failing.schedule.tokens.sum() > decode.schedule.tokens.sum()
    assert failing.transfers is not None
    at_first = replace(failing.transfers, failed=np.minimum(failing.transfers.failed, 0))
    assert replace(failing, transfers=at_first).has_failed_loads


def test_more_transfers_at_a_time_share_the_link(machine: Machine) -> None:
    """One after the other or all at once: the link carries as many bytes a second."""
    one, several = (replace(SLOW, latency_s=0.0, num_transfers=number) for number in (1, 4))
    times = [serve(machine, 1, 1, link=link)[1].clients[0] for link in (one, several)]
    means = [float(np.nanmean(each.first_token_s - each.arrival_s)) for each in times]
    assert means[0] < means[1] < 2 * means[0]


@pytest.mark.slow
def test_both_engines_record_the_same(machine: Machine) -> None:
    pytest.importorskip("numba")
    for one, other in zip(
        *(serve(machine, 1, 2, engine=engine)[0] for engine in ("interpreted", "compiled")), strict=True
    ):
        for name in ("address", "seq", "kind", "request", "cached"):
            assert np.array_equal(getattr(one.memory, name), getattr(other.memory, name)), name
        assert np.array_equal(one.steps.end_s, other.steps.end_s)


def test_recordings_of_every_server_keep_to_the_format(machine: Machine, tmp_path: Path) -> None:
    apart = Disaggregation(num_prefill=1, num_decode=2, failed_share=0.3, recomputes=True)
    record_fleet(requests(), POLICY, machine, apart, tmp_path, engine="interpreted")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["decode-0", "decode-1", "prefill-0"]
    for folder in sorted(tmp_path.iterdir()):
        done = CliRunner().invoke(cli, ["info", "--check", str(folder)])
        assert done.exit_code == 0, done.output
        done = CliRunner().invoke(cli, ["verify", str(folder)])
        assert done.exit_code == 0, done.output
    assert read(tmp_path / "decode-0").meta.engine["kv_connector"] == "decode"
    (tmp_path / "decode-0" / "transfers.parquet").unlink()
    done = CliRunner().invoke(cli, ["verify", str(tmp_path / "decode-0")])
    assert done.exit_code == 1
    assert "has no transfers.parquet" in str(done.exception)


@pytest.mark.parametrize("policy", [POLICY, OLD], ids=["0.33.0", "0.25.1"])
def test_transfers_of_a_fleet_fit_together_and_are_followed(machine: Machine, policy: Paged) -> None:
    """What decode servers load is what prefill servers keep, and `verify` follows each server with them."""
    recordings, _ = serve(machine, 2, 2, policy, failed_share=0.3, link=SLOW)
    sent: list[tuple[str, int, int]] = []
    loaded: list[tuple[str, int, int]] = []
    for number, recording in enumerate(recordings):
        verdict = verify_recording(recording, compiled=False)
        assert verdict.equal, verdict
        transfers, names = recording.transfers, recording.requests.id
        assert transfers is not None
        is_prefill = number < 2
        assert (transfers.kind == (TransferKind.SEND if is_prefill else TransferKind.LOAD)).all()
        assert (transfers.ended_seq > transfers.begun_seq).all()
        for row in range(len(transfers)):
            servers = (number, int(transfers.server[row])) if is_prefill else (int(transfers.server[row]), number - 2)
            (sent if is_prefill else loaded).append((str(names[transfers.request[row]]), *servers))
            end_s = transfers.end_s[row]
            assert transfers.begin_s[row] < end_s
            step = int(np.searchsorted(recording.steps.output_seq, transfers.ended_seq[row]))
            assert end_s <= recording.steps.end_s[step]
    assert sorted(sent) == sorted(loaded)


@pytest.mark.parametrize(
    ("side", "column", "change"),
    [(0, "ended_seq", 9), (1, "ended_seq", 9), (1, "blocks", 1), (1, "position", 1), (0, "tokens", 1)],
)
def test_a_changed_transfer_is_a_difference(machine: Machine, side: int, column: str, change: int) -> None:
    recording = serve(machine, 1, 1, link=SLOW)[0][side]
    transfers = recording.transfers
    assert transfers is not None
    values = getattr(transfers, column).copy()
    row = len(values) // 2
    values[row] += change
    if column == "ended_seq":  # the next output
        values[row] = recording.steps.output_seq[recording.steps.output_seq > transfers.ended_seq[row]][0]
    changed = replace(recording, transfers=replace(transfers, **{column: values}))
    assert not verify_recording(changed, compiled=False).equal


def test_what_does_not_go_together_is_refused(machine: Machine) -> None:
    one = Disaggregation(num_prefill=1, num_decode=1)
    with pytest.raises(UsageError, match="with the paged policy"):
        measure_fleet(requests(), Contiguous(), machine, one)
    config = '{"method": "ngram", "num_speculative_tokens": 2}'
    drafting = replace(POLICY, scheduler=replace(POLICY.scheduler, speculative_config=config))
    with pytest.raises(UsageError, match="--speculative-config is not modelled"):
        measure_fleet(requests(), drafting, machine, one)
    between = replace(POLICY, scheduler=replace(POLICY.scheduler, vllm="0.30.0"))
    with pytest.raises(UsageError, match=r"KV connectors of vLLM 0\.25 and 0\.33"):
        measure_fleet(requests(), between, machine, one)
    with pytest.raises(UsageError, match="give --prefill and --decode"):
        Disaggregation(num_prefill=0, num_decode=1)
    with pytest.raises(UsageError, match="gb_per_s should be above 0, not 0"):
        KvLink(gb_per_s=0)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--prefill", "1"], "give --decode, too"),
        (["--kv-transfers", "2"], "give --prefill and --decode"),
        (["--prefill", "1", "--decode", "1", "--replicas", "2"], "leave out --replicas and --route-lag"),
        (["--prefill", "1", "--decode", "1", "--pipeline-parallel-size", "2"], "one stage holds all layers"),
        (["--data-parallel-size", "4611686018427387904"], "--data-parallel-size should be at most 1,000"),
    ],
)
def test_flags_that_miss_others_are_refused_in_a_sentence(flags: list[str], words: str) -> None:
    done = CliRunner().invoke(cli, ["run", *flags])
    assert done.exit_code != 0
    assert isinstance(done.exception, UsageError)
    assert words in str(done.exception)


def test_sessions_are_served_apart_and_each_prefill_server_finds_the_history(tmp_path: Path) -> None:
    flags = ["--prefill", "1", "--decode", "1", "--num-blocks", "400", "--route", "session", "-o", str(tmp_path / "f")]
    flags += ["--sessions", "5", "--turns", "3", "--pause", "0.1", "--arrivals", "poisson", "--rate", "30"]
    done = CliRunner().invoke(cli, ["run", *flags], catch_exceptions=False)
    assert done.output.startswith("1 prefill and 1 decode server finished 15 requests")
    assert "(30 requests" in CliRunner().invoke(cli, ["info", str(tmp_path / "f"), "--check"]).output
    prefill, decode = read(tmp_path / "f" / "prefill-0"), read(tmp_path / "f" / "decode-0")
    assert (prefill.requests.cached_tokens > 0).sum() > 5
    after = decode.requests.after
    assert after is not None
    assert (after >= 0).sum() == 10
    assert (decode.requests.arrival_s[after >= 0] > decode.requests.finished_s[after[after >= 0]]).all()


def test_the_command_line_sums_up_both_kinds() -> None:
    flags = ["--prefill", "1", "--decode", "2", "--num-blocks", "300", "--num-requests", "12", "--prompt-tokens", "200"]
    flags += ["--output-tokens", "20", "--json"]
    done = CliRunner().invoke(cli, ["run", *flags])
    assert done.exit_code == 0, done.output
    fleet = json.loads(done.stdout)["fleet"]
    assert (fleet["num_servers"], fleet["num_prefill"], fleet["num_finished"]) == (3, 1, 12)
    assert fleet["output_tokens"] == 12 * 20
    compared = CliRunner().invoke(cli, ["compare", *flags])
    assert compared.exit_code == 0, compared.output
    both = json.loads(compared.stdout)
    assert list(both) == ["3 servers", "1 prefill, 2 decode"]
    assert both["3 servers"]["fetched_bytes"] == 0 < both["1 prefill, 2 decode"]["fetched_bytes"]


APART = ("--prefill", "1", "--decode", "2", "--data-parallel-size", "2")


@pytest.mark.parametrize(
    "flags",
    [
        ("--prefill", "1", "--decode", "1"),
        (*APART, "--failed-loads", "0.3", "--kv-load-failure-policy", "recompute"),
        (*APART, "--failed-loads", "0.3", "--kv-load-failure-policy", "fail"),
        ("--replicas", "2", "--prefix-store-gib", "0.05"),
    ],
)
@pytest.mark.parametrize(("rate", "num_requests", "num_blocks"), [("0.5", "12", "400"), ("60", "40", "130")])
def test_a_run_says_of_each_server_what_its_recording_says(
    flags: tuple[str, ...], rate: str, num_requests: str, num_blocks: str, tmp_path: Path
) -> None:
    load = ("--arrivals", "poisson", "--rate", rate, "--num-requests", num_requests, "--prompt-tokens", "200:0.5",
            "--output-tokens", "20:0.5", "--shared-prefix", "2x64", "--seed", "4")  # fmt: skip
    pool = ("--num-blocks", num_blocks, "--max-model-len", "1024")
    done = CliRunner().invoke(cli, ["run", *load, *pool, *flags, "--json", "-o", str(tmp_path / "f")])
    assert done.exit_code == 0, done.exception
    folders = sorted((tmp_path / "f").iterdir(), key=lambda folder: ("decode" in folder.name, folder.name))
    for printed, folder in zip(json.loads(done.stdout)["servers"], folders, strict=True):
        done = CliRunner().invoke(cli, ["info", str(folder), "--json"])
        assert done.exit_code == 0, done.exception
        read_again = json.loads(done.stdout)
        assert printed["num_steps"] == read_again["num_steps"]
        if not printed["num_steps"]:  # no request came to this server
            continue
        pool, read_pool = printed["waste"]["pool_percent"], read_again["waste"]["pool_percent"]
        states = ("token", "padding", "cached", "free")
        if "fail" not in flags:  # a recording does not say how long the answers of failed requests would have been
            states += ("reserved", "internal")
        for state in states:
            assert pool[state] == pytest.approx(read_pool[state], rel=1e-9, abs=1e-9), state
        for name in ("mean_batch", "mean_occupancy", "mean_waiting", "num_preemptions"):
            assert printed[name] == pytest.approx(read_again[name], rel=1e-9, abs=1e-12), name
        assert CliRunner().invoke(cli, ["info", str(folder), "--check"]).exit_code == 0
