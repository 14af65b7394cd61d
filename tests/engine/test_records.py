"""Records: the same fields in an object and in an array."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from kvsim.engine import engine_settings, host_tier, recorded_rows, records
from kvsim.engine.arrays import Tables, column, dtype_of, listed_column, make, make_lazily

MODULES = (engine_settings, host_tier, recorded_rows, records)
RECORDS = {
    value
    for module in MODULES
    for value in vars(module).values()
    if is_dataclass(value) and isinstance(value, type) and not issubclass(value, Tables)
}


@pytest.mark.parametrize("record", sorted(RECORDS, key=lambda record: record.__name__))
def test_every_field_is_read_and_written_where_it_stands(record: type) -> None:
    names = [field.name for field in fields(record)]
    for compiled in (False, True):
        made = make(record, 3, compiled=compiled)
        untouched = make(record, 1, compiled=compiled)[0]
        for name in names:
            setattr(made[1], name, 1)
        assert all(getattr(made[1], name) == 1 for name in names)
        assert all(getattr(made[index], name) == getattr(untouched, name) for index in (0, 2) for name in names)


def test_a_field_that_a_record_does_not_have_is_refused() -> None:
    with pytest.raises((AttributeError, ValueError)):
        _ = make(records.Block, 1, compiled=True)[0].surely_not


def test_settings_of_features_are_constants_only_in_a_run_without_features() -> None:
    settings = engine_settings.Settings()
    constants = dict(engine_settings.constants_of(settings))
    assert constants["num_drafts"] == 0
    assert constants["prefill_interval"] == 1
    settings.max_num_seqs = 8
    assert dict(engine_settings.constants_of(settings)) == constants
    settings.encoder_tokens = 100
    assert engine_settings.constants_of(settings) == ()


@pytest.mark.parametrize(("compiled", "num_used"), [(False, 3), (False, 4), (True, 0)])
def test_unused_records_have_their_initial_values(compiled: bool, num_used: int) -> None:
    following, keys = np.array([3, 0, 1, 2]), np.full(4, 9)
    made = make_lazily(records.Block, 4, compiled=compiled, num_used=num_used, next=following, key=keys)
    made[2].next, made[2].refs, made[0].key = 7, 1, 5
    following[:] = 8  # which is the caller's own
    assert len(made) == 4
    for name, values in {"next": [3, 0, 7, 2], "key": [5, 9, 9, 9], "refs": [0, 0, 1, 0], "previous": [0] * 4}.items():
        read = column(made, name)
        assert (read.tolist(), read.dtype) == (values, dtype_of(records.Block)[name])
        assert listed_column(made, name) == column(made, name, 4).tolist() == values
        assert column(made, name, 3).tolist() == values[:3]
    assert [made[index].next for index in range(4)] == [3, 0, 7, 2] == [block.next for block in made]
    with pytest.raises(IndexError):
        made[4]
