"""The command line: one thin file per command, imported when it is called.

A command turns flags into values, calls the library and shows what comes back; it computes nothing itself.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import re
import signal
import sys
from importlib import import_module
from itertools import pairwise
from keyword import iskeyword
from pathlib import Path

import click

from kvsim import __version__
from kvsim.display.text import message
from kvsim.errors import KvsimError, UsageError, shortened
from kvsim.files.scratch import ENDING

_TASKS = {
    "See where memory goes": {
        "tui": "Watch the memory pool of a recording or a fresh simulation.",
        "explain": "Print a lesson on where the memory goes, with still pictures.",
    },
    "Ask about a server": {
        "size": "Explain how many blocks a GPU and a model leave room for.",
        "fit": "Say whether a load fits a server, what limits it, and what would help.",
        "diagnose": "Say what happened to a server, why, and what would have helped.",
        "doctor": "Explain what a server's log, metrics or recording say of its memory.",
    },
    "Simulate": {
        "run": "Simulate one policy and summarise what happened.",
        "compare": "Put the same requests through several policies.",
        "sweep": "Run a grid of settings and write one table.",
        "pack": "Pack sequences for training into rows, beside padded batches.",
    },
    "Draw and publish": {
        "plot": "Draw a figure from recordings.",
        "animate": "Film the memory pool: a GIF, an MP4 or a page with a play button.",
        "report": "Write a page with everything about some recordings.",
        "reproduce": "Put figures from papers, posts and logs beside ours.",
    },
    "Record, import, export": {
        "capture": "Record a real run of vLLM or Hugging Face.",
        "info": "Describe a recording.",
        "import": "Turn a published trace into a workload to simulate.",
        "export": "Write a recording for Perfetto, a spreadsheet, or another simulator.",
    },
    "Measure times, check decisions": {
        "measure": "Measure this machine: its GPUs, links and host.",
        "calibrate": "Fit step times to recordings of a real engine.",
        "validate": "Simulate a recording's own requests and print the errors.",
        "verify": "Check that kvsim and a recorded vLLM make the same decisions, block for block.",
        "conform": "Compare the decisions of an installed vLLM with those that kvsim knows.",
        "versions": "List what changed in vLLM's scheduler and cache from release to release.",
    },
}
"""Each command and its one-line help, which is shown without importing it, below its task."""
_COMMANDS = [name for commands in _TASKS.values() for name in commands]
_OBJECTS_BETWEEN_COLLECTIONS = 100_000


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return _COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _COMMANDS:
            return None
        module = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = import_module(f"kvsim.cli.{module}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in _COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], _COMMANDS, n=1)
            ctx.fail(f"No such command '{args[0]}'." + (f" Did you mean '{near[0]}'?" if near else ""))
        _check_words(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        widest = max(map(len, _COMMANDS))
        for task, commands in _TASKS.items():
            with formatter.section(task):
                formatter.write_dl([(name.ljust(widest), said) for name, said in commands.items()])


def _print_completion(context: click.Context, _option: click.Parameter, shell: str | None) -> None:
    if shell is None:
        return
    from click.shell_completion import get_completion_class

    chosen = get_completion_class(shell)
    if chosen is not None:
        click.echo(chosen(context.command, {}, "kvsim", "_KVSIM_COMPLETE").source())
    context.exit()


def _print_man_page(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from kvsim.cli.man_page import man_page

    click.echo(man_page(context, _TASKS), nl=False)
    context.exit()


@click.command(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvsim")
@click.option(
    "--completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
    help="Print the completion of commands, flags and names for a shell and exit.",
)
@click.option(
    "--man",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_man_page,
    help="Print the manual page and exit: kvsim --man | man -l -",
)
def cli() -> None:
    """Show where the memory of an LLM server goes, and why.

    Start with: kvsim tui --policy paged
    """


def _check_words(arguments: list[str]) -> None:
    """Make sure that every argument says something, before anything is run or written in its place.

    An empty one is a variable of a shell that was never set. One that is no UTF-8 is a name that Parquet cannot have.

    Raises:
        UsageError: one does not.
    """
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the argument {shortened(argument)} is not UTF-8; give a name that is.") from None
    for before, argument in pairwise(arguments):
        if not argument or re.fullmatch("--[^=]+=", argument):
            where = argument or (before if before.startswith("-") else f"the argument behind {before}")
            raise UsageError(f"{where} is empty; give it a value, or leave it out.")


def _check_streams() -> None:
    """Open streams that a shell has closed: otherwise the next file would get their number, and the output.

    Nothing is computed that could not be printed.
    """
    is_mute = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    if is_mute:
        _complain("standard output is closed, so there is nowhere to print; send it to a file, or to /dev/null.")
        sys.exit(2)


def _terminate(signal_number: int, _: object) -> None:
    """Leave as after an error, so that incomplete files are removed."""
    sys.exit(128 + signal_number)


def main() -> None:
    """Run the command line and exit: 0 fine, 1 failed, 2 misused."""
    for number in ENDING:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _terminate)
    _check_streams()
    # Figures are drawn into files, whatever window is asked for.
    os.environ["MPLBACKEND"] = "agg"
    # Starting makes some hundred thousand objects that stay to the end; looking for garbage among them costs a tenth of
    # a short command, while they are made and again when the interpreter takes them down.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)
    # NumPy's library of linear algebra starts a thread for each further core, which spins for a while in case there is
    # work: an eighth of a short command, on two cores. Nothing here multiplies matrices that are worth a second thread.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        cli(standalone_mode=False, prog_name="kvsim")
    except click.ClickException as error:
        said = io.StringIO()
        error.show(file=said)
        print(*map(message, said.getvalue().splitlines()), sep="\n", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except KvsimError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has had enough; keep the interpreter from complaining when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        _complain("there is not enough memory for this; ask for less of it, such as fewer requests.")
        sys.exit(1)
    except OSError as error:
        # A full disk, a folder that is gone: nothing that a traceback would explain better.
        where = f"{error.filename}: " if error.filename else ""
        _complain(f"{where}{error.strerror or error}.")
        sys.exit(1)


def _complain(sentence: str) -> None:
    """Print an error message. The sentence may quote a file, or another library."""
    print(f"kvsim: {message(sentence)}", file=sys.stderr)  # noqa: T201
