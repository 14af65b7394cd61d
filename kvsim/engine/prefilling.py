"""The list of sequences with unfinished prompts, which load KV or were admitted with a part of the prompt.

A loading sequence holds blocks while it computes nothing. To prevent deadlock, a load begins only if the pool also has
room for the rest of all unfinished prompts.
"""

from __future__ import annotations

from kvsim.engine.machine_code.compiled import part
from kvsim.engine.records import Sequence
from kvsim.engine.state import Engine, table_of


@part
def add(engine: Engine, sequence: Sequence) -> None:
    """Add a sequence to the list, if it is not in it."""
    connector = engine.connector
    transfer = connector.transfers[sequence.number]
    if transfer.place == 0:
        connector.prefilling[connector.state.num_prefilling] = sequence.number
        connector.state.num_prefilling += 1
        transfer.place = connector.state.num_prefilling


@part
def leave(engine: Engine, sequence: Sequence) -> None:
    """Remove a sequence from the list, if it is in it."""
    connector = engine.connector
    place = connector.transfers[sequence.number].place
    if place == 0:
        return
    connector.transfers[sequence.number].place = 0
    connector.state.num_prefilling -= 1
    last = connector.prefilling[connector.state.num_prefilling]
    if last != sequence.number:
        connector.prefilling[place - 1] = last
        connector.transfers[last].place = place


@part
def num_reserved(engine: Engine) -> int:
    """Return the number of blocks that these sequences still need, with their drafts and those of one more sequence."""
    connector, settings = engine.connector, engine.settings
    draft_tokens, block_size = connector.settings.draft_tokens, settings.unit_tokens
    num_blocks = -(-draft_tokens // block_size)
    for index in range(connector.state.num_prefilling):
        sequence = engine.sequences[connector.prefilling[index]]
        held = table_of(engine, sequence, 0).num_blocks if sequence.num_units > 0 else 0
        num_tokens = min(sequence.num_tokens, settings.max_model_len) + draft_tokens
        num_blocks += max(-(-num_tokens // block_size) - held, 0)
    return num_blocks
