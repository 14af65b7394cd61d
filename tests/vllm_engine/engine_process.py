"""vLLM's own engine and scheduler on a CPU, with a fake model: one workload after the other, recorded or told.

Run with vLLM's files and kvsim on the path. Every line of its input is a JSON object: `workload`, in the format of the
golden ones; `environment`, what a server's environment would say, such as KVSIM_RECORD; and `tell`, whether to answer
with the records of an oracle. A workload may say `broken_at`: the free queue is turned before that call; it may say
`watched_in` and `watched_until`: a folder for metrics and events, and the call behind which they are written. A closing
line ends each answer: `{"kind": "done"}`, or `{"kind": "failed", "error": ...}`.
"""

from __future__ import annotations

import gc
import importlib.machinery
import json
import logging
import os
import sys
import tempfile
import time
import types
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .watching import Watcher

MOST_CALLS = 4_000
"""A workload that needs more is one whose requests wait for ever; the steps up to there still count."""
_NOT_NEEDED = (
    *("xgrammar", "fastapi", "starlette", "partial_json_parser", "mistral_common", "gguf", "depyf"),
    *("ray", "flashinfer", "compressed_tensors", "ijson", "mcp", "model_hosting_container_standards"),
    *("einops", "scipy.signal"),
)
"""What vLLM imports for answers with a grammar, its front end, other ways to run and sound."""
_HOPELESS_CALLS = 100
"""After so many calls that changed nothing, nothing ever will."""
_FIRST_SHARED, _TOKENS_OF_A_GROUP = 900_000_000, 1_000_000


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print must not end up among the answers
    sys.meta_path.insert(0, StandIns())
    gc.disable()  # vLLM makes a million objects when it is imported
    import vllm.v1.engine.core  # noqa: F401

    from . import fake_model  # noqa: F401
    from .configuration import ARCHITECTURES
    from .decoder import stand_in_for

    for architecture in ARCHITECTURES:
        stand_in_for(architecture)
    gc.enable()
    with tempfile.TemporaryDirectory() as scratch:

        def emit(record: dict[str, Any]) -> None:
            answers.write(json.dumps(record) + "\n")

        for line in sys.stdin:
            order = json.loads(line)
            closing: dict[str, str] = {"kind": "done"}
            try:
                serve(order["workload"], Path(scratch), order["environment"], emit if order["tell"] else None)
            except Exception as error:  # whatever stops one workload must not stop the next
                logging.getLogger("kvsim").exception("failed")
                closing = {"kind": "failed", "error": f"{type(error).__name__}: {error}"}
            emit(closing)
            answers.flush()


def serve(
    workload: dict[str, Any],
    scratch: Path,
    environment: dict[str, str],
    emit: Callable[[dict[str, Any]], None] | None,
) -> None:
    """Put `workload` through an engine that is started in `environment`; its model is written into `scratch`.

    What the scheduler does goes to `emit`, if it is to be told. Requests are then dated by their place in the workload,
    or else by the clock, as a recorder dates them.
    """
    from vllm.v1.engine.core import EngineCore

    from .configuration import configure
    from .fake_model import FakeModel
    from .telling import Teller, in_order_of_keys

    asynchronous = workload.get("async_scheduling", True)
    name = "RecordingScheduler" if asynchronous else "RecordingSyncScheduler"
    os.environ.update(environment)
    try:
        config = configure(workload, scratch, f"kvsim.capture.vllm.{name}")
        engine = EngineCore(config, partial(FakeModel, workload=workload), log_stats=True)
    finally:
        for variable in environment:
            del os.environ[variable]
    scheduler = engine.model_executor.scheduler = engine.scheduler
    if emit is not None:
        Teller(scheduler, emit).begin(in_groups="groups" in workload)
        if scheduler.connector is not None:
            in_order_of_keys(scheduler.connector.connector_scheduler.manager)
    by_clock = "KVSIM_RECORD" in environment
    watcher = None
    if "watched_in" in workload:
        from .watching import Watcher

        watcher = Watcher(engine, config, Path(workload["watched_in"]))
    try:
        closing = _run(engine, workload, (lambda _: time.time()) if by_clock else float, watcher)
    finally:
        scheduler.kvsim.stop()
    if emit is not None:
        emit({"kind": "end"} | closing)


def _run(
    engine: Any, workload: dict[str, Any], dated: Callable[[int], float], watcher: Watcher | None
) -> dict[str, Any]:
    """Let requests arrive and be aborted at the engine calls that the workload says, until all have ended.

    Returns what a closing record says.
    """
    scheduler = engine.scheduler
    rows = sorted(enumerate(workload["requests"]), key=lambda item: item[1].get("arrival_step", 0))
    due, aborts = deque(rows), deque(_aborts(workload))
    call = calls_without_change = 0
    while call < workload.get("most_calls", MOST_CALLS):
        if not scheduler.has_requests() and not engine.batch_queue:
            if not due:
                return {"engine_calls": call}
            call = max(call, due[0][1].get("arrival_step", 0))
        while due and due[0][1].get("arrival_step", 0) <= call:
            row, request = due.popleft()
            asked = _request(row, request, dated(row))
            if watcher is not None:
                watcher.asked(asked)
            engine.add_request(*engine.preprocess_add_request(asked))
        while aborts and aborts[0][0] <= call:
            engine.abort_requests([aborts.popleft()[1]])
        if call == workload.get("broken_at"):
            queue = scheduler.kv_cache_manager.block_pool.free_block_queue
            queue.append(queue.popleft())
        before = _progress(scheduler)
        answers, _ = engine.step_fn()
        if watcher is not None:
            watcher.stepped(answers)
            if call == workload["watched_until"]:
                watcher.look()
        engine.post_step(True)
        call += 1
        calls_without_change = calls_without_change + 1 if _progress(scheduler) == before else 0
        comes_later = aborts or (due and due[0][1].get("arrival_step", 0) > call)
        if calls_without_change >= _HOPELESS_CALLS and not comes_later:
            break
    return {"engine_calls": call, "deadlock": True}


def _progress(scheduler: Any) -> tuple[int, int]:
    requests = scheduler.requests.values()
    return sum(each.num_computed_tokens + each.num_output_tokens for each in requests), len(requests)


def _aborts(workload: dict[str, Any]) -> list[tuple[int, str]]:
    requests = workload["requests"]
    return sorted((each["abort_step"], each["id"]) for each in requests if each.get("abort_step") is not None)


def _request(row: int, request: dict[str, Any], arrival_time: float) -> Any:
    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine import EngineCoreRequest

    from .fake_model import STOP_TOKEN

    return EngineCoreRequest(
        request_id=request["id"],
        external_req_id=request["id"],
        prompt_token_ids=request.get("prompt_token_ids") or _made_up_prompt(row, request),
        mm_features=None,
        sampling_params=SamplingParams(max_tokens=request["output_len"], ignore_eos=True, stop_token_ids=[STOP_TOKEN]),
        pooling_params=None,
        arrival_time=arrival_time,
        lora_request=None,
        cache_salt=None,
        data_parallel_rank=None,
        priority=request.get("priority", 0),
    )


def _made_up_prompt(row: int, request: dict[str, Any]) -> list[int]:
    """Tokens that the same place of the same prefix group has, then the request's own."""
    group = request.get("prefix_group")
    num_shared = 0 if group is None else request.get("prefix_len", 0)
    shared = _FIRST_SHARED + _TOKENS_OF_A_GROUP * (group or 0)
    own = _TOKENS_OF_A_GROUP * (row + 1)
    return [*range(shared, shared + num_shared), *range(own + num_shared, own + request["prompt_len"])]


class StandIns:
    """Finds an empty module in the place of each that is not installed, or takes long to import, and is not used."""

    def find_spec(self, name: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        is_wanted = name in _NOT_NEEDED or name.partition(".")[0] in _NOT_NEEDED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_wanted else None  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = types.ModuleType(spec.name)
        module.__getattr__ = _stand_in  # type: ignore[method-assign]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def _stand_in(attribute: str) -> type:
    """A class of this name that takes any arguments and has any attribute."""
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    return type(attribute, (), {"__init__": lambda *_, **__: None, "__getattr__": lambda _, name: name})


if __name__ == "__main__":
    main()
