"""Parser of Prometheus' text format: one sample per line, with name, labels and value.

Only samples with a requested prefix are parsed. The page is not trusted: its size is bounded, and invalid lines are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kvsim.errors import RecordingError, shortened

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\\n]|\\.)*)"\s*,?')
_END = re.compile(r"\s*\}")
_VALUE = re.compile(r"\s+([^\s_]+)(?:\s+-?\d+)?\s*(?:#.*)?$")
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
_MAX_LINE = 1 << 20
"""Limit for the number of characters of a line. vLLM's line with its whole configuration has hundreds of thousands."""
_MAX_SAMPLES = 50_000


@dataclass(frozen=True, slots=True)
class Sample:
    """Value of one time series when the page was made."""

    name: str
    labels: dict[str, str]
    value: float


def samples(page: str, prefix: str) -> Iterator[Sample]:
    """Yield the samples of `page` whose names begin with `prefix`.

    Raises:
        RecordingError: such a line is no sample, a series occurs twice, or there are too many.
    """
    number = 0
    seen: set[tuple[str, frozenset[tuple[str, str]]]] = set()
    for line in page.splitlines():
        if not line.startswith(prefix):
            continue
        number += 1
        if number > _MAX_SAMPLES:
            raise RecordingError(f"there are more than {_MAX_SAMPLES:,} samples of {prefix}* among the metrics.")
        sample = _sample(line)
        series = sample.name, frozenset(sample.labels.items())
        if series in seen:
            raise RecordingError(f"the series {shortened(line.rpartition(' ')[0], 120)} is given twice.")
        seen.add(series)
        yield sample


def kinds(page: str, prefix: str) -> dict[str, str]:
    """Return the declared type, such as counter or gauge, of each metric of `page` whose name begins with `prefix`."""
    found: dict[str, str] = {}
    for line in page.splitlines():
        words = line.split()
        if len(words) != 4 or words[:2] != ["#", "TYPE"] or not words[2].startswith(prefix):
            continue
        _, _, name, kind = words
        if found.setdefault(name, kind) != kind:
            raise RecordingError(f"{shortened(name)} is declared as {shortened(found[name])} and as {shortened(kind)}.")
    return found


def _sample(line: str) -> Sample:
    """Parse a line of the text format: name, labels and value."""
    name = _NAME.match(line) if len(line) <= _MAX_LINE else None
    if name is None:
        raise _no_sample(line)
    labels: dict[str, str] = {}
    at = name.end()
    if line[at : at + 1] == "{":
        at += 1
        while (end := _END.match(line, at)) is None:
            label = _LABEL.match(line, at)
            if label is None or label[1] in labels:
                raise _no_sample(line)
            labels[label[1]] = re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), label[2])
            at = label.end()
        at = end.end()
    value = _VALUE.match(line, at)
    try:
        return Sample(name[0], labels, float(value[1] if value is not None else ""))
    except ValueError:
        raise _no_sample(line) from None


def _no_sample(line: str) -> RecordingError:
    return RecordingError(f"{shortened(line, 120)} is not a sample of a metric.")
