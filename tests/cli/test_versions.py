"""`kvsim versions` lists what changed, and refuses releases that are not known."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from kvsim.cli import cli
from kvsim.errors import UsageError
from kvsim.policies.releases import CHANGES, changes_between, rules_of


def test_all_changes_are_listed_under_their_release() -> None:
    done = CliRunner().invoke(cli, ["versions", "--json"])
    document = json.loads(done.stdout)
    assert (document["oldest"], document["newest"]) == ("0.12.0", "0.33.0")
    assert [change["rule"] for change in document["changes"]] == [change.says for change in CHANGES]


def test_the_changes_between_two_releases_are_those_after_the_first() -> None:
    done = CliRunner().invoke(cli, ["versions", "0.30.0", "0.33.0"])
    assert "0.31.0" in done.stdout
    assert "0.33.0" in done.stdout
    assert "0.30.0" not in done.stdout.split("\n", 2)[2]
    assert changes_between("0.30.0", "0.32.0") + changes_between("0.32.0", "0.33.0") == changes_between(
        "0.30.0", "0.33.0"
    )


def test_two_releases_with_the_same_rules_have_no_change_between_them() -> None:
    assert rules_of("0.24.0") == rules_of("0.25.1")
    done = CliRunner().invoke(cli, ["versions", "0.24.0", "0.25.1"])
    assert done.stdout == "From vLLM 0.24.0 to 0.25.1 no rule of the scheduler or the cache changed.\n"


@pytest.mark.parametrize(
    ("releases", "sentence"),
    [
        (("0.11.2",), "the rules of vLLM 0.11.2 are not known"),
        (("0.25.1", "0.34.0"), "the rules of vLLM 0.34.0 are not known"),
        (("0.33.0", "0.25.1"), "name the older release first"),
        (("latest",), "vllm should be a release such as 0.33.0, not 'latest'"),
    ],
)
def test_what_is_no_known_release_is_refused(releases: tuple[str, ...], sentence: str) -> None:
    done = CliRunner().invoke(cli, ["versions", *releases])
    assert isinstance(done.exception, UsageError)
    assert sentence in str(done.exception)
