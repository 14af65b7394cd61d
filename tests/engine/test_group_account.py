"""Where memory goes with several KV-cache groups: every byte of the pool in one state, at every step."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.conformance import read_workload
from kvsim.conformance.oracle import OracleRun
from kvsim.engine.arrays import column
from kvsim.engine.state import Engine
from kvsim.errors import IntegrityError
from kvsim.memory.waste import SlotState
from kvsim.simulation.full_check import breakdown, check

GOLDEN = sorted((Path(__file__).parent.parent / "conformance" / "golden_groups").glob("*.json"))


@pytest.mark.parametrize("workload", GOLDEN, ids=lambda file: file.stem)
def test_the_account_is_right_at_every_step(workload: Path) -> None:
    run = OracleRun(read_workload(workload))
    for record in run.records():
        if record["kind"] == "schedule":
            check(run._driver)


def test_windows_expire_and_states_are_padded() -> None:
    seen = dict.fromkeys(SlotState, 0)
    shared = 0
    for workload in GOLDEN[::4]:
        run = OracleRun(read_workload(workload))
        for record in run.records():
            if record["kind"] == "schedule":
                slots = breakdown(run._driver)
                shared += int(column(run._driver.engine.groups, "num_duplicate_entries").sum())
                for state in SlotState:
                    seen[state] += slots[state]
    assert shared
    assert {state for state in SlotState if not seen[state]} == {SlotState.PADDING, SlotState.EXTERNAL}


def more_held(engine: Engine) -> None:
    engine.tables[int(engine.sequences[engine.running[0]].place) * engine.settings.num_groups].num_held += 1


def fewer_shared(engine: Engine) -> None:
    engine.groups[0].num_duplicate_entries -= 1


def less_useful(engine: Engine) -> None:
    engine.state.useful -= 1


@pytest.mark.parametrize("damage", [more_held, fewer_shared, less_useful])
def test_a_damaged_account_is_noticed(damage: object) -> None:
    run = OracleRun(read_workload(GOLDEN[0]))
    for record in run.records():
        if record["kind"] == "schedule" and record["total"]:
            break
    check(run._driver)
    damage(run._driver.engine)  # type: ignore[operator]
    with pytest.raises(IntegrityError):
        check(run._driver)
