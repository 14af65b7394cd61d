"""Replay of recordings: the contents of every unit of the pool at any step, forward and backward.

replay            seek to a step: the pool, the requests, slots by state
ledger            memory events, expanded to operations: changes of one unit, or of one range of units
unfolding         how a row of `memory.parquet` becomes operations
few_units         only the operations on a sample of units
unit_states       the contents of every unit after any number of operations
keyframes         the same after regular numbers of operations, so that a seek applies few operations
growing_extents   ranges of units that grow in every step
by_unit           reference counts and successive holders of each unit
unit_slots        slots of units by state
free_memory       lengths of the free ranges
progress          computed tokens of each request
resets            computed tokens of a request when it allocates memory
waiting           requests that wait
host_memory       blocks that are offloaded to host memory
encoder_contents  images in the encoder cache
rectangle         addresses for a recorded static batch, whose engine has none
"""

from kvsim.replay.replay import Replay

__all__ = ["Replay"]
