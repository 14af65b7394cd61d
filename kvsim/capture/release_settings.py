"""Settings of a vLLM scheduler for the recorder, and refusal of engines that a recording cannot represent.

Settings have moved between vLLM 0.20 and 0.33, so these functions look for attributes. The version number is used only
to warn about releases that were not tried.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from kvsim.capture.draft_watch import speculates
from kvsim.capture.transfer_watch import has_transfers
from kvsim.errors import RecordingError, UsageError
from kvsim.kv_groups import KVCacheLayout
from kvsim.policies.releases import NEWEST, ReleaseRules, rules_of

log = logging.getLogger("kvsim")

_FIRST, _LAST = (0, 20), (0, 33)
_NEWER_SETTINGS = (
    "watermark",  # since 0.24
    *("max_num_active_seqs", "long_prefill_token_threshold_adaptive"),  # since 0.31
)


def warn_if_untried(version: str) -> None:
    """Warn in the log if the recorder has not been tried with this release of vLLM."""
    number = re.match(r"(\d+)\.(\d+)", version)
    if number is None or not _FIRST <= (int(number[1]), int(number[2])) <= _LAST:
        log.warning(
            "kvsim: the recorder has not been tried with vLLM %s, only with %d.%d to %d.%d; check the recording with "
            "kvsim info --check.",
            *(version, *_FIRST, *_LAST),
        )


def rules_or_newest(version: str) -> ReleaseRules:
    """Return the rules of a release, or of the newest release if `version` is that of a development build."""
    try:
        return rules_of(version)
    except UsageError:
        return rules_of(NEWEST)


def newer_settings(scheduler: Any) -> dict[str, Any]:
    """Return the settings of the scheduler that only some releases of vLLM have, by their names in vLLM."""
    config = scheduler.scheduler_config
    settings = {name: getattr(config, name) for name in _NEWER_SETTINGS if hasattr(config, name)}
    # Since 0.24 it applies to data-parallel ranks that step together; since 0.33 it applies to a single engine too.
    if (interval := getattr(scheduler, "local_prefill_interval", None)) is not None:
        settings["prefill_schedule_interval"] = interval
    return settings


def retention_interval(scheduler: Any) -> int | None:
    """Return the interval in tokens at which KV of sliding windows and recurrent states is kept for prefix hits.

    0 means that they are kept only for the last block of a prompt, None that they are kept for every block.
    """
    interval = getattr(scheduler.kv_cache_manager.coordinator, "retention_interval", None)
    return None if interval is None else int(interval)


def num_waiting(scheduler: Any) -> int:
    """Return the number of requests in all waiting queues. Releases have different queues."""
    return int(scheduler.get_request_counts()[1])


def check_features(scheduler: Any, layout: KVCacheLayout, *, offloads: bool) -> None:
    """Check that the engine has no feature that a recording cannot represent.

    Raises:
        RecordingError: it has one; the message names it.
    """
    _check_parallelism(scheduler, layout, offloads=offloads)
    _check_blocks(scheduler)
    _refuse(
        offloads and speculates(scheduler),
        "the engine speculates and offloads blocks, and kvsim follows only one of the two.",
    )
    connector = getattr(scheduler, "connector", None)
    _refuse(
        connector is not None and not offloads and not has_transfers(scheduler),
        f"the engine moves its cache with {type(connector).__name__}, and kvsim records none but NixlConnector "
        "and the native offload of vLLM 0.24 and 0.25.",
    )


def _check_parallelism(scheduler: Any, layout: KVCacheLayout, *, offloads: bool) -> None:
    parallel = scheduler.parallel_config
    is_pipeline = parallel.pipeline_parallel_size > 1
    _refuse(is_pipeline and speculates(scheduler), "the engine speculates in a pipeline, and kvsim follows one stage.")
    _refuse(
        is_pipeline and not layout.is_uniform,
        "the engine has a pipeline and layers of several kinds, and its scheduler knows only the layers of one stage.",
    )
    _refuse(
        is_pipeline and offloads,
        "the engine offloads blocks in a pipeline, and kvsim follows an offload only in one stage.",
    )
    _refuse(
        any(getattr(parallel, f"{step}_context_parallel_size", 1) > 1 for step in ("decode", "prefill")),
        "the engine divides the tokens of a block among GPUs (context parallelism), and kvsim follows whole blocks.",
    )


def _check_blocks(scheduler: Any) -> None:
    """Raise a `RecordingError` if the engine handles blocks in a way that a recording cannot state."""
    _refuse(
        getattr(scheduler.kv_cache_manager.coordinator, "enable_partial_hash_hits", False),
        "prefixes may end inside a block (--prefix-match-unit), and a recording has no copies of blocks.",
    )
    _refuse(
        getattr(scheduler, "prefix_replay_tokens", 0),
        "the engine computes the last window of a prefix again, and a recording has no such tokens.",
    )
    specs = [group.kv_cache_spec for group in scheduler.kv_cache_config.kv_cache_groups]
    _refuse(
        getattr(scheduler, "mamba_shared_prefix_checkpoint", False)
        or any(getattr(spec, "num_prefill_checkpoint_blocks", 0) for spec in specs),
        "recurrent layers keep states between blocks (checkpoints), which kvsim does not follow.",
    )
    _refuse(
        getattr(scheduler.kv_cache_config, "hisparse_host_num_blocks", None),
        "the engine keeps blocks in host memory (HiSparse), which kvsim does not follow.",
    )


def _refuse(applies: object, problem: str) -> None:
    if applies:
        raise RecordingError(problem)
