"""Command that accepts the command line of a vLLM or SGLang server.

The server's line ends the command (`kvsim run vllm serve …`), or `--from` gives it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import click

from kvsim.cli.flag import SectionedCommand
from kvsim.cli.server_flags import Translation, translate
from kvsim.cli.server_lines import ServerLine, line_at, line_of
from kvsim.cli.show import echo
from kvsim.errors import UsageError


class ServedCommand(SectionedCommand):
    """Command that accepts the command line of a server after `--from`, or as its last arguments."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(
            click.Option(
                ["--from", "_from"],
                metavar="LINE|FILE",
                expose_value=False,
                help="Take the flags of a server: a quoted vllm serve or sglang.launch_server line, a script, or the "
                "YAML of Compose or Kubernetes. The line may also end this command, without quotes.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the flags of the server's line, then those of kvsim, which have priority."""
        given, line = _split(args)
        given = self.kvsim_arguments(ctx, given)
        if line is not None:
            known = {name: option for option in self.params for name in _spellings(option)}
            translation = translate(line, known)
            ours = {known[flag].name for word in given if (flag := word.partition("=")[0]) in known}
            _report(translation, [flag for flag in translation.arguments if flag in known and known[flag].name in ours])
            ctx.default_map = {**(ctx.default_map or {}), **translation.defaults}
            given = [*translation.arguments, *given]
        return super().parse_args(ctx, given)

    def kvsim_arguments(self, ctx: click.Context, args: list[str]) -> list[str]:  # noqa: ARG002  for subclasses
        """Return the arguments of kvsim, `args`, in the form that click parses; a subclass may change them."""
        return args


def _split(args: Sequence[str]) -> tuple[list[str], ServerLine | None]:
    """Divide `args` into the arguments of kvsim and the server's command line, which is None if there is none."""
    given = list(args)
    for index, word in enumerate(given):
        if word == "--from" or word.startswith("--from="):
            _, is_joined, value = word.partition("=")
            if not is_joined and index + 1 == len(given):
                raise UsageError("--from requires a server's command line in quotes, or a file with one.")
            rest = given[index + 1 :] if is_joined else given[index + 2 :]
            return given[:index] + rest, line_of(value if is_joined else given[index + 1])
        if (found := line_at(given, index)) is not None:
            return given[:index], found
    return given, None


def _spellings(option: click.Parameter) -> Collection[str]:
    return [*option.opts, *option.secondary_opts] if isinstance(option, click.Option) else ()


def _report(translation: Translation, replaced: Sequence[str]) -> None:
    """Print on standard error how each flag of the server was translated. The flags `replaced` are kvsim's, too."""
    echo(f"Taken from the server's command line: {translation.words() or 'nothing'}.", err=True)
    if replaced:
        echo(f"Replaced by the flags of kvsim: {' '.join(replaced)}.", err=True)
    for flag, why in translation.unmodelled.items():
        echo(f"Not followed: {flag}; {why}.", err=True)
    for flag, release in translation.dropped.items():
        when = f"since {release}" if release else "in the releases that kvsim follows"
        echo(f"Passed over: {flag}, which vLLM does not have {when}.", err=True)
    if translation.irrelevant:
        flags = " ".join(dict.fromkeys(translation.irrelevant))
        echo(f"Passed over, without a meaning here for memory or time: {flags}.", err=True)
