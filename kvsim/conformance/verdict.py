"""Result of a comparison of an engine with kvsim: all steps are equal, or there is a first difference."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any

COUNTS = ("num_steps", "num_allocations", "num_preemptions", "num_hits", "num_evictions", "num_aborts")
"""Names of the counts in a `Verdict`."""
_BEFORE, _AFTER = 2, 3
"""Numbers of list entries that a report shows: before the first difference, and from it on."""
_KEYS_SHOWN = 3
"""Largest number of differing entries of a mapping that a report shows."""
_ABSENT = object()
"""Stands for a value that only the other side has. None cannot, because it may itself be a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictLine:
    """One compared value, as recorded and as simulated."""

    label: str
    """Name of the field. For a list or a mapping, the index or the key of the entry follows."""
    recorded: str
    simulated: str
    differs: bool = True
    """False for an equal list entry that gives context."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """First moment at which the two engines differ."""

    moment: str
    """Description of the moment, and where it is in the recording."""
    lines: tuple[VerdictLine, ...]
    """All fields that differ at this moment. Of a list or a mapping, only a few entries are included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a comparison: the first difference, and counts of what was equal before it."""

    num_steps: int = 0
    """Number of equal steps."""
    num_allocations: int = 0
    """Number of blocks allocated in the equal steps; both sides allocated blocks with equal ids."""
    num_preemptions: int = 0
    num_hits: int = 0
    """Number of blocks found in the prefix cache in the equal steps."""
    num_evictions: int = 0
    """Number of cached blocks evicted in the equal steps because a request needed a block."""
    num_aborts: int = 0
    num_failures: int = 0
    """Number of outputs that vLLM's asynchronous scheduler did not await. Each of these would stop vLLM.

    If the records stop early, failures in the next simulated record count too, because they may be the cause.
    """
    difference: Difference | None = None
    """First difference; None if everything is equal."""

    @property
    def equal(self) -> bool:
        """True if there is no difference."""
        return self.difference is None

    def __repr__(self) -> str:
        return f"<Verdict: {self}>"

    def __str__(self) -> str:
        counts = f"{self.num_allocations:,} allocations, {self.num_preemptions:,} preemptions"
        if self.difference is None:
            return f"all {self.num_steps:,} steps equal ({counts})"
        return f"{self.num_steps:,} steps equal ({counts}), then a difference at {self.difference.moment}"

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict as a JSON object."""
        return {"equal": self.equal} | asdict(self)


def difference(moment: str, recorded: Mapping[str, Any], simulated: Mapping[str, Any]) -> Difference:
    """Return the difference at `moment` between `recorded` and `simulated` fields. At least one must differ."""
    return Difference(
        moment=moment,
        lines=tuple(line for name in recorded for line in _lines(name, recorded[name], simulated.get(name, _ABSENT))),
    )


def _lines(label: str, recorded: Any, simulated: Any) -> Iterator[VerdictLine]:
    """Yield the first keys and elements that differ, and a few equal elements around them."""
    if recorded == simulated:
        return
    if isinstance(recorded, Mapping) and isinstance(simulated, Mapping):
        pairs_by_key = {
            key: (recorded.get(key, _ABSENT), simulated.get(key, _ABSENT)) for key in {**recorded, **simulated}
        }
        differing = [key for key, (theirs, ours) in pairs_by_key.items() if theirs != ours]
        for key in differing[:_KEYS_SHOWN]:
            yield from _lines(f"{label}.{key}", *pairs_by_key[key])
    elif _is_list(recorded) and _is_list(simulated):
        pairs = list(zip_longest(recorded, simulated, fillvalue=_ABSENT))
        first = next(index for index, (theirs, ours) in enumerate(pairs) if theirs != ours)
        for index, (theirs, ours) in list(enumerate(pairs))[max(0, first - _BEFORE) : first + _AFTER]:
            yield VerdictLine(
                label=f"{label}[{index}]", recorded=_text(theirs), simulated=_text(ours), differs=bool(theirs != ours)
            )
    else:
        yield VerdictLine(label=label, recorded=_text(recorded), simulated=_text(simulated))


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _text(value: Any) -> str:
    if value is _ABSENT:
        return "–"
    return value if isinstance(value, str) else json.dumps(value, default=str)
