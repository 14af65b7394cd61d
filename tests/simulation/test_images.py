"""Images of prompts: a model makes tokens of them, the encoder cache is a pool of its own, and recordings have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.cli.answer import times_rows
from kvsim.errors import KvsimError, RecordingError, StalledError, UsageError
from kvsim.hardware import find_gpu
from kvsim.importers import workload_of
from kvsim.machines import card_of
from kvsim.models import find_model
from kvsim.models.image_rules import MARKS, RULES
from kvsim.policies import Contiguous, Paged, Radix
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.recording import Recording, read, write
from kvsim.recording.check import check, check_events
from kvsim.recording.tables import ImageEventKind
from kvsim.replay.encoder_contents import EncoderContents
from kvsim.simulation import EngineName, Machine, simulate
from kvsim.steptime import reduce
from kvsim.workload import Image, ImageDistribution, Images, ImageSize, LogNormal, Poisson, Ragged, Workload, generate

from .test_engines import ENGINES, STEP_TIME, assert_same, machine_of

MODEL = find_model("Qwen/Qwen2.5-VL-7B-Instruct")
RULE = RULES[MODEL.image_class]


def vision_machine(num_tokens: int) -> Machine:
    kv_bytes = num_tokens * MODEL.kv_bytes_per_token
    return Machine(gpu=find_gpu("H200"), model=MODEL, kv_bytes=kv_bytes, step_time=STEP_TIME)


def paged(**settings: Any) -> Paged:
    scheduler = {"vllm": "0.33.0", "max_model_len": 40_000, "max_num_batched_tokens": 2048, "max_num_seqs": 32}
    return Paged(scheduler=ContinuousSettings(**scheduler | settings), cache=PagedSettings(block_size=16))


def workload(*rows: list[Image], text: int = 100, **columns: Any) -> Workload:
    n = len(rows)
    return Workload(
        arrival_s=np.zeros(n), prompt_tokens=[text] * n, output_tokens=[8] * n, images=Images.from_rows(rows), **columns
    )


def drawn(number: int = 30, different: int | None = 10, seed: int = 3) -> Workload:
    requests = generate(
        number,
        arrivals=Poisson(rate_per_s=60),
        prompt=LogNormal(mean_tokens=200, sigma=0.8),
        output=LogNormal(mean_tokens=40, sigma=0.6),
        seed=seed,
    )
    sizes = (ImageSize(3000, 2000), ImageSize(640, 480), ImageSize(tokens=576))
    return requests.with_images(ImageDistribution(mean_images=1.5, sizes=sizes, num_different=different), seed)


@cache
def served() -> Recording:
    return simulate(drawn(), paged(), vision_machine(60_000), check=True)


@settings(max_examples=5)
@given(st.integers(0, 9), st.sampled_from((None, 4)), st.sampled_from(("0.25.1", "0.33.0")), st.booleans())
def test_every_way_to_run_gives_the_same(seed: int, different: int | None, release: str, is_async: bool) -> None:
    policy = paged(vllm=release, async_scheduling=is_async)
    assert_same(drawn(16, different, seed), policy, vision_machine(30_000))


def test_an_image_in_pixels_takes_tokens_by_the_rule_of_the_model() -> None:
    one = workload([Image(1, 10, ImageSize(1920, 1080))])
    recording = simulate(one, paged(), vision_machine(60_000), check=True)
    tokens = RULE.num_tokens(1920, 1080)
    assert recording.requests.prompt_tokens.tolist() == [100 + tokens + MARKS]
    assert recording.images is not None
    assert (recording.images.place.tolist(), recording.images.tokens.tolist()) == ([11], [tokens])


def test_a_step_takes_longer_if_its_encoder_computes_images_and_not_if_they_are_cached() -> None:
    both = replace(
        workload([Image(1, 0, ImageSize(640, 480))], [Image(1, 0, ImageSize(640, 480))]), arrival_s=np.array([0.0, 5])
    )
    times = reduce(card_of(find_gpu("H200")), MODEL)
    policy = paged(async_scheduling=False)
    for engine in ENGINES:
        machine = replace(vision_machine(60_000), step_time=times)
        recording = simulate(both, policy, machine, engine=engine)
        first_s = recording.requests.first_token_s - recording.requests.first_scheduled_s
        assert first_s[0] > first_s[1] + times.encoder_step_s


def test_answers_say_where_the_times_of_the_encoder_are_from_or_that_they_are_missing() -> None:
    def rows(model_name: str, requests: Workload) -> dict[str, str]:
        machine = kvsim.machine("H100", model_name, num_blocks=20_000)
        label = simulate(requests, paged(), machine).meta.engine["step_time"]
        return dict(times_rows(label))

    image = workload([Image(1, 0, ImageSize(tokens=256))], text=400)
    text = Workload(arrival_s=np.zeros(1), prompt_tokens=[100], output_tokens=[8])
    known = rows("Qwen/Qwen2.5-VL-7B-Instruct", image)
    assert known["encoder"] == "timed by constants that were read off one H100"
    assert "not in the times" not in known
    assert "encoder" not in rows("Qwen/Qwen2.5-VL-7B-Instruct", text)
    unknown = rows("google/gemma-3-4b-it", image)
    assert "encoder" not in unknown
    assert "the encoder" in unknown["not in the times"]


def test_equal_images_are_computed_once_and_their_blocks_are_shared_where_all_before_them_is_equal() -> None:
    alike, other = [Image(1, 0, ImageSize(640, 480))], [Image(2, 0, ImageSize(640, 480))]
    later = {"arrival_s": np.array([0.0, 5, 10])}
    requests = workload(alike, alike, other)
    recording = simulate(replace(requests, **later), paged(), vision_machine(60_000), check=True)  # type: ignore[arg-type]
    whole = (RULE.num_tokens(640, 480) + MARKS) // 16 * 16
    assert recording.requests.cached_tokens.tolist() == [0, whole, 0]
    assert recording.encoder is not None
    computed = recording.encoder.image[recording.encoder.kind == ImageEventKind.COMPUTE]
    assert computed.tolist() == [1, 2], "of a prefix hit, nothing is computed"


def test_an_image_without_room_cuts_a_chunk_right_before_it() -> None:
    """Two images of 12,000 tokens do not fit into 16,384 at once: the second waits until the first is computed."""
    large = ImageSize(tokens=12_000)
    requests = workload([Image(1, 50, large)], [Image(2, 50, large)], text=12_100)
    recording = simulate(requests, paged(max_num_batched_tokens=8192), vision_machine(60_000), check=True)
    contents = EncoderContents.of(recording)
    assert contents is not None
    assert contents.held_outputs.max() == 12_000
    second = recording.schedule.request == 1
    assert recording.schedule.tokens[second].tolist()[0] == 50


def test_a_request_may_wait_for_room_for_its_image_alone() -> None:
    """The cache has room for one of these images, which their requests hold until they have computed it."""
    large = ImageSize(tokens=12_000)
    requests = workload(*([Image(number, 0, large)] for number in (1, 2, 3, 4)), text=12_100)
    recording = simulate(requests, paged(max_num_batched_tokens=16_384), vision_machine(200_000))
    assert recording.steps.waiting.any()
    check(recording, Path())
    check_events(recording, Path())


def test_the_account_of_the_encoder_cache_adds_up_at_every_step() -> None:
    recording = served()
    contents = EncoderContents.of(recording)
    assert contents is not None
    assert (contents.held_outputs + contents.idle_outputs <= contents.capacity_outputs).all()
    assert min(contents.held_outputs.min(), contents.idle_outputs.min()) >= 0
    assert contents.held_outputs[-1] == 0
    for step in range(len(recording.steps)):
        images = contents.images_at(step)
        assert sum(each.num_outputs for each in images if each.num_holders) == contents.held_outputs[step]
        assert sum(each.num_outputs for each in images if not each.num_holders) == contents.idle_outputs[step]


def test_a_recording_with_images_is_read_and_served_again(tmp_path: Path) -> None:
    recording = served()
    write(recording, tmp_path / "run")
    again = workload_of(read(tmp_path / "run"))
    assert again.images is not None
    assert recording.images is not None
    assert again.images.tokens.tolist() == recording.images.tokens.tolist()
    assert again.prompt_tokens.tolist() == recording.requests.prompt_tokens.tolist()
    repeated = simulate(again, paged(), vision_machine(60_000), check=True)
    assert repeated.steps.num_scheduled.tolist() == recording.steps.num_scheduled.tolist()


ROOMS: dict[str, tuple[str, Callable[[Recording], dict[str, Any]]]] = {
    "an image outside its prompt": ("inside its prompt", lambda r: image_columns(r, place=r.images.place + 99_999)),
    "equal images of two sizes": ("equally many tokens", lambda r: image_columns(r, image=r.images.image * 0 + 1)),
    "a range beyond int64": ("embedded should be runs", lambda r: with_ranges(r, [2**63 - 1, 1])),
    "a range beyond its image": ("embedded should be runs", lambda r: with_ranges(r, [2, 10_000])),
    "ranges that touch": ("embedded should be runs", lambda r: with_ranges(r, [2, 3, 5, 1])),
    "out of order": ("behind the image before it", lambda r: image_columns(r, place=-1 - r.images.place)),
    "computed twice": ("that is in the cache", lambda r: event(r, ImageEventKind.COMPUTE, repeat=True)),
    "held without being there": ("not in the cache", lambda r: event(r, ImageEventKind.COMPUTE, drop=True)),
    "let go without being held": ("does not hold", lambda r: event(r, ImageEventKind.HOLD, drop=True)),
    "held for ever": ("has ended", lambda r: event(r, ImageEventKind.LET_GO, drop=True, last=True)),
    "another evicted": ("evicted first", lambda r: event(r, ImageEventKind.EVICT, image=other)),
    "a request without the image": ("has no such image", lambda r: event(r, ImageEventKind.HOLD, image=last_of(r))),
    "an unknown image": ("none of images.parquet", lambda r: event(r, ImageEventKind.HOLD, image=lambda _: 99)),
    "a step that is none": ("row of steps.parquet", lambda r: events(r, step=r.encoder.step + 100_000)),
    "steps that fall": ("step should not decrease", lambda r: events(r, step=r.encoder.step[::-1].copy())),
    "events that fall": ("seq should not decrease", lambda r: events(r, seq=r.encoder.seq[::-1].copy())),
    "held too late": ("does not have its request hold", lambda r: events(r, **later(r))),
    "a smaller cache": ("meta.json gives it", lambda r: limit(r, encoder_cache_tokens=6_000)),
    "a smaller budget": ("a step should compute at most", lambda r: limit(r, encoder_compute_tokens=500)),
    "no events": ("is missing; meta.json has an encoder cache", lambda _: {"encoder": None}),
    "no images": ("is missing; encoder.parquet has events", lambda _: {"images": None}),
}  # fmt: skip


def image_columns(recording: Recording, **columns: Any) -> dict[str, Any]:
    return {"images": replace(recording.images, **columns)}  # type: ignore[type-var]


def with_ranges(recording: Recording, ranges: list[int]) -> dict[str, Any]:
    assert recording.images is not None
    return image_columns(recording, embedded=Ragged.from_rows([ranges] * len(recording.images), np.int64))


def events(recording: Recording, **columns: Any) -> dict[str, Any]:
    return {"encoder": replace(recording.encoder, **columns)}  # type: ignore[type-var]


def event(
    recording: Recording,
    kind: ImageEventKind,
    *,
    drop: bool = False,
    repeat: bool = False,
    last: bool = False,
    image: Callable[[int], int] | None = None,
) -> dict[str, Any]:
    """Change the first event of a kind, or the last."""
    table = recording.encoder
    assert table is not None
    row = int(np.flatnonzero(table.kind == kind)[-1 if last else 0])
    rows = np.arange(len(table))
    rows = np.delete(rows, row) if drop else np.insert(rows, row, row) if repeat else rows
    columns = {name: getattr(table, name)[rows].copy() for name, _ in table.columns()}
    if image is not None:
        columns["image"][row] = image(int(columns["image"][row]))
    return events(recording, **columns)


def last_of(recording: Recording) -> Callable[[int], int]:
    assert recording.images is not None
    last = int(recording.images.image[-1])
    return lambda _: last


def other(image: int) -> int:
    return image % 10 + 1


def later(recording: Recording) -> dict[str, Any]:
    """Events that come three steps later, all when a step is scheduled."""
    assert recording.encoder is not None
    step = np.minimum(recording.encoder.step + 3, len(recording.steps) - 1)
    return {"step": step, "seq": recording.steps.schedule_seq[step]}


def limit(recording: Recording, **limits: int) -> dict[str, Any]:
    return {"meta": replace(recording.meta, engine={**recording.meta.engine, **limits})}


@pytest.mark.parametrize("case", ROOMS)
def test_a_recording_that_cannot_be_is_refused(case: str, tmp_path: Path) -> None:
    words, change = ROOMS[case]
    check(served(), tmp_path)
    with pytest.raises(RecordingError, match=words):
        check(replace(served(), **change(served())), tmp_path)


def test_images_are_refused_where_nothing_is_known_of_them() -> None:
    one = workload([Image(1, 0, ImageSize(640, 480))])
    with pytest.raises(UsageError, match="is a model for text"):
        simulate(one, paged(), machine_of(60_000))
    with pytest.raises(UsageError, match="not under SGLang"):
        simulate(one, Radix(), vision_machine(60_000))
    with pytest.raises(KvsimError, match="never fits"):
        simulate(workload([Image(1, 0, ImageSize(tokens=20_000))], text=20_000), paged(), vision_machine(60_000))


def test_memory_without_blocks_holds_the_tokens_of_images() -> None:
    one = workload([Image(1, 0, ImageSize(640, 480))])
    policy = Contiguous(scheduler=ContinuousSettings(max_model_len=2_000))
    recording = simulate(one, policy, vision_machine(60_000), check=True)
    assert recording.requests.prompt_tokens.tolist() == [100 + RULE.num_tokens(640, 480) + MARKS]
    assert recording.encoder is None


@pytest.mark.parametrize("engine", ENGINES)
def test_images_that_wait_for_each_other_end_the_run(engine: EngineName) -> None:
    """Before 0.33, drafts wanted the next image before the one before was done with, and there is no room for both."""
    large = ImageSize(tokens=9_000)
    two = workload([Image(1, 10, large), Image(2, 9_010, large)], text=18_100)
    drafts = {"method": "eagle", "model": "a draft model", "num_speculative_tokens": 1}
    with pytest.raises(StalledError, match="wait for room in the encoder cache, which they hold themselves"):
        simulate(two, paged(vllm="0.25.1", speculative_config=drafts), vision_machine(60_000), engine=engine)
    simulate(two, paged(speculative_config=drafts), vision_machine(60_000), engine=engine)
    simulate(two, paged(vllm="0.25.1"), vision_machine(60_000), engine=engine)
