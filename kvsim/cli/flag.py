"""Flags that a help text groups by sections, and that are refused where they would have no effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import click

from kvsim.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])


class Flag(click.Option):
    """Flag of a command, which can require other flags or exclude them."""

    def __init__(
        self,
        *names: Any,
        section: str = "Options",
        requires: Sequence[str] = (),
        excludes: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        """Declare a flag below the heading `section` of the help.

        The flag is refused if it is given without any flag in `requires`, or with a flag in `excludes`. Both hold names
        of parameters; names that the command does not have are ignored.
        """
        super().__init__(*names, **settings)
        self.section, self._requires, self._excludes = section, requires, excludes

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Return the value of the flag. `opts` has the flags that are given.

        Raises:
            UsageError: the flag has no effect with these flags.
        """
        if self.name in opts:
            options = {str(option.name): option.opts[0] for option in ctx.command.params}
            needed = [options[name] for name in self._requires if name in options]
            if needed and not any(name in opts for name in self._requires):
                *others, last = needed
                which = f"{', '.join(others)} or {last}; give one" if others else f"{last}; give both"
                raise UsageError(f"{self.opts[0]} requires {which}.")
            if other := next((options[name] for name in self._excludes if name in opts), None):
                raise UsageError(f"{self.opts[0]} has no effect with {other}; leave one out.")
        return super().handle_parse_result(ctx, opts, args)


def flag(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a decorator that adds a `Flag` to a command."""
    return click.option(*names, cls=Flag, **settings)


def section(heading: str) -> Callable[..., Callable[[Command], Command]]:
    """Return a function like `flag`, which puts flags below `heading` of the help."""
    return partial(flag, section=heading)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return a decorator that adds `options` to a command; its help lists them in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


class SectionedCommand(click.Command):
    """Command whose help lists the flags without a section first, then the sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags to the help. Sections have the order of their first flags."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None and record[1]:  # an argument without a text is in the usage line
                sections.setdefault(getattr(option, "section", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)
