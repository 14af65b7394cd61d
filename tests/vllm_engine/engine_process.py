"""vLLM's own engine and scheduler on a CPU, with a fake model and kvsim's recorder: one workload after the other.

Run with vLLM's files and kvsim on the path; it works as `kvsim.conformance.vllm_driver` does. Its input also has
`environment`: what a server's environment would say, such as KVSIM_RECORD; and `tell`: false where records are not
wanted. A workload may say `broken_at`: the free queue is turned before that call; it may say `watched_in` and
`watched_until`: a folder for metrics and events, and the call behind which they are written.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ON_ITS_WAY_S = 0.001
"""Seconds that each request of a workload takes to the engine more than the one before it."""


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # whatever libraries print must not end up among the answers
    gc.disable()  # vLLM makes a million objects when it is imported
    from kvsim.conformance import vllm_driver

    vllm_driver.answer(serve, answers)


def serve(order: dict[str, Any], scratch: Path, emit: Callable[[dict[str, Any]], None]) -> None:
    """Put the workload of `order` through an engine that is started in its environment.

    What the scheduler does is emitted, if it is to be told. Requests are dated by their place in the workload, or by
    the clock if they are recorded.
    """
    from kvsim.conformance.vllm_driver import SchedulerDecisions, make_engine, play

    from .configuration import configure
    from .fake_model import FakeModel
    from .telling import OffloadDecisions, in_order_of_keys

    workload, environment = order["workload"], order.get("environment", {})
    name = "RecordingScheduler" if workload.get("async_scheduling", True) else "RecordingSyncScheduler"
    os.environ.update(environment)
    try:
        config = configure(workload, scratch, f"kvsim.capture.vllm.{name}")
        engine = make_engine(config, partial(FakeModel, workload=workload))
    finally:
        for variable in environment:
            del os.environ[variable]
    scheduler = engine.scheduler
    is_told = order.get("tell", True)
    if is_told:
        offloads = "offload" in workload
        (OffloadDecisions if offloads else SchedulerDecisions)(scheduler, emit).begin(in_groups="groups" in workload)
        if offloads:
            in_order_of_keys(scheduler.connector.connector_scheduler.manager)
    hooks = _watching(engine, config, workload) if "watched_in" in workload else {}
    hooks.setdefault("on_request", lambda made: _named(made, workload))
    if "KVSIM_RECORD" in environment:
        hooks["arrival_time_of"] = lambda row: time.time() - ON_ITS_WAY_S * row
    if "broken_at" in workload:
        hooks["before_call"] = partial(_break, scheduler, workload["broken_at"])
    try:
        closing = play(engine, workload, **hooks)
    finally:
        scheduler.kvsim.stop()
    if is_told:
        emit({"kind": "end"} | closing)


def _named(made: Any, workload: dict[str, Any]) -> None:
    """Give a request the adapter, the salt, the images and the other server that the workload has for it."""
    from vllm.lora.request import LoRARequest

    from .configuration import image

    request = next(each for each in workload["requests"] if each["id"] == made.request_id)
    if adapter := request.get("lora"):
        made.lora_request = LoRARequest(f"adapter-{adapter}", adapter, "nowhere")
    made.cache_salt = request.get("salt")
    if images := request.get("mm"):
        made.mm_features = [image(each) for each in images]
    if remote := request.get("remote"):
        made.sampling_params.extra_args = {"kv_transfer_params": _other_server(remote, made.request_id, request)}


def _other_server(remote: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """What a request says of the other server that has a part in it."""
    if remote == "prefill":
        return {"do_remote_decode": True, "do_remote_prefill": False}
    place = {
        "remote_engine_id": "other",
        "remote_request_id": name,
        "remote_host": "host",
        "remote_port": 1,
        "tp_size": 1,
    }
    blocks = (list(range(1, request["remote_blocks"] + 1)),) if request.get("remote_blocks") else None
    return {"do_remote_decode": False, "do_remote_prefill": True, "remote_block_ids": blocks} | place


def _watching(engine: Any, config: Any, workload: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    from .watching import Watcher

    watcher = Watcher(engine, config, Path(workload["watched_in"]))

    def called(call: int, answers: Any) -> None:
        watcher.stepped(answers)
        if call == workload["watched_until"]:
            watcher.look()

    return {"on_request": watcher.asked, "on_call": called}


def _break(scheduler: Any, broken_at: int, call: int) -> None:
    if call == broken_at:
        queue = scheduler.kv_cache_manager.block_pool.free_block_queue
        queue.append(queue.popleft())


if __name__ == "__main__":
    main()
