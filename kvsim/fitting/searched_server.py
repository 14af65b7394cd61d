"""Interface between the search and the engines: what `kvsim fit` asks of a server of either engine.

vLLM's server is `kvsim.fitting.vllm_server.Server`, SGLang's `kvsim.fitting.sglang_server.SGLangServer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self

from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.engine.memory import MemoryManager
    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.policies import AnyPolicy
    from kvsim.simulation import Disaggregation, Machine, Servers


class NamedLimit(NamedTuple):
    """Limit of the scheduler, under the engine's name."""

    name: str
    value: int


class SearchedServer(Protocol):
    """A server and the number of its replicas.

    Implementations are frozen dataclasses, so that equal ones compare equal.
    """

    @property
    def gpu(self) -> Gpu:
        """Kind of the GPUs."""

    @property
    def model(self) -> Model:
        """Served model, with its types and parallel sizes."""

    @property
    def name(self) -> str:
        """Name for the engine's command line; empty for the model's own."""

    @property
    def replicas(self) -> int:
        """Number of servers, prefill servers included."""

    @property
    def apart(self) -> Disaggregation | None:
        """Numbers of prefill and decode servers among these replicas; None if each server does both."""

    @property
    def num_gpus(self) -> int:
        """GPUs of all replicas."""

    @property
    def batch_limit(self) -> NamedLimit:
        """Largest number of requests that run at once."""

    @property
    def token_limit(self) -> NamedLimit:
        """Largest number of prompt tokens in one step."""

    @property
    def length_limit(self) -> NamedLimit:
        """Tokens of the longest sequence."""

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights on each GPU; 0 if the pool has a stated size."""

    @property
    def full_words(self) -> str:
        """Clause that says when requests wait for memory."""

    @property
    def caveat(self) -> str:
        """Sentence about what was never measured of this engine; empty if all was."""

    @property
    def memory(self) -> MemoryManager:
        """Memory of the simulated engine, which decides which machine code runs it."""

    @property
    def spare_bytes(self) -> int:
        """Bytes left by weights, cache and an estimate of the largest step; 0 if the engine measures that step."""

    @property
    def starts(self) -> bool:
        """True if a checkpoint with such weights is known, so that `flags` is a command."""

    @property
    def fleet_words(self) -> str:
        """Description of the servers of a fleet; empty for one server."""

    def changed(self, **fields: object) -> Self:
        """Return this server with other values of some fields."""

    def on_gpu(self, gpu: Gpu) -> Self:
        """Return this server on another GPU, with the step times that fit it."""

    def starting(self) -> Self:
        """Return this server with the settings with which the engine really starts.

        Raises:
            BudgetError: no memory is left for the cache.
        """

    def machine(self) -> Machine:
        """Return the machine of one replica.

        Raises:
            BudgetError: the model and its cache do not fit.
            UsageError: a setting is invalid.
        """

    def policy(self) -> AnyPolicy:
        """Return the simulated policy.

        Raises:
            UsageError: the engine would not start with these settings.
        """

    def servers(self) -> Servers | None:
        """Return the servers of a fleet; None for one server."""

    def num_requests_of(self, num_tokens: int) -> int:
        """Return the number of requests of `num_tokens` tokens that the pool holds."""

    def pool_words(self, num_units: int) -> str:
        """Return `num_units` blocks or pages of the pool as text, in the engine's unit."""

    def flags(self) -> str:
        """Return the command that starts one replica, or a sentence on the checkpoint that is missing."""


def check_replicas(number: int) -> None:
    """Check that the number of servers is at least 1."""
    if number < 1:
        raise UsageError(f"replicas should be at least 1, not {number}.")


def short_words(server: SearchedServer) -> str:
    """Describe the GPUs, the model and two limits of a server."""
    several = f"{server.replicas} of " if server.replicas > 1 else ""
    each = server.num_gpus // server.replicas
    gpus = f"{each}x{server.gpu.name}" if each > 1 else server.gpu.name
    limits = ", ".join(f"{name} {value:,}" for name, value in (server.batch_limit, server.length_limit))
    return f"{several}{gpus}/{server.name or server.model.name}, {limits}"


def fleet_words(replicas: int) -> str:
    """Describe equal servers; empty for one server."""
    return f"{replicas} servers behind one queue" if replicas > 1 else ""
