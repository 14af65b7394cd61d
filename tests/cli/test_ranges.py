"""Numbers beyond anything that could be simulated, and flags of another policy, are refused in a sentence."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Run = Callable[..., tuple[int, str, str]]
HUGE = "9223372036854775808"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--num-requests", HUGE), "--num-requests should be at most 16,777,216, not 9223372036854775808."),
        (("run", "--arrivals", "poisson", "--num-requests", "1" + "0" * 300), "not a whole number of some"),
        (("run", "--max-model-len", HUGE), "--max-model-len should be at most 134,217,728, not 9223372036854775808."),
        (("run", "--block-size", "2147483648"), "--block-size should be at most 1,048,576, not 2147483648."),
        (("run", "--policy", "static", "--batch-size", HUGE), "--batch-size should be at most 1,048,576, not"),
        (("run", "--max-num-seqs", HUGE), "--max-num-seqs should be at most 1,048,576, not"),
        (("run", "--max-num-batched-tokens", HUGE), "--max-num-batched-tokens should be at most 1,073,741,824, not"),
        (
            ("run", "--speculative-tokens", "3"),
            "--speculative-tokens was removed; give vLLM's own flag",
        ),
        (("run", "--seed", HUGE), "--seed should be at most 9,223,372,036,854,775,807, not 9223372036854775808."),
        (("pack", "--row-tokens", HUGE), "--row-tokens should be at most 134,217,728, not 9223372036854775808."),
        (("run", "--shared-prefix", "99999999999x1"), "num_groups is 99999999999; it must be at most 16,777,216."),
    ],
)
def test_numbers_have_ranges(type_command: Run, arguments: tuple[str, ...], sentence: str) -> None:
    code, output, complaint = type_command(*arguments)
    assert (code, output) == (2, "")
    assert sentence in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--batch-size", "4"), "--batch-size has no effect with --policy paged: it is for static; leave it out."),
        (("--compaction",), "--compaction has no effect with --policy paged: it is for contiguous; leave it out."),
        (("--policy", "static", "--swap-gib", "4"), "--swap-gib has no effect with --policy static: it is for paged;"),
        (("--policy", "contiguous", "--no-prefix-caching"), "--no-enable-prefix-caching has no effect with --policy"),
        (("--policy", "static", "--max-num-seqs", "4"), "it is for contiguous and paged; leave it out."),
    ],
)
def test_a_flag_of_another_policy_is_refused(type_command: Run, arguments: tuple[str, ...], sentence: str) -> None:
    code, output, complaint = type_command("run", *arguments)
    assert (code, output) == (2, "")
    assert sentence in complaint


def test_a_flag_that_one_of_the_policies_takes_is_fine(type_command: Run) -> None:
    few = ("--num-requests", "2", "--json")
    grid = ("sweep", "--vary", "policy=paged,static", "--batch-size", "4", "-o", "s.parquet", "--jobs", "1")
    assert type_command(*grid, *few)[0] == 0
    code, _, complaint = type_command("sweep", "--vary", "batch-size=2,4", "-o", "t.parquet", *few)
    assert (code, "--batch-size has no effect with --policy paged" in complaint) == (2, True)
    # It says how much memory that many blocks are.
    assert type_command("run", "--policy", "contiguous", "--num-blocks", "2000", "--block-size", "16", *few)[0] == 0
