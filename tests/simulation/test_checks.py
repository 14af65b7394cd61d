"""A check by what has changed finds what a count of the whole pool finds, at the step where it happens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.conformance import read_workload
from kvsim.conformance.oracle import OracleRun
from kvsim.engine.driver import Driver
from kvsim.engine.state import NO_KEY
from kvsim.errors import IntegrityError
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.simulation import simulate, step_check
from kvsim.simulation.full_check import check
from kvsim.simulation.step_check import Checks, PoolMirror
from kvsim.workload import Poisson, Uniform, generate

from ..conftest import MakeMachine
from ..engine.by_hand import arrived, driver_of

CONFORMANCE = Path(__file__).parent.parent / "conformance"
GOLDEN = [
    *sorted((CONFORMANCE / "golden").glob("*.json"))[::6],
    *sorted((CONFORMANCE / "golden_groups").glob("*.json"))[::2],
    *sorted((CONFORMANCE / "golden_offload").glob("*.json"))[::2],
]
MOST_RECORDS = 2_000
"""More than any workload that ends."""


def steps_of(workload: Path, *, compiled: bool = False) -> Iterator[Driver]:
    """The engine after each step of a golden workload, one of which waits for ever in vLLM, too."""
    run = OracleRun(read_workload(workload), compiled=compiled)
    for record in islice(run.records(), MOST_RECORDS):
        if record["kind"] == "schedule":
            yield run._driver


@pytest.mark.parametrize("workload", GOLDEN, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_account_is_right_at_every_step(workload: Path) -> None:
    account = None
    for driver in steps_of(workload):
        account = account or PoolMirror(driver)
        account.follow(driver)
    assert account is not None


def damages(driver: Driver, random: np.random.Generator) -> Iterator[tuple[Any, int, str, int]]:
    """Numbers of the engine that may be wrong: the records, which of these, the field, and another value."""
    engine = driver.engine
    held = [block for node in driver.holders() for block in driver.table(node)]
    places = [engine.sequences[node].place for node in driver.holders()]
    for name, records, chosen in (
        ("state", [engine.state], [0]),
        ("block", engine.blocks, random.integers(1, len(engine.blocks), 4).tolist() + held[:2]),
        ("sequence", engine.sequences, driver.holders()[:2]),
        ("table", engine.tables, [place * engine.settings.num_groups for place in places[:2]]),
        ("group", engine.groups, [0]),
    ):
        for index in chosen:
            for field in fields(records[index].__class__):
                value = getattr(records[index], field.name)
                is_number = isinstance(value, int) and not isinstance(value, bool) and value != NO_KEY
                if is_number and (
                    name != "group" or field.name == "num_duplicate_entries"
                ):  # what kind it is never changes
                    yield records, index, field.name, value + int(random.choice([-1, 1]))


def complaint(of: Any, driver: Driver) -> str:
    try:
        of(driver)
    except (IntegrityError, IndexError, KeyError) as error:  # a damaged index may lead nowhere
        return str(error) or type(error).__name__
    return ""


@pytest.mark.parametrize("workload", GOLDEN[::5], ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_whatever_number_is_wrong_is_noticed_where_a_count_notices_it(workload: Path) -> None:
    random, seen = np.random.default_rng(7), 0
    for number, driver in enumerate(steps_of(workload)):
        if number % 30 != 5:
            continue
        for records, index, field, wrong in damages(driver, random):
            account, right = PoolMirror(driver), getattr(records[index], field)
            setattr(records[index], field, type(right)(wrong))
            counted, followed = complaint(check, driver), complaint(account.follow, driver)
            setattr(records[index], field, right)
            assert followed or not counted, (number, records[index], field, counted)
            seen += bool(counted)
    assert seen > 10


def test_a_queue_in_two_rings_is_noticed_although_a_count_is_right() -> None:
    driver = arrived(Paged(cache=PagedSettings(block_size=4)), 10, (8, 4))
    driver.schedule()
    account, blocks = PoolMirror(driver), driver.engine.blocks
    first, second, third, fourth = driver.free_queue()[:4]
    blocks[first].next, blocks[fourth].previous = fourth, first
    blocks[second].previous, blocks[third].next = third, second
    with pytest.raises(IntegrityError, match="block 5 follows block 4, which"):
        account.follow(driver)


def test_a_wrong_entry_of_a_table_is_noticed() -> None:
    driver = arrived(Paged(cache=PagedSettings(block_size=4)), 10, (8, 4), (8, 4))
    driver.schedule()
    account, engine = PoolMirror(driver), driver.engine
    engine.entries[1] = engine.entries[0]
    with pytest.raises(IntegrityError, match="references"):
        account.follow(driver)


def test_a_compiled_engine_is_followed_too() -> None:
    policy = Paged(cache=PagedSettings(block_size=4, enable_prefix_caching=False))
    driver = Driver(driver_of(policy, 10, (8, 4), (8, 4), compiled=True).engine)  # arrays, and no machine code
    for node in (1, 2):
        driver.add(node)
    driver.schedule()
    checks = Checks(driver)
    for _ in range(3):
        driver.update()
        driver.schedule()
        checks.step()
    driver.engine.blocks[9].refs += 1
    with pytest.raises(IntegrityError, match="4 blocks are in the free queue"):
        checks.step()


def test_a_step_costs_what_it_touches_and_not_what_the_pool_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted and not timed: how often the whole pool is counted in 40 steps, the first of which reads it."""
    counts: list[Driver] = []
    monkeypatch.setattr(step_check, "check", counts.append)
    driver = arrived(Paged(cache=PagedSettings(block_size=4)), 500, (8, 50), (8, 50))
    checks = Checks(driver)
    for _ in range(40):
        driver.schedule()
        checks.step()
        driver.update()
    checks.finish()
    assert len(counts) == 6 + 1  # steps 1, 2, 4, 8, 16, 32, and the end


@pytest.mark.parametrize("release", ["0.20.2", "0.23.0", "0.33.0"])
def test_the_free_queue_has_the_order_of_the_release(release: str, make_machine: MakeMachine) -> None:
    """Before 0.24, freed blocks without a prefix go to the tail, behind those with one."""
    scheduler = ContinuousSettings(max_model_len=64, max_num_seqs=8, max_num_batched_tokens=40, vllm=release)
    policy = Paged(scheduler=scheduler, cache=PagedSettings(block_size=4))
    workload = generate(
        20, arrivals=Poisson(rate_per_s=200), prompt=Uniform(low=4, high=24), output=Uniform(low=2, high=24), seed=3
    )
    assert len(simulate(workload, policy, make_machine(120), engine="interpreted", check=True).steps)
