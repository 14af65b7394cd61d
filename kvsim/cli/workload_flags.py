"""Flags that choose the requests of a simulation: a recording, a file, or generated requests."""

from __future__ import annotations

import click

from kvsim.cli.flag import section, with_options
from kvsim.cli.options import bounded

DEFAULT_WORKLOAD = "vllm-h200-llama-3-8b-sharegpt-pressure"
"""Recording of a real server under memory pressure, whose requests are the default."""
REQUESTS, SEED = bounded(at_most=1 << 24), bounded(at_most=(1 << 63) - 1)
"""Callbacks that check the bounds of a number of requests, and of a seed."""

_requests = section("Requests")
ARRIVAL_OPTIONS = (
    _requests(
        "--arrivals",
        type=click.Choice(["poisson", "gamma", "constant", "at-once"]),
        help="Arrival process of generated requests.",
    ),
    _requests(
        "--rate",
        "--request-rate",
        type=float,
        metavar="PER_S",
        help="Requests per second, to which recorded arrivals are rescaled; inf: all at once.",
    ),
    _requests(
        "--burstiness",
        type=float,
        metavar="SHAPE",
        help="Shape of gamma-distributed gaps, as in vllm bench serve: 1 is Poisson, less is burstier.  [0.25]",
    ),
    _requests("--ramp", type=float, metavar="SECONDS", help="Ramp the rate from 0 to --rate over SECONDS."),
    _requests(
        "--rate-profile",
        metavar="FILE",
        help="Repeating arrival-rate profile: CSV with hour (or minute, time_s) and rate_per_s.",
    ),
)
"""Decorators that add the flags for arrivals to a command."""
_OPTIONS = (
    _requests(
        "--workload",
        metavar="FILE",
        help=f"Serve the requests of a recording, or of a file that kvsim import can read.  [{DEFAULT_WORKLOAD}]",
    ),
    _requests(
        "--columns",
        metavar="OURS=THEIRS,...",
        requires=("workload",),
        help="Column names in the CSV file of --workload: arrival_s=ts,...",
    ),
    _requests("--num-requests", "--num-prompts", type=int, callback=REQUESTS, help="Maximum number of requests."),
    _requests("--load", metavar="2x", help="Load multiplier: of the arrival rate, or of --users."),
    _requests("--answers", metavar="2x", help="Output-length multiplier."),
    *ARRIVAL_OPTIONS,
    _requests(
        "--prompt-tokens",
        "--random-input-len",
        metavar="MEAN[:SIGMA]",
        help="Lengths of generated prompts: fixed, or log-normal with a sigma.",
    ),
    _requests(
        "--output-tokens",
        "--random-output-len",
        metavar="MEAN[:SIGMA]",
        help="Lengths of generated outputs, in the same form.",
    ),
    _requests(
        "--random-range-ratio",
        type=float,
        metavar="SHARE",
        help="Share by which lengths vary uniformly around the given ones, as in vllm bench serve: 0.1"
        " is 10 % up and down.",
    ),
    _requests(
        "--shared-prefix",
        metavar="GROUPSxTOKENS",
        help="Shared prefixes of generated prompts: their number, and the tokens of each.",
    ),
    _requests(
        "--adapters",
        metavar="NUMBER[:SKEW]",
        help="Number of adapters (LoRA) that requests name. The n-th is named 1/n^SKEW times as often as the first.  "
        "[SKEW 1]",
    ),
    _requests(
        "--images",
        metavar="NUMBER@SIZE,...",
        help="Images added to each prompt: their number, and sizes in pixels or tokens, such as "
        "2@1920x1080,576. With :50 at the end, they are drawn from 50 different images.",
    ),
    _requests(
        "--sessions",
        type=int,
        callback=REQUESTS,
        help="Number of sessions to generate. Their turns wait for the answer before; --rate is the rate of sessions.",
    ),
    _requests("--turns", metavar="MEAN[:SIGMA]", help="Turns of a generated session.  [5]"),
    _requests("--pause", metavar="MEAN[:SIGMA]", help="Seconds from the end of a turn to the next, in a session.  [0]"),
    _requests(
        "--seed", type=int, callback=SEED, default=0, show_default=True, help="Seed of everything that is generated."
    ),
)
workload_options = with_options(*_OPTIONS)
"""Decorator that adds the flags for requests to a command."""
