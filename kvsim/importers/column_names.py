"""Recognition of columns and keys to which people give different names: the quantity and unit of each name."""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
TURNS = ("after", "pause_s", "history_tokens")
"""Optional columns of turns. A turn waits for the requests whose ids are in its field `after`."""
OPTIONAL = ("id", "max_tokens", "priority", "prefix_group", "prefix_tokens", "adapter", "images", *TURNS)
"""Optional columns. An empty field means: no limit beyond the output, priority 0, no shared prefix, no adapter, no
images, no wait, no pause, the whole history.
"""
UNITS = {
    "s": "s sec secs second seconds",
    "ms": "ms msec msecs milli millis millisecond milliseconds",
    "us": "us usec usecs μs micro micros microsecond microseconds",
    "ns": "ns nsec nsecs nano nanos nanosecond nanoseconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "d": "d day days",
}
"""Units of time, each with the words for it at the end of a column's name."""
_UNIT_OF = {word: unit for unit, words in UNITS.items() for word in words.split()}
_TIMES = {
    "arrival", "arrivaltime", "arrivaltimestamp", "arrivedat", "timestamp", "time", "start", "starttime",
    "starttimestamp", "created", "createdat", "createdtime", "sentat", "requesttime", "requesttimestamp", "ts",
}  # fmt: skip
_DATES = {
    "date", "datetime", "arrivaldate", "arrivaldatetime", "startdate", "startdatetime", "createddate", "requestdate",
}  # fmt: skip
_CLOCKS = {"unix", "epoch", "utc"}
"""Words in a column's name that say from when a clock counts."""
_COUNTING = {"tokens", "token", "len", "lens", "length", "lengths", "size", "count", "num", "n", "number"}
_NOUNS = {
    "prompt_tokens": {"prompt", "input", "context", "prefill", "request", "question", "in"},
    "output_tokens": {
        "output", "answer", "completion", "generated", "generation", "response", "reply", "decode", "decoded", "out",
    },
}  # fmt: skip
_BARE = {"prompt", "input", "output", "answer", "completion"}
"""Nouns that denote a number of tokens even without a word such as "tokens"."""


class Meaning(NamedTuple):
    """Quantity that a name denotes."""

    ours: str
    """Name of the quantity's column in kvsim."""
    unit: str | None = None
    """Unit of a time; None if the name states none."""
    dated: bool = False
    """True if values under this name are dates."""


@lru_cache(maxsize=1024)
def meaning(name: str) -> Meaning | None:
    """Return what a column or key of this name denotes; None if it is unknown.

    Case, spaces and punctuation are ignored: `promptTokens` is `Prompt tokens`.
    """
    words = _words(name)
    ours = "_".join(words)
    if ours in OPTIONAL:
        return Meaning(ours)
    unit = _UNIT_OF.get(words[-1]) if len(words) > 1 else None
    base = [word for word in (words[:-1] if unit else words) if word not in _CLOCKS]
    joined = "".join(base)
    if joined in _TIMES | _DATES or (words and not base):
        return Meaning("arrival_s", unit, joined in _DATES)
    nouns = [word for word in words if word not in _COUNTING and word != "of"]
    for length, known in _NOUNS.items():
        if len(nouns) == 1 and nouns[0] in known and (len(words) > 1 or nouns[0] in _BARE):
            return Meaning(length)
    return None


def counts_tokens(name: str) -> bool:
    """Tell whether a word of a column's `name` says that the column has counts or lengths, so that it has no times."""
    return not _COUNTING.isdisjoint(_words(name))


def folded(name: str) -> str:
    """Return `name` in lower case, with an underscore between words."""
    return "_".join(_words(name))


def _words(name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", unicodedata.normalize("NFKC", name))
    return re.findall(r"[^\W_]+", spaced.casefold())


def by_quantity(names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Group `names` by the quantity that they denote, whose key is its name in kvsim. Unknown names are left out."""
    found = defaultdict(list)
    for name in names:
        known = meaning(name)
        if known is not None:
            found[known.ours].append(name)
    return found


@lru_cache(maxsize=64)
def rivals(names: tuple[str, ...], settled: Collection[str] = ()) -> tuple[str, str, str] | None:
    """Return a quantity and two of `names` that denote it; None if no quantity has two names.

    Quantities in `settled`, by kvsim's names, may have several: the caller has chosen one.
    """
    found = by_quantity(names)
    several = ((ours, some[0], some[1]) for ours, some in found.items() if len(some) > 1 and ours not in settled)
    return next(several, None)
