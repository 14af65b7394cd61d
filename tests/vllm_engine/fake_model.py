"""A model that computes nothing: it answers every step of vLLM's engine at once, with tokens that the workload says.

Imported by processes that have vLLM's files on their path (`engine_process`).
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from vllm.v1.executor.abstract import Executor
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

from .configuration import Workload, layers_of

STOP_TOKEN = 7
"""The token at which every request stops."""
_PLENTY = 1 << 40
_FIRST_ANSWER, _ANSWERS_OF_A_REQUEST = 500_000_000, 1_000_000
"""Where the tokens of answers begin, and how far those of two requests are apart: prompts may go on from one."""


class FakeModel(Executor):
    """Every stage of a model, in this process."""

    def __init__(self, vllm_config: Any, workload: Workload) -> None:
        self._workload = workload
        super().__init__(vllm_config)

    def _init_executor(self) -> None:
        self.scheduler: Any = None
        """The scheduler that it answers."""
        self._number = {request["id"]: row for row, request in enumerate(self._workload["requests"], 1)}
        self._stop_at = {request["id"]: request.get("stop_at") for request in self._workload["requests"]}
        self._given: dict[str, int] = {}
        """Tokens of each request that were known when it was admitted last, which is what a model runner is handed."""
        self._num_answers = dict.fromkeys(self._number, 0)
        self._copies = _Copies(self._workload["offload"]) if "offload" in self._workload else None

    @property
    def max_concurrent_batches(self) -> int:
        """Steps that may be in flight: an executor is asked before vLLM 0.23."""
        stages = self.vllm_config.parallel_config.pipeline_parallel_size
        return 2 if stages == 1 and self.vllm_config.scheduler_config.async_scheduling else stages

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        return True

    def get_kv_cache_specs(self) -> list[Any]:
        """The layers of each stage that they are dealt out to: `pp`, or one, however deep the engine's queue is."""
        layers = layers_of(self._workload, self.vllm_config.model_config.max_model_len)
        stages, names = self._workload.get("pp", 1), list(layers)
        cuts = [len(names) * stage // stages for stage in range(stages + 1)]
        return [{name: layers[name] for name in names[cuts[at] : cuts[at + 1]]} for at in range(stages)]

    def determine_available_memory(self) -> list[int]:
        return [_PLENTY] * self._workload.get("pp", 1)

    def initialize_from_config(self, kv_cache_configs: list[Any]) -> None:
        pass

    def get_supported_kv_cache_layouts(self) -> list[Any]:
        """Every layout by name: workers are asked from vLLM 0.29 on."""
        return [["LBNHC", "LBHNC", "BLNHC", "BLHNC", "BHLNC", "LHBNC"]] * self._workload.get("pp", 1)

    def set_kv_cache_layout(self, *_: Any, **__: Any) -> None:
        pass

    def compile_or_warm_up_model(self) -> None:
        pass

    def collective_rpc(self, *_: Any, **__: Any) -> list[None]:
        return [None]

    def check_health(self) -> None:
        pass

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Begin a step; there is an output at once only if nothing is computed."""
        self._step = scheduler_output
        admitted = [each.req_id for each in scheduler_output.scheduled_new_reqs]
        for name in (*admitted, *scheduler_output.scheduled_cached_reqs.resumed_req_ids):
            self._given[name] = self.scheduler.requests[name].num_tokens
        self._copied = self._copies.step(scheduler_output.kv_connector_metadata) if self._copies else None
        return _answer(None if scheduler_output.total_num_scheduled_tokens else self._output([]), non_block)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The tokens of the step that was begun: one for each request of which everything known is computed."""
        del grammar_output
        return _answer(self._output(list(self._step.num_scheduled_tokens)), non_block)

    def _output(self, names: list[str]) -> ModelRunnerOutput:
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[self._sampled(name) for name in names],
            kv_connector_output=self._copied,
        )

    def _sampled(self, name: str) -> list[int]:
        """As vLLM's runners do: whoever has computed what it was handed samples, even if the scheduler awaits nothing,
        as it does where a request is resumed while a token of it is under way.
        """
        request = self.scheduler.requests[name]
        if request.num_computed_tokens < self._given[name]:
            return []
        self._num_answers[name] += 1
        stop_at = self._stop_at[name]
        if stop_at is not None and self._num_answers[name] >= stop_at:
            return [STOP_TOKEN]
        place = request.num_computed_tokens - request.num_prompt_tokens
        return [_FIRST_ANSWER + _ANSWERS_OF_A_REQUEST * self._number[name] + place]


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


class _Later(Future[Any]):
    """An answer that is never there before it is waited for, as a GPU's: before vLLM 0.23 the engine looks."""

    def done(self) -> bool:
        return False


def _answer(output: ModelRunnerOutput | None, non_block: bool) -> Any:
    if not non_block:
        return output
    future = _Later()
    future.set_result(output)
    return future
