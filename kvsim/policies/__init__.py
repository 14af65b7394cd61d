"""Scheduling policies with their kinds of memory, which kvsim compares.

kinds     the policies that come with kvsim: paged, contiguous, static, radix
settings  the settings of each
pipeline  the effect of several pipeline stages on scheduling
sglang    SGLang's scheduler and radix cache
custom    the Protocols of a custom policy
"""

from kvsim.policies.custom import Allocator, CustomPolicy
from kvsim.policies.kinds import (
    EVERY_POLICY,
    KINDS,
    OF_IMAGES,
    AnyPolicy,
    Contiguous,
    Paged,
    Policy,
    Static,
    base_of,
    describe,
    limited,
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
from kvsim.policies.sglang import Radix, RadixSettings, SGLangSettings

__all__ = [
    "EVERY_POLICY",
    "KINDS",
    "OF_IMAGES",
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
    "Radix",
    "RadixSettings",
    "Reserve",
    "SGLangSettings",
    "Static",
    "StaticSettings",
    "base_of",
    "describe",
    "limited",
]
