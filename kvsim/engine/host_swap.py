"""Swapping to host memory, as in vLLM V0: the blocks of a preempted sequence are copied to the host and back.

If the host has no room for all blocks of a preempted sequence, its tokens are recomputed. A sequence that is admitted
again gets new blocks. Only the blocks that are no longer in the prefix cache are copied back. Other sequences never hit
host copies. vLLM 0.25.1 has no such swap.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import PREEMPTED, Engine


@part
def send_out(engine: Engine, sequence: Sequence) -> None:
    """Copy a preempted sequence's computed blocks to the host, if all fit, before its tables are freed."""
    state = engine.state
    num_blocks = _num_blocks(engine, sequence.computed)
    if sequence.status == PREEMPTED and 0 < num_blocks <= state.num_free_host_blocks:
        sequence.parked_tokens = sequence.computed
        state.num_free_host_blocks -= num_blocks
        state.num_swapped_out += num_blocks


@part
def bring_back(engine: Engine, sequence: Sequence, hit_tokens: int) -> None:
    """Copy a readmitted sequence's swapped blocks, after `hit_tokens` tokens, to the GPU, and free its host blocks."""
    if sequence.parked_tokens > hit_tokens:
        num_hits = hit_tokens // engine.settings.unit_tokens
        engine.state.num_swapped_in += _num_blocks(engine, sequence.parked_tokens) - num_hits
    forget(engine, sequence)


@part
def forget(engine: Engine, sequence: Sequence) -> None:
    """Free the host blocks of a sequence."""
    engine.state.num_free_host_blocks += _num_blocks(engine, sequence.parked_tokens)
    sequence.parked_tokens = 0


@part
def transfer_s(engine: Engine) -> float:
    """Return the time that the copies of this step take on the link, in seconds. A step copies one way only."""
    state = engine.state
    return (state.num_swapped_out + state.num_swapped_in) * engine.settings.host_block_s


@part
def _num_blocks(engine: Engine, num_tokens: int) -> int:
    return -(-num_tokens // engine.settings.unit_tokens)
