"""Flag with several values, such as `--kv-cache-dtype auto fp8`, which `kvsim compare` compares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click

from kvsim.cli.options import flag_values
from kvsim.cli.served_command import ServedCommand
from kvsim.cli.server_flags import is_flag_word
from kvsim.errors import UsageError

_KEY = "kvsim.several_values"
_NOT_COMPARED = frozenset(("output", "overwrite", "as_json", "ladder", "uniform_cache", "clock", "check",
                           "refuse_misfits", "_from"))  # fmt: skip
_SWITCH_WORDS = frozenset(("on", "off", "true", "false", "yes", "no"))


class SeveralValues(NamedTuple):
    """Flag for which several values are given."""

    flag: str
    """Flag as it is typed, such as `--kv-cache-dtype`."""
    name: str
    """Name of the command's parameter."""
    words: tuple[str, ...]
    values: tuple[Any, ...]
    """Values to compare, in the type of the flag."""


def several_values(context: click.Context) -> SeveralValues | None:
    """Return the flag for which several values are given; None if every flag has one value."""
    found: SeveralValues | None = context.meta.get(_KEY)
    return found


class ComparingCommand(ServedCommand):
    """Command in which one flag may have several values; a switch has the values on and off."""

    def kvsim_arguments(self, ctx: click.Context, args: Sequence[str]) -> list[str]:
        """Return `args` for click, with only the first value of the flag that has several.

        All its values are stored in `ctx`, from which the function `several_values` reads them.
        """
        options = {
            spelling: option
            for option in self.params
            if isinstance(option, click.Option) and option.name not in _NOT_COMPARED
            for spelling in (*option.opts, *option.secondary_opts)
        }
        kept: list[str] = []
        once: dict[str, str] = {}
        for flag, words, written in _flags_with_words(args, options):
            option = options.get(flag)
            most = 0 if option is not None and option.is_flag else 1
            if option is not None and words and not option.multiple:
                name, word = str(option.name), words[0]
                if name in once:
                    raise UsageError(
                        f"{flag} should be given once; compare two values with {flag} {once[name]} {word}."
                    )
                once[name] = word
            if option is None or len(words) <= most:
                kept += written
            elif option.multiple:
                kept += [part for word in words for part in (flag, word)]
            else:
                self._keep(ctx, option, flag, words)
                kept += [flag, *words[:most]]
        return kept

    def _keep(self, ctx: click.Context, option: click.Option, flag: str, words: Sequence[str]) -> None:
        other = several_values(ctx)
        if other is not None:
            raise UsageError(
                f"{other.flag} and {flag} both have several values, and one flag is compared; kvsim sweep --vary runs "
                "every combination."
            )
        if option.is_flag and len(words) == 1:
            raise UsageError(f"{flag} alone is a switch; to compare both of its values, give {flag} on off.")
        if len(set(words)) < max(len(words), 2):
            raise UsageError(f"{flag} should have different values to compare, not {' '.join(words)}.")
        values = tuple(flag_values(ctx, option, flag, words))
        ctx.meta[_KEY] = SeveralValues(flag, str(option.name), tuple(words), values)


def _flags_with_words(args: Sequence[str], options: dict[str, click.Option]) -> list[tuple[str, list[str], list[str]]]:
    """Return each flag in `args`, the words after the flag, and the arguments that held the flag and these words.

    A word that is neither a flag nor the value of one of `options` is returned as if it were a flag without words.
    """
    found: list[tuple[str, list[str], list[str]]] = []
    index = 0
    while index < len(args):
        word, begin, index = args[index], index, index + 1
        flag, joined, value = word.partition("=")
        option = options.get(flag)
        words = [value] if joined else []
        while option is not None and index < len(args) and not is_flag_word(args[index]):
            if option.is_flag and args[index].casefold() not in _SWITCH_WORDS:
                break
            words.append(args[index])
            index += 1
        found.append((flag, words, list(args[begin:index])))
    return found
