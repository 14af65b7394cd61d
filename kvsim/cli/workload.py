"""The flags that say which requests are served: those of a recording or a file, or generated ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kvsim.cli.ranges import check_ranges
from kvsim.cli.sections import section
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.recording import Recording
    from kvsim.workload import Arrivals, Lengths, SharedPrefixes, Workload

DEFAULT_WORKLOAD = "vllm-h200-llama-3-8b-sharegpt-pressure"
"""A recording of a real server under memory pressure, whose requests are served again where no others are named."""
_DEFAULT_NUM_REQUESTS = 400
_DEFAULT_TOKENS = "200:0.8"
Command = TypeVar("Command", bound=Callable[..., Any])

_requests = section("Requests")
ARRIVAL_OPTIONS = (
    _requests(
        "--arrivals",
        type=click.Choice(["poisson", "gamma", "constant", "at-once"]),
        help="Generate requests that arrive so.",
    ),
    _requests("--rate", type=float, metavar="PER_S", help="Requests per second; rescales a recorded workload."),
    _requests(
        "--burstiness", type=float, default=2.0, show_default=True, help="With --arrivals gamma: CV of the gaps."
    ),
)
_OPTIONS = (
    _requests(
        "--workload",
        metavar="FILE",
        help=f"Serve the requests of a recording, or of a file that kvsim import can read.  [{DEFAULT_WORKLOAD}]",
    ),
    _requests("--num-requests", type=int, help="Only the first so many, or how many to generate."),
    *ARRIVAL_OPTIONS,
    _requests("--prompt-tokens", metavar="MEAN[:SIGMA]", help="Generate prompts: fixed, or log-normal with a sigma."),
    _requests("--output-tokens", metavar="MEAN[:SIGMA]", help="Generate outputs, likewise."),
    _requests("--shared-prefix", metavar="GROUPSxTOKENS", help="Generated prompts begin with one of so many prefixes."),
    _requests("--seed", type=int, default=0, show_default=True, help="Of everything that is generated."),
)


def workload_options(command: Command) -> Command:
    """Add the flags of a workload to `command`, which receives them as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def workload_of_flags(flags: dict[str, Any]) -> Workload:
    """The requests that the flags ask for."""
    check_ranges(flags)
    return workload_and_source(flags)[0]


def workload_and_source(flags: dict[str, Any]) -> tuple[Workload, Recording | None]:
    """The requests that the flags ask for, and the recording that they are from, if they are.

    Raises:
        UsageError: two flags contradict each other, or one cannot be right.
    """
    if not is_generated(flags):
        from kvsim.importers import read_workload, workload_of
        from kvsim.recording import find, read

        path = find(flags["workload"] or DEFAULT_WORKLOAD)
        source = None if path.is_file() else read(path)
        return _part(read_workload(path) if source is None else workload_of(source), flags), source
    if flags["workload"] is not None:
        raise UsageError(
            "--workload serves recorded requests, so it excludes --arrivals, --prompt-tokens, --output-tokens and "
            "--shared-prefix; kvsim import can give them new arrivals."
        )
    return _generated(flags), None


def is_generated(flags: Mapping[str, Any]) -> bool:
    """Whether the flags ask for requests that are drawn, not read."""
    return any(flags[name] is not None for name in ("arrivals", "prompt_tokens", "output_tokens", "shared_prefix"))


def first_requests(workload: Workload, num_requests: int, hint: str = "") -> Workload:
    """The requests that --num-requests asks for.

    Raises:
        UsageError: there are not so many; `hint` says what else could help than to leave the flag out.
    """
    from kvsim.importers import first

    if num_requests > len(workload):
        raise UsageError(
            f"--num-requests asks for the first {num_requests:,} requests, and {workload.name} has {len(workload):,} "
            f"to give; leave it out to take them all{hint}."
        )
    return first(workload, num_requests)


def given(value: int | None, otherwise: int) -> int:
    """`value` unless it was left out: zero was not left out, it is wrong, and the settings say so."""
    return otherwise if value is None else value


def arrivals_of_flags(flags: dict[str, Any]) -> Arrivals:
    """The arrival process of --arrivals, --rate and --burstiness."""
    from kvsim.workload import AllAtOnce, Constant, Gamma, Poisson

    rate = 30.0 if flags["rate"] is None else flags["rate"]
    processes: dict[str, Callable[[], Arrivals]] = {
        "poisson": lambda: Poisson(rate_per_s=rate),
        "gamma": lambda: Gamma(rate_per_s=rate, cv=flags["burstiness"]),
        "constant": lambda: Constant(rate_per_s=rate),
        "at-once": AllAtOnce,
    }
    return processes[flags["arrivals"] or "poisson"]()


def _part(workload: Workload, flags: dict[str, Any]) -> Workload:
    """The first requests of `workload`, or all, at the rate that the flags ask for."""
    if flags["num_requests"] is not None:
        hint = "" if flags["workload"] else "; --arrivals poisson generates any number"
        workload = first_requests(workload, flags["num_requests"], hint)
    if flags["rate"] is not None:
        from kvsim.workload import Poisson

        Poisson(rate_per_s=flags["rate"])  # checks the rate
        recorded = workload.summary().rate_per_s
        if recorded is None:
            raise UsageError(
                "--rate rescales arrivals, and the requests of this recording arrive all at once; "
                "kvsim import FILE --arrivals poisson --rate PER_S gives them new ones."
            )
        workload = workload.scaled_rate(flags["rate"] / recorded)
    return workload


def _generated(flags: dict[str, Any]) -> Workload:
    from kvsim.workload import generate

    return generate(
        given(flags["num_requests"], _DEFAULT_NUM_REQUESTS),
        arrivals=arrivals_of_flags(flags),
        prompt=_lengths("--prompt-tokens", flags["prompt_tokens"] or _DEFAULT_TOKENS),
        output=_lengths("--output-tokens", flags["output_tokens"] or _DEFAULT_TOKENS),
        prefixes=_prefixes(flags["shared_prefix"]),
        seed=flags["seed"],
    )


def _lengths(flag: str, text: str) -> Lengths:
    from kvsim.workload import Fixed, LogNormal

    mean, _, sigma = text.partition(":")
    try:
        return LogNormal(mean_tokens=float(mean), sigma=float(sigma)) if sigma else Fixed(tokens=int(mean))
    except ValueError:
        raise UsageError(
            f"{flag} should be a number of tokens such as 200, or a mean and a sigma such as 200:0.8, not {text!r}."
        ) from None


def _prefixes(text: str | None) -> SharedPrefixes | None:
    from kvsim.workload import SharedPrefixes

    if text is None:
        return None
    groups, _, tokens = text.partition("x")
    try:
        return SharedPrefixes(num_groups=int(groups), tokens=int(tokens))
    except ValueError:
        raise UsageError(
            f"--shared-prefix should be a number of groups and of tokens such as 4x512, not {text!r}."
        ) from None
