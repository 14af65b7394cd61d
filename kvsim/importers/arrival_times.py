"""Conversion of the arrival times of a file, numbers of any unit or dates, to seconds.

A single row does not determine the unit. So each row is only checked to be of the kind of the rows before, and the
column is interpreted when all rows are read. An ambiguous column is refused. If the column's name does not state the
unit, the description of the workload names the unit that was assumed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.errors import WorkloadError, shortened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from kvsim.importers.source import SourceRow


class _Unit(NamedTuple):
    """Unit of time as a fraction of seconds, so that half milliseconds stay exact."""

    words: str
    numerator: int
    denominator: int = 1

    def seconds(self, times: Any) -> Any:
        return times * self.numerator / self.denominator


_UNITS = {
    "s": _Unit("seconds", 1),
    "ms": _Unit("milliseconds", 1, 10**3),
    "us": _Unit("microseconds", 1, 10**6),
    "ns": _Unit("nanoseconds", 1, 10**9),
    "min": _Unit("minutes", 60),
    "h": _Unit("hours", 3600),
    "d": _Unit("days", 86_400),
}
_EPOCH_S = (1e9, 4.1e9)
"""Range of seconds since 1970 in the years 2001 to 2099. Milliseconds since 1970 are far above it."""
_EPOCH_UNITS = ("s", "ms", "us", "ns")
_LONGEST_S = 1e8
"""Limit in seconds for the span of a workload's arrival times, and for the time since its first request.

It is some three years; more is a mistake.
"""
_LEAST_DATE = 10_000
"""Numbers without a unit may be dates or times of day without separators if they are at least this large."""
_DAYS = (10_957, 88_069)
"""Range of the day numbers of 2000 to 2099, from 1970, 1900 (spreadsheets) or 1858 (modified Julian dates)."""
_DATE_DIGITS = len("20261116181546")
_ROUNDED_S = 1e7
"""Number of seconds above which a spreadsheet drops digits."""
_LATE_S = 3600.0
_SOON_S = 1.0
_UNKNOWN = "XXX"
"""Text in place of a time in those files of Azure that have only lengths."""
_NUMBER = re.compile(r"\+?(?:\d+(?P<point>\.\d*|,\d+)?|(?P<bare>[.,]\d+))(?P<power>[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[1-9]\d{0,2}(?:[.,]\d{3})+", re.ASCII)
_DATE = re.compile(
    r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?)(?:[.,](\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d|[+-]\d\d|UTC)?", re.ASCII
)
_PLAIN_LETTERS = frozenset("0123456789.eE+-")
_MOST = 9e18
"""Upper bound of times, not included, so that they fit into 64 bits."""
_NS = 10**9
_ZONED, _LOCAL, _LENGTHS = "dates with a time zone", "dates without a time zone", f"{_UNKNOWN}, no times"
_NUMBERS = "numbers"


@dataclass(slots=True, kw_only=True)
class Clock:
    """Converter of a column of arrival times: `read` checks each row, `seconds` converts the results of all."""

    path: Path
    column: str
    """Name of the column in the file."""
    unit: str | None = None
    """Unit that the column's name or the format states; None if neither does."""
    dated: bool = False
    """True if the column's name says that it has dates."""
    given_by_user: bool = False
    """True if the user has stated the unit."""
    known: bool = True
    """True if the format defines the unit, so that the description need not state it."""
    from_first: bool = True
    """True if the first arrival is moved to 0. Dates always are."""
    kind: str | None = field(default=None, init=False)
    """Kind of time of the rows read before, such as numbers; None before the first row."""
    _mark: str = field(default="", init=False)
    """Decimal mark of the numbers read before; empty if none has one."""
    _grouped: tuple[int, str] | None = field(default=None, init=False)
    """Line and text of the first number whose mark may separate thousands; None if there is none."""
    _decimal: bool = field(default=False, init=False)
    """True once a number was read whose mark can only be a decimal mark."""
    _power: str = field(default="", init=False)
    """First number whose power of ten hides digits, such as 1.7E+12; empty if there is none."""
    _falls: list[bool] = field(default_factory=lambda: [False, False], init=False)
    """True if a time is below the one before: read with decimal marks, then with separators of thousands."""
    _last: tuple[float, float] = field(default=(0.0, 0.0), init=False)

    def read(self, row: SourceRow, value: Any) -> float | int:
        """Return the time in `value`, a field of `row`: nanoseconds since 1970 for a date, or the number itself.

        Raises:
            WorkloadError: it is no time, or of another kind than in the rows before.
        """
        if isinstance(value, str):
            return self._text(row, value.strip())
        number = -1.0 if isinstance(value, bool) or not isinstance(value, (int, float)) else value
        return self._number(row, number, value)

    def read_many(self, texts: Sequence[str]) -> Sequence[float | int] | None:
        """Return the results of `read` for plain numbers; None if `texts` must be read one by one."""
        letters = "".join(texts)
        if self.kind not in (None, _NUMBERS) or self._mark == "," or not _PLAIN_LETTERS.issuperset(letters):
            return None
        if "e" in letters or "E" in letters or ("." in letters and not self._decimal):
            return None
        try:
            times = list(map(int if "." not in letters else float, texts))
        except ValueError:
            return None
        if min(times) < 0 or max(times) >= _MOST:
            return None
        self.kind = _NUMBERS
        if not self._decimal:
            unordered = any(later < time for time, later in pairwise(times))
            self._falls = [
                fell or unordered or times[0] < last for fell, last in zip(self._falls, self._last, strict=True)
            ]
            self._last = (times[-1], times[-1])
        return times

    def _text(self, row: SourceRow, text: str) -> float | int:
        """Return the number in `text`, or the time of its date. Numbers must have one decimal mark."""
        found = _NUMBER.fullmatch(text)
        if found is None:
            return self._date(row, text)
        mark = (found["point"] or found["bare"] or "")[:1]
        if mark and self._mark not in ("", mark):
            raise row.error(
                f"{self.column} is {shortened(text)}, and earlier numbers have the decimal mark {self._mark!r}; "
                "write all with a point"
            )
        self._mark = self._mark or mark
        if found["power"]:
            num_digits = sum(map(str.isdecimal, text.lower().partition("e")[0]))
            self._power = self._power or (text if num_digits <= int(found["power"][1:]) else "")
        number: float | int = float(text.replace(",", "."))
        if not (mark or found["power"]) and number < _MOST:
            number = int(text.lstrip("+0") or "0")
        self._note_mark(row, text, mark, number)
        return self._number(row, number, text)

    def _note_mark(self, row: SourceRow, text: str, mark: str, number: float) -> None:
        if self._decimal:
            return
        if mark and not _GROUPED.fullmatch(text):
            self._decimal = True
        elif mark and self._grouped is None:
            self._grouped = (row.line, text)
        both = (number, number * 1000 if mark else number)
        self._falls = [fell or now < last for fell, now, last in zip(self._falls, both, self._last, strict=True)]
        self._last = both

    def _number(self, row: SourceRow, number: float, value: Any) -> float | int:
        if not 0 <= number < _MOST:
            raise row.error(f"{self.column} should be a finite number of at least 0, not {shortened(value)}")
        self._check_kind(row, _NUMBERS, value)
        return number

    def _date(self, row: SourceRow, text: str) -> int:
        """Return the date in `text` in nanoseconds since 1970; 0 for an unknown time."""
        if text == _UNKNOWN:
            self._check_kind(row, _LENGTHS, text)
            return 0
        match = _DATE.fullmatch(text)
        wrong = row.error(
            f"{self.column} should be a finite number of at least 0, not {shortened(text)}, or a time such as "
            "2026-11-16T18:15:46Z"
        )
        if match is None:
            raise wrong
        zone = (match[3] or "").replace("UTC", "Z")
        try:
            moment = datetime.fromisoformat(match[1] + zone)
            since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
        except (ValueError, OverflowError):
            raise wrong from None
        self._check_kind(row, _ZONED if zone else _LOCAL, text)
        return (since.days * 86_400 + since.seconds) * _NS + int((match[2] or "0").ljust(9, "0"))

    def _check_kind(self, row: SourceRow, kind: str, value: Any) -> None:
        if self.kind is None:
            self.kind = kind
        elif self.kind != kind:
            raise row.error(
                f"{self.column} is {shortened(value)}, one of {kind}, and the rows before it have {self.kind}; write "
                "all in one way"
            )

    def seconds(self, times: Sequence[float | int]) -> tuple[NDArray[np.float64], str]:
        """Return `times`, the results of `read`, in seconds, and for descriptions a note on the assumed unit.

        Raises:
            WorkloadError: the unit is ambiguous, or the times cannot be of this unit.
        """
        if self.kind == _LENGTHS:
            return np.zeros(len(times)), NO_ARRIVALS
        if self.kind in (_ZONED, _LOCAL):
            note = "" if self.known or self.kind == _ZONED else "; dates without a time zone are read as UTC"
            return self._relative(times, _UNITS["ns"], "dates", shifts=True), note
        self._check_marks()
        low, high = min(times), max(times)
        epoch = next((unit for unit in _EPOCH_UNITS if _is_epoch(low, unit) and _is_epoch(high, unit)), None)
        if epoch is not None:
            self._check_epoch(low, high, epoch)
        unit = _UNITS[epoch or self.unit or "s"]
        if self._power and unit.seconds(high) >= _ROUNDED_S:
            raise self._error(f"has times such as {self._power}, which have lost their last digits; write all digits")
        shifts = self.from_first or epoch is not None
        seconds = self._relative(times, unit, unit.words, shifts=shifts)
        if epoch is None:
            self._check_unstated(low)
            self._check_calendar(low, high, unit, many=len(times) > 1)
        plain = self.unit == "s" or (self.known and self.unit is not None)
        stated = f"{unit.words} since 1970" if epoch else "" if plain else unit.words
        comma = "with decimal commas" if self._mark == "," else ""
        words = " ".join(filter(None, (stated and f"as {stated}", comma)))
        late = f"; the first arrives after {seconds.min():,.6g} s" if not shifts and seconds.min() > _LATE_S else ""
        return seconds, f"; arrival times read {words}{late}" if words else late

    def _relative(self, times: Sequence[float | int], unit: _Unit, words: str, *, shifts: bool) -> NDArray[np.float64]:
        low, high = min(times), max(times)
        if unit.seconds(high - (low if shifts else 0)) > _LONGEST_S:
            raise self._error(
                f"goes from {self._shown(low)} to {self._shown(high)}, which as {words} is more than three years; "
                "times of one unit, of one kind of clock and without a mistake are needed"
            )
        # Subtract before the conversion: seconds since 1970 in a float have too few digits.
        exact = np.array(times) - (low if shifts else 0)
        relative: NDArray[np.float64] = np.asarray(unit.seconds(exact), np.float64)
        return relative

    def _shown(self, time: float) -> str:
        if self.kind == _NUMBERS:
            return f"{time:,.15g}" if isinstance(time, float) else str(time)
        return f"{datetime.fromtimestamp(time // _NS, UTC):%Y-%m-%d}"

    def _check_marks(self) -> None:
        """Refuse numbers with commas or points that may separate thousands.

        Such commas are always refused. Such points are refused only if the times ascend when the points separate
        thousands, and do not ascend when they are decimal points.
        """
        as_decimals, as_thousands = self._falls
        ordered = as_decimals and not as_thousands
        if self._grouped is not None and not self._decimal and (self._mark == "," or ordered):
            line, text = self._grouped
            digits = re.sub(r"[.,]", "", text)
            raise WorkloadError(
                f"{self.path}, line {line}: {self.column} is {text!r}, which may be {digits} or "
                f"{text.replace(',', '.', 1)}; write numbers without marks of thousands, and with a decimal point."
            )

    def _check_unstated(self, low: float) -> None:
        if self.unit is None and (low >= _LEAST_DATE or self.dated):
            raise self._error(
                f"begins at {self._shown(low)}, which is no time since 1970, and may be seconds or a day or an hour "
                "of a calendar; write times such as 2026-11-16T18:15:46, or say that these are seconds with --columns "
                f"arrival_s={self.column}"
            )

    def _check_calendar(self, low: float, high: float, unit: _Unit, *, many: bool) -> None:
        """Refuse numbers that look like days or dates although another unit is stated.

        `low` and `high` are the least and the largest time; `many` tells whether there are more than a few.
        """
        days = unit is not _UNITS["d"] and many and _DAYS[0] <= low and high < _DAYS[1] and high - low < 1
        if not self.given_by_user and (days or unit.seconds(low) > _LONGEST_S or (_is_date(low) and _is_date(high))):
            raise self._error(
                f"goes from {self._shown(low)} to {self._shown(high)}, which are hardly {unit.words}: they may be "
                "days or dates of a calendar; write times such as 2026-11-16T18:15:46, or count from the first request"
            )

    def _check_epoch(self, low: float, high: float, epoch: str) -> None:
        """Refuse times since 1970, `low` to `high`, if the unit that they must have, `epoch`, is not the stated one."""
        stated = self.unit
        if stated not in (None, epoch):
            unit = _UNITS[str(stated)]
            if unit.seconds(low) >= _LATE_S * 24 or unit.seconds(high - low) < _SOON_S:
                raise self._error(
                    f"is in {unit.words}, and begins at {self._shown(low)}, which is a number of "
                    f"{_UNITS[epoch].words} since 1970; name the column arrival_{epoch}, or say --columns "
                    f"arrival_{epoch}={self.column}"
                )

    def _error(self, sentence: str) -> WorkloadError:
        return WorkloadError(f"{self.path}: the column {self.column} {sentence}.")


def _is_date(number: float) -> bool:
    text = f"{number:.0f}"
    try:
        return len(text) == _DATE_DIGITS and 1970 <= datetime.strptime(text, "%Y%m%d%H%M%S").year < 2100
    except ValueError:
        return False


def _is_epoch(time: float, unit: str) -> bool:
    return _EPOCH_S[0] <= float(_UNITS[unit].seconds(time)) < _EPOCH_S[1]


NO_ARRIVALS = "; it has no arrival times"
"""Note for files without arrival times. All their requests arrive at once, unless they get new arrivals."""
