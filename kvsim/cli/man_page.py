"""Manual page for `kvsim --man`: all commands and flags in troff, made from the help texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from kvsim import __version__

if TYPE_CHECKING:
    import click


def man_page(context: click.Context, tasks: Mapping[str, Mapping[str, str]]) -> str:
    """Return the manual page of the command group of `context`, with the commands grouped by `tasks`."""
    return "\n".join(_lines(context, tasks)) + "\n"


def _lines(context: click.Context, tasks: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    import click

    group = context.command
    assert isinstance(group, click.Group)
    about, _, start = (group.help or "").partition("\n\n")
    yield f'.TH KVSIM 1 "" "kvsim {__version__}" "User Commands"'
    yield from (".SH NAME", rf"kvsim \- {_text(about)}")
    yield from (".SH SYNOPSIS", r"\fBkvsim\fR COMMAND [\fIARGUMENTS\fR]")
    yield from (".SH DESCRIPTION", _text(" ".join(start.split())), ".SH OPTIONS", *_flags(group, context))
    for task, commands in tasks.items():
        yield f'.SH "{_text(task.upper())}"'
        for name in commands:
            command = group.get_command(context, name)
            assert command is not None
            inner = click.Context(command, parent=context, info_name=name)
            yield f'.SS "kvsim {name} {_text(" ".join(command.collect_usage_pieces(inner)))}"'
            for paragraph in (command.help or "").split("\n\n"):
                yield from (".PP", _text(" ".join(paragraph.split())))
            yield from _flags(command, inner)


def _flags(command: click.Command, context: click.Context) -> Iterator[str]:
    for flag in command.get_params(context):
        record = flag.get_help_record(context)
        if record is not None and record[1]:
            yield from (".TP", rf"\fB{_text(record[0])}\fR", _text(record[1]))


def _text(text: str) -> str:
    """Escape characters of `text` that troff would interpret."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace('"', r"\(dq")
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped
