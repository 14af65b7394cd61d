"""What those who wait are kept by: the batch, the tokens of a step, or the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.metrics.waiting import Limits

if TYPE_CHECKING:
    from ..playback.session import Session


def kept_by(session: Session) -> str:
    """`batch full`, `step full`, `pool full` or `no room`, now; empty where none waits or the reason is not known.

    A static batch keeps requests until it has ended, and after the last step nothing is scheduled: both say nothing.
    """
    meta, steps, step = session.recording.meta, session.recording.steps, session.replay.frame
    limits = Limits.of(meta.engine, meta.policy)
    if limits is None or meta.policy_name == "static" or step >= len(steps) or not steps.waiting[step]:
        return ""
    now = slice(step, step + 1)
    tokens = steps.prefill_tokens[now] + steps.decode_tokens[now]
    by_batch, by_tokens = limits.keeping(steps.waiting[now], steps.running[now], tokens)
    # A reservation waits for a stretch that is long enough, which a pool with free memory may lack.
    memory = "pool full" if meta.policy_name == "paged" else "no room"
    return "batch full" if by_batch[0] else "step full" if by_tokens[0] else memory
