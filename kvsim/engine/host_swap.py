"""Swapping to host memory as in vLLM before its version 1: preempted sequences are copied out and back.

A victim's blocks are copied to the host if there is room for all; otherwise its tokens are recomputed. When it is
admitted again it gets new blocks, and the link carries only those that the prefix cache no longer holds. Host
copies are private: no other sequence hits them. vLLM 0.25.1 has no such swap.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import PREEMPTED, Engine


@part
def send_out(engine: Engine, sequence: Sequence) -> None:
    """Copy the computed blocks of a preempted sequence to the host, before its tables are freed."""
    state = engine.state
    num_blocks = _num_blocks(engine, sequence.computed)
    if sequence.status == PREEMPTED and 0 < num_blocks <= state.num_free_host_blocks:
        sequence.parked_tokens = sequence.computed
        state.num_free_host_blocks -= num_blocks
        state.num_swapped_out += num_blocks


@part
def bring_back(engine: Engine, sequence: Sequence, hit_tokens: int) -> None:
    """Copy the host blocks of an admitted sequence beyond its hits to the GPU, and free them on the host."""
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
    """Return the time of the step's copies on the link, in seconds: a step copies out or in, never both."""
    state = engine.state
    return (state.num_swapped_out + state.num_swapped_in) * engine.settings.host_block_s


@part
def _num_blocks(engine: Engine, num_tokens: int) -> int:
    return -(-num_tokens // engine.settings.unit_tokens)
