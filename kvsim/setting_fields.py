"""Settings as dataclass fields, each declared once for the command line, Python, recordings and the reference.

`block_size: int = setting(16, "Tokens per block.")` declares the flag `--block-size` and its help
(`kvsim.cli.options`), the keyword in Python, the column of a sweep, the field in a recording's `meta.json`, and the row
in `docs/reference/settings.md`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeGuard, get_args, get_type_hints

from kvsim.errors import UsageError, described, shortened

_BY_NAME = ("",)
"""Value of `Setting.flags` for a flag with the name of its field. `settings_in` replaces it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Metadata of a dataclass field that is a setting: its help, flags, bounds and choices."""

    help: str
    """Description for the help and the reference, with the unit."""
    flag_help: str = ""
    """Description for the help of a flag that turns the setting off; empty if `help` describes the flag, too."""
    flags: tuple[str, ...] = ()
    """Spellings of the flag in the syntax of click; empty for a setting without a flag.

    "--x/--no-x" is a pair of flags. A single flag of a boolean setting sets the opposite of the default.
    """
    unit: str | None = None
    """Placeholder of the value in the help, such as TOKENS. If None, click chooses one by the type."""
    section: str = ""
    """Heading in the help; empty for the heading of the class."""
    shown: str | None = None
    """Text that the help shows as the default; None to show the default value itself."""
    choices: Mapping[str, Any] | None = None
    """Allowed values, by the words that the flag accepts. If None, every value of the field's type is allowed."""
    requires: str = ""
    """Name of a setting without which this one has no effect; empty if there is none."""
    since: str = ""
    """First release of vLLM with this setting; empty if all releases have it."""
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None

    def check(self, name: str, value: object) -> None:
        """Check that a number is within the bounds. Other values are not checked.

        Raises:
            UsageError: the number is out of bounds. The message calls it `name`.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        for words, bound, holds in (
            ("at least", self.at_least, self.at_least is None or value >= self.at_least),
            ("above", self.above, self.above is None or value > self.above),
            ("at most", self.at_most, self.at_most is None or value <= self.at_most),
            ("below", self.below, self.below is None or value < self.below),
        ):
            if not holds:
                raise UsageError(f"{name} should be {words} {bound:,}, not {shortened(value)}.")


def setting(default: Any, help: str, *flags: str, **metadata: Any) -> Any:  # noqa: A002  the word of argparse and click
    """Declare a dataclass field as a setting, with `flags`, or with the flag of the field's name if `flags` is empty.

    `metadata` has other fields of `Setting`.
    """
    declared = Setting(help=help, flags=flags or _BY_NAME, **metadata)
    if declared.since:
        declared = replace(declared, help=f"{help} From vLLM {declared.since.removesuffix('.0')} on.")
    return field(default=default, metadata={"setting": declared})


def python_setting(default: Any, help: str, **metadata: Any) -> Any:  # noqa: A002
    """Declare a dataclass field as a setting without a flag. `metadata` has other fields of `Setting`."""
    return field(default=default, metadata={"setting": Setting(help=help, flags=(), **metadata)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Setting that a dataclass declares, with the name, type and default of its field."""

    name: str
    kind: type
    """Type of a value: int, float, bool, str or an enumeration."""
    default: Any
    setting: Setting

    @property
    def choices(self) -> dict[str, Any]:
        """Allowed values, by the words that the flag accepts; empty if every value of the type is allowed."""
        if self.setting.choices is None and issubclass(self.kind, Enum):
            return {str(member.value): member for member in self.kind}
        return dict(self.setting.choices or {})

    @property
    def default_words(self) -> str:
        """Default as text for the help; empty for None."""
        if self.setting.shown is not None:
            return self.setting.shown
        words = [word for word, value in self.choices.items() if value == self.default]
        if words:
            return words[0]
        if self.kind is bool:
            return "on" if self.default else "off"
        return "" if self.default is None else f"{self.default:g}" if self.kind in (int, float) else str(self.default)


@cache
def settings_in(kind: Any) -> tuple[Declared, ...]:
    """Return the settings that a dataclass declares or inherits, in the order of its fields."""
    types = get_type_hints(kind)
    found = []
    for each in fields(kind):
        if (declared := each.metadata.get("setting")) is not None:
            if declared.flags == _BY_NAME:
                declared = replace(declared, flags=("--" + each.name.replace("_", "-"),))
            declared = Declared(name=each.name, kind=_plain(types[each.name]), default=each.default, setting=declared)
            found.append(declared)
    return tuple(found)


def check_settings(settings: Any) -> None:
    """Check every setting of a dataclass against its type, bounds and choices. Replace words by the values that they
    name, and numbers of NumPy by Python's.

    Raises:
        UsageError: a value is of another type, a number is out of bounds, or a value is not among the choices.
    """
    for each in settings_in(settings.__class__):
        value = getattr(settings, each.name)
        choices = each.choices
        if value is not None and not choices:
            made = _typed(each.name, each.kind, value)
            if made is not value:
                object.__setattr__(settings, each.name, made)
                value = made
        if value is None and each.default is not None:
            raise UsageError(f"{each.name} should have a value, such as its default {each.default_words}, not None.")
        each.setting.check(each.name, value)
        if choices and value not in choices.values():
            if not isinstance(value, str) or value not in choices:
                raise UsageError(f"{each.name} should be one of {', '.join(choices)}, not {shortened(value)}.")
            object.__setattr__(settings, each.name, choices[value])


def _typed(name: str, kind: type, value: Any) -> object:
    """Return `value` as Python's number or truth value (also from 0 and 1), if `kind` is one; otherwise unchanged."""
    plain = value.item() if getattr(value, "shape", None) == () else value  # of NumPy
    if kind is bool and not (isinstance(plain, Integral) and plain in (0, 1)):
        raise UsageError(f"{name} should be True or False, not {shortened(plain)}.")
    if kind is int and (isinstance(plain, bool) or not isinstance(plain, Integral)):
        raise UsageError(f"{name} should be an integer, not {shortened(plain)}.")
    if kind is float and (isinstance(plain, bool) or not isinstance(plain, Real)):
        raise UsageError(f"{name} should be a number, not {shortened(plain)}.")
    return bool(plain) if kind is bool else plain


def whole_number(name: str, value: object, *, at_least: int = 1) -> int:
    """Return `value`, an integer of Python or NumPy, as an `int`. `name` is that of the setting.

    Raises:
        UsageError: it is no integer, is True or False, or is below `at_least`.
    """
    if not is_whole(value) or value < at_least:
        raise UsageError(f"{name} is {shortened(value)}; it must be an integer of at least {at_least}.")
    return int(value)


def is_whole(value: object) -> TypeGuard[int]:
    """Tell whether `value` is an integer of Python or NumPy. True and False are no integers."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_finite(value: object) -> TypeGuard[float]:
    """Tell whether `value` is a finite number of Python or NumPy. True and False are no numbers."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer above the largest float
        return False


def check_instance(name: str, value: object, kinds: type | UnionType, what: str) -> None:
    """Check that an argument is of one of the types `kinds`. `what` says in the message what `name` should be.

    Raises:
        UsageError: it is of another type.
    """
    if not isinstance(value, kinds):
        raise UsageError(f"{name} should be {what}, not {described(value)}.")


def check_parts(whole: object, **kinds: type) -> None:
    """Check that the fields of `whole` that `kinds` names are of the types in `kinds`.

    Raises:
        UsageError: a field is of another type.
    """
    for name, kind in kinds.items():
        check_instance(f"{name} of {type(whole).__name__}", getattr(whole, name), kind, kind.__name__)


def check_progress(progress: object) -> None:
    """Check that the argument `progress` is a function or None.

    Raises:
        UsageError: it is neither.
    """
    if progress is not None and not callable(progress):
        raise UsageError(f"progress should be a function such as print, or None, not {described(progress)}.")


def values_of(settings: Any) -> dict[str, Any]:
    """Return the values of the settings that a dataclass declares or inherits, by name."""
    return {each.name: getattr(settings, each.name) for each in settings_in(settings.__class__)}


def _plain(annotation: Any) -> type:
    """Return the class that an annotation allows beside None; str if the annotation is no class."""
    if isinstance(annotation, UnionType):
        [annotation] = [kind for kind in get_args(annotation) if kind is not type(None)]
    return annotation if isinstance(annotation, type) and annotation is not Any else str
