"""Requests that are generated from flags: their arrivals, their lengths, shared prefixes and sessions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvsim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvsim.workload import Arrivals, Lengths, Pauses, SharedPrefixes, Workload

DEFAULT_RATE_PER_S = 30.0
_DEFAULT_NUM_REQUESTS = 400
_DEFAULT_NUM_SESSIONS, _DEFAULT_TURNS = 100, "5"
DEFAULT_TOKENS = "200:0.8"
"""Default of --prompt-tokens and of --output-tokens: the mean number of tokens and sigma of a log-normal distribution.
"""
OF_SESSIONS = ("sessions", "turns", "pause")
"""Names of the flags that ask for sessions."""
_DEFAULT_CV = 2.0
"""Coefficient of variation of the gaps between gamma arrivals, if --burstiness is not given."""


def arrivals_of_flags(flags: dict[str, Any]) -> Arrivals:
    """Return the arrival process of --arrivals, --rate, --burstiness, --ramp and --rate-profile."""
    from kvsim.workload import AllAtOnce, Constant, Gamma, Poisson

    name, rate = flags["arrivals"], DEFAULT_RATE_PER_S if flags["rate"] is None else flags["rate"]
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
    """Return the coefficient of variation of gamma-distributed gaps between arrivals: shape^-1/2.

    `shape` is the value of --burstiness. If it is None, return the default.
    """
    if shape is not None and not 1e-6 <= shape <= 1e6:
        raise UsageError(f"--burstiness should be from 0.000001 to 1,000,000, 1 for Poisson, not {shape}.")
    return _DEFAULT_CV if shape is None else shape**-0.5


def _varying(flags: dict[str, Any], rate: float) -> Arrivals:
    """Return the arrivals of --rate-profile, or those of --ramp up to `rate` requests per second."""
    from kvsim.importers import read_profile
    from kvsim.workload import Varying

    ramp, profile = flags["ramp"], flags["rate_profile"]
    if flags["arrivals"] not in (None, "poisson") or flags["burstiness"] is not None:
        raise UsageError("--ramp and --rate-profile are Poisson arrivals of a changing rate; leave --arrivals out.")
    if profile is not None and (ramp is not None or flags["rate"] is not None):
        raise UsageError("--rate-profile states the rate at every time; leave out --rate and --ramp.")
    if profile is not None:
        return read_profile(profile)
    if not 0 < ramp < math.inf:
        raise UsageError(f"--ramp should be a positive number of seconds, not {ramp}.")
    return Varying(time_s=(0.0, ramp), rate_per_s=(0.0, rate))


def generated(flags: dict[str, Any]) -> Workload:
    """Return the requests or sessions that the flags describe."""
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
        raise UsageError("--num-requests does not limit sessions; give their number with --sessions instead.")
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
    """Return the pauses between turns that --pause describes: a mean in seconds, with or without a sigma."""
    from kvsim.workload import Pauses

    mean, colon, sigma = text.partition(":")
    try:
        return Pauses(mean_s=float(mean), sigma=float(sigma) if colon else 0.0)
    except ValueError:
        raise UsageError(
            f"--pause should be a number of seconds such as 5, or a mean and a sigma such as 5:0.8, not {text!r}."
        ) from None
    except UsageError as error:
        raise UsageError(f"--pause {text}: {error}") from error


def _lengths(flag: str, text: str, ratio: float | None) -> Lengths:
    """Return the distribution of lengths that `text`, the value of `flag`, describes: mean and sigma, or one length.

    If `ratio` is given, `text` must be one length L. The lengths are then uniform from L * (1 - `ratio`) to
    L * (1 + `ratio`), rounded outwards.

    Raises:
        UsageError: `text` is neither, or `ratio` is not from 0 to below 1, or is given with a sigma.
    """
    from kvsim.workload import Fixed, LogNormal, Uniform

    (mean, _, sigma), unit = text.partition(":"), "turns" if flag == "--turns" else "tokens"
    if ratio is not None and (sigma or not 0 <= ratio < 1):
        raise UsageError(
            f"--random-range-ratio should be a share from 0 to below 1 of a fixed length, not {ratio} of {flag} {text}."
        )
    try:
        if sigma:
            return LogNormal(mean_tokens=float(mean), sigma=float(sigma))
        fixed = Fixed(tokens=int(mean))
    except ValueError:
        raise UsageError(
            f"{flag} should be a number of {unit} such as 200, or a mean and a sigma such as 200:0.8, not {text!r}."
        ) from None
    except UsageError as error:
        raise UsageError(f"{flag} {text}: {error}") from error
    if not ratio:
        return fixed
    return Uniform(low=max(math.floor(fixed.tokens * (1 - ratio)), 1), high=math.ceil(fixed.tokens * (1 + ratio)))


def _prefixes(text: str | None) -> SharedPrefixes | None:
    """Return the shared prefixes of --shared-prefix: groups x tokens, such as 4x512; None without the flag."""
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
    except UsageError as error:
        raise UsageError(f"--shared-prefix {text}: {error}") from error


def has_sessions(flags: Mapping[str, Any]) -> bool:
    """Tell whether the flags describe generated sessions."""
    return any(flags[name] is not None for name in OF_SESSIONS)
