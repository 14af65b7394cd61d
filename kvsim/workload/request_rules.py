"""Rules for the rows of a `Workload`, which its constructor checks. Each rule has an error message."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from kvsim.errors import UsageError, WorkloadError, shortened
from kvsim.setting_fields import whole_number
from kvsim.workload.columns import LONGEST_S, MAX_TOKENS, Numbered

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvsim.workload.columns import FloatArray, Int32Array, Ragged
    from kvsim.workload.images import Images
    from kvsim.workload.turns import Turns

SCALAR_COLUMNS = (
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "max_tokens",
    "priority",
    "prefix_group",
    "prefix_tokens",
    "adapter",
)
"""Fields of a `Workload` that hold one number per request."""


class _WorkloadColumns(Protocol):
    @property
    def arrival_s(self) -> FloatArray: ...
    @property
    def prompt_tokens(self) -> Int32Array: ...
    @property
    def output_tokens(self) -> Int32Array: ...
    @property
    def max_tokens(self) -> Int32Array: ...
    @property
    def prefix_group(self) -> Int32Array: ...
    @property
    def prefix_tokens(self) -> Int32Array: ...
    @property
    def adapter(self) -> Int32Array: ...
    @property
    def prefix_names(self) -> Sequence[str]: ...
    @property
    def prompt_hashes(self) -> Ragged[np.int64]: ...
    @property
    def hash_unit_tokens(self) -> int: ...
    @property
    def hash_ahead_tokens(self) -> int: ...
    @property
    def prompt_token_ids(self) -> Ragged[np.int32] | None: ...
    @property
    def images(self) -> Images | None: ...
    @property
    def turns(self) -> Turns | None: ...
    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def name(self) -> str: ...


def check_rows(workload: _WorkloadColumns) -> None:
    """Check all columns of a workload.

    Raises:
        UsageError: a column has the wrong length.
        WorkloadError: a row is invalid; the message names the first such row.
    """
    _check_shape(workload)
    bad_rows = [(int(bad.argmax()), sentence) for sentence, bad in _rules(workload) if bad.any()]
    if bad_rows:
        row, sentence = min(bad_rows, key=itemgetter(0))
        values = {column: getattr(workload, column)[row] for column in SCALAR_COLUMNS}
        raise WorkloadError(f"request {shortened(workload.ids[row])} (row {row}): {sentence.format(**values)}.")
    if workload.images is not None:
        _check_images(workload, workload.images)


def _check_images(workload: _WorkloadColumns, images: Images) -> None:
    """Check the images. Images in pixels are refused if token ids or hashes describe whole prompts."""
    images.check(workload.prompt_tokens, workload.prefix_tokens, workload.ids)
    is_described = workload.prompt_token_ids is not None or len(workload.prompt_hashes.values) > 0
    if is_described and images.in_pixels.any():
        raise UsageError("prompts with token ids or hashes state the tokens of their images; give those, not pixels.")


def _check_shape(workload: _WorkloadColumns) -> None:
    num_rows = workload.arrival_s.size
    if num_rows == 0:
        raise WorkloadError(f"the workload {workload.name!r} has no requests; it must have at least one.")
    for name, least in (("hash_unit_tokens", 1), ("hash_ahead_tokens", 0)):
        if whole_number(name, value := getattr(workload, name), at_least=least) > MAX_TOKENS:
            raise UsageError(f"{name} is {shortened(value)}; it must be at most {MAX_TOKENS:,}.")
    for column in ("prompt_hashes", "prompt_token_ids", "turns", "ids"):
        rows = getattr(workload, column)
        if rows is not None and len(rows) != num_rows:
            raise UsageError(f"{column} has {len(rows)} rows; it must have {num_rows}, as the other columns do.")
    if not isinstance(workload.ids, Numbered):
        _check_unique(workload.ids)


def _check_unique(ids: Sequence[str]) -> None:
    first_rows = dict(zip(reversed(ids), range(len(ids) - 1, -1, -1), strict=True))
    if len(first_rows) < len(ids):
        row = next(row for row, name in enumerate(ids) if first_rows[name] != row)
        raise WorkloadError(
            f"request {shortened(ids[row])} (row {row}): row {first_rows[ids[row]]} has this id; give another."
        )


def _rules(workload: _WorkloadColumns) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return all rules, each as the end of its error message, and True for rows that violate it: bool[n]."""
    return [*_rules_of_lengths(workload), *_rules_of_prefixes(workload)]


def _rules_of_lengths(workload: _WorkloadColumns) -> list[tuple[str, NDArray[np.bool_]]]:
    arrival_s, prompt, limit = workload.arrival_s, workload.prompt_tokens, workload.max_tokens
    return [
        (
            "arrival_s is {arrival_s}; it must be a finite number of seconds, 0 or more",
            ~(np.isfinite(arrival_s) & (arrival_s >= 0)),
        ),
        (f"arrival_s is {{arrival_s}}; it must be at most {LONGEST_S:g}", arrival_s > LONGEST_S),
        ("prompt_tokens is {prompt_tokens}; it must be at least 1", prompt < 1),
        ("output_tokens is {output_tokens}; it must be at least 1", workload.output_tokens < 1),
        (
            "max_tokens is {max_tokens}; it must be at least its output_tokens, {output_tokens}",
            limit < workload.output_tokens,
        ),
        (
            f"prompt_tokens is {{prompt_tokens}} and max_tokens {{max_tokens}}; together at most {MAX_TOKENS}",
            prompt > MAX_TOKENS - limit.clip(min=0),
        ),
        ("adapter is {adapter}; it must be 0 (none) or a number from 1 on", workload.adapter < 0),
    ]


def _rules_of_prefixes(workload: _WorkloadColumns) -> list[tuple[str, NDArray[np.bool_]]]:
    prompt, group, shared = workload.prompt_tokens, workload.prefix_group, workload.prefix_tokens
    num_groups, unit = len(workload.prefix_names), workload.hash_unit_tokens
    rules = [
        (
            f"prefix_group is {{prefix_group}}; it must be -1 (none) or below the {num_groups} prefix_names",
            (group < -1) | (group >= num_groups),
        ),
        (
            "prefix_tokens is {prefix_tokens} in prefix_group {prefix_group}; it must be 0 for group -1, else above 0",
            np.where(group < 0, shared != 0, shared < 1),
        ),
        (
            "prefix_tokens is {prefix_tokens}; it must not be more than its prompt_tokens, {prompt_tokens}",
            shared > prompt,
        ),
        (
            f"it has more prompt_hashes than its {{prompt_tokens}} prompt_tokens have full units of {unit} tokens",
            workload.prompt_hashes.lengths > np.maximum(prompt - workload.hash_ahead_tokens, 0) // unit,
        ),
    ]
    if workload.prompt_token_ids is not None:
        lengths = workload.prompt_token_ids.lengths
        rules.append(
            (
                "prompt_token_ids has another length than prompt_tokens, {prompt_tokens}; give all ids or none",
                (lengths != 0) & (lengths != prompt),
            )
        )
    return rules
