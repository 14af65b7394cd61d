"""The driver's model, with the copies between GPU and host of an offload, and the order in which vLLM hears of them.

Imported by processes that have vLLM's files on their path (`engine_process`).
"""

from __future__ import annotations

from typing import Any

from vllm.v1.outputs import KVConnectorOutput

from kvsim.conformance import vllm_driver


class FakeModel(vllm_driver.FakeModel):
    """A model whose steps report copies, if the workload offloads blocks."""

    def _init_executor(self) -> None:
        super()._init_executor()
        self._copies = _Copies(self._workload["offload"]) if "offload" in self._workload else None
        self._copied = None

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        if self._copies is not None:
            self._copied = self._copies.step(scheduler_output.kv_connector_metadata)
        return super().execute_model(scheduler_output, non_block)

    def _output(self, names: list[str]) -> Any:
        output = super()._output(names)
        output.kv_connector_output = self._copied
        return output


class _Copies:
    """Copies to and from host memory that take so many steps. vLLM begins a load in its step and a store in the next,
    and a step waits for the copies that it has to.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._load_steps, self._store_steps = settings.get("load_delay", 1), settings.get("store_delay", 1)
        self._now = 0
        self._due: dict[int, int] = {}
        """The step with whose output each copy is reported."""
        self._loading: dict[int, str] = {}
        self._stores_to_begin: list[int] = []

    def step(self, metadata: Any) -> KVConnectorOutput:
        """One step: what it reports."""
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import OffloadingWorkerMetadata

        self._due |= dict.fromkeys(self._stores_to_begin, self._now + self._store_steps - 1)
        self._due |= {number: self._now for number in metadata.jobs_to_flush if number in self._due}
        self._due |= dict.fromkeys(metadata.load_jobs, self._now + self._load_steps - 1)
        self._loading |= {number: job.req_id for number, job in metadata.load_jobs.items()}
        self._stores_to_begin = list(metadata.store_jobs)
        ended = [number for number, due in self._due.items() if due <= self._now]
        reported = OffloadingWorkerMetadata()
        for number in ended:
            del self._due[number]
            reported.mark_completed(number)
        loaded = {self._loading.pop(number) for number in ended if number in self._loading}
        self._now += 1
        return KVConnectorOutput(finished_recving=loaded or None, kv_connector_worker_meta=reported if ended else None)
