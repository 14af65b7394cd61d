"""Read and write profiles as TOML files with a comment on every coefficient. A file is checked when it is read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvsim.errors import UsageError, reason_of, shortened
from kvsim.files.atomic import whole_file
from kvsim.files.marks import HASH_COMMENT
from kvsim.files.values import read_toml
from kvsim.profiles.profile import Profile, Residual
from kvsim.steptime import ALL_ALIKE, COEFFICIENTS, NUM_LISTED, NUM_SIZES, Roofline, StepShape

_LONGEST_S = 1e3
"""Largest valid coefficient in seconds. Steps take milliseconds, a compilation some minutes."""
_LARGEST_SHAPE = 1e18
_COEFFICIENTS = {
    "sampling_share": (0.0, 1.0),
    "exposed_share": (0.0, 1.0),
    "shared_saving": (0.0, 1.0),
    "lone_share": (0.0, 1e3),
    "throttle_share": (0.0, 1e3),
    "power_share": (0.0, 1e3),
    "full_seqs": (1e-3, 1e6),
    "max_captured_tokens": (0, 1 << 20),
}
"""Valid ranges of the coefficients that are not in seconds."""


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a profile.

    Raises:
        UsageError: the file is missing, or no profile; the message says what is wrong.
    """
    file = Path(path)
    document = read_toml(file, "the profile")
    try:
        return Profile(
            gpu=_text("gpu", document["gpu"]),
            model=_text("model", document["model"]),
            engine=_text("engine", document["engine"]),
            tensor_parallel_size=_within("tensor_parallel_size", document.get("tensor_parallel_size", 1), int, 1, 1024),
            times=_times(document["gpu"], document["coefficients"]),
            ranges={name: _range(name, ends) for name, ends in document["ranges"].items()},
            residuals=tuple(_residual(residual) for residual in document["residuals"]),
        )
    except KeyError as error:
        raise UsageError(f"the profile {file} is incomplete or wrong: {error.args[0]} is missing.") from error
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = reason_of(error, "a field is missing")
        raise UsageError(f"the profile {file} is incomplete or wrong: {reason}.") from error


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError(f"{name} should be a name, not {shortened(value)}")
    return value


def _within(name: str, value: Any, kind: type, low: float, high: float) -> Any:
    """Return `value` if it is a number of type `kind` from `low` to `high`. Integers are valid floats."""
    kinds = (int,) if kind is int else (int, float)
    what = "whole number" if kind is int else "number"
    if not isinstance(value, kinds) or isinstance(value, bool) or not low <= value:
        raise ValueError(f"{name} should be a {what} from {low:g} on, not {shortened(value)}")
    if not value <= high:
        raise ValueError(f"{name} should be a {what} of at most {high:g}, not {shortened(value)}")
    return value


def _range(name: str, ends: Any) -> tuple[float, float]:
    if name not in StepShape._fields:
        raise ValueError(f"ranges has {shortened(name)}, which is nothing that a step has")
    low, high = (float(_within(f"ranges.{name}", end, float, 0, _LARGEST_SHAPE)) for end in ends)
    if low > high:
        raise ValueError(f"ranges.{name} should begin with the smaller value")
    return low, high


def _residual(values: Any) -> Residual:
    residual = Residual(**{"held_out_percent": None} | values)
    _text("residuals.recording", residual.recording)
    _within("residuals.num_steps", residual.num_steps, int, 0, 1 << 53)
    _within("residuals.mean_percent", residual.mean_percent, float, -1e6, 1e6)
    _within("residuals.median_abs_us", residual.median_abs_us, float, 0, 1e12)
    if residual.held_out_percent is not None:
        _within("residuals.held_out_percent", residual.held_out_percent, float, -1e6, 1e6)
    return residual


def _times(gpu: str, coefficients: Mapping[str, Any]) -> Roofline:
    values = {"of_size_s": list(ALL_ALIKE), **coefficients}
    table = values.pop("of_size_s")
    if not isinstance(table, list) or not NUM_LISTED <= len(table) <= NUM_SIZES:
        raise ValueError(f"of_size_s should be a list of {NUM_LISTED} to {NUM_SIZES} numbers")
    if unknown := values.keys() - set(COEFFICIENTS):
        raise ValueError(f"coefficients has {shortened(min(unknown))}, which is none")
    for name, value in (*values.items(), *(("of_size_s", value) for value in table)):
        low, high = _COEFFICIENTS.get(name, (0.0, _LONGEST_S))
        _within(name, value, int if name == "max_captured_tokens" else float, low, high)
    of_size_s = (*table, *(table[-1:] * (NUM_SIZES - len(table))))
    return Roofline(label=f"calibrated on {gpu}", calibrated=True, of_size_s=of_size_s, **values)


def save(profile: Profile, path: str | os.PathLike[str], header: str = "", *, made_by: str = "") -> Path:
    """Write a profile as TOML, with a comment on every coefficient, and return its path.

    An interrupted call leaves no incomplete file. `header` becomes comment lines. `made_by` is the command of kvsim
    that a comment names as origin of the file; if it is empty, that comment is left out.
    """
    file = Path(path)
    lines = [f"# {line}".rstrip() for line in header.splitlines()]
    lines += [
        f'gpu = "{profile.gpu}"',
        f'model = "{profile.model}"',
        f'engine = "{profile.engine}"',
        f"tensor_parallel_size = {profile.tensor_parallel_size}",
        "",
        "[coefficients]",
    ]
    for name in COEFFICIENTS:
        value = getattr(profile.times, name)
        if isinstance(value, tuple):
            lines += _table(name, value) if any(value) else []
            continue
        text = str(value) if isinstance(value, int) else f"{value:.6g}"
        if "." not in text and "e" not in text and isinstance(value, float):
            text += ".0"
        lines.append(f"{name} = {text}  # {EXPLANATIONS[name]}")
    lines += ["", "[ranges]  # of the fitted steps; beyond them the model extrapolates, and says so"]
    lines += [f"{name} = [{low:g}, {high:g}]" for name, (low, high) in profile.ranges.items()]
    for residual in profile.residuals:
        lines += ["", "[[residuals]]", f'recording = "{residual.recording}"', f"num_steps = {residual.num_steps}"]
        lines += [f"mean_percent = {residual.mean_percent:.2f}", f"median_abs_us = {residual.median_abs_us:.1f}"]
        if residual.held_out_percent is not None:
            lines.append(f"held_out_percent = {residual.held_out_percent:.2f}")
    with whole_file(file, made_by=made_by, comment=HASH_COMMENT) as scratch:
        scratch.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def _table(name: str, values: tuple[float, ...]) -> list[str]:
    """Return the TOML lines of a list of numbers. Of equal values at its end, only the first is written."""
    listed = len(values)
    while listed > NUM_LISTED and values[listed - 1] == values[listed - 2]:
        listed -= 1
    rows = [values[begin : min(begin + 8, listed)] for begin in range(0, listed, 8)]
    body = [f"    {', '.join(f'{value:.3g}' if value else '0.0' for value in row)}," for row in rows]
    return [f"{name} = [  # {EXPLANATIONS[name]}", *body, "]"]


EXPLANATIONS = {
    "request_s": "host, per request that comes in",
    "request_token_s": "host, per prompt token of a request that comes in",
    "host_step_s": "host, per step, before the first kernel",
    "host_sequence_s": "host, per sequence, before the first kernel",
    "host_token_s": "host, per prompt token, before the first kernel",
    "new_sequence_s": "host, per sequence that joins the batch, before the first kernel",
    "sampling_share": "share of the host's time per step and sequence that launches sampling, after the first kernel",
    "worker_step_s": "worker process, per step, before the first kernel",
    "worker_sequence_s": "worker process, per sequence, before the first kernel",
    "worker_token_s": "worker process, per prompt token, before the first kernel",
    "turnaround_step_s": "host, per step, from a processed output to the next decision",
    "turnaround_sequence_s": "host, per sequence, from a processed output to the next decision",
    "verified_token_s": "host, per token of decoding sequences, from a processed output to the next decision",
    "piecewise_launch_s": "host, launching a captured step that holds prompt tokens, piece by piece",
    "eager_launch_s": "host, launching a step too large for a captured graph, kernel by kernel",
    "uncompiled_launch_s": "host, launching any step where nothing is compiled or captured",
    "masked_launch_s": "host, per step of several rows, which need a mask for padding",
    "new_shape_s": "host, when a batch of a size and length comes for the first time",
    "new_kernel_s": "host, per kernel that a process builds or loads for the first time",
    "max_captured_tokens": "largest captured step, tokens",
    "step_s": "GPU, per step: kernels starting and draining",
    "weights_s": "GPU, streaming all weights once",
    "active_weights_s": "GPU, streaming the weights that one token passes through, beside those that tokens share",
    "shared_weights_s": "GPU, streaming the weights that all tokens of a step share, where they are counted apart",
    "token_s": "GPU, arithmetic of one token in the layers",
    "logits_s": "GPU, arithmetic of one sequence's output projection",
    "exposed_share": "share of the shorter of streaming and arithmetic time that adds to the longer if both are equal",
    "sequence_s": "GPU, per sequence, without the bytes that it reads",
    "context_token_s": "GPU, reading one token's keys and values",
    "lone_share": "additional share of the reading time for few sequences",
    "full_seqs": "number of sequences with one KV head for every processor of the GPU",
    "shared_saving": "share of the repeated reads of shared keys and values that takes no time",
    "throttle_share": "additional share of arithmetic time once a tenth of a second of it has lowered the clock",
    "power_share": "additional share of arithmetic and reading time after long work beyond the power limit",
    "piecewise_s": "GPU, per captured step that holds prompt tokens",
    "attention_pair_s": "GPU, arithmetic of one query against one key",
    "window_tokens": "window of sliding layers in tokens; 0 without any",
    "window_token_s": "GPU, reading one token's keys and values in sliding layers",
    "window_pair_s": "GPU, arithmetic of one query against one key in sliding layers",
    "mixed_share": "additional share of the reading time in a step with prompt tokens",
    "piecewise_floor_s": "GPU, least time of a captured step that holds prompt tokens, launched by a worker process",
    "eager_floor_s": "GPU, least time of a step too large for a captured graph, launched by a worker process",
    "handed_over_s": "link, per step whose activations come from the stage before in a pipeline",
    "handed_over_token_s": "link, per token of such a step",
    "encoder_step_s": "host, launching the image encoder, per step that computes images",
    "encoder_image_s": "host, per image, before the first kernel of the encoder",
    "encoder_image_token_s": "host, per token of an image, before the first kernel of the encoder",
    "encoder_token_s": "GPU, the encoder, per token of an image",
    "encoder_pair_s": "GPU, the encoder, per pair of tokens of an image",
    "of_size_s": "GPU, per step, what its number of tokens adds: up to 4 tokens, then 8, 16 to 512, and above",
}
"""Comment on every coefficient: what it is, and whose time. It is in seconds unless another unit is given."""
