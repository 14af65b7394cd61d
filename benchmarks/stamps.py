"""vLLM's server and its scheduler, which write when they handle each request: python -m stamps FLAGS OF THE SERVER

`front_end.jsonl` beside the recording has, for each request, when its tokens were on their way to the engine, and when
its first token came back. `engine.jsonl` has when the engine's process got it, and when its loop took it. All times are
of the monotonic clock, which the processes of a machine share.
"""

from __future__ import annotations

import json
import os
import runpy
import time
from pathlib import Path
from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core import EngineCore
from vllm.v1.engine.output_processor import OutputProcessor

from kvsim.capture.vllm import RecordingScheduler


class Stamps:
    """A file with one line for each event: its kind, the request's ID, and further values."""

    def __init__(self, name: str) -> None:
        self._file = Path(os.environ["KVSIM_RECORD"], name).open("w", buffering=1)  # noqa: SIM115

    def write(self, *event: object) -> None:
        self._file.write(json.dumps(event) + "\n")


class StampedScheduler(RecordingScheduler):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stamps = Stamps("engine.jsonl")
        original = EngineCore.preprocess_add_request

        def stamped(core: Any, request: Any) -> Any:
            self._stamps.write("received", request.request_id, time.monotonic())
            return original(core, request)

        EngineCore.preprocess_add_request = stamped

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        # The server's stamp is of the wall clock.
        sent = request.arrival_time - time.time() + time.monotonic()
        self._stamps.write("taken", request.request_id, time.monotonic(), sent, self.kvsim._begin_s)


def stamp_front_end() -> None:
    """Let the front end of this process write its stamps."""
    stamps = Stamps("front_end.jsonl")
    add, process = AsyncLLM.add_request, OutputProcessor.process_outputs
    seen: set[str] = set()

    async def stamped_add(engine: Any, request_id: str, *args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        answer = await add(engine, request_id, *args, **kwargs)
        stamps.write("sent on", request_id, begin, time.monotonic())
        return answer

    def stamped_process(processor: Any, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        begin = time.monotonic()
        answer = process(processor, outputs, *args, **kwargs)
        end = time.monotonic()
        for output in outputs:
            if output.request_id not in seen:
                seen.add(output.request_id)
                stamps.write("first token", output.request_id, begin, end, len(outputs))
        return answer

    AsyncLLM.add_request, OutputProcessor.process_outputs = stamped_add, stamped_process


if __name__ == "__main__":
    stamp_front_end()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
