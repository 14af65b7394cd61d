"""Words in figures: the provenance of recordings, their names, and numbers with units."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.display.text import abridged, plural, printable
from kvsim.errors import UsageError
from kvsim.memory.waste import SlotState
from kvsim.metrics.names import STATE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsim.recording import Recording
    from kvsim.recording.tables import FloatArray

_UNBROKEN = 30
"""Maximum number of letters of a part of a title that is kept on one line: about the width of a column."""
_LONGEST_NAME = 160
"""Maximum number of letters of a name in a figure. Names of step times list the recordings that they were fitted to."""
_ENGINES = {"vllm": "vLLM", "transformers": "Transformers"}


def label(name: object) -> str:
    """Return a name from a file as figures show it: printable, and at most two lines long."""
    return abridged(printable(str(name)), _LONGEST_NAME)


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteUnit:
    """A unit of memory for one axis."""

    name: str
    num_bytes: int

    @classmethod
    def for_size(cls, num_bytes: float) -> ByteUnit:
        """Return the largest unit up to TiB that is at most `num_bytes`; bytes below one KiB."""
        units = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))
        name, power = next(((name, power) for name, power in units if num_bytes >= 1 << power), ("bytes", 0))
        return cls(name=name, num_bytes=1 << power)


def memory(num_bytes: float) -> str:
    """Format `num_bytes` with a unit: "3.12 GiB"."""
    unit = ByteUnit.for_size(num_bytes)
    return f"{num_bytes / unit.num_bytes:.3g} {unit.name}"


def provenance(*recordings: Recording) -> str:
    """Describe the origin of recordings: engine, policies, model and GPU; for simulations, also the step times."""
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
    """Return the first clauses of `text`, separated by semicolons, that fit into a name."""
    first, *others = map(label, text.split("; "))
    kept = first
    for clause in others:
        if len(kept) + len(clause) + 2 > _LONGEST_NAME:
            break
        kept = f"{kept}; {clause}"
    return kept


def source_line(recordings: Iterable[Recording]) -> str:
    """Return the provenance of a figure's recordings as a sentence."""
    return f"Source: {provenance(*recordings)}."


def distinct_names(recordings: Iterable[Recording]) -> tuple[str, ...]:
    """Return the labels of recordings: their names, if all differ, otherwise their policies, which may be equal."""
    named = [(label(recording.name), policy_label(recording.meta.policy)) for recording in recordings]
    names = {name for name, _ in named if name}
    return tuple(name if len(names) == len(named) else policy for name, policy in named)


def policy_label(policy: Mapping[str, Any]) -> str:
    """Return the name of a policy for legends: "contiguous (reserve max)"."""
    name = label(policy.get("rules") or policy.get("name", "paged"))
    reserve = f" (reserve {label(policy['reserve'])})" if "reserve" in policy else ""
    eviction = " (optimal eviction)" if policy.get("eviction") == "optimal" else ""
    return f"{name}{reserve}{eviction}"


def is_bound(policy: str) -> bool:
    """Tell whether `policy` is the label of a policy with optimal eviction, which knows the future."""
    return "optimal eviction" in policy


def listed(items: Iterable[str]) -> str:
    """Join items into a list in a sentence: "a, b and c"."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def percentages(shares_percent: FloatArray) -> str:
    """List the shares of the states, largest first: "75.5% tokens and 24.5% free"."""
    order = [SlotState(state) for state in np.argsort(-shares_percent, kind="stable") if shares_percent[state] > 0]
    return listed(f"{shares_percent[state]:.2g}% {STATE_NAMES[state]}" for state in order)


def names_for(recordings: Sequence[Recording], names: Sequence[str], at_most: int) -> tuple[str, ...]:
    """Return a label for each recording: `names`; if these are empty, `distinct_names`.

    Raises:
        UsageError: there is no recording, more than `at_most`, or not one name for each.
    """
    named = tuple(names) or distinct_names(recordings)
    if not 1 <= len(recordings) <= at_most:
        raise UsageError(f"{len(recordings)} recordings were given; give 1 to {at_most}.")
    if len(named) != len(recordings):
        given = f"{plural(len(recordings), 'recording')} and {plural(len(named), 'name')}"
        raise UsageError(f"{given} were given; give a name for each recording.")
    return named


def spaced(text: str) -> str:
    """Put thin spaces, which are read alike in all languages, between thousands in place of commas."""
    return re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "\N{THIN SPACE}", text)


def seconds(value: float) -> str:
    """Format a duration: "34 ms", "1.6 s", "2.5 h"."""
    if value < 0.9995:
        return f"{1000 * value:.3g} ms"
    return f"{value:.3g} s" if value < 999.5 else f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.3g} h"


def number(value: float) -> str:
    """Format a mean count with three significant digits, or without decimals from 100 on: "3.02", "51.3", "6,188"."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.3g}"


def each_named(values: Iterable[str], names: Iterable[str]) -> str:
    """List the values of recordings for a title, no item broken: "116 s (contiguous), 2.11 s (paged)"."""
    items = (f"{value} ({name})" for value, name in zip(values, names, strict=True))
    return ", ".join(item.replace(" ", "\N{NO-BREAK SPACE}") if len(item) <= _UNBROKEN else item for item in items)
