"""A small paged recording made by hand, the shipped ones, and an environment that no picture depends on."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from textual.css.stylesheet import Stylesheet

from kvsim.metrics.slot_account import waste
from kvsim.policies import Contiguous, Paged, Static
from kvsim.policies.settings import ContinuousSettings, PagedSettings, StaticSettings
from kvsim.recording import Memory, MemoryKind, Recording, Requests, RequestStatus, Schedule, Steps, find, read
from kvsim.simulation import simulate
from kvsim.workload import Ragged, Workload
from kvsim_tui.app import KvsimApp
from kvsim_tui.playback import session
from kvsim_tui.playback.session import Session

from .idle import TICK_S, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from textual.css.model import RuleSet

    from kvsim.metrics.slot_account import Waste
    from kvsim.recording import Meta
    from kvsim.replay import Replay
    from kvsim.simulation import Machine

SHIPPED = {
    "paged": "vllm-h200-llama-3-8b-sharegpt-pressure",
    "large": "vllm-h200-granite-350m-gsm8k",
    "static": "hf-h200-granite-350m-batch500",
    "offload": "vllm-h200-llama-3-8b-offload",
}
FEW = 8
"""Recordings whose counts are kept."""


@pytest.fixture(autouse=True)
def _same_terminal_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLORTERM", "truecolor")


@pytest.fixture(autouse=True)
def _no_longer_than_there_is_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = waiting(set(threading.enumerate()))
    monkeypatch.setattr("textual.app.wait_for_idle", wait)
    monkeypatch.setattr("textual.pilot.wait_for_idle", wait)
    monkeypatch.setattr("textual.screen.UPDATE_PERIOD", TICK_S)


@pytest.fixture(scope="session", autouse=True)
def _style_sheets_are_read_once() -> Iterator[None]:
    """Rules are not changed by a program that is drawn with them; reading them is a tenth of what its start takes."""
    parse, known = Stylesheet._parse_rules, {}

    def parse_once(self: Stylesheet, *arguments: Any, **named: Any) -> list[RuleSet]:
        key = (frozenset(self._variables.items()), arguments, frozenset(named.items()))
        if key not in known:
            known[key] = parse(self, *arguments, **named)
        return known[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _slots_are_counted_once() -> Iterator[None]:
    """Count the slots of each recording once per process. This is half of the time to open one."""
    known: dict[tuple[int, ...], tuple[Recording, Waste]] = {}

    def count_once(replay: Replay) -> Waste:
        recording = replay.recording
        # A session has a copy of its recording, with texts that can be printed; all else is the same.
        tables = (recording.memory, recording.steps, recording.schedule, recording.requests.prompt_tokens)
        key = tuple(map(id, (recording.meta.pool, *tables)))
        if key not in known:
            if len(known) == FEW:
                del known[next(iter(known))]
            known[key] = recording, waste(replay)
        return known[key][1]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session, "waste", count_once)
        yield


@pytest.fixture(scope="session")
def shipped() -> Callable[[str], Recording]:
    """Recordings of real runs, read once: `paged` under pressure, a `large` pool, a `static` batch, an `offload`."""
    recordings: dict[str, Recording] = {}

    def open_once(name: str) -> Recording:
        if name not in recordings:
            recordings[name] = read(find(SHIPPED[name]))
        return recordings[name]

    return open_once


@pytest.fixture
def make_app(monkeypatch: pytest.MonkeyPatch) -> Callable[..., KvsimApp]:
    """An application whose clock stands still until a test moves it; in physical order, unless `by_owner` is left to
    the number of requests.
    """

    def make(
        recording: Recording,
        *,
        at_s: float | None = None,
        ascii: bool = False,  # noqa: A002
        by_owner: bool = False,
    ) -> KvsimApp:
        if not by_owner:
            monkeypatch.setattr("kvsim_tui.screens.watch.MAX_IN_PHYSICAL_ORDER", 1 << 30)
        return KvsimApp(Session(recording, at_s=at_s), clock=lambda: 0.0, ascii=ascii, flash_s=0)

    return make


@pytest.fixture(scope="session")
def tiny(make_meta: Callable[..., Meta]) -> Recording:
    """Two requests in a pool of 8 blocks of 4 slots, over 6 steps of a second.

    `first` reads 6 tokens and puts out 3; `second` reads 5, is preempted at step 2, and reads again at step 4; a third
    request is refused when it arrives before step 1.
    """
    num_steps = 6
    seq = np.arange(num_steps) * 10
    requests = Requests(
        request=np.arange(3, dtype=np.int32),
        id=np.array(["first", "second", "[bold]third"]),
        arrival_s=np.array([0.0, 0.0, 0.5]),
        arrival_seq=np.array([0, 0, 8]),
        prompt_tokens=np.array([6, 5, 90], np.int32),
        output_tokens=np.array([3, 2, 0], np.int32),
        max_tokens=np.array([3, 2, 9], np.int32),
        priority=np.zeros(3, np.int32),
        prompt_hashes=Ragged.empty(3, np.int64),
        first_scheduled_s=np.array([0.0, 1.0, np.nan]),
        first_token_s=np.array([1.0, 5.0, np.nan]),
        finished_s=np.array([3.0, 6.0, np.nan]),
        status=np.array([RequestStatus.FINISHED, RequestStatus.FINISHED, RequestStatus.REFUSED], np.uint8),
        preemptions=np.array([0, 1, 0], np.int32),
        cached_tokens=np.zeros(3, np.int32),
    )
    steps = Steps(
        step=np.arange(num_steps, dtype=np.int32),
        schedule_seq=seq,
        output_seq=seq + 5,
        start_s=np.arange(num_steps, dtype=float),
        end_s=np.arange(num_steps, dtype=float) + 1,
        prefill_tokens=np.array([6, 5, 0, 0, 5, 0], np.int32),
        decode_tokens=np.array([0, 1, 1, 0, 0, 1], np.int32),
        num_scheduled=np.array([1, 2, 1, 0, 1, 1], np.int32),
        running=np.array([1, 2, 1, 0, 1, 1], np.int32),
        waiting=np.array([1, 0, 1, 1, 0, 0], np.int32),
        preempted=np.array([0, 0, 1, 0, 0, 0], np.int32),
        free_units=np.array([6, 4, 6, 8, 6, 6], np.int32),
    )
    schedule = Schedule(
        step=np.array([0, 1, 1, 2, 4, 5], np.int32),
        request=np.array([0, 0, 1, 0, 1, 1], np.int32),
        computed_before=np.array([0, 6, 0, 7, 0, 5], np.int32),
        tokens=np.array([6, 1, 5, 1, 5, 1], np.int32),
    )
    append, release = MemoryKind.APPEND, MemoryKind.RELEASE
    rows = [  # seq, step, kind, request, position, address, length
        (0, 0, append, 0, 0, 1, 2),
        (10, 1, append, 1, 0, 3, 2),
        (20, 2, release, 1, 0, -1, 2),
        (25, 2, release, 0, 0, -1, 2),
        (40, 4, append, 1, 0, 7, 2),
        (55, 5, release, 1, 0, -1, 2),
    ]
    names = ("seq", "step", "kind", "request", "position", "address", "length")
    memory = Memory(**{name: np.array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)})
    return Recording(
        meta=make_meta(8, unit_tokens=4, first_unit=1),
        requests=requests,
        steps=steps,
        schedule=schedule,
        memory=memory,
        name="tiny",
    )


@pytest.fixture(scope="session")
def batch(tiny: Recording, make_meta: Callable[..., Meta]) -> Recording:
    """A static batch without addresses: rows of 3 and 5 prompt tokens that put out 1 and 3, in 3 steps of a second."""
    requests = replace(
        tiny.requests,
        **{
            name: getattr(tiny.requests, name)[:2]
            for name, spec in Requests.columns()
            if name != "prompt_hashes" and not spec.optional
        }
        | {
            "prompt_hashes": Ragged.empty(2, np.int64),
            "prompt_tokens": np.array([3, 5], np.int32),
            "output_tokens": np.array([1, 3], np.int32),
        },
    )
    steps = replace(
        tiny.steps,
        **{name: column[:3] for name, _ in Steps.columns() if (column := getattr(tiny.steps, name)) is not None},
    )
    schedule = Schedule(
        step=np.array([0, 0, 1, 1], np.int32),
        request=np.array([0, 1, 0, 1], np.int32),
        computed_before=np.array([0, 0, 5, 5], np.int32),
        tokens=np.array([5, 5, 1, 1], np.int32),
        repeat=np.array([1, 1, 2, 2], np.int32),
    )
    meta = make_meta(None, policy="static")
    return Recording(meta=meta, requests=requests, steps=steps, schedule=schedule, memory=Memory.empty(), name="batch")


@pytest.fixture(scope="session")
def three_runs(make_machine: Callable[[int], Machine]) -> list[Recording]:
    """Twelve requests under the three policies, in room for 640 tokens; one request fits nowhere and is refused."""
    workload = Workload(
        arrival_s=[0.0] * 10 + [0.1, 0.2],
        prompt_tokens=[40, 12, 30, 8, 60, 20, 16, 33, 9, 50, 24, 300],
        output_tokens=[30, 9, 80, 20, 12, 44, 60, 5, 25, 18, 33, 4],
        ids=[f"q{number}" for number in range(12)],
    )
    policies = (
        Paged(scheduler=ContinuousSettings(max_model_len=160), cache=PagedSettings(enable_prefix_caching=False)),
        Contiguous(scheduler=ContinuousSettings(max_model_len=160)),
        Static(scheduler=StaticSettings(batch_size=4, max_model_len=160)),
    )
    return [simulate(workload, policy, make_machine(640), refuse_misfits=True) for policy in policies]
