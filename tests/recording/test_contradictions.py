"""What a recording says twice is compared: who changes a figure has to change whatever it follows from.

Good recordings of every policy are changed in one value or in a handful that keeps the sums, and written anew with a
digest of their own. Whatever `kvsim info --json` prints then is as before, or the recording is refused. `_is_coherent`
says where another figure is no contradiction, because no table says it a second time.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from kvsim.calibration.prior import vllm_prior
from kvsim.cli import cli
from kvsim.errors import KvsimError, RecordingError
from kvsim.hardware import find_gpu
from kvsim.metrics.contradictions import refuse_contradictions
from kvsim.models import find_model
from kvsim.models.layers import ChunkedLocal
from kvsim.policies import Contiguous, Paged, Policy, Radix, RadixSettings, SGLangSettings, Static
from kvsim.policies.releases import NEWEST, OFFLOAD_RELEASE
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, PagedSettings, Reserve, StaticSettings
from kvsim.recording import Recording, find, read, write
from kvsim.recording.check import check, check_events
from kvsim.recording.check_admissions import check_admissions
from kvsim.recording.check_queue import ResidencyRows
from kvsim.recording.tables import MemoryKind
from kvsim.simulation import Machine, simulate
from kvsim.workload import Poisson, SharedPrefixes, Uniform, Workload, generate

from .changes import CHANGES, differing, figures, single_numbers, with_columns

SHIPPED = ("vllm-h200-granite-350m-gsm8k", "hf-h200-granite-350m-batch64-static")
SCHEDULER = ContinuousSettings(max_model_len=64, max_num_seqs=8, max_num_batched_tokens=40)
DRAFTING = {"method": "eagle", "model": "a draft model", "num_speculative_tokens": 3}
SGLANG = SGLangSettings(
    context_length=64, max_running_requests=8, chunked_prefill_size=24, max_prefill_tokens=48,
    schedule_conservativeness=0.05, retract_decode_steps=2,
)  # fmt: skip
POLICIES: dict[str, tuple[Policy, int]] = {
    "prefixes": (Paged(scheduler=SCHEDULER, cache=PagedSettings(block_size=4)), 90),
    "in step": (
        Paged(scheduler=replace(SCHEDULER, async_scheduling=False), cache=PagedSettings(enable_prefix_caching=False)),
        160,
    ),
    "drafts": (
        Paged(
            scheduler=replace(SCHEDULER, async_scheduling=False, speculative_config=DRAFTING),
            cache=PagedSettings(block_size=4),
        ),
        120,
    ),
    "drafts ahead": (
        Paged(scheduler=replace(SCHEDULER, speculative_config=DRAFTING), cache=PagedSettings(block_size=4)),
        120,
    ),
    "swap": (Paged(scheduler=SCHEDULER, cache=PagedSettings(block_size=4, swap_gib=1.0)), 90),
    "offload": (
        Paged(
            scheduler=replace(SCHEDULER, vllm=OFFLOAD_RELEASE),
            cache=PagedSettings(block_size=4, kv_offloading_size=0.02),
        ),
        100,
    ),
    "contiguous": (Contiguous(scheduler=SCHEDULER, cache=ContiguousSettings(reserve=Reserve.LIMIT, fit="best")), 100),
    "compacted": (
        Contiguous(scheduler=SCHEDULER, cache=ContiguousSettings(reserve=Reserve.LIMIT, fit="next", compaction=True)),
        160,
    ),
    "doubling": (Contiguous(scheduler=SCHEDULER, cache=ContiguousSettings(reserve=Reserve.DOUBLING)), 100),
    "static": (Static(scheduler=StaticSettings(batch_size=4, max_model_len=64)), 400),
    "slots": (Radix(scheduler=SGLANG), 110),
    "pages": (Radix(scheduler=SGLANG, cache=RadixSettings(page_size=4)), 80),
    "no tree": (Radix(scheduler=SGLANG, cache=RadixSettings(disable_radix_cache=True)), 68),
}


@pytest.fixture(scope="session")
def good(make_machine: Callable[[int], Machine]) -> dict[str, Recording]:
    """Recordings of every policy, of several KV-cache groups, and of real engines."""
    workload = generate(
        30,
        arrivals=Poisson(rate_per_s=200),
        prompt=Uniform(low=4, high=24),
        output=Uniform(low=2, high=24),
        prefixes=SharedPrefixes(num_groups=2, tokens=9),
        seed=3,
    )
    recordings = {
        name: simulate(workload, policy, make_machine(tokens), engine="interpreted")
        for name, (policy, tokens) in POLICIES.items()
    }
    assert all(
        recordings[name].num_preemptions
        for name in ("prefixes", "in step", "swap", "offload", "doubling", "slots", "pages", "no tree")
    )
    recordings |= {"groups": _with_groups("gpt-oss-20b", 300)}
    recordings |= {"windows": _with_groups("gpt-oss-20b", 120, release="0.25.1")}
    recordings |= {"junctions": _with_groups("gpt-oss-20b", 120), "states": _with_groups("granite-4.0-h-micro", 72)}
    assert recordings["windows"].num_preemptions
    assert recordings["states"].num_preemptions
    return recordings | {name: read(find(name)) for name in SHIPPED}


def _with_groups(name: str, num_blocks: int, *, release: str = NEWEST) -> Recording:
    scheduler = ContinuousSettings(max_num_seqs=6, max_num_batched_tokens=512, max_model_len=4096, vllm=release)
    policy = Paged(scheduler=scheduler)
    gpu, model = find_gpu("H200"), find_model(name)
    machine = Machine(gpu=gpu, model=model, kv_bytes=1, step_time=vllm_prior(gpu, model))
    layout = machine.layout(policy)
    assert layout is not None
    num = 14
    workload = Workload(
        arrival_s=np.arange(num) * 0.02, prompt_tokens=[300, 700, 200, 900, 420, 300, 650] * 2,
        output_tokens=[30] * num, max_tokens=[30] * num, prefix_group=[0, 1] * 7, prefix_tokens=[160] * num,
        prefix_names=("first", "second"),
    )  # fmt: skip
    machine = replace(machine, kv_bytes=num_blocks * layout.bytes_per_block)
    return simulate(workload, policy, machine, engine="interpreted")


def _is_coherent(before: Recording, after: Recording) -> bool:
    """Whether `after` may be of another run: whatever was changed is told there and nowhere else."""
    same = after
    if _may_have_another_pool(before, after):
        same = replace(after, meta=before.meta, steps=before.steps)
    for may_be, table, names in (
        (_may_arrive_then, "requests", ["arrival_s"]),
        (_may_be_as_long, "requests", ["output_tokens", "prompt_tokens", "max_tokens"]),
        (_may_take_so_long, "steps", ["start_s", "end_s"]),
    ):
        if may_be(before, after):
            same = with_columns(same, table, **{name: getattr(getattr(before, table), name) for name in names})
    return not differing(figures(before), figures(same))


def _may_have_another_pool(before: Recording, after: Recording) -> bool:
    """A pool may have more units, or fewer, that are never used: if all steps say so, and none had too few of them.

    SGLang retracts where it lacks one of the slots that all its requests need, or many: that is checked.
    """
    pool, other = before.meta.pool.num_units, after.meta.pool.num_units
    if pool is None or other is None or pool == other:
        return False
    if before.num_preemptions and before.meta.policy_name != "radix":
        return False
    return bool((after.steps.free_units == before.steps.free_units + other - pool).all())


def _may_arrive_then(before: Recording, after: Recording) -> bool:
    """When a request came is told by its own time, and else only by `arrival_seq`: between which events."""
    requests, steps = after.requests, before.steps
    following = np.searchsorted(steps.schedule_seq, requests.arrival_seq)
    start_s = np.append(steps.start_s, np.inf)
    not_late = requests.arrival_s <= start_s[following] + 1e-6
    not_early = (following < 2) | (requests.arrival_s >= start_s[following - 2] - 1e-6)
    return bool((not_late & not_early).all())


def _may_be_as_long(before: Recording, after: Recording) -> bool:
    """When a row of a batch had its last token, and where its prompt begins, is told by its lengths alone.

    Those rows that make the batch as long, and as wide, as it is are told by its steps. How many drafts were accepted
    in the last step of a request is told by nothing.
    """
    requests, told, schedule = after.requests, before.requests, before.schedule
    if before.has_drafts:
        assert schedule.known is not None
        rows = [np.flatnonzero(schedule.request == row)[-2:] for row in range(len(told))]
        least = np.array([schedule.known[last[-1]] for last in rows]) + 1 - told.prompt_tokens
        most = least - 1 + np.array([schedule.tokens[last].sum() for last in rows])
        fits = (requests.output_tokens >= least) & (requests.output_tokens <= most)
        return bool(fits.all()) and np.array_equal(requests.prompt_tokens, told.prompt_tokens)
    if before.meta.policy_name != "static":
        return False
    first = {int(step): told.first_scheduled_s == before.steps.start_s[step] for step in schedule.step.tolist()}
    return all(
        getattr(requests, name)[rows].max() == getattr(told, name)[rows].max()
        for rows in first.values() if rows.any()
        for name in ("prompt_tokens", "output_tokens")
    )  # fmt: skip


def _may_take_so_long(before: Recording, after: Recording) -> bool:
    """A step in which nobody began, or had a first or last token, has times of its own, between those of its
    neighbours.
    """
    requests, told, steps = before.requests, before.steps, after.steps
    begins, ends = (steps.start_s != told.start_s), (steps.end_s != told.end_s)
    times = np.concatenate((requests.first_token_s, requests.finished_s))
    is_told = np.isin(told.start_s, requests.first_scheduled_s)[begins].any() or np.isin(told.end_s, times)[ends].any()
    output = np.searchsorted(steps.output_seq, steps.schedule_seq)  # the first that comes behind the step is scheduled
    in_order = (steps.start_s <= steps.end_s[output] + 1e-6) & (
        np.append(-np.inf, steps.end_s)[output] <= steps.start_s + 1e-6
    )
    return not is_told and bool(in_order.all())


def refuse(recording: Recording, folder: Path) -> None:
    """Raise as `kvsim info` does for a recording in `folder`: its reader checks it first."""
    check(recording, folder)
    refuse_contradictions(recording, folder)


def is_accepted(recording: Recording, name: str) -> bool:
    try:
        refuse(recording, Path(name))
    except KvsimError:
        return False
    return True


def campaign(good: dict[str, Recording], number: int, seed: int) -> tuple[dict[str, int], list[str]]:
    """How often each kind of change was tried, and those that were accepted although a figure is another."""
    rng = np.random.default_rng(seed)
    known = {name: figures(recording) for name, recording in good.items()}
    tried, missed = dict.fromkeys(CHANGES, 0), list[str]()
    while sum(tried.values()) < number:
        base, kind = str(rng.choice([*good])), str(rng.choice([*CHANGES]))
        with np.errstate(all="ignore"):
            changed = CHANGES[kind](rng, good[base])
        if changed is None:
            continue
        tried[kind] += 1
        if not is_accepted(changed, base):
            continue
        others = differing(known[base], figures(changed))
        if others and not _is_coherent(good[base], changed):
            missed.append(f"{kind} of {base}: {', '.join(others[:3])}")
    return tried, missed


def test_good_recordings_are_accepted(good: dict[str, Recording]) -> None:
    for name, recording in good.items():
        refuse(recording, Path(name))


def test_no_change_of_a_figure_is_accepted(good: dict[str, Recording]) -> None:
    tried, missed = campaign(good, 300, seed=31)
    assert min(tried.values()) > 5
    assert missed == []


@pytest.mark.slow
def test_no_number_alone_is_accepted(good: dict[str, Recording]) -> None:
    rng, accepted = np.random.default_rng(5), list[str]()
    for base, recording in good.items():
        known = figures(recording)
        for place, changed in single_numbers(rng, recording, most=40):
            others = is_accepted(changed, base) and differing(known, figures(changed))
            if others and not _is_coherent(recording, changed):
                accepted.append(f"{place} of {base}: {', '.join(others[:3])}")
    assert accepted == []


@pytest.mark.slow
def test_no_change_of_a_figure_is_accepted_among_thousands(good: dict[str, Recording]) -> None:
    tried, missed = campaign(good, 5_000, seed=310)
    assert min(tried.values()) > 200
    assert missed == []


def test_a_request_keeps_its_memory_until_a_step_or_an_output(good: dict[str, Recording]) -> None:
    """Move releases of a compaction to the event before: their requests then lack memory between two events."""
    recording = good["compacted"]
    memory, steps = recording.memory, recording.steps
    earlier = memory.seq - 1
    is_free = ~np.isin(earlier, np.concatenate((steps.schedule_seq, steps.output_seq)))
    rows = np.flatnonzero((memory.kind == MemoryKind.RELEASE) & is_free & (np.append(0, memory.seq[:-1]) <= earlier))
    assert len(rows)
    for row in rows.tolist():
        seq = memory.seq.copy()
        seq[row] = earlier[row]
        assert not is_accepted(with_columns(recording, "memory", seq=seq), "compacted"), f"row {row}"


@pytest.mark.parametrize("base", ["drafts", "drafts ahead"])
def test_no_other_number_of_units_with_drafts_is_accepted(good: dict[str, Recording], base: str) -> None:
    recording = good[base]
    memory, rows = recording.memory, np.flatnonzero(recording.memory.kind == MemoryKind.RELEASE)
    assert memory.cached is not None
    for row in rows.tolist():
        for amount in (1, -1):
            cached = memory.cached.copy()
            cached[row] += amount
            assert not is_accepted(with_columns(recording, "memory", cached=cached), base), f"row {row} {amount:+}"


def test_a_unit_that_keeps_no_prefix_is_not_shared(good: dict[str, Recording]) -> None:
    recording = good["drafts ahead"]
    memory, refused = recording.memory, 0
    assert memory.cached is not None
    for row in np.flatnonzero(memory.cached > 0).tolist():
        cached = memory.cached.copy()
        cached[row] -= 1
        with pytest.raises(RecordingError) as caught:
            refuse(with_columns(recording, "memory", cached=cached), Path("rec"))
        refused += "a unit that is shared should keep a prefix, or be held" in str(caught.value)
    assert refused > 3


def test_a_length_below_zero_is_refused_beside_units_that_are_replaced(good: dict[str, Recording]) -> None:
    with_memory = {name: recording for name, recording in good.items() if len(recording.memory)}
    assert len(with_memory) > 10
    for name, recording in with_memory.items():
        length = recording.memory.length.copy()
        length[np.flatnonzero(recording.memory.kind != MemoryKind.RELEASE)[-1]] = -1
        with pytest.raises(RecordingError, match="length should be positive"):
            refuse(with_columns(recording, "memory", length=length), Path(name))


def test_a_change_with_a_digest_of_its_own_is_refused_by_every_info(good: dict[str, Recording], tmp_path: Path) -> None:
    recording = good["prefixes"]
    first = recording.steps.step == 0
    wrong = with_columns(recording, "steps", free_units=np.where(first, 21, recording.steps.free_units))
    write(wrong, tmp_path / "rec")
    for words in (["--check"], ["--json"], []):
        result = CliRunner().invoke(cli, ["info", str(tmp_path / "rec"), *words])
        assert isinstance(result.exception, KvsimError | SystemExit)
        assert "free_units says 21, and memory.parquet makes it" in result.output + str(result.exception)


def test_a_prefix_that_another_prompt_has_not(good: dict[str, Recording]) -> None:
    recording = good["prefixes"]
    hashes = recording.requests.prompt_hashes
    values = np.arange(len(hashes.values))
    wrong = with_columns(recording, "requests", prompt_hashes=type(hashes)(values, hashes.offsets, np.int64))
    with pytest.raises(RecordingError, match=r"prompts that requests.parquet gives the same prompt_hashes"):
        refuse(wrong, Path("rec"))


def test_a_shape_that_makes_other_bytes(good: dict[str, Recording]) -> None:
    recording = good["in step"]
    model = dict(recording.meta.model) | {"num_layers": 999}
    with pytest.raises(RecordingError, match=r"says kv_bytes_per_token = 131072; it must be "):
        refuse(replace(recording, meta=replace(recording.meta, model=model)), Path("rec"))


def test_groups_without_a_number_of_their_spec_are_told_apart(good: dict[str, Recording], tmp_path: Path) -> None:
    folder = write(good["groups"], tmp_path / "rec")
    document: dict[str, Any] = json.loads((folder / "meta.json").read_text())
    specs = [group.spec for group in good["groups"].meta.pool.groups]
    assert len({*specs}) > 1
    for entry in document["kv_cache_groups"]:
        entry.pop("spec", None)
    (folder / "meta.json").write_text(json.dumps(document))
    assert [group.spec for group in read(folder).meta.pool.groups] == specs
    for entry in document["kv_cache_groups"]:
        entry["spec"] = 0
    (folder / "meta.json").write_text(json.dumps(document))
    with pytest.raises(RecordingError, match=r"kv_cache_groups\[1\] has the spec of kv_cache_groups\[0\], 0, and"):
        read(folder)


def test_holes_that_the_head_of_the_queue_fits_into(good: dict[str, Recording]) -> None:
    recording = good["doubling"]
    unusable = recording.steps.unusable_units
    assert unusable is not None
    assert unusable.any()
    with pytest.raises(RecordingError, match=r"unusable_units says 0, and memory.parquet makes it"):
        refuse(with_columns(recording, "steps", unusable_units=np.zeros_like(unusable)), Path("rec"))


def test_reservations_that_ask_for_less_than_they_are_long(good: dict[str, Recording]) -> None:
    for name in ("contiguous", "compacted", "doubling"):
        requested = good[name].memory.requested
        assert requested is not None
        first = np.argmax(good[name].memory.kind == MemoryKind.APPEND)
        changed = requested - (np.arange(len(requested)) == first)
        with pytest.raises(RecordingError, match=r"requested"):
            refuse(with_columns(good[name], "memory", requested=changed.astype(requested.dtype)), Path("rec"))


CHUNK = 40
"""Not a multiple of the block: a hit ends with the whole block before the chunk."""


def _in_chunks(*, caching: bool) -> Recording:
    """Make a recording of a model of which every layer reads the tokens since the beginning of a chunk."""
    kind = ChunkedLocal(num_kv_heads=2, head_dim=64, value_head_dim=64, window=CHUNK)
    gpu, model = find_gpu("H200"), find_model("granite-4.0-350m")
    model = replace(model, layer_kinds=(kind,), layer_caches=((0,),) * model.num_layers)
    policy = Paged(
        scheduler=ContinuousSettings(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=512),
        cache=PagedSettings(enable_prefix_caching=caching),
    )
    machine = Machine(gpu=gpu, model=model, kv_bytes=1, step_time=vllm_prior(gpu, model))
    layout = machine.layout(policy)
    assert layout is not None
    workload = Workload(
        arrival_s=np.arange(6) * 0.01, prompt_tokens=[30, 90, 121, 200, 250, 330], output_tokens=[50] * 6,
        max_tokens=[50] * 6,
    )  # fmt: skip
    return simulate(workload, policy, replace(machine, kv_bytes=31 * layout.bytes_per_block), engine="interpreted")


def test_what_lies_before_a_chunk_is_a_hit_without_blocks(tmp_path: Path) -> None:
    recording = _in_chunks(caching=True)
    first = np.unique(recording.schedule.request, return_index=True)[1]
    assert recording.schedule.computed_before[first].tolist() == [0, 80, 112, 160, 240, 320]
    check_events(recording, tmp_path)


@pytest.mark.parametrize(("caching", "before"), [(True, 80), (True, 144), (True, 200), (True, 240), (False, 160)])
def test_no_other_tokens_are_a_hit_without_blocks(tmp_path: Path, caching: bool, before: int) -> None:
    recording = _in_chunks(caching=caching)
    column = recording.schedule.computed_before.copy()
    column[np.flatnonzero(recording.schedule.request == 3)[0]] = before
    with pytest.raises(RecordingError, match=f"computed_before says {before}"):
        check_admissions(
            with_columns(recording, "schedule", computed_before=column), ResidencyRows.of(recording), tmp_path
        )


def _with_units(recording: Recording, more: int) -> Recording:
    """Give `recording` a pool with `more` units that are free at every step."""
    pool = recording.meta.pool
    assert pool.num_units is not None
    larger = replace(recording, meta=replace(recording.meta, pool=replace(pool, num_units=pool.num_units + more)))
    return with_columns(larger, "steps", free_units=recording.steps.free_units + np.int32(more))


def test_a_retraction_lacks_slots(good: dict[str, Recording]) -> None:
    recording = good["slots"]
    refuse(_with_units(recording, 0), Path("rec"))
    with pytest.raises(RecordingError, match=r"a step should preempt only where the free units are too few"):
        refuse(_with_units(recording, 40), Path("rec"))


@pytest.mark.parametrize(
    ("column", "value", "rule"),
    [
        ("address", -1, "position should be where the request.s table ends"),
        ("position", 30, "should be replaced at its position"),
        ("cached", 1, "a unit that is replaced should keep no prefix"),
        ("request", 0, "."),
    ],
)
def test_a_replaced_unit_that_is_not_there(good: dict[str, Recording], column: str, value: int, rule: str) -> None:
    """SGLang's requests free their own copies of what the tree has, unit by unit, for the tree's in the same places."""
    recording = good["slots"]
    row = np.flatnonzero(recording.memory.releases_part)[0]
    values = getattr(recording.memory, column).copy()
    values[row] = value
    with pytest.raises(RecordingError, match=rule):
        refuse(with_columns(recording, "memory", **{column: values}), Path("rec"))
