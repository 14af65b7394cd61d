"""What is scheduled how, over which kind of memory: the policies that kvsim compares.

kinds     the three that come with kvsim: paged, contiguous, static
settings  what can be set of each
pipeline  what several stages change
custom    the Protocols of a custom policy
"""

from kvsim.policies.custom import Allocator, CustomPolicy
from kvsim.policies.kinds import (
    KINDS,
    POLICY_NAMES,
    AnyPolicy,
    Contiguous,
    Paged,
    Policy,
    Static,
    base_of,
    describe,
)
from kvsim.policies.pipeline import Pipeline
from kvsim.policies.settings import (
    ContiguousSettings,
    ContinuousSettings,
    Growth,
    Order,
    PagedSettings,
    Reserve,
    StaticSettings,
)

__all__ = [
    "KINDS",
    "POLICY_NAMES",
    "Allocator",
    "AnyPolicy",
    "Contiguous",
    "ContiguousSettings",
    "ContinuousSettings",
    "CustomPolicy",
    "Growth",
    "Order",
    "Paged",
    "PagedSettings",
    "Pipeline",
    "Policy",
    "Reserve",
    "Static",
    "StaticSettings",
    "base_of",
    "describe",
]
