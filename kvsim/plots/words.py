"""What figures say in words: where a recording comes from, and memory in the units of the field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.display.text import abridged, printable
from kvsim.errors import UsageError
from kvsim.memory.waste import SlotState
from kvsim.metrics.policy_names import policy_name
from kvsim.metrics.state_names import STATE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray

_UNBROKEN = 30
"""Letters of a title that may stay together: about the width of a column."""
_LONGEST_NAME = 160
"""Letters of a name; step times name the recordings that they were fitted to."""
_ENGINES = {"vllm": "vLLM", "transformers": "Transformers"}


def label(name: object) -> str:
    """A name from a file as figures show it: no character that cannot be seen, and not longer than a line or two."""
    return abridged(printable(str(name)), _LONGEST_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteUnit:
    """A unit of memory for one axis."""

    name: str
    num_bytes: int

    @classmethod
    def for_size(cls, num_bytes: float) -> ByteUnit:
        """The largest of KiB, MiB, GiB and TiB of which `num_bytes` is at least one; bytes below."""
        units = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))
        name, power = next(((name, power) for name, power in units if num_bytes >= 1 << power), ("bytes", 0))
        return cls(name=name, num_bytes=1 << power)


def memory(num_bytes: float) -> str:
    """`num_bytes` as a person says it: "3.12 GiB"."""
    unit = ByteUnit.for_size(num_bytes)
    return f"{num_bytes / unit.num_bytes:.3g} {unit.name}"


def provenance(*recordings: Recording) -> str:
    """Engine, policies, model, GPU and, of a simulation, the source of its step times; what they share is said once."""
    policies: dict[tuple[str, ...], list[str]] = {}
    for recording in recordings:
        meta = recording.meta
        name, version = label(meta.engine.get("name", meta.source)), label(meta.engine.get("version", ""))
        engine = " ".join(filter(None, (_ENGINES.get(name, name), version)))
        model = label(meta.model.get("name", "")).rpartition("/")[2]
        step_time = _whole_clauses(str(meta.engine.get("step_time", "")))
        key = (
            f"{'simulated by' if meta.source == 'simulation' else 'measured on'} {engine}",
            *filter(None, (model, label(meta.gpu), step_time and f"step time: {step_time}")),
        )
        policies.setdefault(key, []).append(policy_label(meta.policy))
    return "; ".join(
        ", ".join((engine, listed(dict.fromkeys(names)), *rest)) for (engine, *rest), names in policies.items()
    )


def _whole_clauses(text: str) -> str:
    """The first clauses of `text`, which semicolons part, that a name has room for."""
    first, *others = map(label, text.split("; "))
    kept = first
    for clause in others:
        if len(kept) + len(clause) + 2 > _LONGEST_NAME:
            break
        kept = f"{kept}; {clause}"
    return kept


def source_line(recordings: Iterable[Recording]) -> str:
    """Provenance of everything that one figure shows."""
    return f"Source: {provenance(*recordings)}."


def distinct_names(recordings: Iterable[Recording]) -> tuple[str, ...]:
    """What to call each recording: its name, or its policy where two have the same."""
    named = [(policy_name(label(recording.name)), policy_label(recording.meta.policy)) for recording in recordings]
    names = {name for name, _ in named if name}
    return tuple(name if len(names) == len(named) else policy for name, policy in named)


def policy_label(policy: Mapping[str, Any]) -> str:
    """A policy as a legend names it: "contiguous (reserve max)"."""
    name = policy_name(label(policy.get("rules") or policy.get("name", "paged")))
    reserve = f" (reserve {label(policy['reserve'])})" if "reserve" in policy else ""
    return f"{name}{reserve}"


def listed(items: Iterable[str]) -> str:
    """Items as a sentence lists them: "a, b and c"."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def percentages(shares_percent: FloatArray) -> str:
    """The shares of the states as a sentence lists them, the largest first: "75.5% tokens and 24.5% free"."""
    order = [SlotState(state) for state in np.argsort(-shares_percent, kind="stable") if shares_percent[state] > 0]
    return listed(f"{shares_percent[state]:.2g}% {STATE_NAMES[state]}" for state in order)


def names_for(recordings: Sequence[Recording], names: Sequence[str], at_most: int) -> tuple[str, ...]:
    """What to call each recording: `names` where they are given.

    Raises:
        UsageError: there is no recording, more than can be told apart, or not one name for each.
    """
    named = tuple(names) or distinct_names(recordings)
    if not 1 <= len(recordings) == len(named) <= at_most:
        raise UsageError(
            f"{len(recordings)} recordings and {len(named)} names were given; "
            f"there must be 1 to {at_most} of them and a name for each."
        )
    return named


def seconds(value: float) -> str:
    """A duration as a person says it: "34 ms", "1.6 s", "2.5 h"."""
    if value < 0.9995:
        return f"{1000 * value:.3g} ms"
    return f"{value:.3g} s" if value < 999.5 else f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.3g} h"


def number(value: float) -> str:
    """A mean count with the digits that matter: "3.02", "51.3", "6,188"."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def each_named(said: Iterable[str], names: Iterable[str]) -> str:
    """What is said of each recording, for a title: "116 s (contiguous), 2.11 s (paged)", never broken inside one."""
    items = (f"{words} ({name})" for words, name in zip(said, names, strict=True))
    return ", ".join(item.replace(" ", "\N{NO-BREAK SPACE}") if len(item) <= _UNBROKEN else item for item in items)
