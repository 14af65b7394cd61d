"""Choice of the step times of a model on a machine: the best that exist, or those that the user names.

The best is a profile of the model on its GPU. Next is a card that was measured with as many GPUs. Then come kernel
tables if they are installed, and last a card with guessed all-reduces or from a data sheet.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from kvsim.errors import RecordingError, UnknownNameError, UsageError
from kvsim.files.contents import TOML_BYTES, content_of
from kvsim.hardware import Gpu, find_gpu
from kvsim.kv_groups import pipeline_stages
from kvsim.machines.cards import card_of, exchange_sums, linked, sheet_card, shipped_cards
from kvsim.machines.hosts import host_words, middle_host
from kvsim.machines.kernel_tables import EXTRA, has_tables, is_better_by_tables, table_card
from kvsim.machines.known_errors import BETTER_BY_TABLES, Basis, ErrorClass, class_of, with_error
from kvsim.models import Model
from kvsim.profiles import carried, find, is_shipped, match, served_name
from kvsim.profiles.extrapolation import WatchedProfile
from kvsim.steptime import (
    Pace,
    RankTimes,
    Roofline,
    Staged,
    StepTimeModel,
    at_pace,
    generate_times,
    reduce,
    reduce_ranks,
    reduce_stages,
)
from kvsim.steptime.card import Card, load_card
from kvsim.steptime.overheads import MAX_CAPTURED_TOKENS

_SERVED = ("tensor_parallel_size", "pipeline_parallel_size", "decode_context_parallel_size", "kv_cache_dtype")
"""Engine settings that `Model.served` takes."""


class MetaFields(Protocol):
    """Fields of a recording's metadata that describe its engine and its model."""

    @property
    def engine(self) -> Mapping[str, Any]:
        """Settings of the engine."""

    @property
    def model(self) -> Mapping[str, Any]:
        """Shape of the model."""

    @property
    def command(self) -> str:
        """Command that made the recording; empty if unknown."""


KERNELS = EXTRA
"""Value of `--profile` for kernel tables."""
PROFILE_LAUNCH_S = 4.7e-6
"""Seconds in which the hosts of the Hugging Face profiles launch a kernel.

Times of other hosts are scaled by the ratio of their launch time to this one.
"""


def served_model(meta: MetaFields) -> Model:
    """Return the model of a recording as its engine served it: divided among GPUs, and with the type of its cache.

    The recording may state `kv_bytes_per_token` for one GPU and the type of the cache. Older recordings state
    `kv_bytes_per_token` for the whole model, in the model's own type.

    Raises:
        RecordingError: a figure of the shape is missing, cannot be right, or contradicts another.
    """
    served = {key: meta.engine[key] for key in _SERVED if key in meta.engine}
    try:
        return Model.from_shape(served | dict(meta.model))
    except RecordingError:
        whole = Model.from_shape({key: value for key, value in meta.model.items() if key not in _SERVED})
        return whole.served(**served)


def is_in_process(meta: MetaFields) -> bool:
    """Tell whether the engine ran in the process of its client. vLLM's server gives its engine a process of its own.

    If the recording does not state it, a command that begins with `vllm serve` means a server.
    """
    return bool(meta.engine.get("in_process", not meta.command.startswith("vllm serve")))


def is_card(name: str) -> bool:
    """Tell whether `name` is a file with a machine card, in contrast to a profile."""
    file = Path(name)
    if not file.is_file():
        return False
    try:
        return "products" in tomllib.loads(content_of(file, TOML_BYTES).decode())
    except (OSError, ValueError, RecursionError):
        return False


def card_named(name: str | None) -> Card | None:
    """Return the machine card in the file `name`; None if the file has a profile, or if `name` is None."""
    return load_card(name) if name is not None and is_card(name) else None


def step_times(
    gpu: Gpu,
    model: Model,
    engine: str,
    *,
    source: str | None = None,
    captured: bool = True,
    max_num_seqs: int | None = None,
    in_process: bool = False,
    recording: str | None = None,
) -> StepTimeModel:
    """Return the step times of `engine` with `model` on `gpu`; their label states their basis.

    Args:
        gpu: the GPU; `model` may be split over several.
        model: the model as it is served.
        engine: one of `kvsim.profiles.ENGINES`.
        source: a profile or a machine card, by file or by name; "none" for the data sheet alone; "kernels" for
            kernel tables (see `kvsim.machines.kernel_tables`); None for the best that comes with kvsim. A profile in a
            file describes the user's machine; one that comes with kvsim gets the median host of all machines, see
            `kvsim.machines.hosts`.
        captured: False for an engine without graphs.
        max_num_seqs: sequences of vLLM's largest batch, see `in_batches_of`; None for no limit.
        in_process: True for an engine that shares a process with its client, like one that kvsim drives. With a card,
            the host is then slower.
        recording: name of the recording that the times are for; None for an unknown machine. If a profile was fitted
            to this recording, the host times are those of the profile, not those of the median host.

    Raises:
        UsageError: the source is of another model, engine or tensor-parallel size, or is no valid file.
    """
    if model.divides_experts_among_ranks and engine == "vllm":
        times: StepTimeModel = _of_ranks(gpu, model, source, captured=captured)
    else:
        times = _chosen(gpu, model, engine, source, captured=captured, in_process=in_process, recording=recording)
    if engine != "vllm" or max_num_seqs is None:
        return times
    if isinstance(times, WatchedProfile):
        times.times = in_batches_of(max_num_seqs, times.times)
        return times
    if isinstance(times, Staged):
        return replace(times, stages=tuple(in_batches_of(max_num_seqs, stage) for stage in times.stages))
    if isinstance(times, RankTimes):
        return replace(times, own=in_batches_of(max_num_seqs, times.own))
    return in_batches_of(max_num_seqs, times) if isinstance(times, Roofline) else times


def in_batches_of(max_num_seqs: int, times: Roofline) -> Roofline:
    """Return `times` for a vLLM with `max_num_seqs`, which captures graphs of steps of up to twice as many tokens.

    Larger steps are launched kernel by kernel. For models with a larger default of the largest captured step, such as
    gpt-oss, `times` are returned unchanged.
    """
    if times.max_captured_tokens > MAX_CAPTURED_TOKENS:
        return times
    return replace(times, max_captured_tokens=min(times.max_captured_tokens, 2 * max_num_seqs))


def _chosen(
    gpu: Gpu, model: Model, engine: str, source: str | None, *, captured: bool, in_process: bool, recording: str | None
) -> StepTimeModel:
    """Return the step times of one server without data-parallel ranks. See `step_times` for the parameters."""
    if model.pipeline_parallel_size > 1:
        if engine == "vllm":
            card = _card_of_stages(gpu, model, source)
            return _staged(card, gpu, model, captured=captured, in_process=in_process)
        # `generate()` has one step in flight, so its stages work one after the other, as long as on one GPU.
        model = replace(model, pipeline_parallel_size=1)
    size = model.tensor_parallel_size
    if source not in (None, "none", KERNELS):
        assert source is not None
        if is_card(source):
            return from_card(load_card(source), gpu, model, engine, captured=captured, in_process=in_process)
        profile = carried(find(source), gpu, model, engine, tensor_parallel_size=size)
    elif source is None:
        matching = match(gpu, model, engine, tensor_parallel_size=size)
        if matching is None:
            return _from_known_card(gpu, model, engine, source, captured=captured, in_process=in_process)
        profile = matching
    elif engine == "vllm":
        return _from_known_card(gpu, model, engine, source, captured=captured, in_process=in_process)
    elif source == KERNELS:
        raise UsageError(f"kernel tables are of vLLM's kernels, not of {engine}'s; leave --profile {KERNELS} out.")
    else:
        guessed = _generate(gpu, model, engine)
        return replace(guessed, label=with_error(guessed.label, class_of(Basis.SHEET, gpu, model, engine), model))
    basis = Basis.TRANSFERRED if profile.transferred_from else Basis.MODEL
    times, label = profile.times, profile.label
    is_known = recording in {residual.recording for residual in profile.residuals}
    if not is_known and (source is None or is_shipped(source)):
        times = at_pace(Pace(host=middle_host()), times)
        label = f"{label}, {host_words()}"
    watched = WatchedProfile(profile, times if captured else times.uncaptured())
    watched.label = with_error(label, class_of(basis, gpu, model, engine, captured=captured), model)
    return watched


@lru_cache(maxsize=64)
def _from_known_card(
    gpu: Gpu, model: Model, engine: str, source: str | None, *, captured: bool, in_process: bool
) -> Roofline:
    """Return the step times from a card that comes with kvsim, a data sheet or kernel tables.

    See `step_times` for the parameters. Results are cached, because a sweep asks for them once per combination of its
    settings.
    """
    return from_card(_known_card(gpu, model, engine, source), gpu, model, engine, captured=captured,
                     in_process=in_process)  # fmt: skip


def _known_card(gpu: Gpu, model: Model, engine: str, source: str | None) -> Card:
    card = sheet_card(gpu) if source == "none" else card_of(gpu, model.tensor_parallel_size)
    is_better = source is None and engine == "vllm" and is_better_by_tables(gpu, card)
    if source == KERNELS or (is_better and has_tables(gpu)):
        return table_card(gpu, model, card)
    return replace(card, source=f"{card.source}; {BETTER_BY_TABLES}") if is_better else card


def _of_ranks(gpu: Gpu, model: Model, source: str | None, *, captured: bool) -> RankTimes:
    """Return the step times of data-parallel ranks that share experts. No machine with such ranks was measured.

    See `step_times` for the parameters.
    """
    if source in (None, "none", KERNELS):
        card = _known_card(gpu, model, "vllm", source)
    elif source is not None and is_card(source):
        card = load_card(source)
        _check_gpu(card, gpu)
    else:
        raise UsageError(
            f"the profile {source!r} has the step times of one server, and the steps of data-parallel ranks wait for "
            "each other; take a machine card, or leave --profile out."
        )
    card = linked(card, gpu, model.tensor_parallel_size)
    guessed = "" if card.exchange else "; the exchange of tokens between ranks guessed"
    card = replace(card, exchange=card.exchange or exchange_sums(card, gpu, model.num_expert_gpus))
    times = reduce_ranks(card, model, num_processors=gpu.num_processors)
    basis = Basis.TABLES if card.is_of_tables else Basis.LINKED if _is_measured(card) else Basis.SHEET
    kind = class_of(basis, gpu, model, "vllm", captured=captured)
    what = "kernel tables" if card.is_of_tables else "uncalibrated machine card"
    label = f"{what} of {gpu.name} ({card.source}{guessed}) with {model.name} (vllm)"
    times = replace(times, label=_with_error(label, kind, model, card))
    return times if captured else times.uncaptured()


def from_card(
    card: Card, gpu: Gpu, model: Model, engine: str, *, captured: bool = True, in_process: bool = False
) -> Roofline:
    """Return the step times of `engine` with `model` from a machine card.

    Raises:
        UsageError: the card is for another GPU.
    """
    _check_gpu(card, gpu)
    was_measured, card = _is_measured(card), linked(card, gpu, model.tensor_parallel_size)
    basis = _basis(card, model, engine, was_measured=was_measured)
    if engine != "vllm":
        host = Pace(host=card.launch_s / PROFILE_LAUNCH_S * card.factors.get("host", 1.0))
        fitted = match(gpu, model, engine)
        times = at_pace(host, fitted.times if fitted is not None else _generate(gpu, model, engine))
    else:
        times = reduce(card, model, num_processors=gpu.num_processors, in_process=in_process)
        if not captured:
            times = times.uncaptured()
    calibrated = basis not in (Basis.SHEET, Basis.LINKED, Basis.TABLES)
    kind = "kernel tables" if card.is_of_tables else "machine card" if calibrated else "uncalibrated machine card"
    of = ", fitted to recordings that the card does not name" if card.factors and not card.fitted_to else ""
    label = f"{kind} of {gpu.name} ({card.source}) with {model.name} ({engine}{of})"
    error_class = class_of(basis, gpu, model, engine, captured=captured)
    label = _with_error(label, error_class, model, card)
    return replace(times, label=label, calibrated=calibrated, fitted_to=card.fitted_to.get(served_name(model), ()))


def _with_error(label: str, kind: ErrorClass, model: Model, card: Card) -> str:
    """Add clauses to `label`: parts of `model` without times in `card`, the class of the predictions, and its error."""
    timed = {"times_sparse": card.sparse is not None, "times_delta_nets": card.delta_net is not None}
    return with_error(label, kind, model, **timed)


def _check_gpu(card: Card, gpu: Gpu) -> None:
    """Check that `card` is for `gpu`. A GPU that kvsim does not list must have the same name in both."""
    names = {card.gpu}
    with suppress(UnknownNameError):
        names.add(find_gpu(card.gpu).name)
    if gpu.name not in names:
        raise UsageError(f"the machine card is of {card.gpu}, not of {gpu.name}; take one of {gpu.name}, or none.")


def _card_of_stages(gpu: Gpu, model: Model, source: str | None) -> Card:
    linked_gpus = max(model.tensor_parallel_size, 2)  # even stages of one GPU need a link, to the next stage
    if source is None:
        return card_of(gpu, linked_gpus)
    if source == "none":
        return linked(sheet_card(gpu), gpu, linked_gpus)
    if source == KERNELS:
        return linked(table_card(gpu, model, card_of(gpu, linked_gpus)), gpu, linked_gpus)
    if not is_card(source):
        raise UsageError(
            f"the profile {source!r} has the step times of a whole model, and pipeline_parallel_size "
            f"{model.pipeline_parallel_size} needs those of its stages; take a machine card, or leave --profile out."
        )
    card = load_card(source)
    _check_gpu(card, gpu)
    return linked(card, gpu, linked_gpus)


def _staged(card: Card, gpu: Gpu, model: Model, *, captured: bool, in_process: bool) -> Staged:
    stages = pipeline_stages(model.num_layers, model.pipeline_parallel_size)
    shares = [len(stage) / model.num_layers for stage in stages]
    times = reduce_stages(card, model, shares, num_processors=gpu.num_processors, in_process=in_process)
    basis = Basis.STAGES if card.measured else Basis.SHEET_STAGES
    kind = class_of(basis, gpu, model, "vllm", captured=captured)
    label = f"uncalibrated machine card of {gpu.name} ({card.source}) with {model.name} (vllm)"
    return Staged(
        label=_with_error(label, kind, model, card),
        calibrated=False,
        stages=times if captured else tuple(stage.uncaptured() for stage in times),
    )


def _is_measured(card: Card) -> bool:
    """Tell whether the kernel times of one GPU were measured, even if all-reduces over several GPUs are guessed."""
    return card.measured or any(card.products is shipped.products for shipped in shipped_cards())


def _basis(card: Card, model: Model, engine: str, *, was_measured: bool) -> Basis:
    """Return the kind of measurements from which the times of `card` follow.

    `was_measured` is False if the times of one GPU come from its data sheet.
    """
    if card.is_of_tables:
        return Basis.TABLES
    if not card.measured:
        return Basis.LINKED if was_measured else Basis.SHEET_FITTED if card.factors else Basis.SHEET
    if card.factors:  # they are fitted to recordings of vLLM only
        is_fitted = engine == "vllm" and served_name(model) in card.fitted_to
        return Basis.FITTED_THERE if is_fitted else Basis.FITTED
    return Basis.GPU if card in shipped_cards() else Basis.MACHINE


def _generate(gpu: Gpu, model: Model, engine: str) -> Roofline:
    return generate_times(gpu, model, "static" if engine == "hf-static" else "dynamic")
