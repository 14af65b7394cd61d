"""Errors that kvsim raises on purpose, as one tree, so that a caller can catch all of one kind.

    KvsimError                      exit code 1: the work could not be done
    ├── RecordingError              a recording is missing, damaged or inconsistent
    │   └── RecordingVersionError   its format version is unknown to this kvsim
    ├── WorkloadError               a request, or a file of requests, that cannot be served
    ├── BudgetError                 GPU memory is too small: nothing is left for the KV cache, or too little
    ├── StalledError                no request can ever make progress: a real engine would wait for ever
    ├── PolicyError                 a custom policy broke a rule
    ├── IntegrityError              an allocator lost or doubled slots or blocks: a defect of kvsim
    ├── WorkerDiedError             a worker process was killed
    ├── DefectError                 the terminal interface failed: a defect of kvsim
    └── UsageError                  exit code 2: an invalid setting, flag or argument
        ├── UnknownNameError        a model, GPU, policy or recording that is not listed
        └── MissingExtraError       an optional part of kvsim is not installed

A message is one sentence that states what is wrong, where, and how to correct it. The command line prints it without a
traceback and exits with `exit_code`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import ClassVar

_MOST_NAMED = 8
"""Largest number of names that a message lists completely."""


def shortened(value: object, most: int = 60) -> str:
    """Return the `repr` of `value`, cut to `most` characters, because values come from files and may be long.

    For an integer of very many digits, return a phrase with the approximate number of its digits. A number of NumPy is
    written as one of Python.
    """
    value = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    if isinstance(value, int) and value.bit_length() > 4 * most:
        return f"a whole number of some {value.bit_length() * 30103 // 100000:,} digits"
    text = repr(value)
    return text if len(text) <= most else f"{text[:most]}…"


def described(value: object) -> str:
    """Return `value` and its type, such as "5, which is of the type int", to be part of a message."""
    return f"{shortened(value)}, which is of the type {type(value).__name__}"


def reason_of(error: BaseException, otherwise: str = "") -> str:
    """Return the first line of an error's message without its full stop, to be part of another message.

    For an error without a message, return `otherwise` or, if that is empty, the name of the error's class.
    """
    message = (getattr(error, "strerror", None) or str(error)).strip()
    return message.splitlines()[0].rstrip(".") if message else otherwise or type(error).__name__


def unexpected(error: BaseException) -> str:
    """Return words for an error that should never occur, to be part of a message."""
    return f"{type(error).__name__} ({reason_of(error)}), a defect of kvsim"


class KvsimError(Exception):
    """Root of all errors that kvsim raises on purpose."""

    exit_code: ClassVar[int] = 1


class RecordingError(KvsimError):
    """A recording is missing, damaged or inconsistent."""


class RecordingVersionError(RecordingError):
    """The format version of a recording is unknown to this kvsim."""


class WorkloadError(KvsimError):
    """A request, or a file of requests, that cannot be served."""


class BudgetError(KvsimError):
    """GPU memory is too small: nothing is left for the KV cache, or less than one request needs."""

    def __init__(self, sentence: str, account: Iterable[tuple[str, int, str]] = ()) -> None:
        """Store the message `sentence` and the terms of a memory budget.

        Each term in `account` is a label, the bytes on one GPU, and a reason.
        """
        super().__init__(sentence)
        self.account = tuple(account)


class StalledError(KvsimError):
    """Requests are waiting, but none can ever be scheduled. A real engine would wait for ever."""


class PolicyError(KvsimError):
    """A custom policy broke a rule. For example, it named an unknown request, or allocated a unit twice."""


class IntegrityError(KvsimError):
    """An allocator lost or doubled slots or blocks: a defect of kvsim, never of its input."""


class WorkerDiedError(KvsimError):
    """A worker process was killed; the reason is unknown."""

    def __init__(self, under_way: Collection[str]) -> None:
        """`under_way` are the keys, given by the caller, of the calls that were sent to workers and have no result."""
        self.under_way = frozenset(under_way)
        super().__init__(
            "a worker process was killed, as a machine does when its memory is full; a smaller --jobs needs less of it."
        )


class DefectError(KvsimError):
    """The terminal interface failed: a defect of kvsim."""


class UsageError(KvsimError):
    """A setting, flag or argument is invalid."""

    exit_code: ClassVar[int] = 2


class MissingExtraError(UsageError):
    """An optional part of kvsim is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional part that is not installed: pip install 'kvsim[{extra}]'.")


class UnknownNameError(UsageError):
    """A name is not listed. The message suggests similar names, or some of the list."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, listed_by: str = "") -> None:
        """`kind` is the noun for the thing in the message, such as "model". `listed_by` is the command that lists all
        `known` names, for lists that are too long for a message.
        """
        names = sorted(known, key=lambda known_name: (len(known_name) if known_name.isdecimal() else 0, known_name))
        by_folded_name = {known_name.casefold(): known_name for known_name in names}
        # People often write only the last part of a model's name, so "llama-3-8b" is compared with both
        # "meta-llama/Llama-3-8B" and "Llama-3-8B".
        by_folded_name |= {known_name.casefold().rpartition("/")[2]: known_name for known_name in names}
        # A number is not a misspelt one.
        asked = "" if name.isdecimal() else name.casefold().rpartition("/")[2]
        near = get_close_matches(asked, by_folded_name, n=3, cutoff=0.4)
        suggestions = list(dict.fromkeys(by_folded_name[match] for match in near))
        advice = f"did you mean {' or '.join(suggestions)}?" if suggestions else _some(names, listed_by)
        super().__init__(f"there is no {kind} {name!r}; {advice}")
        self.kind = kind
        self.name = name


def _some(names: list[str], listed_by: str) -> str:
    """Return all names as text if they are few; otherwise the first ones, and any command that lists all."""
    if len(names) <= _MOST_NAMED:
        return f"there are {', '.join(names)}."
    num_named = _MOST_NAMED // 2
    others = f"and {len(names) - num_named} more" + (f", which {listed_by} lists" if listed_by else "")
    return f"there are {', '.join(names[:num_named])} {others}."
