"""What is scheduled how, over which kind of memory: the policies that kvsim compares.

kinds     the three that come with kvsim: paged, contiguous, static
settings  what can be set of each
own       the Protocols of a policy of your own
"""

from kvsim.policies.kinds import (
    POLICY_NAMES,
    AnyPolicy,
    Contiguous,
    Paged,
    Policy,
    Static,
    base_of,
    describe,
)

__all__ = ["POLICY_NAMES", "AnyPolicy", "Contiguous", "Paged", "Policy", "Static", "base_of", "describe"]
