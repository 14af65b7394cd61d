"""Replay of recordings: the contents of every unit of the pool at any step, forward and backward.

replay         seek to a step: the pool, the requests, slots by state
ledger         memory events, expanded to operations on units
few_units      the operations on a sample of units
unit_states    the contents of every unit after any number of operations (keyframes, growth, by_unit)
unit_slots     slots of units by state
progress       computed tokens of each request
resets         computed tokens of a request when it allocates memory
waiting        requests that wait
host_memory    the second tier, step by step
rectangle      addresses for a recorded static batch, whose engine has none
"""

from kvsim.replay.replay import Replay

__all__ = ["Replay"]
