"""The built-in policies: each is a scheduler with a kind of memory, and the settings of both.

The rest of kvsim takes a policy as an instance of these classes, or a custom policy, and calls the functions below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, ClassVar, TypeAlias

from kvsim.policies.custom import CustomPolicy, shares_prefixes
from kvsim.policies.settings import (
    ContiguousSettings,
    ContinuousSettings,
    EngineDefaults,
    PagedSettings,
    PrefixEviction,
    StaticSettings,
)
from kvsim.policies.sglang import Radix, RadixSettings, SGLangSettings
from kvsim.setting_fields import check_parts


class _Limited:
    """Limits that follow from the settings of a built-in policy."""

    __slots__ = ()
    scheduler: Any

    @property
    def max_model_len(self) -> int:
        """Length of the longest sequence in tokens, prompt and answer together."""
        longest: int = self.scheduler.max_model_len
        return longest

    @property
    def unit_tokens(self) -> int:
        """Number of tokens in a unit of the pool: a block, or one slot."""
        return 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged(_Limited):
    """vLLM V1: continuous batching over fixed-size blocks."""

    name: ClassVar[str] = "paged"
    scheduler: ContinuousSettings = field(default_factory=ContinuousSettings)
    cache: PagedSettings = field(default_factory=PagedSettings)

    def __post_init__(self) -> None:
        check_parts(self, scheduler=ContinuousSettings, cache=PagedSettings)

    @property
    def unit_tokens(self) -> int:
        """Number of slots in a unit of the pool."""
        return self.cache.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Contiguous(_Limited):
    """Orca and FasterTransformer: continuous batching, with one contiguous reservation for each sequence."""

    name: ClassVar[str] = "contiguous"
    scheduler: ContinuousSettings = field(default_factory=ContinuousSettings)
    cache: ContiguousSettings = field(default_factory=ContiguousSettings)

    def __post_init__(self) -> None:
        check_parts(self, scheduler=ContinuousSettings, cache=ContiguousSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Static(_Limited):
    """Hugging Face's `generate()`: padded batches. A batch holds its memory until its last row ends."""

    name: ClassVar[str] = "static"
    scheduler: StaticSettings = field(default_factory=StaticSettings)

    def __post_init__(self) -> None:
        check_parts(self, scheduler=StaticSettings)


Policy: TypeAlias = Paged | Contiguous | Static | Radix
"""A built-in policy, whose engine can be compiled."""
AnyPolicy: TypeAlias = Policy | CustomPolicy
"""A built-in policy, or a custom policy in Python."""
KINDS: Mapping[str, tuple[type, ...]] = {
    Paged.name: (ContinuousSettings, PagedSettings),
    Contiguous.name: (ContinuousSettings, ContiguousSettings),
    Static.name: (StaticSettings,),
    Radix.name: (SGLangSettings, RadixSettings),
}
"""Classes of the settings of each built-in policy, by the policy's name."""
EVERY_POLICY = tuple(KINDS)
"""Names of the built-in policies, in the order in which `kvsim compare` runs them."""
OF_IMAGES = (Paged.name, Contiguous.name, Static.name)
"""Names of the policies that can serve requests with images."""


def base_of(policy: AnyPolicy) -> Policy:
    """Return the built-in policy that `policy` is, or is based on. A custom policy is based on the paged one."""
    if isinstance(policy, Paged | Contiguous | Static | Radix):
        return policy
    if policy.allocator is None:
        return Paged(scheduler=policy.scheduler, cache=policy.cache)
    caches = policy.cache.enable_prefix_caching and shares_prefixes(policy.allocator)
    units = PagedSettings(block_size=policy.unit_tokens, enable_prefix_caching=caches)
    return Paged(scheduler=policy.scheduler, cache=units)


def evicts_optimally(policy: AnyPolicy) -> bool:
    """Tell whether `policy` evicts prefixes by Belady's rule, which needs to know all future requests."""
    base = base_of(policy)
    return isinstance(base, Paged) and base.cache.eviction is PrefixEviction.OPTIMAL


def runs_in_python(policy: AnyPolicy) -> bool:
    """Tell whether `policy` runs Python code, so that its engine cannot be compiled."""
    return isinstance(policy, CustomPolicy) or evicts_optimally(policy)


def most_running(policy: AnyPolicy) -> int:
    """Return the largest number of sequences that run at once."""
    if isinstance(policy, Static):
        return policy.scheduler.batch_size
    return policy.scheduler.max_running_requests if isinstance(policy, Radix) else policy.scheduler.max_num_seqs


def limited(policy: AnyPolicy, max_model_len: int, defaults: EngineDefaults) -> Policy:
    """Return the built-in policy that `policy` is, or is based on, with all limits set.

    A limit that `policy` leaves out becomes the model's `max_model_len`, or vLLM's default for the GPU in `defaults`.
    """
    base: Any = base_of(policy)
    if isinstance(base, Radix):
        return base
    found: Policy = replace(base, scheduler=base.scheduler.limited(max_model_len, defaults))
    return found


def describe(policy: AnyPolicy, base: Policy | None = None) -> Mapping[str, Any]:
    """Return the name of the policy and all its settings in one mapping, as in the `meta.json` of a recording.

    A custom policy is described as the built-in policy on which it is based, with the custom policy's name as `rules`
    and the name of its allocator, if it has one, as `allocator`. `base` is the built-in policy with all limits set;
    None if the limits are not known.
    """
    base = base or base_of(policy)
    flat = {key: value for part in asdict(base).values() for key, value in part.items()}
    described = {"name": base.name} | {
        key: value.value if isinstance(value, Enum) else value for key, value in flat.items()
    }
    if isinstance(policy, Policy):
        return described
    custom = described | {"rules": policy.name}
    return custom if policy.allocator is None else custom | {"allocator": getattr(policy.allocator, "__name__", "own")}
