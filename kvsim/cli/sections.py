"""Help for commands with dozens of flags: below headings, by what they are about."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


class SectionedOption(click.Option):
    """A flag that stands below a heading."""

    def __init__(self, *names: Any, section: str, **settings: Any) -> None:
        """`section` is the heading; the rest is what any flag has."""
        super().__init__(*names, **settings)
        self.section = section


class SectionedCommand(click.Command):
    """A command whose help shows its own flags first, then those of each section."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags; sections come in the order of their first flags."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for flag in self.get_params(ctx):
            record = flag.get_help_record(ctx)
            if record is not None:
                sections.setdefault(getattr(flag, "section", "Options"), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def section(heading: str) -> Callable[..., Callable[[Command], Command]]:
    """What declares flags below `heading`, as `click.option` declares others."""
    return partial(click.option, cls=SectionedOption, section=heading)
