"""Custom policies in Python: admission, preemption, eviction, allocation, or a whole step.

Users subclass `CustomPolicy` to try their own rules. The engine, which then runs interpreted, calls the hooks that the
class overrides, and follows vLLM's rules otherwise. A hook sees requests, units and cached blocks only through the
read-only Protocols of this module. Runs are recorded and shown like those of built-in policies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from runpy import run_path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from kvsim.errors import UsageError, shortened
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
        """Time at which the request arrived, in seconds from the first event."""

    @property
    def priority(self) -> int:
        """Priority of the request; vLLM serves the smallest first."""

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""

    @property
    def max_tokens(self) -> int:
        """Number of output tokens after which the server stops the request."""

    @property
    def output_tokens(self) -> int:
        """Final number of output tokens. No real server knows it in advance; use it only to compute upper bounds."""

    @property
    def known_tokens(self) -> int:
        """Number of tokens that are known now: those of the prompt, and those of the output until now."""

    @property
    def computed_tokens(self) -> int:
        """Number of computed tokens; 0 while the request waits."""

    @property
    def num_units(self) -> int:
        """Number of units in the request's table (see `Allocator`); with vLLM's cache, a unit is a block."""

    @property
    def hit_tokens(self) -> int:
        """Number of leading tokens that a waiting request would find in the prefix cache now; 0 while it runs."""

    @property
    def prefix_keys(self) -> Sequence[int]:
        """Keys of the request's prefixes. Key `i` identifies the tokens up to the end of the request's unit `i`.

        Two keys are equal exactly if their prefixes are. Only full units have a key, and the last known token is left
        out, because a request has to compute at least one token.
        """

    @property
    def num_preemptions(self) -> int:
        """Number of times that the request was preempted."""


class CachedBlock(Protocol):
    """A free block in the prefix cache, as a policy sees it. A later request may hit the block until it is evicted."""

    @property
    def unit(self) -> int:
        """Block id, as in recordings."""

    @property
    def key(self) -> int:
        """Key of the block: equal for two blocks exactly if they hold the same prefix for the same group of layers."""

    @property
    def request(self) -> ServedRequest:
        """The request that cached or hit the block last."""

    @property
    def end_tokens(self) -> int:
        """Number of tokens from the beginning of the prompt to the end of the block."""

    @property
    def cached_s(self) -> float:
        """Time at which the block was put into the prefix cache, in seconds from the first event."""

    @property
    def last_used_s(self) -> float:
        """Time at which the last request that held the block freed it, in seconds from the first event."""

    @property
    def num_hits(self) -> int:
        """Number of admitted requests that have hit the block since it was cached."""

    @property
    def tokens_below(self) -> int:
        """Number of tokens in the cached blocks that continue this block's prefix, and are hit only after it."""


class Candidates(Sequence[CachedBlock]):
    """The free blocks in the prefix cache, as a sequence of `CachedBlock`: the least recently freed block first."""

    @abstractmethod
    def column(self, name: str) -> npt.NDArray[Any]:
        """Return the attribute `name` of all blocks, in their order: an array of integers, or of floats for times.

        `name` is `unit`, `key`, `end_tokens`, `cached_s`, `last_used_s`, `num_hits` or `tokens_below`. Arithmetic on
        arrays takes microseconds, but a loop over the blocks hundreds of microseconds. The arrays may be passed to
        functions compiled with numba.
        """


class StepInMaking(Protocol):
    """The step being scheduled: the queues, the free memory, and the actions that a policy may take.

    A request is the same Python object in all steps of a run.
    """

    @property
    def now_s(self) -> float:
        """Time at which the step is scheduled, in seconds from the first event."""

    @property
    def waiting(self) -> Sequence[ServedRequest]:
        """The waiting requests, the head of the queue first."""

    @property
    def running(self) -> Sequence[ServedRequest]:
        """The running requests, in order of admission."""

    @property
    def preempted(self) -> Sequence[ServedRequest]:
        """The requests that this step has preempted until now, in order of preemption."""

    @property
    def num_free_units(self) -> int:
        """Number of units of the pool that can be allocated, including free units in the prefix cache."""

    @property
    def tokens_left(self) -> int:
        """Number of tokens of the budget (`max_num_batched_tokens`) that this step has not assigned to a request."""

    def cost_s(self, tokens: Mapping[ServedRequest, int] | None = None) -> float:
        """Return the duration of this step in seconds if it also computed `tokens[request]` tokens of each request.

        If `tokens` is None, return the duration of the step with the tokens that are scheduled until now. The duration
        lasts from the beginning of the step to its outputs, by the step times of the run. The slowdown of a GPU at its
        power limit is left out, and steps are assumed not to overlap. Nothing is allocated, so requests need not fit.
        """

    def serve_running(self) -> None:
        """Schedule the next tokens of every running request by vLLM's rule, in order of admission.

        If the pool has no free unit, `CustomPolicy.victim` chooses the request to preempt.
        """

    def admit_waiting(self) -> None:
        """Admit requests by vLLM's rule until one does not fit; `CustomPolicy.admit` chooses the next request."""

    def compute(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Schedule at most `num_tokens` tokens of a running request in this step; None for as many as possible.

        A request may be scheduled only once in a step. Return False, and change nothing, if the pool has no room, the
        token budget is used up, or the request has nothing to compute.
        """

    def admit(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Admit a waiting request and schedule at most `num_tokens` tokens of its prompt; None for as many as possible.

        Return False, and change nothing, if the pool has no room, the token budget is used up, or `max_num_seqs` run.
        """

    def preempt(self, request: ServedRequest) -> None:
        """Free the memory of a running request, and return the request to the head of the waiting queue.

        With priorities, the request returns to its place in their order. After its next admission, it computes its
        tokens again, except for prefix hits.
        """


class Allocator(Protocol):
    """A custom allocator of the units of a pool. Inherit from this class, or define the same methods.

    Each request has a table, which is a list of units: entry `i` holds the `unit_tokens` tokens from token
    `i * unit_tokens` on. kvsim checks every unit that the allocator returns.
    """

    def allocate(self, request: ServedRequest, num_tokens: int) -> Iterable[int] | None:
        """Return the units to append to the table of `request`, so that it has room for at least `num_tokens` tokens.

        A unit is a number from 0 to `num_units - 1` that is in no table. Return None, and change nothing, without room.
        """

    def free(self, request: ServedRequest, units: Sequence[int]) -> None:
        """Free `units`, the whole table of `request`. The units are in the order of the request's tokens."""

    def unusable_units(self, request: ServedRequest) -> int:  # noqa: ARG002  an allocator that fragments looks at it
        """Return the number of free units in pieces that are too small for `request`, the head of the queue.

        These units count as external fragmentation. The default is 0, because any unit may serve any request.
        """
        return 0


class SharingAllocator(Protocol):
    """A custom allocator with a prefix cache: the tables of several requests may begin with the same units.

    Inherit from this class, or define the same methods. Assign the class itself, not a function that makes it, to the
    policy's `allocator`. A unit holds the prefix that `cache` assigns to it, until `allocate` returns the unit again.
    kvsim counts the tables that list a unit, and refuses a shared unit that does not hold the request's tokens.
    """

    def find_prefix(self, request: ServedRequest) -> Sequence[int]:
        """Return the units that hold the longest cached prefix of a waiting request.

        Unit `i` of the result holds the prefix with the key `request.prefix_keys[i]`; the result is empty if not even
        the first key is cached. Change nothing, because the request may not be admitted.
        """

    def allocate(self, request: ServedRequest, num_tokens: int, found: Sequence[int] = ()) -> Iterable[int] | None:
        """Return the units to append to the table of `request`, so that it has room for at least `num_tokens` tokens.

        When the request is admitted, `found` has the units that `find_prefix` returned; later, it is empty. The units
        in `found` are in the table already, so mark them as used, and return only further units. A unit is a number
        from 0 to `num_units - 1` that is in no table. Return None, and change nothing, if there is no room.
        """

    def cache(self, request: ServedRequest, unit: int, key: int) -> None:
        """Record that `unit`, in the table of `request`, holds the prefix with this key.

        It is called when the step that fills the unit is scheduled, so other requests of this step may share the unit.
        """

    def free(self, request: ServedRequest, units: Sequence[int]) -> Iterable[int]:
        """Free `units`, those units of `request` that are in no other table, in the order of its tokens.

        Return the units that stay in the prefix cache. They are counted as cached until `allocate` returns them again.
        """

    def unusable_units(self, request: ServedRequest) -> int:  # noqa: ARG002
        """Return the number of free units that are in pieces too small for `request`, as in `Allocator`."""
        return 0


AnyAllocator: TypeAlias = Allocator | SharingAllocator


@runtime_checkable
class CustomPolicy(Protocol):
    """A policy in Python. Inherit from this class and override hooks. Other hooks follow vLLM's rules.

    An instance may keep state between calls. Use a new instance for every run.
    """

    name: str = "own"
    """Name of the policy in tables, plots and recordings."""
    scheduler: ContinuousSettings = ContinuousSettings()
    """Limits of a step, and the order of the queue."""
    cache: PagedSettings = PagedSettings()
    """Settings of vLLM's cache. With a custom allocator, `block_size` is the number of tokens in a unit.

    With a `SharingAllocator`, `enable_prefix_caching` also has an effect. All other settings are ignored with a custom
    allocator.
    """
    source: str = ""
    """Text of the file from which the policy was loaded (FILE.py:CLASS); empty if Python imported the class."""
    allocator: Callable[[int, int], AnyAllocator] | None = None
    """Class or function that makes the allocator of a run; None for vLLM's cache.

    Its arguments are the number of units in the pool, and the number of tokens in a unit. In the body of a class, a
    function must be a `staticmethod`.
    """

    def admit(self, step: StepInMaking) -> ServedRequest | None:
        """Return the request of `step.waiting` to admit next; None to admit no more requests in this step.

        There is at least one waiting request. If the returned request does not fit, the step admits no more requests.
        """
        return step.waiting[0]

    def victim(self, step: StepInMaking, needs: ServedRequest) -> ServedRequest:  # noqa: ARG002
        """Return the request of `step.running` to preempt, so that `needs` gets memory. It may be `needs` itself."""
        return step.running[-1]

    def evict(self, step: StepInMaking, candidates: Candidates) -> CachedBlock | list[CachedBlock]:  # noqa: ARG002
        """Return the block of `candidates` to evict from the prefix cache, or a list of blocks in order of eviction.

        It is called when a request needs a block and the next block of the free queue is in the prefix cache, but not
        if the policy has an allocator. `candidates` has all free blocks in the prefix cache, the least recently freed
        first; vLLM evicts the first. If the result is a list, the step evicts one block after the other without another
        call, as long as they are free.

        Reading `candidates[0]` costs nothing. The cost of `candidates.column("num_hits")`, and of a loop, grows with
        the pool; `eviction_rank` avoids this cost.
        """
        return candidates[0]

    def eviction_rank(self, block: CachedBlock) -> Any:  # noqa: ARG002
        """Return the rank of a free block, such as a number or a tuple. The block with the smallest rank is evicted.

        Override this instead of `evict` if possible, because its cost does not grow with the pool. It is called when
        the block is freed, and again when a block that continues the same prefix is evicted. So the rank may depend on
        the attributes of the block, but not on the step. Among blocks of equal rank, the one freed first is evicted.
        """
        return 0

    def schedule(self, step: StepInMaking) -> None:
        """Schedule one step. By default, serve running requests and, if none was preempted, admit others."""
        step.serve_running()
        if not step.preempted:
            step.admit_waiting()

    @property
    def max_model_len(self) -> int:
        """Length of the longest sequence in tokens, prompt and answer together."""
        return self.scheduler.max_model_len

    @property
    def unit_tokens(self) -> int:
        """Number of slots in a unit of the pool."""
        return self.cache.block_size


_DERIVED = {
    "max_model_len": "scheduler = ContinuousSettings(max_model_len=...)",
    "unit_tokens": "cache = PagedSettings(block_size=...)",
}
"""Attributes of a custom policy that follow from its settings, and the way to set them."""
_ATTRIBUTES = {"name": str, "scheduler": ContinuousSettings, "cache": PagedSettings, "allocator": object}
"""Types of the attributes of a custom policy."""


def is_policy_file(text: str) -> bool:
    """Tell whether `text` names a policy in a Python file: FILE.py or FILE.py:CLASS."""
    return text.endswith(".py") or ".py:" in text


def policy_from_file(text: str) -> CustomPolicy:
    """Return an instance of the policy class that `text` names: FILE.py:CLASS, or FILE.py if it has only one policy.

    Raises:
        UsageError: the file cannot be run, or has no such policy.
    """
    stem, _, name = text.removesuffix(".py").partition(".py:")
    path = Path(f"{stem}.py")
    # `run_path` leaves no module of this name in `sys.modules`, so sweeps pickle the classes by value for workers.
    module = f"policy_in_{path.stem}"
    try:
        kinds = {
            key: kind
            for key, kind in run_path(str(path), run_name=module).items()
            if isinstance(kind, type) and CustomPolicy in kind.__mro__ and kind.__module__ == module
        }
        chosen = {kind for key, kind in kinds.items() if name in ("", key)}
        if len(chosen) == 1:
            made: CustomPolicy = chosen.pop()()
            type(made).source = path.read_text(encoding="utf-8")
            return made
    except (Exception, SystemExit) as error:  # a script may end with sys.exit()
        raise UsageError(f"the policy in {path} cannot be made: {type(error).__name__}: {error}.") from error
    names = ", ".join(kinds) or "no subclass of kvsim.CustomPolicy"
    raise UsageError(f"{path} has {names}; give one policy as {path}:CLASS.")


def overrides(policy: CustomPolicy, hook: str) -> bool:
    """Tell whether the class of `policy` overrides `hook`."""
    return getattr(type(policy), hook) is not getattr(CustomPolicy, hook)


def evicts(policy: CustomPolicy) -> bool:
    """Tell whether `policy` overrides `evict` or `eviction_rank`."""
    return overrides(policy, "evict") or ranks_blocks(policy)


def ranks_blocks(policy: CustomPolicy) -> bool:
    """Tell whether `policy` overrides `eviction_rank`.

    Raises:
        UsageError: it also overrides `evict`.
    """
    ranks = overrides(policy, "eviction_rank")
    if ranks and overrides(policy, "evict"):
        raise UsageError(f"the policy {policy.name!r} has both evict and eviction_rank; keep one of the two.")
    return ranks


def shares_prefixes(allocator: object) -> bool:
    """Tell whether an allocator, or a class of allocators, is a `SharingAllocator`."""
    return hasattr(allocator, "find_prefix")


def check_hooks(policy: CustomPolicy) -> None:
    """Raise a `UsageError` if the policy has an attribute of a wrong type, or an attribute or method without effect.

    The methods of its allocator are checked, too. A method has no effect if its name is misspelt, which is assumed if
    it is close to the name of a method that kvsim calls and that the class does not define. An attribute has no effect
    if it is in `_DERIVED`.
    """
    _check_names(type(policy), (CustomPolicy,))
    _check_attributes(policy)
    if isinstance(policy.allocator, type):
        check_allocator_names(policy.allocator)


def _check_attributes(policy: CustomPolicy) -> None:
    owner = type(policy).__name__
    for name, way in _DERIVED.items():
        if overrides(policy, name):
            raise UsageError(f"{owner}.{name} has no effect; set it with {way}.")
    for name, kind in _ATTRIBUTES.items():
        try:
            value = getattr(policy, name)
        except Exception as error:  # it may be a property
            raise UsageError(f"{owner}.{name} fails: {type(error).__name__}: {error}.") from error
        if not isinstance(value, kind):
            raise UsageError(f"{owner}.{name} should be of type {kind.__name__}, not {shortened(value)}.")
    if policy.allocator is not None and not callable(policy.allocator):
        raise UsageError(f"{owner}.allocator should be a class or a function, not {shortened(policy.allocator)}.")


def check_allocator_names(kind: type) -> None:
    """Raise a `UsageError` if a class of allocators has a misspelt method; see `check_hooks`."""
    _check_names(kind, (SharingAllocator, Allocator))  # Allocator last: it is named for hooks that both have


def _check_names(kind: type, protocols: Sequence[type]) -> None:
    """Raise a `UsageError` if a class has or inherits a method whose name is close to a method of `protocols`.

    The close name is accepted if the class also defines the method of `protocols`.
    """
    hooks = {name: protocol for protocol in protocols for name in dir(protocol) if not name.startswith("_")}
    # Defaults inherited from a protocol do not count: a misspelt override leaves them in place.
    written = [each for each in reversed(kind.__mro__) if each is not object and each.__module__ != __name__]
    defined = {name: value for each in written for name, value in vars(each).items()}
    for name, value in defined.items():
        near = [] if name.startswith("_") or name in hooks else get_close_matches(name, hooks, n=1, cutoff=0.8)
        if near and near[0] not in defined and (callable(value) or near[0] in ("name", "scheduler", "cache")):
            raise UsageError(f"{kind.__name__}.{name} is never called; {hooks[near[0]].__name__} has {near[0]}.")
