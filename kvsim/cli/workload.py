"""Requests that flags describe: those of a recording or a file, or generated ones, with adapters and images."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.cli.generated_workload import OF_SESSIONS, generated, has_sessions
from kvsim.cli.workload_flags import DEFAULT_WORKLOAD
from kvsim.errors import UnknownNameError, UsageError, shortened

if TYPE_CHECKING:
    from kvsim.recording import RecordedRequests, Recording
    from kvsim.workload import Workload

_GENERATING = ("arrivals", "prompt_tokens", "output_tokens", "shared_prefix", "burstiness", "ramp", "rate_profile",
               "random_range_ratio")  # fmt: skip
"""Names of the flags that ask for generated requests, in addition to those of sessions."""
_MOST_ADAPTERS, _MOST_SKEW = 1 << 20, 100
_MOST_CUT = 0.1
"""Largest share of generated requests that may be cut to the model's longest sequence without --max-model-len."""


def workload_of_flags(flags: dict[str, Any]) -> Workload:
    """Return the requests that the flags describe, for a command that cannot simulate sessions."""
    workload = workload_and_source(flags)[0]
    if workload.turns is not None:
        raise UsageError(
            "turns of sessions wait for answers, and this command takes only requests that wait for none; leave out "
            "--sessions, --turns and --pause, give another --workload, or simulate these with kvsim run."
        )
    return workload


def workload_and_source(flags: dict[str, Any]) -> tuple[Workload, Recording | RecordedRequests | None]:
    """Return the requests that the flags describe, and the recording that they come from; None without one."""
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
        given = [name for name in (*_GENERATING, *OF_SESSIONS) if flags[name] is not None]
        excluded = " and ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(
            f"--workload serves recorded requests, so it excludes {excluded}; kvsim import can give them new arrivals."
        )
    return _adjusted(generated(flags), flags, factor), None


def _check_seed(flags: Mapping[str, Any]) -> None:
    """Check that --seed has an effect if it is given with recorded requests: on adapters, images or drafts."""
    if flags["seed"] and not any(flags.get(name) for name in ("adapters", "images", "speculative_config")):
        raise UsageError("--seed has no effect on recorded requests: nothing is drawn at random; leave it out.")


def _adjusted(workload: Workload, flags: Mapping[str, Any], answer_factor: float) -> Workload:
    """Return `workload` with the changes of --load, --answers, --adapters and --images.

    Answers become `answer_factor` times as long.
    """
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
    from kvsim.workload import ImageDistribution, ImageSize

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
    try:
        distribution = ImageDistribution(mean_images=share, sizes=listed, num_different=kinds)
    except UsageError as error:
        raise UsageError(f"--images {shortened(text)}: {error}") from error
    return workload.with_images(distribution, flags["seed"])


def is_generated(flags: Mapping[str, Any]) -> bool:
    """Tell whether the flags describe generated requests rather than those of a file."""
    return has_sessions(flags) or any(flags[name] is not None for name in _GENERATING)


def multiple(flag: str, text: str | None) -> float:
    """Return the number in the value of `flag`, such as 2 in `2x`; 1 for None."""
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
    """Return the column names that `--columns` gives, by kvsim's column names; empty without the flag."""
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair.strip()]
    if any(not (ours.strip() and equals and theirs.strip()) for ours, equals, theirs in pairs):
        raise UsageError(
            f"--columns should be pairs such as arrival_s=timestamp,prompt_tokens=in,output_tokens=out, not "
            f"{shortened(text)}."
        )
    columns = {ours.strip(): theirs.strip() for ours, _, theirs in pairs}
    if len(columns) < len(pairs):
        raise UsageError(f"--columns names a column of kvsim twice: {shortened(text)}; name each once.")
    return columns


def _with_load(workload: Workload, flags: Mapping[str, Any]) -> Workload:
    """Return `workload` with its arrival rate scaled by --load. In a closed loop, `users_of` scales the users."""
    factor = multiple("--load", flags["load"])
    if factor == 1 or flags.get("users") is not None:
        return workload
    if workload.summary().rate_per_s is None:
        raise UsageError("--load makes requests arrive faster, and these arrive all at once; give --num-requests.")
    return workload.scaled_rate(factor)


def cut_at(workload: Workload, max_model_len: int, *, stated: bool) -> Workload:
    """Cut generated requests to `max_model_len` tokens.

    Raises:
        UsageError: many requests are longer, and the user has not stated the limit (`stated`).
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
    """Return the first `num_requests` requests of `workload`.

    Raises:
        UsageError: there are fewer. Its sentence ends with `hint`, which may name another remedy.
    """
    from kvsim.importers import first

    if num_requests > len(workload):
        raise UsageError(
            f"--num-requests asks for the first {num_requests:,} requests, and {workload.name} has only "
            f"{len(workload):,}; leave it out to take all{hint}."
        )
    return first(workload, num_requests)


def _part(workload: Workload, flags: dict[str, Any]) -> Workload:
    """Return the first --num-requests requests, rescaled to the arrival rate of --rate."""
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
