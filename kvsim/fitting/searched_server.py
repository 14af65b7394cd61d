"""Base class of the servers that `kvsim fit` simulates, with all properties that `kvsim fit` needs.

vLLM's server is `kvsim.fitting.vllm_server.Server`, SGLang's is `kvsim.fitting.sglang_server.SGLangServer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from kvsim.fitting.checkpoint import checkpoint_of
from kvsim.hardware import Gpu
from kvsim.models import Model
from kvsim.setting_fields import check_instance, whole_number
from kvsim.simulation import Replicas

if TYPE_CHECKING:
    from kvsim.engine.memory import MemoryManager
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Disaggregation, Machine, Servers
    from kvsim.sizing.budget import Budget
    from kvsim.sizing.sglang_budget import SlotBudget


class NamedLimit(NamedTuple):
    """Limit of the scheduler, with the engine's name for it."""

    name: str
    value: int


@dataclass(frozen=True, kw_only=True)
class SearchedServer(ABC):
    """Server, and the number of its replicas behind one queue."""

    _batch_limit: ClassVar[str]
    """Name of the field with the limit of the requests that run at once."""
    _length_limit: ClassVar[str]
    """Name of the field with the limit of the length of a sequence in tokens."""
    gpu: Gpu
    model: Model
    """Served model, with its types and parallel sizes."""
    name: str = ""
    """Name of the model for the engine's command line; empty for the model's own name."""
    captured: bool = True
    """True if steps are launched as captured graphs (False with vLLM's `enforce_eager`)."""
    times: str | None = None
    """File or name of the profile or machine card with the step times; None for the best one that comes with kvsim."""
    replicas: int = 1
    """Number of servers, prefill servers included."""

    def __post_init__(self) -> None:
        check_instance("gpu", self.gpu, Gpu, "a Gpu, as find_gpu returns it")
        check_instance("model", self.model, Model, "a Model, as find_model returns it")
        check_instance("name", self.name, str, "a text")
        check_instance("captured", self.captured, bool, "True or False")
        check_instance("times", self.times, str | None, "the name or file of step times, or None")
        object.__setattr__(self, "replicas", whole_number("replicas", self.replicas))

    def __repr__(self) -> str:
        several = f"{self.replicas} of " if self.replicas > 1 else ""
        each = self.num_gpus // self.replicas
        gpus = f"{each}x{self.gpu.name}" if each > 1 else self.gpu.name
        limits = ", ".join(f"{name} {value:,}" for name, value in (self.batch_limit, self.length_limit))
        return f"<{type(self).__name__}: {several}{gpus}/{self.name or self.model.name}, {limits}>"

    @property
    def apart(self) -> Disaggregation | None:
        """Settings of the prefill and decode servers among the replicas; None if each server does both."""
        return None

    @property
    def num_gpus(self) -> int:
        """Number of GPUs of all replicas."""
        return self.replicas * self.model.num_gpus * self.model.data_parallel_size

    @property
    def batch_limit(self) -> NamedLimit:
        """Limit of the requests that run at once."""
        return NamedLimit(self._batch_limit, getattr(self, self._batch_limit))

    @property
    @abstractmethod
    def token_limit(self) -> NamedLimit:
        """Limit of the tokens in one step; with SGLang, of the prompt tokens."""

    @property
    def length_limit(self) -> NamedLimit:
        """Limit of the length of a sequence in tokens."""
        return NamedLimit(self._length_limit, getattr(self, self._length_limit))

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights on each GPU; 0 if the size of the pool is stated."""
        return sum(-term.size_bytes for term in self.budget().terms if term.label == "weights")

    @property
    @abstractmethod
    def memory(self) -> MemoryManager:
        """Kind of memory of the simulated engine, on which its machine code depends."""

    @property
    def full_words(self) -> str:
        """Second half of a sentence that begins with "400 blocks hold 3 requests": why further requests wait."""
        return ", and are full"

    @property
    def caveat(self) -> str:
        """Sentence about what was never measured of this engine; empty if all was."""
        return ""

    @property
    def spare_bytes(self) -> int:
        """Bytes that weights, cache and an estimate of the largest step leave.

        They are negative if the step does not fit; 0 if the engine itself measures that step when it starts.
        """
        return 0

    @property
    def has_checkpoint(self) -> bool:
        """True if a checkpoint with the server's type of weights is known, so that `command` can be run."""
        return checkpoint_of(self.model, self.name) is not None

    @property
    def fleet_words(self) -> str:
        """Description of the replicas, or of the prefill and decode servers; empty for one server."""
        if self.apart is not None:
            return f"{self.apart.num_prefill} prefill, {self.apart.num_decode} decode"
        return fleet_words(self.replicas)

    def servers(self) -> Servers | None:
        """Return the replicas with their data-parallel ranks; None for one server without ranks."""
        ranks = self.model.data_parallel_size
        if self.apart is not None:
            return replace(self.apart, ranks=ranks)
        return Replicas(number=self.replicas, ranks=ranks) if self.replicas * ranks > 1 else None

    def changed(self, **fields: Any) -> Self:
        """Return this server with other values of `fields`."""
        return replace(self, **fields)

    def starting(self) -> Self:
        """Return this server with settings with which it starts. An engine may reduce some limits to what fits.

        Raises:
            BudgetError: no memory is left for the cache.
        """
        return self

    @abstractmethod
    def on_gpu(self, gpu: Gpu) -> Self:
        """Return this server on another GPU, with step times for that GPU."""

    @abstractmethod
    def budget(self) -> Budget | SlotBudget:
        """Return the memory budget of each GPU."""

    @abstractmethod
    def machine(self) -> Machine:
        """Return the machine of one replica.

        Raises:
            BudgetError: the model and its cache do not fit.
            UsageError: a setting is invalid.
        """

    @abstractmethod
    def policy(self) -> AnyPolicy:
        """Return the simulated policy.

        Raises:
            UsageError: the engine would not start with these settings.
        """

    @abstractmethod
    def num_requests_of(self, num_tokens: int) -> int:
        """Return the number of requests of `num_tokens` tokens that the pool holds at once."""

    @abstractmethod
    def pool_words(self, num_units: int) -> str:
        """Describe `num_units` units of the pool by the engine's name for them, such as "1,234 blocks"."""

    @abstractmethod
    def command(self) -> str:
        """Return the command that starts one replica, or a sentence that no checkpoint is known."""


def fleet_words(replicas: int) -> str:
    """Describe `replicas` equal servers behind one queue; empty for one server."""
    return f"{replicas} servers behind one queue" if replicas > 1 else ""
