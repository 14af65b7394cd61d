"""Check `requests.parquet` by itself: the lengths of each request, the order of its times, and its status.

`kvsim.recording.check` runs this first, so that its checks of several tables may rely on it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kvsim.errors import RecordingError
from kvsim.recording.model import Outline, Recording
from kvsim.recording.rules import in_order, is_time, require, rises
from kvsim.recording.tables import Requests, RequestStatus

_TIMES = ("arrival_s", "first_scheduled_s", "first_token_s", "finished_s")


def check_requests(recording: Recording | Outline, file: Path) -> None:
    """Check all rules that need only the requests table and `meta.json`."""
    requests = recording.requests
    require(requests.request == np.arange(len(requests)), file, "request should count the rows from 0")
    _check_names(requests, file)
    _check_lengths(requests, recording.meta.hash_block_size, recording.meta.hash_ahead_tokens, file)
    require(
        is_time(requests.arrival_s) & (requests.arrival_s >= 0), file, "arrival_s should be a finite time, not negative"
    )
    for name in _TIMES[1:]:
        times = getattr(requests, name)
        require(is_time(times) | np.isnan(times), file, f"{name} should be a finite time, or empty")
    for nth, name in enumerate(_TIMES):
        for later in _TIMES[nth + 1 :]:
            holds = in_order(getattr(requests, name), getattr(requests, later))
            require(holds, file, f"{later} should not be before {name}")
    require(rises(requests.arrival_seq), file, "arrival_seq should not decrease")
    require(rises(requests.arrival_s), file, "arrival_s should not decrease")
    if requests.sent_s is not None:
        require(is_time(requests.sent_s), file, "sent_s should be a finite time")
        require(in_order(requests.sent_s, requests.arrival_s), file, "arrival_s should not be before sent_s")
    _check_status(requests, file)
    _check_turns(requests, file)
    if not recording.meta.begins_in_the_middle:
        cached = (requests.cached_tokens >= 0) & (requests.cached_tokens <= requests.prompt_tokens)
        require(cached, file, "cached_tokens should lie between 0 and prompt_tokens")


def _check_names(requests: Requests, file: Path) -> None:
    names = requests.id.tolist()
    if len(set(names)) == len(names):
        return
    first_rows: dict[str, int] = {}
    for row, name in enumerate(names):
        if first_rows.setdefault(name, row) != row:
            raise RecordingError(f"{file}, row {row}: row {first_rows[name]} has this id; each request has its own.")


def _check_lengths(requests: Requests, hash_tokens: int, ahead_tokens: int, file: Path) -> None:
    """Check the numbers of tokens, preemptions and prompt hashes.

    Hash i covers the first `(i + 1) * hash_tokens + ahead_tokens` tokens of the prompt. `ahead_tokens` is above 0 only
    for an engine whose draft layers read ahead.
    """
    require(requests.prompt_tokens > 0, file, "prompt_tokens should be positive")
    require(requests.output_tokens >= 0, file, "output_tokens should not be negative")
    require(requests.max_tokens > 0, file, "max_tokens should be positive")
    require(requests.output_tokens <= requests.max_tokens, file, "output_tokens should not be more than max_tokens")
    require(requests.preemptions >= 0, file, "preemptions should not be negative")
    num_hashes = requests.prompt_hashes.lengths
    # A hash is made as soon as its tokens, and the tokens that it looks ahead, are in the prompt.
    is_complete = num_hashes == (requests.prompt_tokens - ahead_tokens) // hash_tokens
    behind = f" with the {ahead_tokens} behind them" if ahead_tokens else ""
    require(
        (num_hashes == 0) | is_complete,
        file,
        f"prompt_hashes should be one for each {hash_tokens} of prompt_tokens{behind}, or none",
    )


def _check_status(requests: Requests, file: Path) -> None:
    status, has_output = requests.status, requests.output_tokens > 0
    began, answered, ended = (~np.isnan(getattr(requests, name)) for name in _TIMES[1:])
    require(answered == has_output, file, "first_token_s should be there if output_tokens are, and only then")
    # Each rule is for one status: a request has another status, or it keeps the rule.
    not_finished, not_refused = status != RequestStatus.FINISHED, status != RequestStatus.REFUSED
    require(not_finished | (answered & ended), file, "a finished request should have an output and finished_s")
    require(not_finished | began, file, "a finished request should have first_scheduled_s")
    require((status != RequestStatus.UNFINISHED) | ~ended, file, "an unfinished request should have no finished_s")
    is_unserved = ~(began | has_output | ended)
    require(not_refused | is_unserved, file, "a refused request should have no output, and no times but its arrival")


def _check_turns(requests: Requests, file: Path) -> None:
    has_column = [column is not None for column in (requests.after, requests.pause_s, requests.history_tokens)]
    if requests.after is None or requests.pause_s is None or requests.history_tokens is None:
        if any(has_column):
            raise RecordingError(f"{file}, row 0: after, pause_s and history_tokens should all be there, or none.")
        return
    row, after, pause_s = np.arange(len(requests)), requests.after, requests.pause_s
    require((after >= -1) & (after < row), file, "after should be an earlier request, or -1")
    require(is_time(pause_s) & (pause_s >= 0), file, "pause_s should be a finite time, not negative")
    history, waits = requests.history_tokens, after >= 0
    require((history >= 0) & (history <= requests.prompt_tokens), file, "history_tokens should be part of the prompt")
    ended_s = np.where(waits, requests.finished_s[after], -np.inf) + pause_s
    require(in_order(ended_s, requests.arrival_s), file, "a turn should arrive after the one that it waits for")
