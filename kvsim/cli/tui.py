"""`kvsim tui`: the terminal interface, which shows a recording, simulations, a lesson or a live server."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from kvsim.cli import attach as live
from kvsim.cli.compare import times_option, with_memory_for_everything
from kvsim.cli.explain import list_lessons
from kvsim.cli.flag import flag
from kvsim.cli.options import PolicyParam, check_policy_flags, is_given
from kvsim.cli.scenario import build_scenario
from kvsim.cli.scenario_flags import scenario_options
from kvsim.cli.served_command import ServedCommand
from kvsim.cli.show import output_option, overwrite_option, progress
from kvsim.errors import UsageError
from kvsim.files.overwriting import check_ending, may_write
from kvsim.policies import EVERY_POLICY, OF_IMAGES, Paged, base_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.cli.scenario import Scenario
    from kvsim.recording import Recording
    from kvsim.simulation import EngineName

_LIST = "list"
"""Value of --lesson if no number is given, which lists the lessons."""
_PORT = 8000
_OF_FLEETS = ("--replicas", "--route", "--prefill", "--decode")
"""Flags of `kvsim run` that make a fleet."""
_FEW_REQUESTS = 1_000
"""Most requests of an interpreted run, for which a person waits. With machine code on disk, it may be compiled."""


class _TuiCommand(ServedCommand):
    """Command that says how to see a fleet if it gets a flag of one."""

    def kvsim_arguments(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = next((flag for word in args if (flag := word.partition("=")[0]) in _OF_FLEETS), None)
        if given is not None:
            raise UsageError(
                f"kvsim tui simulates one server, and {given} is for several; kvsim run {given} ... -o FOLDER records "
                "a fleet, and kvsim tui FOLDER shows it."
            )
        return super().kvsim_arguments(ctx, args)


@click.command("tui", cls=_TuiCommand)
@click.argument("recording_name", metavar="[RECORDING]", required=False)
@click.option("--policy", type=PolicyParam(), help="Simulate this policy instead of replaying a recording.")
@click.option("--compare", is_flag=True, help="Simulate all policies, including SGLang's, and show them on one clock.")
@click.option("--lesson", is_flag=False, flag_value=_LIST, metavar="[N]", help="Play a lesson; without N, list them.")
@click.option(
    "--attach",
    metavar="ADDRESS",
    help="Watch a live server at HOST:PORT, PORT or an http:// address: its /metrics, or the events of KVSIM_PUBLISH.",
)
@live.kv_events_options
@output_option(
    "Write what --attach observes: the folder of a recording, or FILE.csv for metrics.", requires=("attach",)
)
@click.option("--serve", is_flag=True, help="Show the interface in a browser of this machine.")
@flag("--port", type=click.IntRange(1, 65535), requires=("serve",), help=f"Port of --serve.  [{_PORT}]")
@times_option
@scenario_options
@flag("--at", "at_s", type=float, metavar="SECONDS", excludes=("attach",), help="Begin at this time of the recording.")
@flag(
    "--screenshot",
    type=click.Path(path_type=Path),
    metavar="FILE.svg|.png",
    excludes=("attach", "serve", "calm"),
    help="Write a picture and leave; needs no terminal.",
)
@overwrite_option("output", "screenshot")
@flag(
    "--size",
    default="120x40",
    show_default=True,
    metavar="COLUMNSxROWS",
    requires=("screenshot",),
    help="Size of the screenshot.",
)
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with plain characters.")
@click.option("--calm", is_flag=True, help="Draw one frame a second, for slow links.")
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    recording_name: str | None,
    policy: str | None,
    compare: bool,
    lesson: str | None,
    attach: str | None,
    kv_events: str | None,
    kv_events_replay: str | None,
    output: Path | None,
    serve: bool,
    port: int | None,
    at_s: float | None,
    screenshot: Path | None,
    size: str,
    overwrite: bool,
    ascii_only: bool,
    calm: bool,
    **flags: Any,
) -> None:
    """Watch the memory pool of RECORDING, of a simulation with --policy, or of all policies with --compare.

    RECORDING is a folder, the name of a recording that comes with kvsim, or the folder of a fleet's servers. Without
    it, flags of a simulation such as --model show that simulation, by default with --policy paged. Without such flags,
    a recorded vLLM run is shown.
    """
    _check_one_source(recording_name, policy, compare=compare, lesson=lesson, attach=attach)
    content_without_run = _content_without_run(
        recording_name, flags, lesson=lesson, attach=attach, compare=compare, screenshot=screenshot
    )
    policy = _checked_policy(context, policy, content_without_run, shows_other=bool(recording_name or compare))
    columns_rows = _checked_size(size, screenshot, at_s, overwrite=overwrite)
    if lesson == _LIST:
        if serve or screenshot is not None:
            raise UsageError("--lesson without a number lists the lessons; give a number, such as --lesson 1.")
        list_lessons()
        click.echo("\nkvsim tui --lesson 1 plays one; kvsim explain 1 prints it.")
        return
    if serve:
        if attach is None:
            _check_opens(recording_name, policy, flags, compare=compare, lesson=lesson)
        _serve(port or _PORT)
        return
    if screenshot is None and not (sys.stdin.isatty() and sys.stdout.isatty()) and "TEXTUAL_DRIVER" not in os.environ:
        raise UsageError("kvsim tui needs a terminal; without one, --screenshot FILE.svg writes a picture.")

    ascii_only = ascii_only or os.environ.get("TERM") == "dumb"
    tui = import_module("kvsim_tui")
    if attach is not None:
        live.attach(
            tui, attach, output, kv_events=kv_events, kv_events_replay=kv_events_replay, overwrite=overwrite,
            ascii_only=ascii_only, calm=calm,
        )  # fmt: skip
        return
    shown = _shown(recording_name, policy, flags, compare=compare, lesson=lesson)
    options: dict[str, Any] = {"at_s": at_s, "ascii": ascii_only, "ample": shown.ample}
    if screenshot is None:
        tui.run(shown.make, calm=calm, runs=shown.runs, **options)
    else:
        tui.screenshot(shown.make(None), screenshot, size=columns_rows, **options)
        click.echo(screenshot)


class _Shown(NamedTuple):
    """Functions that make what the interface shows. They are called after the interface has started."""

    make: Callable[[Any], Any]
    """Function that returns what is shown: one recording, several recordings, or a lesson.

    Its argument is an object that shows the progress of reading or simulating; if it is None, no progress is shown.
    """
    runs: Callable[[], Any] | None = None
    """Function that simulates the same requests under all policies; None if no comparison is possible."""
    ample: Callable[..., Any] | None = None
    """Function that returns each policy's tokens/s in a pool with room for all requests; None if not simulated."""


def _shown(
    recording_name: str | None, policy: str | None, flags: dict[str, Any], *, compare: bool, lesson: str | None
) -> _Shown:
    """Return the content that the flags ask for: a lesson, all policies, a fleet, or one recording."""
    if lesson is not None:
        found = import_module("kvsim_tui.lessons").find_lesson(lesson)
        return _Shown(lambda _report: found)
    all_runs = flags | {"workload": recording_name or flags["workload"]}
    ample = partial(_ample_tokens_per_s, all_runs)
    if compare:
        return _Shown(partial(_all_policies, all_runs), ample=ample)
    from kvsim.recording import server_folders

    folders = [] if recording_name is None else server_folders(recording_name)
    make = partial(_fleet, folders) if folders else partial(_recording, recording_name, policy, flags)
    return _Shown(make, partial(_all_policies, all_runs, _quiet), ample)


def _check_opens(
    recording_name: str | None, policy: str | None, flags: dict[str, Any], *, compare: bool, lesson: str | None
) -> None:
    """Check, before a server starts, that its browsers can show what the flags ask for. Nothing is simulated."""
    if lesson is not None:
        import_module("kvsim_tui.lessons").find_lesson(lesson)
    elif compare:
        build_scenario(**flags | {"workload": recording_name or flags["workload"]})
    elif policy is not None:
        build_scenario(only_policy=policy, **{flag: value for flag, value in flags.items() if flag != "clock"})
    elif recording_name is not None:
        from kvsim.recording import find, read, read_outlines, server_folders

        list(read_outlines(server_folders(recording_name))) or read(find(recording_name))


def _content_without_run(
    recording_name: str | None, flags: Mapping[str, Any], *, lesson: str | None, attach: str | None, compare: bool,
    screenshot: Path | None,
) -> str:  # fmt: skip
    """Describe the content that the flags ask for if it needs no simulation; otherwise return an empty text."""
    if recording_name is not None and flags["workload"] is not None:
        raise UsageError(f"--workload has no effect with the recording {recording_name!r}; leave one out.")
    if recording_name is not None and screenshot is not None and not compare:
        return f"a picture of the recording {recording_name!r}"
    return "--lesson" if lesson is not None else "--attach" if attach is not None else ""


def _checked_policy(
    context: click.Context, policy: str | None, content_without_run: str, *, shows_other: bool
) -> str | None:
    """Check the flags of a run, and return the policy to simulate; None if no single policy is simulated.

    If --policy is not given and flags describe a run, the paged policy is simulated, unless a recording or a comparison
    is shown (`shows_other`). `content_without_run` is the result of `_content_without_run`.
    """
    flag_of_a_run = _flag_of_a_run(context)
    if content_without_run and flag_of_a_run:
        raise UsageError(f"{flag_of_a_run} has no effect with {content_without_run}; leave one out.")
    if content_without_run:
        return None
    if policy is None and not shows_other and flag_of_a_run:
        policy = Paged.name
    if policy is not None:
        check_policy_flags(context, [policy])
    return policy


def _fleet(folders: Sequence[Path], report: Any) -> Any:
    if report is not None:
        report.begin(f"reading {len(folders):,} servers")
    return import_module("kvsim_tui").open_fleet(folders, report)


def _flag_of_a_run(context: click.Context) -> str:
    """Return a given flag that describes a simulation (requests, machine, policy); empty if there is none."""
    stated = (param for param in context.command.params if getattr(param, "section", "Options") != "Options")
    return next((param.opts[0] for param in stated if is_given(context, str(param.name))), "")


def _check_one_source(
    recording_name: str | None, policy: str | None, *, compare: bool, lesson: str | None, attach: str | None
) -> None:
    if recording_name is not None and policy is not None:
        raise UsageError("give a recording to replay or --policy to simulate, not both.")
    given = [("--policy", policy), ("--compare", compare or None), ("--lesson", lesson), ("--attach", attach)]
    names = [name for name, value in given if value is not None]
    if len(names) > 1:
        raise UsageError(f"{' and '.join(names)} each say what to show; give only one.")
    if recording_name is not None and names and names[0] in ("--lesson", "--attach"):
        raise UsageError(f"{names[0]} says what to show, so it takes no recording {recording_name!r}; leave one out.")


def _checked_size(size: str, screenshot: Path | None, at_s: float | None, *, overwrite: bool) -> tuple[int, int]:
    if at_s is not None and not 0 <= at_s < float("inf"):
        raise UsageError(f"--at should be a time of 0 seconds or more, not {at_s}.")
    if screenshot is not None:
        check_ending(screenshot, "a picture of the screen", ".svg", ".png", "")
        may_write(screenshot, "tui", overwrite=overwrite)
    return _size(size)


class _Quiet:
    """Report of progress that prints nothing, because the interface uses the terminal."""

    def begin(self, what: str) -> None:
        """Ignore the name of the next simulation."""

    def __call__(self, done: int, total: int) -> None:
        """Ignore the numbers of simulated and of all requests."""


_quiet = _Quiet()


def _recording(name: str | None, policy: str | None, flags: dict[str, Any], report: Any) -> Recording:
    if policy is not None:  # without a comparison, the policy has the step times of its own engine
        alone = {flag: value for flag, value in flags.items() if flag != "clock"}
        return _simulate(build_scenario(only_policy=policy, **alone), policy, report)
    from kvsim.cli.workload_flags import DEFAULT_WORKLOAD
    from kvsim.recording import find, read

    return read(find(name or DEFAULT_WORKLOAD))


def _all_policies(flags: dict[str, Any], report: Any) -> list[Recording]:
    scenario = build_scenario(**flags)
    return [_simulate(scenario, policy, report) for policy in _compared(scenario)]


def _compared(scenario: Scenario) -> tuple[str, ...]:
    return EVERY_POLICY if scenario.workload.images is None else OF_IMAGES


def _ample_tokens_per_s(flags: dict[str, Any]) -> list[float]:
    """Return the tokens per second of each policy in a pool that never runs short, in the order of `_all_policies`."""
    scenario = build_scenario(**flags)
    return with_memory_for_everything(scenario, {name: scenario.policy(name) for name in _compared(scenario)}, _quiet)


def _simulate(scenario: Scenario, policy: str, report: Any) -> Recording:
    """Simulate one policy. `report` receives the progress; None shows the progress in the terminal."""
    from kvsim.engine.driver import has_machine_code
    from kvsim.engine.initialization import memory_of

    # Compiling the engine for the first time takes longer than simulating a few hundred requests in Python.
    settings = scenario.policy(policy)
    is_quick = len(scenario.workload) <= _FEW_REQUESTS and not has_machine_code(memory_of(base_of(settings)))
    engine: EngineName = "interpreted" if is_quick else "auto"
    if report is not None:
        report.begin(f"simulating {policy}")
        return scenario.simulate(settings, progress=report, engine=engine)
    with progress(f"simulating {policy}") as show:
        return scenario.simulate(settings, progress=show, engine=engine)


def _serve(port: int) -> None:
    from kvsim.cli.serve import HOST, LocalServer

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise UsageError(f"cannot serve on port {port}: {error.strerror}; name another one with --port.") from error
    click.echo(f"open http://{HOST}:{port} in a browser; Ctrl+C ends the server.", err=True)
    LocalServer(shlex.join([sys.executable, "-m", "kvsim", *_without_serving(sys.argv[1:])]), port).serve()


def _without_serving(arguments: Sequence[str]) -> list[str]:
    kept, words = [], iter(arguments)
    for word in words:
        if word == "--port":
            next(words, None)
        elif word != "--serve" and not word.startswith("--port="):
            kept.append(word)
    return kept


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    columns, rows = map(int, match.groups()) if match else (0, 0)
    if not (60 <= columns <= 1000 and 16 <= rows <= 1000):
        raise UsageError(f"--size should be columns and rows such as 120x40, from 60x16 to 1000x1000, not {text!r}.")
    return columns, rows
