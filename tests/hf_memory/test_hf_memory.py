"""Hugging Face's memory from shapes alone, against recordings and against an allocation history, tensor by tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kvsim.errors import BudgetError, UsageError
from kvsim.experiments.validation import Validation, matching_profile, validate
from kvsim.hf_memory import Batch, assumptions_of, batches_of, earlier_batches, generate_memory, memory_of
from kvsim.hf_memory.generate import WORKSPACE_BYTES
from kvsim.memory.caching import MIB, CachingAllocator
from kvsim.models import Model, find_model
from kvsim.recording import Recording, find, read, read_allocator

pytestmark = pytest.mark.slow

HISTORY = Path(__file__).parents[1] / "memory" / "history"
DYNAMIC = (
    "hf-h200-granite-350m-batch500",
    "hf-h200-granite-350m-batch64-history",
    "hf-h200-granite-350m-one-by-one",
    "hf-h200-granite-350m-sharegpt-batch16",
    "hf-h200-llama-2-7b-sharegpt-batch16",
    "hf-h200-llama-3-8b-sharegpt-batch16",
    "hf-h200-granite-350m-heldout-batch32",
    "hf-h200-granite-350m-heldout-sharegpt-batch8",
    "hf-h200-llama-2-7b-heldout-batch32",
    "hf-h200-llama-2-7b-heldout-sharegpt-batch8",
    "hf-h200-llama-3-8b-heldout-batch32",
    "hf-h200-llama-3-8b-heldout-sharegpt-batch8",
    "hf-h200-granite-350m-first-prefills",
    "hf-h200-llama-2-7b-first-prefills",
    "hf-h200-llama-3-8b-first-prefills",
)
STATIC = "hf-h200-granite-350m-batch64-static"
AFTER_STATIC = "hf-h200-granite-350m-sharegpt-batch16"
"""Recorded in the process of `STATIC`, whose captured graphs still held their private pools."""
STATIC_WITH_POOLS = "hf-h200-granite-350m-heldout-batch32-static"
"""Recorded later, by a recorder that says what those pools hold."""
GRAPH_BYTES = 236 * MIB
"""Those pools, as an allocation history of the same batch shows them: 2 + 2 + 32 + 20 + 3 x 60 MiB."""


@pytest.fixture(scope="module")
def granite() -> Model:
    return find_model("granite-4.0-350m")


@pytest.mark.parametrize("name", [*DYNAMIC, STATIC, STATIC_WITH_POOLS])
def test_peak_allocated_within_two_percent(name: str) -> None:
    recording = read(find(name))
    assert recording.steps.peak_allocated_bytes is not None
    assert memory_of(recording).peak_allocated_bytes[-1] == pytest.approx(
        recording.steps.peak_allocated_bytes[-1], rel=0.02
    )


@pytest.mark.parametrize("name", [*DYNAMIC, STATIC, STATIC_WITH_POOLS])
def test_reserved_within_five_percent(name: str) -> None:
    recording = read(find(name))
    assert recording.steps.reserved_bytes is not None
    assert memory_of(recording).reserved_bytes.max() == pytest.approx(recording.steps.reserved_bytes.max(), rel=0.05)


def test_private_pools_that_a_recording_states_are_counted() -> None:
    recording = read(find(STATIC_WITH_POOLS))
    assert recording.steps.reserved_bytes is not None
    measured = int(recording.steps.reserved_bytes.max())
    assert memory_of(recording).reserved_bytes.max() == pytest.approx(measured, rel=0.02)
    assert memory_of(recording, private_bytes=0).reserved_bytes.max() < 0.9 * measured


def test_what_shapes_do_not_say_is_the_private_pool_of_captured_graphs() -> None:
    recording = read(find(AFTER_STATIC))
    assert recording.steps.reserved_bytes is not None
    measured = int(recording.steps.reserved_bytes.max())
    assert memory_of(recording, private_bytes=0).reserved_bytes.max() < 0.95 * measured
    assert memory_of(recording, private_bytes=GRAPH_BYTES).reserved_bytes.max() == pytest.approx(measured, rel=0.001)


@pytest.mark.parametrize("name", ["hf-h200-llama-3-8b-sharegpt-batch16", "hf-h200-granite-350m-batch500"])
def test_allocated_follows_every_step(name: str) -> None:
    """The logits of 500 rows, 100 MB, are alive when a recorder asks."""
    recording = read(find(name))
    memory = memory_of(recording)
    assert recording.steps.allocated_bytes is not None
    assert np.abs(memory.allocated_bytes / recording.steps.allocated_bytes - 1).max() < 0.001
    assert memory.baseline_allocated_bytes == recording.meta.extra["baseline_allocated_bytes"]


def without(recording: Recording, *names: str, engine: tuple[str, ...] = (), **stated: object) -> Recording:
    """`recording` without those statements of its extra and engine, and with others."""
    meta = recording.meta
    extra = {name: value for name, value in meta.extra.items() if name not in names} | stated
    said = {name: value for name, value in meta.engine.items() if name not in engine}
    return replace(recording, meta=replace(meta, extra=extra, engine=said))


def test_a_recording_that_does_not_say_warmed_up_with_its_first_batch_for_four_tokens() -> None:
    recording = read(find("hf-h200-granite-350m-batch64-static"))
    silent = without(recording, "earlier_batches", engine=("min_new_tokens",))
    assert earlier_batches(silent) == (Batch(rows=64, prompt_width=121, new_tokens=4, padded=True, preallocated=True),)
    assert len(assumptions_of(silent)) == 3
    assert "first batch for 4 new tokens" in assumptions_of(silent)[0]
    nothing_ran = without(recording, earlier_batches=[], private_segment_bytes=[])
    assert not earlier_batches(nothing_ran)
    assert not assumptions_of(nothing_ran)
    assert len(earlier_batches(recording)) == 22
    served = read(find("vllm-h200-llama-3-8b-sync"))
    assert not earlier_batches(served)
    assert not assumptions_of(served)


def test_what_an_earlier_batch_left_cached_is_there_unless_it_was_given_back() -> None:
    recording = read(find("hf-h200-granite-350m-heldout-batch32"))
    earlier = [{"rows": 200, "prompt_width": 300, "new_tokens": 2, "padded": True, "cache": "dynamic"}]
    given_back = memory_of(without(recording, earlier_batches=earlier))
    assert given_back.reserved_bytes.max() == memory_of(recording).reserved_bytes.max(), "by what it states"
    kept = memory_of(without(recording, earlier_batches=earlier, baseline_reserved_bytes=4 * 10**9))
    assert kept.baseline_reserved_bytes > 2 * given_back.baseline_reserved_bytes
    assert kept.reserved_bytes.min() >= kept.baseline_reserved_bytes
    most = given_back.peak_allocated_bytes[-1]
    assert kept.peak_allocated_bytes[-1] == pytest.approx(most, rel=0.01), "since recording began"
    warmed_up = memory_of(without(recording, "earlier_batches"))
    assert warmed_up.baseline_reserved_bytes > given_back.baseline_reserved_bytes, "a warm-up's stays"


def test_memory_given_back_between_batches_is_asked_for_again(granite: Model) -> None:
    batches = [Batch(rows=64, prompt_width=500, new_tokens=2), Batch(rows=4, prompt_width=20, new_tokens=2)]
    kept = generate_memory(granite, batches).reserved_bytes
    given_back = generate_memory(granite, batches, given_back_before=[1]).reserved_bytes
    assert kept.tolist()[:2] == given_back.tolist()[:2]
    assert given_back[2] < kept[2] == kept[1]


def test_a_least_length_costs_copies_of_all_logits(granite: Model) -> None:
    batch = [Batch(rows=500, prompt_width=1, new_tokens=3)]
    plain, asked = (generate_memory(granite, batch, has_min_new_tokens=asked) for asked in (False, True))
    single = 500 * granite.vocab_size * 4
    assert asked.allocated_bytes[-1] - plain.allocated_bytes[-1] == pytest.approx(single, rel=0.005)
    recording = read(find("hf-h200-granite-350m-batch500"))
    silent = without(recording, engine=("min_new_tokens",))
    assert memory_of(silent).peak_allocated_bytes[-1] < 0.97 * memory_of(recording).peak_allocated_bytes[-1]


def test_every_large_tensor_is_the_recorded_one_in_the_recorded_order(
    granite: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes, order and lifetimes; small tensors are not all modelled."""
    history = read_allocator(HISTORY)
    assert history is not None
    generating = history.step == 2
    rows = zip(
        history.action[generating].tolist(),
        history.address[generating].tolist(),
        history.size_bytes[generating].tolist(),
        strict=True,
    )
    words = {"alloc": "take", "free_completed": "give"}
    recorded = _numbered((words[action], address, size) for action, address, size in rows if action in words)

    simulated: list[tuple[str, int, int]] = []
    asked: dict[int, int] = {}
    allocate, free = CachingAllocator.allocate, CachingAllocator.free

    def watched_allocate(self: CachingAllocator, num_bytes: int, stream: int = 0) -> int:
        address = allocate(self, num_bytes, stream)
        asked[address] = num_bytes
        simulated.append(("take", address, num_bytes))
        return address

    def watched_free(self: CachingAllocator, address: int) -> None:
        free(self, address)
        simulated.append(("give", address, asked[address]))

    monkeypatch.setattr(CachingAllocator, "allocate", watched_allocate)
    monkeypatch.setattr(CachingAllocator, "free", watched_free)
    generate_memory(granite, [], workspace_bytes=WORKSPACE_BYTES)
    simulated.clear()
    generate_memory(granite, [Batch(rows=64, prompt_width=121, new_tokens=6)], has_min_new_tokens=True)
    workspace = [number for number, event in enumerate(simulated) if event[2] == WORKSPACE_BYTES]
    assert _numbered(simulated[workspace[0] + 1 :]) == recorded
    assert len(recorded) == 3286


def _numbered(events: object) -> list[tuple[str, int, int]]:
    """Events of large tensors; each tensor by when it was made instead of by its address."""
    numbers: dict[int, int] = {}
    result = []
    count = 0
    for action, address, size in events:  # type: ignore[attr-defined]
        if size <= MIB:
            continue
        if action == "take":
            numbers[address] = count
            count += 1
        result.append((action, size, numbers[address]))
    return result


def test_padding_costs_a_mask_and_copies_of_keys_and_values(granite: Model) -> None:
    even = generate_memory(granite, [Batch(rows=16, prompt_width=50, new_tokens=300, padded=False)])
    padded = generate_memory(granite, [Batch(rows=16, prompt_width=50, new_tokens=300)])
    assert padded.peak_allocated_bytes[-1] > even.peak_allocated_bytes[-1]
    assert padded.requested_bytes[-1] == even.requested_bytes[-1]


def test_the_keys_and_values_grow_by_a_token_a_step(granite: Model) -> None:
    batch = Batch(rows=64, prompt_width=128, new_tokens=65)
    allocated = generate_memory(granite, [batch]).requested_bytes
    per_step = (allocated[-1] - allocated[0]) / 64
    assert per_step == pytest.approx(64 * granite.kv_bytes_per_token, rel=0.001)


def test_a_static_cache_is_whole_from_the_first_step_on(granite: Model) -> None:
    batch = Batch(rows=8, prompt_width=100, new_tokens=100, preallocated=True)
    memory = generate_memory(granite, [batch])
    held = memory.allocated_bytes - memory.baseline_allocated_bytes
    assert held.min() > 8 * 200 * granite.kv_bytes_per_token
    assert held.max() - held.min() < 20 * MIB


def test_a_gpu_that_is_full_gives_up_its_cache_and_one_that_is_too_small_fails() -> None:
    model = find_model("llama-2-7b")
    batch = Batch(rows=16, prompt_width=405, new_tokens=200)
    free = generate_memory(model, [batch])
    tight = generate_memory(model, [batch], capacity_bytes=int(free.reserved_bytes.max() * 0.8))
    assert (free.num_retries, tight.num_retries > 0) == (0, True)
    assert tight.peak_allocated_bytes[-1] == pytest.approx(free.peak_allocated_bytes[-1], rel=0.001)
    with pytest.raises(BudgetError, match="out of memory"):
        generate_memory(model, [batch], capacity_bytes=free.baseline_allocated_bytes + 100 * MIB)


def test_the_batches_of_a_recording() -> None:
    batches = batches_of(read(find("hf-h200-llama-2-7b-sharegpt-batch16")))
    assert [(batch.rows, batch.prompt_width, batch.new_tokens) for batch in batches] == [
        (16, 405, 898),
        (16, 341, 800),
        (16, 911, 1019),
    ]
    assert not any(batch.padded for batch in batches_of(read(find("hf-h200-granite-350m-one-by-one"))))
    with pytest.raises(UsageError, match="not a recording of generate"):
        batches_of(read(find("vllm-h200-llama-3-8b-sync")))


def test_validate_sets_measured_beside_simulated_memory() -> None:
    recording = read(find("hf-h200-granite-350m-batch64-history"))
    validation = validate(matching_profile(recording), recording)
    rows = {row.name: row for row in validation.rows}
    assert not validation.assumes
    assert abs(rows["peak allocated, GB"].error) < 2
    assert abs(rows["peak reserved, GB"].error) < 5


def test_validate_says_what_it_assumes_and_simulates_the_same() -> None:
    recording = read(find("hf-h200-granite-350m-batch500"))
    silent = without(recording, "earlier_batches")
    validation, stated = (validate(matching_profile(item), item) for item in (silent, recording))
    assert validation.as_dict()["assumes"] == [
        "the process warmed up with the first batch for 4 new tokens, and found no kernels on disk"
    ]
    seconds, with_kernels = (_seconds(item) for item in (validation, stated))
    assert with_kernels - seconds > 1, "four of the six kernels that the recorded process had to build are there"


def _seconds(validation: Validation) -> float:
    return next(row.simulated for row in validation.rows if row.name == "duration")
