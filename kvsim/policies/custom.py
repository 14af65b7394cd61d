"""Custom policies in Python: admission, preemption, eviction, allocation, or a whole step.

A custom policy overrides the hooks that it needs; vLLM's rule decides the rest. The engine runs interpreted and calls
the hooks. Runs are accounted for, recorded, drawn and shown like those of built-in policies. A policy sees requests,
units and cached blocks, and none of the engine's records.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from kvsim.errors import UsageError
from kvsim.policies.settings import ContinuousSettings, PagedSettings

if TYPE_CHECKING:
    import numpy.typing as npt


class ServedRequest(Protocol):
    """A waiting or running request, as a policy sees it: read-only. Lengths are in tokens."""

    @property
    def row(self) -> int:
        """The request's row in the workload, and in the recording's table of requests."""

    @property
    def arrival_s(self) -> float:
        """Time at which the request was sent, in seconds from the first event."""

    @property
    def priority(self) -> int:
        """Priority of the request; vLLM serves the smallest first."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""

    @property
    def max_tokens(self) -> int:
        """Output tokens after which the server stops the request."""

    @property
    def output_tokens(self) -> int:
        """Output tokens that the request will have in the end. No server knows it; an upper bound may use it."""

    @property
    def known_tokens(self) -> int:
        """Tokens of the prompt and of the output so far."""

    @property
    def computed_tokens(self) -> int:
        """Tokens computed so far; 0 while the request waits."""

    @property
    def num_units(self) -> int:
        """Units of the pool in the request's table: blocks, with vLLM's cache."""

    @property
    def hit_tokens(self) -> int:
        """Leading tokens that a waiting request would find in the prefix cache now; 0 while it runs."""

    @property
    def prefix_keys(self) -> Sequence[int]:
        """A number for each full unit of the known tokens but the last: the key of the prefix that ends with the unit.

        Two requests have the same key exactly if their prefixes are the same.
        """

    @property
    def num_preemptions(self) -> int:
        """Number of times that the request was preempted."""


class CachedBlock(Protocol):
    """A free block that keeps a prefix, as a policy sees it: a later request may hit it until it is evicted."""

    @property
    def unit(self) -> int:
        """Block id, as in recordings."""

    @property
    def key(self) -> int:
        """Number that two blocks share exactly if their whole prefixes and their groups of layers are the same."""

    @property
    def request(self) -> ServedRequest:
        """The request that cached or hit the block last."""

    @property
    def end_tokens(self) -> int:
        """Tokens of the prefix, from the first token of the prompt to the end of the block."""

    @property
    def cached_s(self) -> float:
        """Time at which the block was put into the prefix cache, in seconds from the first event."""

    @property
    def last_used_s(self) -> float:
        """Time at which the last request that held the block freed it, in seconds from the first event."""

    @property
    def num_hits(self) -> int:
        """Number of admissions that found the block."""

    @property
    def tokens_below(self) -> int:
        """Tokens in cached blocks that continue this prefix: no request can hit them once this block is evicted."""


class Candidates(Sequence[CachedBlock]):
    """The free blocks that keep a prefix, the least recently freed first: a sequence of `CachedBlock`."""

    @abstractmethod
    def column(self, name: str) -> npt.NDArray[Any]:
        """Return an attribute of all blocks in their order, as an array of integers, or of floats for times.

        `name` is `unit`, `key`, `end_tokens`, `cached_s`, `last_used_s`, `num_hits` or `tokens_below`. A rule over
        arrays takes microseconds where a loop over blocks takes hundreds, and a function compiled with numba takes them
        as they are.

        Raises:
            UsageError: there is no such column.
        """


class StepInMaking(Protocol):
    """The step that the server makes next: the queues, the free memory, and the actions that a policy may take.

    Every request is one object for the whole run.
    """

    @property
    def now_s(self) -> float:
        """The host's clock, in seconds from the first event."""

    @property
    def waiting(self) -> Sequence[ServedRequest]:
        """The waiting requests, the head of the queue first."""

    @property
    def running(self) -> Sequence[ServedRequest]:
        """The running requests, in order of admission."""

    @property
    def preempted(self) -> Sequence[ServedRequest]:
        """The requests that this step has preempted so far, in order of preemption."""

    @property
    def num_free_units(self) -> int:
        """Units of the pool that can be allocated, including those that keep a prefix."""

    @property
    def tokens_left(self) -> int:
        """Tokens of `max_num_batched_tokens` that this step has not given to a request yet."""

    def cost_s(self, tokens: Mapping[ServedRequest, int] | None = None) -> float:
        """Return how long this step would take if it computed `tokens` of each request besides what it has already.

        In seconds, from the beginning of the step to its outputs, by the step times of the run; a GPU that runs hot and
        steps that overlap are left out. Nothing is allocated: the requests need not fit.
        """

    def serve_running(self) -> None:
        """Apply vLLM's rule: give every running request its next tokens, in order of admission.

        Where the pool has no unit left, `CustomPolicy.victim` names the request to preempt.
        """

    def admit_waiting(self) -> None:
        """Apply vLLM's rule: admit requests for as long as they fit; `CustomPolicy.admit` names the next."""

    def compute(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Let a running request compute at most `num_tokens` in this step, or all that it can; once a step.

        Return False, and change nothing, if the pool has no room, the step has no token left, or the request has
        nothing to compute.
        """

    def admit(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Admit a waiting request and let it compute at most `num_tokens` of its prompt in this step, or all it can.

        Return False, and change nothing, if the pool has no room, the step has no token left, or `max_num_seqs`
        requests run.
        """

    def preempt(self, request: ServedRequest) -> None:
        """Free the memory of a running request and put it back into the queue; it computes its tokens again."""


class Allocator(Protocol):
    """Allocates the units of a pool; kvsim checks every unit. Inherit from it, or have its methods.

    A table is a list of units; unit `i` of the list holds `unit_tokens` tokens from token `i * unit_tokens` on.
    """

    def allocate(self, request: ServedRequest, num_tokens: int) -> Iterable[int] | None:
        """Return the units to append to the table of `request`, so that it has room for `num_tokens` tokens or more.

        A unit is a number from 0 to `num_units - 1` that no table has. Return None, and change nothing, if there is no
        room.
        """

    def free(self, request: ServedRequest, units: Sequence[int]) -> None:
        """Free `units`, the whole table of `request`, in the order of its tokens."""

    def unusable_units(self, request: ServedRequest) -> int:  # noqa: ARG002  an allocator that fragments looks at it
        """Return the number of free units in pieces too small for `request`, the head of the queue.

        They are counted as external fragmentation. The default is 0: any unit serves any request.
        """
        return 0


class SharingAllocator(Protocol):
    """An allocator that shares prefixes: a waiting request begins its table with units that hold its tokens already.

    Inherit from it, or have its methods; the class itself is the policy's `allocator`. kvsim counts the tables that
    list a unit, and refuses a unit that is shared for other tokens than it holds. A unit holds the prefix whose key it
    was given by `cache`, until `allocate` hands it out again.
    """

    def find_prefix(self, request: ServedRequest) -> Sequence[int]:
        """Return units that hold the leading tokens of a waiting request, one for each of the first
        `request.prefix_keys`; none if the first is not held. Change nothing: the request may not be admitted.
        """

    def allocate(self, request: ServedRequest, num_tokens: int, found: Sequence[int] = ()) -> Iterable[int] | None:
        """Return the units to append to the table of `request`, so that it has room for `num_tokens` tokens or more.

        At its admission the table begins with `found`, the units of `find_prefix`, which are not free any more. A unit
        is a number from 0 to `num_units - 1` that no table has. Return None, and change nothing, if there is no room.
        """

    def cache(self, request: ServedRequest, unit: int, key: int) -> None:
        """Note that a unit in the table of `request` is full: it holds the prefix of number `key`.

        It is called when the step is made that fills the unit, so that requests of the same step may share it.
        """

    def free(self, request: ServedRequest, units: Sequence[int]) -> Iterable[int]:
        """Free `units`, those of the table of `request` that no other table lists, in the order of its tokens.

        Return those that keep their prefix: they are counted as cached until they are handed out again.
        """

    def unusable_units(self, request: ServedRequest) -> int:  # noqa: ARG002
        """Return the number of free units in pieces too small for `request`, as in `Allocator`."""
        return 0


AnyAllocator: TypeAlias = Allocator | SharingAllocator


@runtime_checkable
class CustomPolicy(Protocol):
    """A policy in Python. Inherit from it and override hooks; vLLM's rule decides where none is overridden.

    An instance may keep state between calls; one run has one instance.
    """

    name: str = "own"
    """The name of the policy in tables, figures and recordings."""
    scheduler: ContinuousSettings = ContinuousSettings()
    """Limits of a step, and the order of the queue."""
    cache: PagedSettings = PagedSettings()
    """Settings of vLLM's cache. With a custom allocator only `block_size` has an effect: the tokens of a unit."""
    source: str = ""
    """Text of the file that a policy was read from by name; empty for one that Python imported."""
    allocator: Callable[[int, int], AnyAllocator] | None = None
    """Class or function that makes the allocator, from the number of units of the pool and the tokens of each; None for
    vLLM's cache. It is called once a run.
    """

    def admit(self, step: StepInMaking) -> ServedRequest | None:
        """Return the request of `step.waiting`, which is not empty, to admit next; None to admit no other in this step.

        If the request does not fit, the step admits no other.
        """
        return step.waiting[0]

    def victim(self, step: StepInMaking, needs: ServedRequest) -> ServedRequest:  # noqa: ARG002
        """Return the request of `step.running` to preempt, since `needs` has no room; it may be `needs` itself."""
        return step.running[-1]

    def evict(self, step: StepInMaking, candidates: Candidates) -> CachedBlock:  # noqa: ARG002
        """Return the block of `candidates` to evict from the prefix cache: a request needs a block, and the next one in
        the free queue keeps a prefix.

        `candidates` are all free blocks that keep one, the least recently freed first, which is vLLM's choice. They are
        read lazily: `candidates[0]` costs nothing, `candidates.column("num_hits")` is an array, and a loop over blocks
        grows with the pool; `eviction_rank` avoids both. Not called with a custom allocator.
        """
        return candidates[0]

    def eviction_rank(self, block: CachedBlock) -> Any:  # noqa: ARG002
        """Return what free blocks are ordered by, such as a number or a tuple: the smallest is evicted first.

        To override in place of `evict` where it suffices: its cost does not grow with the pool. It is asked when the
        block is freed, and again when a block that continues its prefix is evicted; so it may depend on the block's
        hits, times, place and `tokens_below`, and not on the step. Of equal ranks, the one freed first is evicted.
        """
        return 0

    def schedule(self, step: StepInMaking) -> None:
        """Make one step. The default is vLLM's: serve the running requests, then admit unless one was preempted."""
        step.serve_running()
        if not step.preempted:
            step.admit_waiting()

    @property
    def max_model_len(self) -> int:
        """Longest sequence in tokens, prompt and answer together."""
        return self.scheduler.max_model_len

    @property
    def unit_tokens(self) -> int:
        """Slots per unit of the pool."""
        return self.cache.block_size


def is_policy_file(text: str) -> bool:
    """Tell whether `text` names a policy in a Python file: FILE.py or FILE.py:CLASS."""
    return text.endswith(".py") or ".py:" in text


def policy_from_file(text: str) -> CustomPolicy:
    """Return a policy of the class that FILE.py:CLASS names; FILE.py is enough where the file has one policy.

    Raises:
        UsageError: the file cannot be run, or has no such policy.
    """
    stem, _, name = text.removesuffix(".py").partition(".py:")
    path = Path(f"{stem}.py")
    module = f"policy_in_{path.stem}"  # no module in the end, so that processes of a sweep get the classes by value
    try:
        kinds = [
            kind
            for kind in run_path(str(path), run_name=module).values()
            if isinstance(kind, type) and CustomPolicy in kind.__mro__ and kind.__module__ == module
        ]
        chosen = [kind for kind in kinds if name in ("", kind.__name__)]
        if len(chosen) == 1:
            made: CustomPolicy = chosen[0]()
            type(made).source = path.read_text(encoding="utf-8")
            return made
    except Exception as error:
        raise UsageError(f"the policy in {path} cannot be made: {type(error).__name__}: {error}.") from error
    names = ", ".join(kind.__name__ for kind in kinds) or "no subclass of kvsim.CustomPolicy"
    raise UsageError(f"{path} has {names}; give one policy as {path}:CLASS.")


def overrides(policy: CustomPolicy, hook: str) -> bool:
    """Tell whether `policy` has a hook of its own."""
    return getattr(type(policy), hook) is not getattr(CustomPolicy, hook)


def evicts(policy: CustomPolicy) -> bool:
    """Tell whether `policy` has a rule of eviction."""
    return overrides(policy, "evict") or ranks_blocks(policy)


def ranks_blocks(policy: CustomPolicy) -> bool:
    """Tell whether `policy` evicts by rank.

    Raises:
        UsageError: it has another rule as well.
    """
    ranks = overrides(policy, "eviction_rank")
    if ranks and overrides(policy, "evict"):
        raise UsageError(f"the policy {policy.name!r} has both evict and eviction_rank; keep one of the two.")
    return ranks


def shares_prefixes(allocator: object) -> bool:
    """Tell whether an allocator, or its class, finds prefixes."""
    return hasattr(allocator, "find_prefix")


def check_hooks(policy: CustomPolicy) -> None:
    """Refuse a policy, or an allocator, with a method whose name is almost a hook's: it would never be called.

    Raises:
        UsageError: there is such a method; the message names the hook.
    """
    _check_names(type(policy), (CustomPolicy,))
    if isinstance(policy.allocator, type):
        check_allocator_names(policy.allocator)


def check_allocator_names(kind: type) -> None:
    """Refuse a class of allocators with a method whose name is almost a hook's.

    Raises:
        UsageError: there is such a method; the message names the hook.
    """
    _check_names(kind, (SharingAllocator, Allocator))  # Allocator last: it is named for hooks that both have


def _check_names(kind: type, protocols: Sequence[type]) -> None:
    """Refuse a class that defines or inherits a method whose name is almost that of a hook of `protocols`.

    A close name is accepted if the class has the hook as well: then it may be a helper.
    """
    hooks = {name: protocol for protocol in protocols for name in dir(protocol) if not name.startswith("_")}
    # Defaults inherited from a protocol do not count: a misspelt override leaves them in place.
    written = [each for each in reversed(kind.__mro__) if each is not object and each.__module__ != __name__]
    defined = {name: value for each in written for name, value in vars(each).items()}
    for name, value in defined.items():
        near = [] if name.startswith("_") or name in hooks else get_close_matches(name, hooks, n=1, cutoff=0.8)
        if near and near[0] not in defined and (callable(value) or near[0] in ("name", "scheduler", "cache")):
            raise UsageError(f"{kind.__name__}.{name} is never called; {hooks[near[0]].__name__} has {near[0]}.")
