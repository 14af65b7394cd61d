"""Flags that choose the requests of a simulation: a recording, a file, or generated requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.flag import section, with_options
from kvsim.cli.options import bounded
from kvsim.errors import UnknownNameError, UsageError, shortened

if TYPE_CHECKING:
    from kvsim.recording import RecordedRequests, Recording
    from kvsim.workload import Arrivals, Lengths, Pauses, SharedPrefixes, Workload

DEFAULT_WORKLOAD = "vllm-h200-llama-3-8b-sharegpt-pressure"
"""Recording of a real server under memory pressure, whose requests are the default."""
_MOST_ADAPTERS, _MOST_SKEW = 1 << 20, 100
_DEFAULT_NUM_REQUESTS = 400
_DEFAULT_NUM_SESSIONS, _DEFAULT_TURNS = 100, "5"
DEFAULT_TOKENS = "200:0.8"
_DEFAULT_CV = 2.0
"""Coefficient of variation of the gaps between gamma arrivals."""
_MOST_CUT = 0.1
"""Largest share of generated requests that may be shortened to the model's longest sequence without --max-model-len."""
REQUESTS, SEED = bounded(at_most=1 << 24), bounded(at_most=(1 << 63) - 1)
"""Bounds of the number of requests, and of a seed."""

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
        help="Share by which fixed lengths vary uniformly up and down, as in vllm bench serve.",
    ),
    _requests(
        "--shared-prefix",
        metavar="GROUPSxTOKENS",
        help="Shared prefixes of generated prompts: their number, and the tokens of each.",
    ),
    _requests(
        "--adapters",
        metavar="NUMBER[:SKEW]",
        help="Number of adapters (LoRA) that requests name, the n-th 1/n^SKEW as often as the first.  [SKEW 1]",
    ),
    _requests(
        "--images",
        metavar="NUMBER@SIZE,...",
        help="Images of each request, beside its prompt: number@sizes in pixels or tokens, such as 2@1920x1080,576; "
        ":50 for 50 different ones.",
    ),
    _requests(
        "--sessions",
        type=int,
        callback=REQUESTS,
        help="Number of sessions to generate, whose turns wait for answers; --rate is the rate of sessions.",
    ),
    _requests("--turns", metavar="MEAN[:SIGMA]", help="Turns of a generated session.  [5]"),
    _requests("--pause", metavar="MEAN[:SIGMA]", help="Seconds from the end of a turn to the next, in a session.  [0]"),
    _requests(
        "--seed", type=int, callback=SEED, default=0, show_default=True, help="Seed of everything that is generated."
    ),
)
workload_options = with_options(*_OPTIONS)
"""Decorator that adds the flags of a workload to a command."""


def workload_of_flags(flags: dict[str, Any]) -> Workload:
    """Return the requests that the flags describe, for a command that does not simulate sessions."""
    workload = workload_and_source(flags)[0]
    if workload.turns is not None:
        raise UsageError(
            "turns of sessions wait for the answers before them, and here requests come by themselves; leave out "
            "--sessions, --turns and --pause, give another --workload, or simulate these with kvsim run."
        )
    return workload


def workload_and_source(flags: dict[str, Any]) -> tuple[Workload, Recording | RecordedRequests | None]:
    """Return the requests that the flags describe, and the recording that they come from, if any."""
    factor = multiple("--answers", flags["answers"])
    if not is_generated(flags):
        _check_seed(flags)
        from kvsim import importers
        from kvsim.recording import find, read_requests, shipped_names

        name = flags["workload"] or DEFAULT_WORKLOAD
        try:
            path = find(name)
        except UnknownNameError as error:
            if not Path(name).suffix and Path(name).name == name:
                raise
            raise UnknownNameError("file or recording", name, shipped_names(), listed_by="kvsim info") from error
        source = None if path.is_file() else read_requests(path)
        columns = columns_of(flags["columns"])
        if source is not None and columns:
            raise UsageError(f"--columns are those of a CSV file, and {name} is a recording; leave them out.")
        workload = importers.read_workload(path, columns=columns) if source is None else importers.workload_of(source)
        return _adjusted(_part(workload, flags), flags, factor), source
    if flags["workload"] is not None:
        raise UsageError(
            "--workload serves recorded requests, so it excludes --arrivals, --prompt-tokens, --output-tokens, "
            "--shared-prefix and --sessions; kvsim import can give them new arrivals."
        )
    return _adjusted(_generated(flags), flags, factor), None


def _check_seed(flags: Mapping[str, Any]) -> None:
    """Check that --seed, if it is given with recorded requests, has an effect: on adapters, images or drafts."""
    if flags["seed"] and not any(flags.get(name) for name in ("adapters", "images", "speculative_config")):
        raise UsageError("--seed has no effect on recorded requests: nothing is drawn at random; leave it out.")


def _adjusted(workload: Workload, flags: Mapping[str, Any], answer_factor: float) -> Workload:
    """Apply --load, --answers (`answer_factor`), --adapters and --images."""
    workload = _with_load(workload, flags)
    if answer_factor != 1:
        workload = workload.scaled_answers(answer_factor)
    return _with_images(_with_adapters(workload, flags), flags)


def _with_adapters(workload: Workload, flags: Mapping[str, Any]) -> Workload:
    if flags["adapters"] is None:
        return workload
    number, _, skew = flags["adapters"].partition(":")
    try:
        count, exponent = int(number), float(skew or 1)
    except ValueError:
        count, exponent = 0, 0.0
    if not (1 <= count <= _MOST_ADAPTERS and 0 <= exponent <= _MOST_SKEW):
        raise UsageError(
            f"--adapters should be a number from 1 to {_MOST_ADAPTERS:,}, and a skew from 0 to {_MOST_SKEW}, such as "
            f"20:1, not {shortened(flags['adapters'])}."
        )
    return workload.with_adapters(count, exponent, flags["seed"])


def _with_images(workload: Workload, flags: Mapping[str, Any]) -> Workload:
    text = flags["images"]
    if text is None:
        return workload
    from kvsim.workload import ImageShare, ImageSize

    number, _, rest = text.partition("@")
    sizes, colon, different = rest.partition(":")
    try:
        share = float(number)
        listed = tuple(ImageSize.parse(size) for size in sizes.split(","))
        kinds = int(different) if colon else None
    except ValueError as error:
        raise UsageError(
            f"--images should be a number of images and their sizes, such as 2@1920x1080,576, not {shortened(text)}."
        ) from error
    return workload.with_images(ImageShare(number=share, sizes=listed, num_different=kinds), flags["seed"])


def is_generated(flags: Mapping[str, Any]) -> bool:
    """Tell whether the flags describe generated requests rather than those of a file."""
    names = ("arrivals", "prompt_tokens", "output_tokens", "shared_prefix", "burstiness", "ramp", "rate_profile")
    return has_sessions(flags) or any(flags[name] is not None for name in (*names, "random_range_ratio"))


def has_sessions(flags: Mapping[str, Any]) -> bool:
    """Tell whether the flags describe generated sessions."""
    return any(flags[name] is not None for name in ("sessions", "turns", "pause"))


def multiple(flag: str, text: str | None) -> float:
    """Return the number in a text such as `2x`; 1 for None."""
    if text is None:
        return 1.0
    try:
        factor = float(text.removesuffix("x"))
    except ValueError:
        factor = math.nan
    if not 1e-6 <= factor <= 1e6:
        raise UsageError(f"{flag} should be how many times as much, such as 2x or 0.5x, not {shortened(text)}.")
    return factor


def columns_of(text: str | None) -> dict[str, str]:
    """Return the file's column names in `--columns`, by kvsim's column names."""
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair.strip()]
    if any(not (ours.strip() and equals and theirs.strip()) for ours, equals, theirs in pairs):
        raise UsageError(
            f"--columns should be pairs such as arrival_s=timestamp,prompt_tokens=in,output_tokens=out, not "
            f"{shortened(text)}."
        )
    columns = {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
    if len(columns) < len(pairs):
        raise UsageError(f"--columns names a column of ours twice: {shortened(text)}; name each once.")
    return columns


def _with_load(workload: Workload, flags: Mapping[str, Any]) -> Workload:
    """Scale the arrival rate by --load; in a closed loop, `users_of` scales the number of users instead."""
    factor = multiple("--load", flags["load"])
    if factor == 1 or flags.get("users") is not None:
        return workload
    if workload.summary().rate_per_s is None:
        raise UsageError("--load makes requests arrive faster, and these arrive all at once; give --num-requests.")
    return workload.scaled_rate(factor)


def cut_at(workload: Workload, max_model_len: int, *, stated: bool) -> Workload:
    """Shorten generated requests to `max_model_len` tokens.

    `stated` tells that the user has stated this limit. Otherwise it is a `UsageError` if many requests are longer.
    """
    cut = workload.cut(max_model_len)
    if workload.turns is None:
        changed = (cut.prompt_tokens != workload.prompt_tokens) | (cut.output_tokens != workload.output_tokens)
        num_cut = int(changed.sum())
    else:
        num_cut = len(workload) - len(cut)
    if not stated and num_cut > _MOST_CUT * len(workload):
        raise UsageError(
            f"{num_cut:,} of the {len(workload):,} requests are longer than {max_model_len:,} tokens, the model's "
            "longest sequence; ask for shorter ones with --prompt-tokens and --output-tokens, or say that they are "
            f"cut with --max-model-len {max_model_len}."
        )
    return cut


def first_requests(workload: Workload, num_requests: int, hint: str = "") -> Workload:
    """Return the first --num-requests requests. `hint` is a second remedy in the error if there are fewer."""
    from kvsim.importers import first

    if num_requests > len(workload):
        raise UsageError(
            f"--num-requests asks for the first {num_requests:,} requests, and {workload.name} has {len(workload):,} "
            f"to give; leave it out to take them all{hint}."
        )
    return first(workload, num_requests)


def arrivals_of_flags(flags: dict[str, Any]) -> Arrivals:
    """Return the arrival process of --arrivals, --rate, --burstiness, --ramp and --rate-profile."""
    from kvsim.workload import AllAtOnce, Constant, Gamma, Poisson

    name, rate = flags["arrivals"], 30.0 if flags["rate"] is None else flags["rate"]
    if flags["ramp"] is not None or flags["rate_profile"] is not None:
        return _varying(flags, rate)
    shape = flags["burstiness"]
    if shape is not None and name not in (None, "gamma"):
        raise UsageError(f"--burstiness is of gamma arrivals; leave out --arrivals {name}.")
    if name == "at-once" and flags["rate"] is not None:
        raise UsageError("--rate has no effect on --arrivals at-once; leave one out.")
    waiting = flags.get("users") is not None or flags.get("max_concurrency") is not None
    is_closed_loop = waiting and flags["rate"] is None
    if (rate == math.inf or is_closed_loop) and name is None and shape is None:
        return AllAtOnce()
    processes: dict[str, Callable[[], Arrivals]] = {
        "poisson": lambda: Poisson(rate_per_s=rate),
        "gamma": lambda: Gamma(rate_per_s=rate, cv=_cv(shape)),
        "constant": lambda: Constant(rate_per_s=rate),
        "at-once": AllAtOnce,
    }
    return processes[name or ("poisson" if shape is None else "gamma")]()


def _cv(shape: float | None) -> float:
    """Return the coefficient of variation of gamma-distributed gaps of this shape: shape^-1/2."""
    if shape is not None and not 0 < shape < math.inf:
        raise UsageError(f"--burstiness should be a positive number, 1 for Poisson, not {shape}.")
    return _DEFAULT_CV if shape is None else shape**-0.5


def _varying(flags: dict[str, Any], rate: float) -> Arrivals:
    from kvsim.importers import read_profile
    from kvsim.workload import Varying

    ramp, profile = flags["ramp"], flags["rate_profile"]
    if flags["arrivals"] not in (None, "poisson") or flags["burstiness"] is not None:
        raise UsageError("--ramp and --rate-profile are Poisson arrivals of a changing rate; leave --arrivals out.")
    if profile is not None and (ramp is not None or flags["rate"] is not None):
        raise UsageError("--rate-profile says which rate holds when; leave out --rate and --ramp.")
    if profile is not None:
        return read_profile(profile)
    if not 0 < ramp < math.inf:
        raise UsageError(f"--ramp should be a positive number of seconds, not {ramp}.")
    return Varying(time_s=(0.0, ramp), rate_per_s=(0.0, rate))


def _part(workload: Workload, flags: dict[str, Any]) -> Workload:
    """Return the first --num-requests requests, with the arrival rate of --rate."""
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
    from kvsim.workload import Varying, generate

    if has_sessions(flags):
        return _sessions(flags)
    arrivals, number = arrivals_of_flags(flags), flags["num_requests"]
    if number is None and isinstance(arrivals, Varying) and arrivals.repeats:
        number = max(round(arrivals.requests_in_profile), 1)
    ratio = flags["random_range_ratio"]
    return generate(
        _DEFAULT_NUM_REQUESTS if number is None else number,
        arrivals=arrivals,
        prompt=_lengths("--prompt-tokens", flags["prompt_tokens"] or DEFAULT_TOKENS, ratio),
        output=_lengths("--output-tokens", flags["output_tokens"] or DEFAULT_TOKENS, ratio),
        prefixes=_prefixes(flags["shared_prefix"]),
        seed=flags["seed"],
    )


def _sessions(flags: dict[str, Any]) -> Workload:
    from kvsim.workload import converse

    if flags["num_requests"] is not None:
        raise UsageError("--num-requests counts requests, and turns come by the session; give --sessions instead.")
    ratio, number = flags["random_range_ratio"], flags["sessions"]
    return converse(
        _DEFAULT_NUM_SESSIONS if number is None else number,
        turns=_lengths("--turns", flags["turns"] or _DEFAULT_TURNS, None),
        pauses=_pauses(flags["pause"] or "0"),
        arrivals=arrivals_of_flags(flags),
        prompt=_lengths("--prompt-tokens", flags["prompt_tokens"] or DEFAULT_TOKENS, ratio),
        output=_lengths("--output-tokens", flags["output_tokens"] or DEFAULT_TOKENS, ratio),
        prefixes=_prefixes(flags["shared_prefix"]),
        seed=flags["seed"],
    )


def _pauses(text: str) -> Pauses:
    from kvsim.workload import Pauses

    mean, colon, sigma = text.partition(":")
    try:
        return Pauses(mean_s=float(mean), sigma=float(sigma) if colon else 0.0)
    except ValueError:
        raise UsageError(
            f"--pause should be a number of seconds such as 5, or a mean and a sigma such as 5:0.8, not {text!r}."
        ) from None


def _lengths(flag: str, text: str, ratio: float | None) -> Lengths:
    """Return the lengths that `text` describes: a mean and a sigma, or one length, which `ratio` spreads evenly."""
    from kvsim.workload import Fixed, LogNormal, Uniform

    (mean, _, sigma), unit = text.partition(":"), "turns" if flag == "--turns" else "tokens"
    if ratio is not None and (sigma or not 0 <= ratio < 1):
        raise UsageError(
            f"--random-range-ratio should be a share from 0 to below 1 of a fixed length, not {ratio} of {flag} {text}."
        )
    try:
        if sigma:
            return LogNormal(mean_tokens=float(mean), sigma=float(sigma))
        tokens = int(mean)
    except ValueError:
        raise UsageError(
            f"{flag} should be a number of {unit} such as 200, or a mean and a sigma such as 200:0.8, not {text!r}."
        ) from None
    if not ratio:
        return Fixed(tokens=tokens)
    return Uniform(low=max(math.floor(tokens * (1 - ratio)), 1), high=math.ceil(tokens * (1 + ratio)))


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
