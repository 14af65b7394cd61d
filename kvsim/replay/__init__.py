"""Playing a recording: what stands in every unit of the pool at any step, forward and backward.

replay         seek to a step: the pool, the requests, where every slot goes
ledger         the memory events, unfolded: after each operation, who holds which units
few_units      the operations on some units alone
unit_states    what stands in every unit after any number of operations (keyframes, growth, by_unit)
group_slots    the account of several KV-cache groups
progress       how far each request has come
host_memory    the second tier, step by step
rectangle      addresses for a recorded static batch, whose engine has none
"""

from kvsim.replay.replay import Replay

__all__ = ["Replay"]
