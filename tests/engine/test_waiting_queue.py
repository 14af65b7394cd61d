"""The waiting queue against a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.engine import waiting_queue
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, Order

from .by_hand import driver_of

SIZE = 14
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["push", "push", "push preempted", "remove", "remove the head"]), st.integers(0, SIZE)),
    max_size=60,
)


@pytest.mark.parametrize("order", Order)
@settings(max_examples=150, deadline=None)
@given(actions=ACTIONS, priorities=st.lists(st.integers(-1, 2), min_size=SIZE, max_size=SIZE),
       arrivals=st.lists(st.sampled_from([0.0, 1.0, 2.0]), min_size=SIZE, max_size=SIZE))  # fmt: skip
def test_it_is_in_order_after_every_operation(
    order: Order, actions: list[tuple[str, int]], priorities: list[int], arrivals: list[float]
) -> None:
    policy = Paged(scheduler=ContinuousSettings(order=order))
    driver = driver_of(policy, 100, *[(1, 1)] * SIZE, priorities=priorities)
    for node, arrival_s in enumerate(arrivals, 1):
        driver.engine.times[node].arrival_s = arrival_s
    waiting: list[int] = []
    for verb, pick in actions:
        outside = [node for node in range(1, SIZE + 1) if node not in waiting]
        if verb.startswith("push") and outside:
            node = outside[pick % len(outside)]
            if verb == "push":
                waiting_queue.push(driver.engine, driver.sequence(node))
                waiting.append(node)
            else:
                waiting_queue.push_again(driver.engine, driver.sequence(node))
                waiting.insert(0, node)
        elif verb.startswith("remove") and waiting:
            node = waiting[pick % len(waiting)] if verb == "remove" else waiting_queue.peek(driver.engine).number
            waiting_queue.remove(driver.engine, driver.sequence(node))
            waiting.remove(node)
        if order is Order.PRIORITY:
            waiting.sort(key=lambda node: (priorities[node - 1], arrivals[node - 1], node))
        assert driver.engine.state.num_waiting == len(waiting)
        if waiting:
            assert waiting_queue.peek(driver.engine).number == waiting[0]
        assert driver.waiting() == waiting
