"""The mutations are aimed at the source as it stands."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvsim

from .mutations import MUTATIONS, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_a_mutation_breaks_a_rule_that_is_there(mutation: Mutation) -> None:
    source = (Path(kvsim.__file__).parent / mutation.file).read_text(encoding="utf-8")
    assert mutation.apply(source) != source
