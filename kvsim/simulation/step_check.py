"""The checks of `--check`: they verify after every step that an engine's memory is consistent.

For a pool of blocks, the time of a check does not grow with the pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.engine.host.tiered import TIERED
from kvsim.engine.paged.kv_cache import PAGED
from kvsim.errors import IntegrityError
from kvsim.simulation.full_check import breakdown_of, check, check_encoder, check_totals, reuses_first
from kvsim.simulation.queue_mirror import QueueMirror, watch
from kvsim.simulation.table_mirror import TableMirror

if TYPE_CHECKING:
    from kvsim.engine.driver import Driver


class Checks:
    """Checks of one engine after each of its steps.

    For a pool of blocks, a check reads the blocks and the table entries that have changed, and all totals. The whole
    pool is read at steps 1, 2, 4, 8 and so on, at the end, and if a check fails. Other kinds of memory are always read
    as a whole, in time proportional to the number of sequences.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self._num_steps = 0
        self._mirror: PoolMirror | None = None

    def step(self) -> None:
        """Check the memory after the last scheduled step."""
        engine = self.driver.engine
        self._num_steps += 1
        is_power_of_2 = self._num_steps & (self._num_steps - 1) == 0
        if is_power_of_2 or engine.memory not in (PAGED, TIERED):
            check(self.driver)
        if engine.memory not in (PAGED, TIERED):
            return
        if engine.settings.encoder_tokens:
            check_encoder(engine)
        try:
            if self._mirror is None or not self._mirror.is_of(self.driver):
                self._mirror = PoolMirror(self.driver)
            self._mirror.follow(self.driver)
        except IntegrityError:
            check(self.driver)  # raises a clearer error if reading the whole pool finds the defect too
            raise

    def finish(self) -> None:
        """Check the whole memory after the engine's last step."""
        check(self.driver)


class PoolMirror:
    """Copy of a pool of blocks that follows the changes of each step, and is compared with the engine's figures."""

    def __init__(self, driver: Driver) -> None:
        self._blocks = driver.engine.blocks
        self._written = watch(self._blocks)
        self._queue = QueueMirror(len(self._blocks), reuses_first=reuses_first(driver.engine))
        self._tables = TableMirror(driver.engine.settings.unit_slots)
        self._follow(driver, set(range(len(self._blocks))))

    def is_of(self, driver: Driver) -> bool:
        """Tell whether this copies the engine's present pool. A run that becomes compiled gets a new pool."""
        return driver.engine.blocks is self._blocks

    def follow(self, driver: Driver) -> None:
        """Update the copy with the changes since the last call, and compare it with the engine."""
        self._follow(driver, self._written())

    def _follow(self, driver: Driver, written: set[int]) -> None:
        """Update the copy with the changed tables and the `written` blocks, and compare it with the engine."""
        engine, state = driver.engine, driver.engine.state
        for block in self._tables.follow(driver) | written:
            refs, num_holders = engine.blocks[block].refs, self._tables.num_holders(block)
            if refs != num_holders:
                raise IntegrityError(f"block {block} has {refs} references and is in {num_holders} tables.")
        self._queue.follow(engine.blocks, written)
        num_free, num_cached = self._queue.num_free, self._queue.num_cached
        if (num_free, num_cached) != (state.num_free, state.num_cached):
            raise IntegrityError(
                f"{num_free} blocks are in the free queue, {num_cached} of these with a prefix; {state.num_free} and "
                f"{state.num_cached} are counted."
            )
        check_totals(driver, breakdown_of(driver, self._tables.slots()))
