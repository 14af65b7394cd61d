"""A vLLM engine in this process that serves a workload and is recorded.

Requests are sent at their arrival times (open loop), or whenever one of a fixed number has finished (closed loop).
Starting an engine takes about a minute; it can make any number of recordings.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kvsim.capture.random_weights import RandomAdapters, has_weights, model_folder, token_ids
from kvsim.capture.sinks import FileSink
from kvsim.errors import MissingExtraError, UsageError
from kvsim.policies.releases import number_of
from kvsim.recording import Recording, read, write
from kvsim.workload import Workload

_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the scheduler must be in this process
    "VLLM_DISABLE_REQUEST_ID_RANDOMIZATION": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
_LORA_RANK = 16
"""Largest rank of LoRA adapters that vLLM accepts by default."""
_WARM_UP = (12, 64)
"""Number of warm-up requests, which are not recorded, and number of tokens of each of their prompts and answers."""


def check_installed(release: str) -> None:
    """Check that the installed vLLM is of the given release.

    Raises:
        UsageError: another release is installed, or `release` is not a version number.
        MissingExtraError: vLLM is not installed.
    """
    wanted = number_of(release)
    try:
        installed = version("vllm")
    except PackageNotFoundError as error:
        raise MissingExtraError("Recording vLLM", "vllm") from error
    if number_of(installed) != wanted:
        raise UsageError(f"vLLM {installed} is installed here, not {release}; install that, or leave --vllm out.")


class DrivenEngine:
    """vLLM engine in this process, as a context manager."""

    def __init__(self, model: str, *, async_scheduling: bool = True, **engine_args: Any) -> None:
        """Start the engine.

        Args:
            model: a folder with a configuration, with or without weights, or a model that kvsim lists.
            async_scheduling: schedule one step ahead, as vLLM does by default.
            engine_args: further arguments of vLLM's `LLM`.
        """
        os.environ |= {key: os.environ.get(key, value) for key, value in _ENVIRONMENT.items()}
        try:
            from vllm import LLM  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise MissingExtraError("Recording vLLM", "vllm") from error
        self._scratch = Path(tempfile.mkdtemp(prefix="kvsim-"))
        folder = model_folder(model, self._scratch)

        from kvsim.capture.vllm import RecordingScheduler, RecordingSyncScheduler  # noqa: PLC0415  checks that vLLM is there

        if not has_weights(folder):
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
            engine_args.setdefault("load_format", "dummy")
        self._llm = LLM(
            model=str(folder),
            skip_tokenizer_init=True,
            async_scheduling=async_scheduling,
            scheduler_cls=RecordingScheduler if async_scheduling else RecordingSyncScheduler,
            **engine_args,
        )
        self._engine = self._llm.llm_engine
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self._adapters = RandomAdapters(folder, self._scratch, engine_args.get("max_lora_rank") or _LORA_RANK)
        self._vocab_size = self._scheduler.vllm_config.model_config.hf_text_config.vocab_size
        self._warm_up()

    def __enter__(self) -> DrivenEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._scratch, ignore_errors=True)

    def record(
        self,
        workload: Workload,
        folder: Path,
        *,
        users: int | None = None,
        command: str = "",
        extra: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Recording:
        """Serve `workload`, write its recording to `folder`, and return the recording.

        Args:
            workload: the requests; outputs end at their `output_tokens`, whatever the model generates.
            folder: path of the recording; it must not exist.
            users: number of requests served at a time, ignoring arrival times; None for open loop.
            command: command line, which the recording's metadata states.
            extra: further fields of the metadata.
            progress: function called with the number of finished requests and the number of all requests.

        Raises:
            UsageError: `folder` exists.
        """
        if folder.exists():
            raise UsageError(f"{folder} exists; choose another name for the recording.")
        meta = self._scheduler.kvsim_meta | {
            "command": command,
            "workload": {
                "name": workload.name,
                "description": workload.description,
                "arrivals": "as stated" if users is None else f"closed loop, {users} at a time",
            },
            **(extra or {}),
        }
        self._forget()
        scratch = self._scratch / "log"
        self._scheduler.kvsim.start(FileSink(scratch), meta)
        try:
            self.serve(workload, users=users, progress=progress)
        finally:
            self._scheduler.kvsim.stop()
        recording = read(scratch)
        write(recording, folder)
        shutil.rmtree(scratch)
        return recording

    def serve(
        self,
        workload: Workload,
        *,
        users: int | None = None,
        seed: int = 0,
        progress: Callable[[int, int], None] | None = None,
    ) -> float:
        """Serve `workload`, beginning with an empty prefix cache. Return the seconds that it took.

        The arguments are those of `record`; `seed` is that of the random token ids.
        """
        prompts = token_ids(workload, self._vocab_size, seed)
        self._forget()
        arrivals = workload.arrival_s.tolist() if users is None else [0.0] * len(workload)
        limit = len(workload) if users is None else users
        begin = time.monotonic()
        sent = finished = 0
        while finished < len(workload):
            now = time.monotonic() - begin
            while sent < len(workload) and sent - finished < limit and arrivals[sent] <= now:
                late_s = now - arrivals[sent] if users is None else 0.0
                self._send(workload, prompts, sent, time.time() - late_s)
                sent += 1
            if not self._engine.has_unfinished_requests():
                time.sleep(max(arrivals[sent] - (time.monotonic() - begin), 0))
                continue
            done = sum(output.finished for output in self._engine.step())
            finished += done
            if progress is not None and done:
                progress(finished, len(workload))
        while self._engine.engine_core.engine_core.scheduler.has_requests():
            self._engine.step()  # one more call reports the last finish to the engine
        return time.monotonic() - begin

    def _forget(self) -> None:
        offloads = self._scheduler.connector is not None
        self._engine.reset_prefix_cache(**{"reset_connector": True} if offloads else {})

    def _send(self, workload: Workload, prompts: list[list[int]], row: int, due_s: float) -> None:
        from vllm import SamplingParams  # noqa: PLC0415

        parameters = SamplingParams(
            max_tokens=int(workload.output_tokens[row]), ignore_eos=True, temperature=0.0, detokenize=False
        )
        prompt = {"prompt_token_ids": prompts[row]}
        more = {"lora_request": self._adapters.request(adapter)} if (adapter := int(workload.adapter[row])) else {}
        priority = int(workload.priority[row])
        self._engine.add_request(workload.ids[row], prompt, parameters, arrival_time=due_s, priority=priority, **more)

    def _warm_up(self) -> None:
        count, tokens = _WARM_UP
        lengths = np.full(count, tokens)
        ids = [f"warm-up-{number}" for number in range(count)]
        workload = Workload(arrival_s=np.zeros(count), prompt_tokens=lengths, output_tokens=lengths, ids=ids)
        self.serve(workload, seed=1)
