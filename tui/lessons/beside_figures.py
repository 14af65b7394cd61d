"""Numbers in captions that need simulations of their own: of an image, and of the lesson's requests with drafts."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvsim.hardware import find_gpu
from kvsim.importers import workload_of
from kvsim.kv_groups import CacheSettings, cache_layout
from kvsim.machines import step_times
from kvsim.models import find_model
from kvsim.models.image_rules import MARKS, image_rule
from kvsim.policies import Paged
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.simulation import Machine, simulate
from kvsim.sizing.budget_terms import encoder_cache_tokens

from ..playback.session import Session

if TYPE_CHECKING:
    from kvsim.recording import Recording

_MODEL, _WIDTH, _HEIGHT = "Qwen2.5-VL-7B-Instruct", 640, 480
_STEP_TOKENS = 8192
_NUM_DRAFTS = 3
_MIB = 1 << 20


def simulated_figure(kind: str, what: str, recording: Recording) -> str | None:
    """Return the number `what`, such as `tokens`, about the lesson's image if `kind` is "image"; otherwise about the
    requests of `recording` with drafts.

    None if `what` is unknown.
    """
    return _image_figures().get(what) if kind == "image" else _draft_figure(recording, what)


def image_tokens() -> tuple[int, int]:
    """Return the number of tokens of the lesson's image, and the capacity of the encoder cache in image tokens."""
    model = find_model(_MODEL)
    return image_rule(model.image_class).num_tokens(_WIDTH, _HEIGHT), encoder_cache_tokens(model, _STEP_TOKENS)


@cache
def _image_figures() -> dict[str, str]:
    model, (tokens, kept) = find_model(_MODEL), image_tokens()
    layout = cache_layout(model, CacheSettings(max_model_len=model.max_position_embeddings))
    return {
        "model": model.name,
        "size": f"{_WIDTH}x{_HEIGHT}",
        "tokens": f"{tokens:,}",
        "blocks": f"{layout.held_blocks(tokens + MARKS):,}",
        "size_in_cache": f"{tokens * model.image_token_bytes / _MIB:.1f} MiB",
        "cache_size": f"{kept * model.image_token_bytes / _MIB:.0f} MiB",
        "cache_tokens": f"{kept:,}",
    }


def _draft_figure(recording: Recording, what: str) -> str | None:
    """Return a figure of the requests of `recording` with three draft tokens a step, in a pool of the same number of
    blocks.

    `what` is SHARE_FIGURE, such as `none_earlier`. SHARE tells how many drafts are accepted: `none` or `most`. FIGURE
    is `earlier`, the number of steps by which the first preemption is earlier than without drafts, or `time`, the time
    until all requests have ended, in percent of the time without drafts.
    """
    how, _, figure = what.partition("_")
    if how not in _ACCEPTANCE or figure not in ("earlier", "time"):
        return None
    drafted = _drafted(recording, _ACCEPTANCE[how])
    if figure == "time":
        return f"{100 * drafted.duration_s / recording.duration_s:.0f}%"
    first, sooner = (_first_preemption(run) for run in (recording, drafted))
    return f"{first - sooner:,}"


class DraftResult(NamedTuple):
    """Result of the lesson's requests, with drafts or without."""

    name: str
    steps: int
    """Number of steps before the first preemption; all steps if there is none."""
    duration_s: float
    """Seconds until the last answer, without the time that drafting takes."""
    session: Session


def with_drafts(recording: Recording) -> list[DraftResult]:
    """Return the results of the requests of `recording` without drafts, and with three drafts a step."""
    runs = {"this lesson, no drafts": recording} | {
        f"3 drafts a step, {words} right": _drafted(recording, _ACCEPTANCE[how])
        for how, words in (("none", "none"), ("most", "7 of 10"))
    }
    return [DraftResult(name, _first_preemption(run), run.duration_s, Session(run)) for name, run in runs.items()]


def _first_preemption(recording: Recording) -> int:
    preempted = np.flatnonzero(recording.steps.preempted)
    return int(preempted[0]) if len(preempted) else len(recording.steps)


_ACCEPTANCE = {"none": "0", "most": "0.7"}
"""Share of accepted drafts, by its name in a figure."""


@lru_cache(maxsize=4)
def _drafted(recording: Recording, acceptance: str) -> Recording:
    meta = recording.meta
    model, gpu = find_model(str(meta.model["name"])), find_gpu(meta.gpu)
    config = {"method": "eagle", "model": "a draft model", "num_speculative_tokens": _NUM_DRAFTS}
    scheduler = ContinuousSettings(
        max_model_len=int(meta.policy["max_model_len"]), speculative_config=config, acceptance=acceptance
    )
    cache = PagedSettings(block_size=meta.pool.unit_tokens, enable_prefix_caching=meta.prefix_caching)
    policy = Paged(scheduler=scheduler, cache=cache)
    machine = Machine(gpu=gpu, model=model, kv_bytes=2 * meta.pool.bytes_per_unit * (meta.pool.num_units or 1),
                      step_time=step_times(gpu, model, "vllm"))  # fmt: skip
    num_bytes = ((meta.pool.num_units or 0) + 1) * machine.pool(policy).bytes_per_unit
    return simulate(workload_of(recording), policy, replace(machine, kv_bytes=num_bytes))
