"""Sources of requests and servers, composed: each request is answered once, whichever server it goes to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.calibration.prior import vllm_prior
from kvsim.engine.arrays import column
from kvsim.engine.driver import Driver
from kvsim.engine.initialization import EnginePlan
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import Paged
from kvsim.policies.releases import DEFAULT_RELEASE
from kvsim.policies.routers import ROUTE_NAMES, RoutedRequest, RoutedServer, Router, router_of
from kvsim.policies.settings import ContinuousSettings
from kvsim.simulation.dispatch import Dispatcher
from kvsim.simulation.server import ServerProcess
from kvsim.simulation.sources import ClosedLoop, KnownInAdvance, OpenLoop, SingleServerUsers, Users

from ..engine.by_hand import demand_of

STEP_TIME = vllm_prior(find_gpu("H200"), find_model("Meta-Llama-3-8B"))
POLICY = Paged(scheduler=ContinuousSettings(max_num_seqs=4, max_num_batched_tokens=1024, max_model_len=256))
REQUESTS = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 20), st.sampled_from([0.0, 0.0, 0.004, 0.05])),
    min_size=1, max_size=25,
)  # fmt: skip


def serve(
    requests: list[tuple[int, int, float]], source: Any, num_servers: int, *, answers: bool
) -> list[ServerProcess]:
    """Serve requests (prompt, output, gap to the one before) from `source` on servers with little memory."""
    environment = simpy.Environment()
    servers = []
    for _ in range(num_servers):
        demand = demand_of(*((prompt, output) for prompt, output, _ in requests))
        demand.arrival_s[:] = np.cumsum([gap_s for _, _, gap_s in requests])
        refused = np.zeros(len(requests), np.bool_)
        plan = EnginePlan(demand, POLICY, 8, STEP_TIME, refused=refused, answers=answers, checking=True)
        driver, rows = Driver(plan.build()), range(len(requests))
        servers.append(ServerProcess(environment, driver, horizon=source.horizon_s, rows=rows))
    source.start(environment, servers)
    environment.run()
    return servers


def dispatcher(route: str | Router, lag_s: float = 0.0) -> Dispatcher:
    def describe(row: int, at_s: float) -> RoutedRequest:
        return RoutedRequest(row=row, prompt_tokens=8, priority=0, session=row % 3 - 1, arrival_s=at_s)

    return Dispatcher(router_of(route, DEFAULT_RELEASE), describe, 25, 8, lag_s=lag_s)


def finished_s(server: ServerProcess) -> np.ndarray[Any, Any]:
    return column(server.driver.engine.times, "finished_s")[1:]


@pytest.mark.parametrize("route", ROUTE_NAMES)
@settings(max_examples=30, deadline=None)
@given(requests=REQUESTS, num_servers=st.integers(1, 3), users=st.sampled_from([None, 1, 3]), think=st.booleans())
def test_each_request_is_answered_once(
    route: Any, requests: list[tuple[int, int, float]], num_servers: int, users: int | None, think: bool
) -> None:
    arrival_s = np.cumsum([gap_s for _, _, gap_s in requests])
    most_at_once, in_flight = 0, 0

    def counting(request: RoutedRequest, servers: Sequence[RoutedServer]) -> int:
        nonlocal most_at_once, in_flight
        in_flight = sum(server.num_requests for server in servers) + 1
        most_at_once = max(most_at_once, in_flight)
        return chosen(request, servers)

    chosen = router_of(route, DEFAULT_RELEASE)
    if users is None:
        source: Any = OpenLoop(arrival_s, dispatcher(counting))
    else:
        source = ClosedLoop(len(requests), Users(number=users, think_s=0.01 if think else 0.0), dispatcher(counting))
    servers = serve(requests, source, num_servers, answers=users is not None)
    served = np.stack([np.isfinite(finished_s(server)) for server in servers])
    assert served.sum(axis=0).tolist() == [1] * len(requests)
    if route == "round-robin" and users is None:
        assert served.argmax(axis=0).tolist() == [row % num_servers for row in range(len(requests))]
    if users is not None:
        assert most_at_once <= users


@settings(max_examples=30, deadline=None)
@given(requests=REQUESTS)
def test_with_one_server_a_stream_is_what_is_known_in_advance(requests: list[tuple[int, int, float]]) -> None:
    arrival_s = np.cumsum([gap_s for _, _, gap_s in requests])
    [streamed] = serve(requests, OpenLoop(arrival_s, dispatcher("shortest")), 1, answers=False)
    [known] = serve(requests, KnownInAdvance((), []), 1, answers=False)
    for name in ("arrival_s", "arrival_seq", "first_scheduled_s", "first_token_s", "finished_s"):
        ours, theirs = (column(server.driver.engine.times, name)[1:] for server in (streamed, known))
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert streamed.driver.engine.state.num_steps == known.driver.engine.state.num_steps


@settings(max_examples=30, deadline=None)
@given(requests=REQUESTS, users=st.integers(1, 6), think_s=st.sampled_from([0.0, 0.003, 0.05]))
def test_users_of_one_server_may_be_told_of_in_advance(
    requests: list[tuple[int, int, float]], users: int, think_s: float
) -> None:
    who = Users(number=users, think_s=think_s)
    [asked] = serve(requests, ClosedLoop(len(requests), who, dispatcher("shortest")), 1, answers=True)
    [known] = serve(requests, SingleServerUsers(who), 1, answers=False)
    for name in ("arrival_s", "arrival_seq", "first_scheduled_s", "first_token_s", "finished_s"):
        ours, theirs = (column(server.driver.engine.times, name)[1:] for server in (known, asked))
        np.testing.assert_array_equal(ours, theirs, err_msg=name)
    assert known.driver.engine.state.num_steps == asked.driver.engine.state.num_steps


@settings(max_examples=20, deadline=None)
@given(requests=REQUESTS, users=st.integers(1, 6), per_s=st.sampled_from([5.0, 100.0, 3000.0]))
def test_users_begin_one_after_the_other(requests: list[tuple[int, int, float]], users: int, per_s: float) -> None:
    source = ClosedLoop(len(requests), Users(number=users, per_s=per_s), dispatcher("shortest"))
    [server] = serve(requests, source, 1, answers=True)
    arrival_s = column(server.driver.engine.times, "arrival_s")[1:]
    end_s = np.sort(finished_s(server))
    assert np.all(np.diff(arrival_s) >= 0)
    for number, at_s in enumerate(np.sort(arrival_s).tolist()):
        begun = min(np.floor(at_s * per_s + 1e-9) + 1, users)
        assert number - np.searchsorted(end_s, at_s, "right") < begun, "nobody sends two at a time"
    assert arrival_s.min() == 0
