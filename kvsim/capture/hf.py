"""Record Hugging Face's `generate()`: the time of each step, and the state of PyTorch's allocator after it.

    with GenerateRecorder(model) as recorder:
        model.generate(**inputs, max_new_tokens=128)
        model.generate(**more_inputs, max_new_tokens=128)
    write(recorder.recording(), "runs/mine")

Every call of `generate()` inside the context is one batch. A step ends when its tokens are known, so the recorder waits
for the GPU once per step, like a program that streams its output.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from kvsim.capture.machine_id import machine
from kvsim.capture.random_weights import has_weights, shape_of, token_ids
from kvsim.errors import MissingExtraError, UsageError, WorkloadError, shortened
from kvsim.recording import AllocatorHistory, Meta, Pool, Recording, RecordingBuilder, RequestStatus
from kvsim.workload import Workload

try:
    import torch
    import transformers
    from transformers import StoppingCriteria, StoppingCriteriaList
except ImportError as error:
    raise MissingExtraError("Recording Hugging Face", "hf") from error

_COUNTERS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "requested_bytes": "requested_bytes.all.current",
    "segments": "segment.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
}
"""Counters of `torch.cuda.memory_stats`, by column of `steps.parquet`."""


class _AfterStep(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, on_step: Callable[[], None]) -> None:
        self._on_step = on_step

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:  # noqa: ARG002
        self._on_step()
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class GenerateRecorder:
    """Recorder of every call of `model.generate` inside the context."""

    def __init__(
        self,
        model: Any,
        *,
        allocation_history: int = 0,
        earlier_batches: Sequence[Mapping[str, Any]] = (),
        command: str = "",
    ) -> None:
        """Args:
        model: a transformers model with `generate`.
        allocation_history: number of PyTorch's allocation events to keep; 0 for none. It needs CUDA.
        earlier_batches: batches that this process generated before, from other recorders' `batches`; the first
            batch of a shape is slower.
        command: command line for the provenance.
        """
        self._model = model
        self._earlier = list(earlier_batches)
        self._command = command
        self._cuda = model.device.type == "cuda"
        self._history = allocation_history if self._cuda else 0
        self._builder = RecordingBuilder()
        self._begin_s: float | None = None
        self._min_new_tokens = False
        self._given_back: list[int] = []
        self.batches: list[dict[str, Any]] = []
        """A dictionary for each call of `generate()` up to now: number of rows, length of the padded prompts, number of
        new tokens per row, whether a prompt was padded, and implementation of the cache.
        """
        self._step_ends_us: list[float] = []
        self._memory_before = self._memory_after = _memory_held(cuda=False)
        self.allocator: AllocatorHistory | None = None
        """PyTorch's allocation history; None until the context ends, or if no events are kept."""
        self.known_outputs: Sequence[int] | None = None
        """Number of output tokens of each row of the next batch; None if end-of-sequence tokens end the rows."""

    def __enter__(self) -> GenerateRecorder:
        self._generate = self._model.generate
        self._model.generate = self._recorded_generate
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._memory_before = _memory_held(cuda=True)
        if self._history:
            torch.cuda.memory._record_memory_history(max_entries=self._history, stacks="python", context=None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del self._model.generate  # the instance's method; the class's is used again
        self._memory_after = _memory_held(cuda=self._cuda)
        if self._history:
            self.allocator = _history(self._step_ends_us)
            torch.cuda.memory._record_memory_history(enabled=None)

    def give_back(self) -> None:
        """Empty PyTorch's cache, and record this: the next batch then asks the driver for memory again."""
        torch.cuda.empty_cache()
        self._given_back.append(len(self.batches))

    def recording(self, name: str = "") -> Recording:
        """Return the recording of all calls up to now.

        Raises:
            UsageError: nothing was generated.
        """
        if not self.batches:
            raise UsageError("nothing was recorded: call model.generate(...) inside the recorder's context.")
        shape = shape_of(self._model.config)
        dtype = self._model.dtype
        kv_bytes = 2 * shape["num_layers"] * shape["num_kv_heads"] * shape["head_dim"] * dtype.itemsize
        cache, batch_size = self.batches[0]["cache"], max(batch["rows"] for batch in self.batches)
        model_name = Path(self._model.config.name_or_path or type(self._model).__name__).name
        meta = Meta(
            source="hf",
            gpu=torch.cuda.get_device_name() if self._cuda else "CPU",
            engine={
                "name": "transformers",
                "version": transformers.__version__,
                "torch": torch.__version__,
                "cache": cache,
                "batch_size": batch_size,
                "attention": self._model.config._attn_implementation,
                "min_new_tokens": self._min_new_tokens,
            },
            model={
                "name": model_name,
                **shape,
                "dtype": str(dtype).removeprefix("torch."),
                "kv_bytes_per_token": kv_bytes,
            },
            policy={"name": "static", "cache": cache, "batch_size": batch_size},
            pool=Pool(unit_tokens=1, num_units=None, bytes_per_unit=kv_bytes),
            command=self._command,
            created=date.today().isoformat(),
            extra={
                **machine(),
                "baseline_allocated_bytes": self._memory_before["allocated_bytes"],
                "baseline_reserved_bytes": self._memory_before["reserved_bytes"],
                "baseline_private_bytes": sum(self._memory_before["private_segment_bytes"]),
                "private_segment_bytes": self._memory_after["private_segment_bytes"],
                "gpu_properties": _gpu_properties() if self._cuda else {},
                "earlier_batches": self._earlier,
                "num_batches": len(self.batches),
                "given_back_before": self._given_back,
            },
        )
        return self._builder.finish(meta, name)

    def _recorded_generate(self, *args: Any, **kwargs: Any) -> Any:
        """Call `generate()`, with a hook after each step, and record the batch."""
        inputs = kwargs.get("input_ids", kwargs.get("inputs", args[0] if args else None))
        if inputs is None:
            return self._generate(*args, **kwargs)
        mask = kwargs.get("attention_mask")
        prompts = (mask.sum(1) if mask is not None else torch.full((len(inputs),), inputs.shape[1])).tolist()
        defaults = self._model.generation_config
        limit = kwargs.get("max_new_tokens") or defaults.max_new_tokens or 0
        self._min_new_tokens |= bool(kwargs.get("min_new_tokens") or defaults.min_new_tokens)
        batch = _RecordedBatch(self._builder, prompts, inputs.shape[1], limit, self._now())
        cache = kwargs.get("cache_implementation") or defaults.cache_implementation or "dynamic"

        def on_step() -> None:
            if self._cuda:
                torch.cuda.synchronize()
            self._step_ends_us.append(time.time() * 1e6)
            batch.step(self._now(), self._counters())

        criteria = kwargs.pop("stopping_criteria", None) or []
        output = self._generate(
            *args, **kwargs, stopping_criteria=StoppingCriteriaList([*criteria, _AfterStep(on_step)])
        )
        sequences = getattr(output, "sequences", output)
        outputs, self.known_outputs = self.known_outputs, None
        batch.end(outputs or self._output_lengths(sequences, inputs.shape[1]))
        self.batches.append(
            {
                "rows": len(prompts),
                "prompt_width": inputs.shape[1],
                "new_tokens": sequences.shape[1] - inputs.shape[1],
                "padded": min(prompts) < inputs.shape[1],
                "cache": cache,
            }
        )
        return output

    def _output_lengths(self, sequences: Any, prompt_width: int) -> list[int]:
        generated = sequences[:, prompt_width:].cpu().numpy()
        ends = self._model.generation_config.eos_token_id
        if ends is None:
            return [generated.shape[1]] * len(generated)
        stop = np.isin(generated, ends)
        return [int(row.argmax()) + 1 if row.any() else len(row) for row in stop]

    def _counters(self) -> dict[str, int]:
        if not self._cuda:
            return {}
        stats = torch.cuda.memory_stats()
        return {column: int(stats.get(counter, 0)) for column, counter in _COUNTERS.items()}

    def _now(self) -> float:
        now = time.monotonic()
        if self._begin_s is None:
            self._begin_s = now
        return now - self._begin_s


class _RecordedBatch:
    def __init__(
        self, builder: RecordingBuilder, prompts: Sequence[int], width: int, limit: int, time_s: float
    ) -> None:
        self._builder = builder
        self._width = width
        self._num_steps = 0
        self._rows = [
            builder.arrived(f"r{number}", time_s, int(tokens), limit)
            for number, tokens in enumerate(prompts, start=builder.num_requests)
        ]
        self._start_s = time_s

    def step(self, time_s: float, counters: dict[str, int]) -> None:
        """Record a step that ends at `time_s`: of whole prompts at first, then of one token for each row."""
        builder, rows = self._builder, self._rows
        tokens, done = (self._width, 0) if self._num_steps == 0 else (1, self._width + self._num_steps - 1)
        builder.begin_event()
        for row in rows:
            builder.scheduled(row, done, tokens, self._start_s)
        computed = len(rows) * tokens
        number = builder.step(
            start_s=self._start_s,
            prefill_tokens=computed if self._num_steps == 0 else 0,
            decode_tokens=0 if self._num_steps == 0 else computed,
            num_scheduled=len(rows),
            running=len(rows),
            waiting=0,
            preempted=0,
            free_units=-1,
            **counters,
        )
        builder.begin_event()
        builder.output(number, time_s)
        if self._num_steps == 0:
            for row in rows:
                builder.emitted(row, time_s)
        self._num_steps += 1
        self._start_s = time_s

    def end(self, outputs: Sequence[int]) -> None:
        """Record the number of output tokens of each row. It is known only after `generate()` has returned."""
        time_s = self._start_s  # a busy host may return from generate() much later
        for row, count in zip(self._rows, outputs, strict=True):
            if count > 1:
                self._builder.emitted(row, time_s, count - 1)
            self._builder.ended(row, RequestStatus.FINISHED, time_s)


def _memory_held(*, cuda: bool) -> dict[str, Any]:
    if not cuda:
        return {"allocated_bytes": 0, "reserved_bytes": 0, "private_segment_bytes": []}
    segments = torch.cuda.memory_snapshot()
    return {
        "allocated_bytes": torch.cuda.memory_allocated(),
        "reserved_bytes": torch.cuda.memory_reserved(),
        "private_segment_bytes": [
            int(segment["total_size"]) for segment in segments if any(segment.get("segment_pool_id", ()))
        ],
    }


def _gpu_properties() -> dict[str, int]:
    known = torch.cuda.get_device_properties(torch.cuda.current_device())
    names = ("multi_processor_count", "total_memory", "L2_cache_size", "clock_rate", "memory_clock_rate")
    return {name: int(getattr(known, name)) for name in names if hasattr(known, name)}


def _history(step_ends_us: Sequence[float]) -> AllocatorHistory:
    traces = torch.cuda.memory._snapshot()["device_traces"]
    events = [event for trace in traces for event in trace if event["action"] != "snapshot"]
    time_us = np.array([event["time_us"] for event in events], np.int64)
    return AllocatorHistory(
        action=np.array([event["action"] for event in events], np.str_),
        address=np.array([event.get("addr", event.get("device_free", 0)) for event in events], np.uint64).astype(
            np.int64
        ),
        size_bytes=np.array([event["size"] for event in events], np.int64),
        stream=np.array([event.get("stream", 0) for event in events], np.int64),
        time_us=time_us,
        step=np.searchsorted(np.asarray(step_ends_us), time_us).astype(np.int32),
    )


def find_device(name: str | None) -> str:
    """Return the device `name`: `cpu`, `cuda` or `cuda:N`. None means `cuda` if there is a GPU, else `cpu`."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    there = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    there += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if name not in there:
        raise UsageError(f"there is no device {shortened(name)} on this machine; there are {', '.join(there)}.")
    return name


def load_model(folder: Path, *, device: str, dtype: Any = None) -> Any:
    """Load the model in `folder` on `device` for generation, with random weights if it has none.

    `dtype` is that of the weights; None for the one in the model's configuration.
    """
    if has_weights(folder):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype or "auto")
    else:
        config = transformers.AutoConfig.from_pretrained(folder)
        with torch.device(device):  # drawing billions of random weights takes minutes on a CPU
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype or getattr(config, "dtype", None))
    return model.to(device).eval()


def generate_workload(
    model: Any,
    workload: Workload,
    *,
    batch_size: int,
    cache: str = "dynamic",
    recorder: GenerateRecorder | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Serve `workload` with `model.generate` in padded batches, in arrival order and without pauses.

    Every row of a batch runs to the batch's longest output, as if end-of-sequence tokens came at the workload's
    lengths. `cache` is transformers' `cache_implementation`, and `seed` decides the random ids of the prompts' tokens.

    Raises:
        WorkloadError: a request is longer than the model's longest sequence.
    """
    _check_lengths(workload, getattr(model.config.get_text_config(), "max_position_embeddings", None))
    prompts = token_ids(workload, model.config.get_text_config().vocab_size, seed)
    outputs = workload.output_tokens
    for begin in range(0, len(prompts), batch_size):
        rows = prompts[begin : begin + batch_size]
        width = max(map(len, rows))
        longest = int(outputs[begin : begin + batch_size].max())
        if recorder is not None:
            recorder.known_outputs = outputs[begin : begin + batch_size].tolist()
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows], device=model.device)
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=model.device)
        model.generate(
            input_ids=ids,
            attention_mask=mask,
            min_new_tokens=longest,
            max_new_tokens=longest,
            do_sample=False,
            pad_token_id=0,
            **({"cache_implementation": "static"} if cache == "static" else {}),
        )
        if progress is not None:
            progress(min(begin + batch_size, len(prompts)), len(prompts))


def _check_lengths(workload: Workload, longest_tokens: int | None) -> None:
    tokens = workload.prompt_tokens.astype(np.int64) + workload.output_tokens
    if longest_tokens is not None and len(tokens) and tokens.max() > longest_tokens:
        row = int(tokens.argmax())
        raise WorkloadError(
            f"request {row} has {tokens[row]:,} tokens, prompt and answer, and the model takes {longest_tokens:,} at "
            "most; serve shorter requests."
        )
