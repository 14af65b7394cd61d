"""A policy of your own: who is admitted, who gives way, where memory comes from, or all of a step.

What is not answered here stays vLLM's rule. Such a policy is asked while the engine runs interpreted; its runs are
accounted for, recorded, drawn and shown like any other. It knows requests and units, and nothing of the engine's
records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

from kvsim.errors import UsageError
from kvsim.policies.settings import ContinuousSettings, PagedSettings


class ServedRequest(Protocol):
    """A request that waits or runs, as a policy sees it. Lengths are in tokens; nothing in it can be written."""

    @property
    def row(self) -> int:
        """The request's row in the workload, and in the recording's table of requests."""

    @property
    def arrival_s(self) -> float:
        """Time at which the request was sent, in seconds from the first event."""

    @property
    def priority(self) -> int:
        """As it was sent; vLLM serves the smallest first."""

    @property
    def prompt_tokens(self) -> int:
        """Length of its prompt."""

    @property
    def max_tokens(self) -> int:
        """Outputs after which it is stopped: what a server knows beforehand."""

    @property
    def output_tokens(self) -> int:
        """Outputs that it will have in the end: what no server knows, for rules that are told, or that guess it."""

    @property
    def known_tokens(self) -> int:
        """Tokens of its prompt and of its answer so far."""

    @property
    def computed_tokens(self) -> int:
        """Tokens computed for it so far; 0 while it waits."""

    @property
    def num_units(self) -> int:
        """Units of the pool in its table: blocks, with vLLM's cache."""

    @property
    def num_preemptions(self) -> int:
        """How often it gave way."""


class StepInMaking(Protocol):
    """A server whose next step is being made: who waits and runs, what is free, and what can be done.

    Every request of `running` and `waiting` is one object for as long as the run lasts.
    """

    @property
    def now_s(self) -> float:
        """The host's clock, in seconds from the first event."""

    @property
    def waiting(self) -> Sequence[ServedRequest]:
        """The requests that wait, the head of the queue first."""

    @property
    def running(self) -> Sequence[ServedRequest]:
        """The requests that run, in order of admission."""

    @property
    def preempted(self) -> Sequence[ServedRequest]:
        """The requests that this step preempted, in that order."""

    @property
    def num_free_units(self) -> int:
        """Units of the pool that can be handed out, those that keep a prefix included."""

    @property
    def tokens_left(self) -> int:
        """Tokens that this step may still compute, of `max_num_batched_tokens`."""

    def serve_running(self) -> None:
        """vLLM's rule: give every running request its next tokens in order of admission.

        Where a unit is missing, `OwnPolicy.victim` is asked who gives way.
        """

    def admit_waiting(self) -> None:
        """vLLM's rule: admit requests for as long as they fit; `OwnPolicy.admit` says which is next."""

    def compute(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Let a running request compute `num_tokens` more in this step, or all that it can; once a step.

        False, and nothing has happened, where the pool has no room, the step no token left, or nothing is to be
        computed.
        """

    def admit(self, request: ServedRequest, num_tokens: int | None = None) -> bool:
        """Let a waiting request run and compute `num_tokens` of its prompt in this step, or all that it can.

        False, and nothing has happened, where the pool has no room, the step no token left, or no other may run.
        """

    def preempt(self, request: ServedRequest) -> None:
        """Take everything back from a running request, which waits again and computes its tokens anew."""


class Allocator(Protocol):
    """Hands out the units of a pool; `kvsim` checks what it hands out. Inherit from it, or have its methods.

    A table is a list of units, and the unit at place `i` holds tokens `i * unit_tokens` and on.
    """

    def allocate(self, request: ServedRequest, num_tokens: int) -> Iterable[int] | None:
        """Units to append to the table of `request`, so that it has room for `num_tokens` tokens or more.

        Each is a number from 0 to `num_units - 1` that no table has. None, without any effect, where there is no room.
        """

    def free(self, request: ServedRequest, units: Sequence[int]) -> None:
        """Take back `units`, the whole table of `request`, in the order of its tokens."""

    def unusable_units(self, request: ServedRequest) -> int:  # noqa: ARG002  an allocator that fragments looks at it
        """Free units in pieces that cannot serve `request`, the head of the queue, although their sum could.

        They are counted as `external`. The default is 0: any unit serves any request.
        """
        return 0


@runtime_checkable
class OwnPolicy(Protocol):
    """A policy in Python. Inherit from it and answer what you care about; vLLM 0.25.1's rule answers the rest.

    An instance may keep what it likes from call to call; one run has one instance.
    """

    name: str = "own"
    """The name of the policy in tables, figures and recordings."""
    scheduler: ContinuousSettings = ContinuousSettings()
    """The limits of a step; the order of the queue is that of arrival unless `order` says otherwise."""
    cache: PagedSettings = PagedSettings()
    """vLLM's cache. With an allocator of your own, only its `block_size` counts: the tokens of a unit."""
    allocator: Callable[[int, int], Allocator] | None = None
    """The allocator that memory comes from; None for vLLM's cache. It is called once when a run begins, as a rule a
    class, with the number of units of the pool and the tokens of each.
    """

    def admit(self, step: StepInMaking) -> ServedRequest | None:
        """Which of `step.waiting`, in which there is a request, is admitted next; None to admit no other in this step.

        Where it does not fit, no other is asked for in this step.
        """
        return step.waiting[0]

    def victim(self, step: StepInMaking, needs: ServedRequest) -> ServedRequest:  # noqa: ARG002
        """Which of `step.running` gives way, because `needs` has no room to go on; it may be `needs` itself."""
        return step.running[-1]

    def schedule(self, step: StepInMaking) -> None:
        """Make one step. The default is vLLM's: first those that run, then, if none had to give way, the queue."""
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


def check_hooks(policy: OwnPolicy) -> None:
    """Make sure that no method of a policy or of its allocator has a hook's name with a letter or two wrong: it would
    never be asked.

    Raises:
        UsageError: one has; the sentence names the hook.
    """
    for given, protocol in ((type(policy), OwnPolicy), (policy.allocator, Allocator)):
        _check_names(given, protocol)


def _check_names(given: Any, protocol: Any) -> None:
    hooks = [name for name in dir(protocol) if not name.startswith("_")]
    for name, value in vars(given).items() if isinstance(given, type) else ():
        near = [] if name.startswith("_") or name in hooks else get_close_matches(name, hooks, n=1, cutoff=0.8)
        if near and near[0] not in vars(given) and (callable(value) or near[0] in ("name", "scheduler", "cache")):
            raise UsageError(f"{given.__name__}.{name} is never asked for; {protocol.__name__} has {near[0]}.")
