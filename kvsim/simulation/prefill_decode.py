"""Disaggregated prefill: a fleet in which some servers compute prompts and others decode, on a common clock.

A request goes to a prefill server first, which computes its prompt and one token. Then it goes to a decode server,
which allocates blocks, fetches the prompt's KV over its link and generates the answer. The prefill server keeps the
prompt's blocks until the decode server has read them. Both kinds of server run vLLM's scheduler with its KV connector
(`kvsim.engine.connector`). Transfers take the time of the link.

A server may have data-parallel ranks, each with a connector and a link of its own. The front end of each server chooses
a rank for each request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import simpy

from kvsim.engine.arrays import column
from kvsim.errors import IntegrityError, UsageError, shortened
from kvsim.policies import AnyPolicy, Paged
from kvsim.policies.connectors import Connector, Exchange, KvLink, Remote, Role, refuse_with_connector
from kvsim.policies.routers import RouteName, Router, ServersOfRanks, rank_names
from kvsim.recording import Meta
from kvsim.recording.row_sinks import RowSink
from kvsim.recording.tables import Requests
from kvsim.setting_fields import check_instance, is_finite
from kvsim.simulation.dispatch import Dispatcher, DuplicatePrefixes
from kvsim.simulation.machine import Machine, release_of
from kvsim.simulation.measured import Measured
from kvsim.simulation.results import rows_of, transfers_of
from kvsim.simulation.setup import Setup, check_number_of_ranks, check_number_of_servers, check_ranks, check_route
from kvsim.simulation.simulation_run import SimulationRun

if TYPE_CHECKING:
    from kvsim.simulation.server import ServerProcess


_DEFAULT_LINK = KvLink()


@dataclass(frozen=True, slots=True, kw_only=True)
class Disaggregation:
    """Settings of prefill and decode servers: their numbers, their router, and the link between them."""

    num_prefill: int
    num_decode: int
    route: RouteName | str | Router = "shortest"
    """Router that chooses a request's prefill server. Its decode server is always that with the fewest requests."""
    ranks: int = 1
    """Number of data-parallel ranks of each server, among which its front end chooses."""
    link: KvLink = _DEFAULT_LINK
    """Link of each decode server, or of each of its ranks, over which it fetches KV."""
    failed_share: float = 0.0
    """Share of the loads, 0 to 1, in which one block fails."""
    recomputes: bool = False
    """True if decode servers compute the tokens that fail to load. False: the request ends with an error."""
    seed: int = 0
    """Seed of the random choice of the loads and blocks that fail."""

    def __post_init__(self) -> None:
        check_number_of_ranks(self.ranks)
        if self.num_prefill == 0 or self.num_decode == 0:
            raise UsageError("prompts are computed and decoded apart by at least one server each; give --prefill and "
                             "--decode.")  # fmt: skip
        check_number_of_servers("--prefill", self.num_prefill)
        check_number_of_servers("--decode", self.num_decode)
        check_route(self.route)
        check_instance("the link of decode servers", self.link, KvLink, "a KvLink")
        if not (is_finite(self.failed_share) and 0 <= self.failed_share <= 1):
            raise UsageError(f"failed_share should be from 0 to 1, not {shortened(self.failed_share)}.")

    @property
    def route_name(self) -> str:
        """Name of the route of prefill servers. Empty for a custom router."""
        return self.route if isinstance(self.route, str) else ""

    @property
    def number(self) -> int:
        """Number of servers of both kinds."""
        return self.num_prefill + self.num_decode

    def on(self, machine: Machine, policy: AnyPolicy) -> Disaggregation:  # noqa: ARG002
        """Return these servers, each with as many data-parallel ranks as the model of `machine` says."""
        return replace(self, ranks=machine.model.data_parallel_size)

    @property
    def num_prefill_ranks(self) -> int:
        """Number of data-parallel ranks of all prefill servers together."""
        return self.num_prefill * self.ranks

    def names(self) -> list[str]:
        """Return a name for each server; with several ranks, one for each rank. Prefill servers come first."""
        kinds = (("prefill", self.num_prefill), ("decode", self.num_decode))
        servers = [f"{kind}-{number}" for kind, count in kinds for number in range(count)]
        return servers if self.ranks == 1 else rank_names(servers, self.ranks)

    def dispatchers(self, setup: Setup) -> tuple[Dispatcher, Dispatcher]:
        """Return two dispatchers: one chooses the prefill server (or rank) of each request, one the decode one."""
        routes = self.route, "shortest"
        if self.ranks == 1:
            first, second = (Dispatcher.of(setup, route) for route in routes)
        else:
            release = release_of(setup.base)
            first, second = (Dispatcher.of(setup, ServersOfRanks(route, self.ranks, release)) for route in routes)
        return first, second

    def prefill_connector(self, size: int) -> Connector:
        """Return the connector of a prefill server, for a workload of `size` requests."""
        return Connector(role=Role.PRODUCER, link=self.link, exchanges=[Exchange(remote=Remote.READS)] * size)

    def decode_connector(self, setup: Setup) -> Connector:
        """Return the connector of a decode server of `setup`. It tells which block of which prompt fails to load."""
        generator = np.random.default_rng(self.seed)
        failing = generator.random(len(setup.workload)) < self.failed_share
        num_blocks = -(-setup.demand.prompt // setup.pool.unit_tokens)
        failed_blocks = (generator.random(len(failing)) * num_blocks).astype(np.int64)
        exchanges = [
            Exchange(remote=Remote.HAS_PROMPT, failed_blocks=(int(block),) if fails else (), fail_order=row)
            for row, (fails, block) in enumerate(zip(failing.tolist(), failed_blocks.tolist(), strict=True))
        ]
        return Connector(role=Role.CONSUMER, recomputes=self.recomputes, link=self.link, exchanges=exchanges)


def check_policy(policy: AnyPolicy) -> None:
    """Refuse a policy with which kvsim does not simulate prefill and decode servers."""
    if not isinstance(policy, Paged):
        raise UsageError("prompts are computed and decoded apart with the paged policy; leave --policy out.")
    refuse_with_connector(policy, "on prefill and decode servers")


class PrefillDecodeRun(SimulationRun):
    """Run of a workload on prefill and decode servers."""

    def __init__(
        self,
        setup: Setup,
        disaggregation: Disaggregation,
        sinks: Sequence[RowSink] = (),
    ) -> None:
        """Build the servers. `setup` is that of a decode server.

        `sinks` has one sink per server or rank, those of prefill servers first. If it is empty, nothing is recorded.
        """
        check_ranks(setup, disaggregation.ranks)
        if setup.pipeline.pipeline_parallel_size > 1:
            raise UsageError("prefill and decode servers are modelled where one stage holds all layers; leave out "
                             "--pipeline-parallel-size.")  # fmt: skip
        self.setup, self.disaggregation, self._dispatchers = setup, disaggregation, disaggregation.dispatchers(setup)
        self.samples = []
        self._expected_rows = self.store = None
        self._environment = simpy.Environment()
        self._prefill_setup = _with_one_output(setup)
        self._router = PrefillDecodeRouter(self._environment, self._dispatchers, setup)
        source = self._source(1 + disaggregation.num_prefill, cast("Dispatcher", self._router), ())
        num_decode_ranks = disaggregation.num_decode * disaggregation.ranks
        num_prefill_ranks = disaggregation.num_prefill_ranks
        prefills = disaggregation.prefill_connector(len(setup.workload))
        decodes = disaggregation.decode_connector(setup)
        kinds = [(self._prefill_setup, prefills)] * num_prefill_ranks + [(setup, decodes)] * num_decode_ranks
        self._failed_blocks = [exchange.failed_blocks for exchange in decodes.exchanges]
        """Blocks of each request that fail to load, from 0 at the first block of its first load; empty for most."""
        self.locksteps = self._locksteps(disaggregation.num_prefill + disaggregation.num_decode)
        servers = self._build(source, kinds, sinks, disaggregation.ranks, self._router)
        self._router.prefills, self._router.decodes = servers[:num_prefill_ranks], servers[num_prefill_ranks:]
        source.start(self._environment, self._router.decodes)

    def finish(self) -> list[Measured]:
        """Run to the end. Return the results of each prefill server, then of each decode server."""
        self._run_to_end()
        measured = []
        for number, replica in enumerate(self._replicas):
            if number < self.disaggregation.num_prefill_ranks:
                setup = self._prefill_setup
                transfers = partial(transfers_of, servers=self._router.decode_of, bad=[()] * len(self._failed_blocks))
            else:
                setup = self.setup
                transfers = partial(transfers_of, servers=self._router.prefill_of, bad=self._failed_blocks)
            hashes = setup.recorded_hashes()
            measured.append(replica.finish(setup.workload, hashes, self.meta(number), setup.name, transfers))
        if self.setup.options.get("check", False):
            self._router.check()
        return measured

    def meta(self, number: int = 0) -> Meta:
        """Return the metadata of server `number`, which also states whether it is a prefill or a decode server."""
        meta = super().meta(number)
        part = "prefill" if number < self.disaggregation.num_prefill_ranks else "decode"
        failures = "recompute" if self.disaggregation.recomputes else "fail"
        engine = {**meta.engine, "kv_connector": part, "kv_load_failure_policy": failures}
        return replace(meta, engine=engine)

    def clients(self, measured: Sequence[Measured]) -> list[Requests]:
        """Return the requests of each decode server, with the times at which clients sent them to the fleet.

        `measured` is the result of `finish`.
        """
        requests = []
        of_decodes = measured[self.disaggregation.num_prefill_ranks :]
        for of_server, server in zip(of_decodes, self._router.decodes, strict=True):
            rows = rows_of(server.driver.engine)
            requests.append(replace(of_server.requests, arrival_s=self._router.sent_s[rows]))
        return requests

    @property
    def fetched_blocks(self) -> int:
        """Number of blocks that decode servers have fetched from prefill servers."""
        return self._router.fetched_blocks

    @property
    def duplicates(self) -> DuplicatePrefixes:
        """Counts of prefix blocks that more than one prefill server has cached."""
        return self._dispatchers[0].duplicates


class PrefillDecodeRouter:
    """Router that passes each request through a prefill server and then a decode server.

    Sources of requests use it in place of a `Dispatcher`.
    """

    lag_s = 0.0

    def __init__(
        self, environment: simpy.Environment, dispatchers: tuple[Dispatcher, Dispatcher], setup: Setup
    ) -> None:
        """`dispatchers[0]` chooses prefill servers, `dispatchers[1]` decode servers."""
        self.prefills: list[ServerProcess] = []
        self.decodes: list[ServerProcess] = []
        self.sent_s = np.full(len(setup.workload), np.nan)
        """Time in seconds at which each request was sent to the fleet; NaN before."""
        self._environment, self._dispatchers, self._refused = environment, dispatchers, setup.refused
        self.prefill_of, self.decode_of = np.full((2, len(setup.workload)), -1, np.int32)
        """Number of each request's prefill server (or rank), and of its decode server; -1 until it is chosen."""
        self._unread: dict[int, ServerProcess] = {}
        """Prefill server of each request whose KV has not been read yet, by row of the workload."""
        self._num_prefilled = 0

    def choose(self, row: int, at_s: float, servers: Sequence[ServerProcess]) -> _Path:  # noqa: ARG002
        """Return an object with a method `send`, like that of a server, which passes the request through two servers.

        The servers are chosen later, so `row`, `at_s` and `servers` have no effect here.
        """
        return _Path(self._serve)

    def _serve(self, row: int, at_s: float) -> simpy.Event:
        """Start to pass a request through the fleet. The returned event's value is the time in seconds of its end."""
        return self._environment.process(self._run(row, at_s))

    def _run(self, row: int, at_s: float) -> Generator[simpy.Event, float, float]:
        first, second = self._dispatchers
        self.sent_s[row] = at_s
        if not self._refused[row]:
            prefill = first.choose(row, at_s, self.prefills)
            self.prefill_of[row] = self.prefills.index(prefill)
            at_s = yield prefill.send(row, at_s)
            self._unread[row] = prefill
            self._num_prefilled += 1
        decode = second.choose(row, at_s, self.decodes)
        self.decode_of[row] = self.decodes.index(decode)
        ended_s = yield decode.send(row, at_s)
        return ended_s

    def add(self, server: ServerProcess, number: int) -> None:
        """Ignore the request, because this router sent it itself."""

    def process_transfers(self, server: ServerProcess) -> None:
        """Report to prefill servers the blocks that a decode server has read, so that they are released.

        A block counts as read when its load ends. A block that the decode server does not need counts as read at once.
        """
        loads, freed = server.driver.news()
        for number, done_s in loads:
            self._environment.process(self._read(number, done_s))
        for number in freed:
            self._environment.process(self._read(number, server.driver.host_s))

    def _read(self, number: int, done_s: float) -> Generator[simpy.Event, None, None]:
        """Wait until `done_s`. Then report to the prefill server of request `number` that the request's KV was read."""
        yield self._environment.timeout(max(done_s - self._environment.now, 0.0))
        if (prefill := self._unread.pop(number - 1, None)) is not None:
            prefill.driver.report_read(number, done_s)
            prefill.wake()

    @property
    def fetched_blocks(self) -> int:
        """Number of blocks that decode servers have fetched from prefill servers."""
        return sum(int(each.driver.engine.connector.state.num_fetched_blocks) for each in self.decodes)

    def check(self) -> None:
        """Check, after a run, that the KV of every prompt was read, and that no server holds blocks."""
        if self._unread:
            raise IntegrityError(f"{len(self._unread)} of {self._num_prefilled} prompts were never read.")
        for kind, servers in (("prefill", self.prefills), ("decode", self.decodes)):
            for number, server in enumerate(servers):
                engine = server.driver.engine
                num_held = int(np.count_nonzero(column(engine.blocks, "refs")))
                if num_held or engine.connector.state.num_held or engine.state.num_free != engine.settings.num_units:
                    raise IntegrityError(
                        f"{kind} server {number} holds {num_held} blocks when all requests have ended."
                    )


@dataclass(frozen=True, slots=True)
class _Path:
    """Object that a source of requests gets as a server. `send` passes a request through prefill and decode."""

    send: Callable[[int, float], simpy.Event]


def _with_one_output(setup: Setup) -> Setup:
    """Return the setup of a prefill server, on which each request ends after its first output token."""
    ones = np.ones(len(setup.workload), np.int64)
    narrow = ones.astype(np.int32)
    # Turns build on whole answers, which prefill servers do not have. The source of requests knows the turns.
    workload = replace(setup.workload, output_tokens=narrow, max_tokens=narrow, turns=None)
    return replace(setup, workload=workload, demand=replace(setup.demand, output=ones, limit=ones.copy()))
