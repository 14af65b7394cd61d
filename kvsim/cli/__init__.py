"""The command line `kvsim`: one module per command, imported only when the command is called.

A command converts flags into values, calls the library and prints the result. It computes nothing itself.
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
from kvsim.files.scratch import ENDING_SIGNALS

_TASKS = {
    "See where memory goes": {
        "tui": "Watch the memory pool of a recording or a fresh simulation.",
        "explain": "Print a lesson on where the memory goes, with still pictures.",
    },
    "Ask about a server": {
        "size": "Explain how many blocks a GPU and a model leave room for.",
        "fit": "Tell whether a load fits a server, what limits it, and which changes help.",
        "diagnose": "Tell why requests of a server waited or were preempted, and which changes help.",
        "doctor": "Explain what a server's log, metrics or recording say of its memory.",
    },
    "Simulate": {
        "run": "Simulate one policy and summarise what happened.",
        "compare": "Serve the same requests under several policies, or with several values of a flag.",
        "sweep": "Run a grid of settings and write one table.",
        "pack": "Pack sequences for training into rows, beside padded batches.",
    },
    "Draw and publish": {
        "plot": "Draw a figure from recordings.",
        "animate": "Film the memory pool: a GIF, an MP4 or a page with a play button.",
        "report": "Write a page with everything about some recordings.",
        "reproduce": "Compare figures from papers, posts and logs with simulations.",
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
"""Commands by task, each with its one-line help, so that the list is printed without importing the commands."""
_COMMANDS = [name for commands in _TASKS.values() for name in commands]
_OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Number of new objects after which Python's garbage collector runs. Python's default is some hundred times lower."""
_INTERRUPTED = 130
"""Exit code after Ctrl-C."""


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
        _check_arguments(args)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        widest = max(map(len, _COMMANDS))
        for task, commands in _TASKS.items():
            with formatter.section(task):
                formatter.write_dl([(name.ljust(widest), line) for name, line in commands.items()])


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


def _check_arguments(arguments: list[str]) -> None:
    """Refuse arguments that are empty (such as an unset shell variable) or not UTF-8, before any file is written."""
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
    """Open the null device for each standard stream that the shell has closed; exit if standard output is closed.

    Otherwise the next opened file would get the descriptor of the closed stream, and get the printed text.
    """
    is_mute = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    if is_mute:
        _print_error("standard output is closed, so there is nowhere to print; send it to a file, or to /dev/null.")
        sys.exit(2)


def _terminate(signal_number: int, _: object) -> None:
    """Exit by raising SystemExit when a signal arrives, so that context managers remove incomplete files."""
    sys.exit(128 + signal_number)


def main() -> None:
    """Run the command line and exit with 0 after success, 1 after a failure, or 2 after wrong usage."""
    for number in ENDING_SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP, and should continue to
            signal.signal(number, _terminate)
    _check_streams()
    # Figures are drawn into files, never into the window that the environment may ask for.
    os.environ["MPLBACKEND"] = "agg"
    # The start creates about a hundred thousand objects that live to the end. Searching them for garbage takes a tenth
    # of the time of a short command, so collections are rare, and the objects are frozen before the interpreter exits.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    atexit.register(gc.freeze)
    # OpenBLAS, which NumPy loads, starts a thread for each further core, and each waits for work in a busy loop: an
    # eighth of the time of a short command on two cores. No matrix product in kvsim is large enough for two threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        cli(standalone_mode=False, prog_name="kvsim")
    except click.ClickException as error:
        text = io.StringIO()
        error.show(file=text)
        print(*map(message, text.getvalue().splitlines()), sep="\n", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except KvsimError as error:
        _print_error(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader of the pipe, such as `head`, has closed it; without this the interpreter prints an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except MemoryError:
        _print_error("there is not enough memory for this; ask for less of it, such as fewer requests.")
        sys.exit(1)
    except OSError as error:
        # Such as a full disk or a removed folder: the message explains it as well as a traceback.
        where = f"{error.filename}: " if error.filename else ""
        _print_error(f"{where}{error.strerror or error}.")
        sys.exit(1)
    except Exception as error:
        # An extension module that Ctrl-C stops while it is imported raises an ImportError of its own.
        if _follows_interrupt(error):
            sys.exit(_INTERRUPTED)
        raise


def _follows_interrupt(error: BaseException | None) -> bool:
    """Tell whether Ctrl-C led to `error`: it was raised while a KeyboardInterrupt was handled, or because of one."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _print_error(text: str) -> None:
    print(f"kvsim: {message(text)}", file=sys.stderr)  # noqa: T201
