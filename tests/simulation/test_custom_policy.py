"""Policies in Python: vLLM's rule where they say nothing, theirs where they do, a sentence where they must not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.cli import cli
from kvsim.engine.custom import step_costs
from kvsim.engine.state import Engine
from kvsim.errors import PolicyError, RecordingError, UsageError
from kvsim.experiments.sweeps import Point, source_of
from kvsim.policies.custom import CachedBlock, Candidates, ServedRequest, StepInMaking, policy_from_file
from kvsim.policies.settings import ContinuousSettings, PagedSettings

MakeMachine = Callable[[int], kvsim.Machine]
BLOCK = 16


@pytest.fixture(scope="module")
def requests() -> kvsim.Workload:
    """Requests that do not fit at once: 24 of them, of some 200 tokens, in a pool of 40 blocks."""
    return kvsim.generate(
        24,
        arrivals=kvsim.Poisson(rate_per_s=200),
        prompt=kvsim.Uniform(low=20, high=150),
        output=kvsim.Uniform(low=10, high=120),
        prefixes=kvsim.SharedPrefixes(num_groups=2, tokens=32),
        seed=3,
    )


@pytest.fixture(scope="module")
def machine(make_machine: MakeMachine) -> kvsim.Machine:
    return make_machine(40 * BLOCK)


def same(one: kvsim.Run, other: kvsim.Run) -> bool:
    """Whether two runs have the same bytes in every table."""
    return all(
        getattr(one, name).to_arrow().equals(getattr(other, name).to_arrow())
        for name in ("requests", "steps", "schedule", "memory")
    )


class Plain(kvsim.CustomPolicy):
    """vLLM's rule."""

    name = "plain"

    def __init__(self, scheduler: ContinuousSettings | None = None, cache: PagedSettings | None = None) -> None:
        self.scheduler = scheduler or ContinuousSettings()
        self.cache = cache or PagedSettings()


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize("caching", [True, False])
def test_where_nothing_is_said_it_is_vllms_rule(
    requests: kvsim.Workload, machine: kvsim.Machine, ahead: bool, caching: bool
) -> None:
    how: dict[str, Any] = {
        "scheduler": ContinuousSettings(async_scheduling=ahead, max_num_batched_tokens=256),
        "cache": PagedSettings(enable_prefix_caching=caching, watermark=0.05),
    }
    own = kvsim.simulate(requests, Plain(**how), machine, check=True)
    paged = kvsim.simulate(requests, kvsim.Paged(**how), machine, engine="interpreted")
    assert paged.num_preemptions > 0
    assert same(own, paged)
    assert own.summary().policy == "plain"


class ByHand(Plain):
    """vLLM's rule again, step by step."""

    name = "by-hand"

    def schedule(self, step: StepInMaking) -> None:
        for request in list(step.running):
            while request in step.running and step.tokens_left and not step.compute(request):
                if request.num_units * BLOCK > request.computed_tokens:
                    break  # its last token is under way
                step.preempt(step.running[-1])
        while not step.preempted and step.waiting and step.admit(step.waiting[0]):
            pass


def test_a_step_made_by_hand_is_the_same_step(requests: kvsim.Workload, machine: kvsim.Machine) -> None:
    how: dict[str, Any] = {"scheduler": ContinuousSettings(async_scheduling=False)}
    own = kvsim.simulate(requests, ByHand(**how), machine, check=True)
    assert same(own, kvsim.simulate(requests, kvsim.Paged(**how), machine, engine="interpreted"))


def test_a_prompt_may_be_cut_where_the_policy_says(requests: kvsim.Workload, machine: kvsim.Machine) -> None:
    class Sip(Plain):
        def schedule(self, step: StepInMaking) -> None:
            for request in step.running:
                step.compute(request, 8)
            if step.waiting:
                step.admit(step.waiting[0], 8)

    run = kvsim.simulate(requests.head(2), Sip(), machine, check=True)
    assert run.schedule.tokens.max() == 8
    assert run.summary().num_finished == 2


class LeastRecentlyFreed(Plain):
    """vLLM's rule of eviction, said by a policy, which looks at all that it is shown."""

    name = "least-recently-freed"
    num_evicted = 0

    def evict(self, step: StepInMaking, candidates: Sequence[CachedBlock]) -> CachedBlock:
        assert step.num_free_units == len(candidates) == len(list(candidates))
        freed = [block.last_used_s for block in candidates]
        assert freed == sorted(freed)
        by_key: dict[int, CachedBlock] = {}
        for block in candidates:
            assert block.cached_s <= block.last_used_s <= step.now_s
            assert block.end_tokens % BLOCK == 0 < block.end_tokens
            by_key.setdefault(block.key, block)
        assert candidates[0].tokens_below % BLOCK == 0
        assert sum(block.tokens_below == 0 for block in candidates) > 0
        type(self).num_evicted += 1
        return candidates[0]


@pytest.mark.parametrize("ahead", [True, False])
def test_vllms_eviction_said_by_a_policy_is_vllms(
    requests: kvsim.Workload, machine: kvsim.Machine, ahead: bool
) -> None:
    LeastRecentlyFreed.num_evicted = 0
    settings = ContinuousSettings(async_scheduling=ahead)
    custom = kvsim.simulate(requests, LeastRecentlyFreed(settings), machine, check=True)
    assert LeastRecentlyFreed.num_evicted > 50
    assert same(custom, kvsim.simulate(requests, kvsim.Paged(scheduler=settings), machine, engine="interpreted"))


class EvictsByList(Plain):
    """vLLM's rule of eviction, with an answer for all evictions of a step."""

    num_asked = 0

    def evict(self, step: StepInMaking, candidates: Sequence[CachedBlock]) -> list[CachedBlock]:
        type(self).num_asked += 1
        return sorted(candidates, key=lambda block: block.last_used_s)


def test_a_list_of_blocks_to_evict_is_asked_for_once_a_step(requests: kvsim.Workload, machine: kvsim.Machine) -> None:
    LeastRecentlyFreed.num_evicted = EvictsByList.num_asked = 0
    one_by_one = kvsim.simulate(requests, LeastRecentlyFreed(), machine, check=True)
    assert same(kvsim.simulate(requests, EvictsByList(), machine, check=True), one_by_one)
    assert 0 < EvictsByList.num_asked < LeastRecentlyFreed.num_evicted / 2


COLUMNS = ("unit", "key", "end_tokens", "num_hits", "tokens_below", "cached_s", "last_used_s")


@pytest.mark.parametrize("first", COLUMNS)
def test_columns_say_what_the_blocks_say(requests: kvsim.Workload, machine: kvsim.Machine, first: str) -> None:
    """At every eviction, whichever column is asked for first and whichever block goes."""
    rng = random.Random(1)

    class ByColumns(Plain):
        def evict(self, step: StepInMaking, candidates: Candidates) -> CachedBlock:
            if rng.random() < 0.5:  # blocks come and go between two looks
                for name in (first, *COLUMNS):
                    assert candidates.column(name).tolist() == [getattr(block, name) for block in candidates]
            index = rng.randrange(len(candidates))
            assert candidates[index] is list(candidates)[index]
            return candidates[index]

    assert kvsim.simulate(requests, ByColumns(), machine, check=True).summary().num_finished == len(requests)


def test_a_column_that_is_not_there_is_a_sentence(requests: kvsim.Workload, machine: kvsim.Machine) -> None:
    class Asks(Plain):
        def evict(self, step: StepInMaking, candidates: Candidates) -> CachedBlock:
            return candidates[int(candidates.column("age_s").argmax())]

    with pytest.raises(UsageError, match="candidates have no column 'age_s'; there are unit, key, end_tokens"):
        kvsim.simulate(requests, Asks(), machine)


class LeavesFirst(Plain):
    """A block goes only after all blocks that continue its prefix, and never-hit ones go first."""

    name = "leaves-first"

    def evict(self, step: StepInMaking, candidates: Sequence[CachedBlock]) -> CachedBlock:
        return min(candidates, key=lambda block: (block.tokens_below, block.num_hits))


def test_a_policy_may_evict_another_block(requests: kvsim.Workload, machine: kvsim.Machine, tmp_path: Path) -> None:
    """The popular prompts stay; every slot is accounted for, and the recording passes its check."""
    custom = kvsim.simulate(requests, LeavesFirst(), machine, check=True)
    paged = kvsim.simulate(requests, kvsim.Paged(), machine, engine="interpreted")
    assert not same(custom, paged)
    assert custom.summary().num_finished == len(requests)
    assert custom.requests.cached_tokens.sum() >= paged.requests.cached_tokens.sum()
    custom.save(tmp_path / "run")
    result = CliRunner().invoke(cli, ["info", str(tmp_path / "run"), "--check"])
    assert result.exit_code == 0, result.output


class Numbered(kvsim.Allocator):
    """Units from the highest down, four at a time."""

    def __init__(self, num_units: int, unit_tokens: int) -> None:
        self.free_units, self.unit_tokens = list(range(num_units)), unit_tokens

    def allocate(self, request: ServedRequest, num_tokens: int) -> Iterable[int] | None:
        missing = -(-num_tokens // self.unit_tokens) - request.num_units
        if missing > len(self.free_units):
            return None
        return [self.free_units.pop() for _ in range(min(max(missing, 4), len(self.free_units)))]

    def free(self, request: ServedRequest, units: Sequence[int]) -> None:
        self.free_units += units


class WithNumbered(Plain):
    """vLLM's schedule over an allocator of its own."""

    name, allocator = "numbered", Numbered


def test_an_allocator_is_accounted_for(requests: kvsim.Workload, machine: kvsim.Machine, tmp_path: Path) -> None:
    run = kvsim.simulate(requests, WithNumbered(cache=PagedSettings(block_size=8)), machine, check=True)
    assert run.meta.pool.unit_tokens == 8
    summary = run.summary()
    assert summary.num_finished == len(requests)
    assert summary.num_preemptions > 0
    assert summary.waste.pool_percent.sum() == pytest.approx(100)
    assert summary.waste.as_dict()["pool_percent"]["internal"] > 1  # four units at a time are more than it needs
    again = kvsim.read(run.save(tmp_path / "run"))
    assert same(again, run)
    assert repr(again).startswith("<Run 'run': numbered,")
    assert "numbered, after" in str(again.picture())
    for kind in ("waste-bars", "memory-map", "lifetimes", "free-runs", "waste-over-time"):
        assert "numbered" in (picture := again.plot(kind)).alt_text or picture.texts, kind


def test_its_runs_are_the_same_on_the_screen(requests: kvsim.Workload, machine: kvsim.Machine, tmp_path: Path) -> None:
    import kvsim_tui as tui

    run = kvsim.simulate(requests, WithNumbered(), machine)
    tui.screenshot(run, tmp_path / "own.svg", size=(100, 30))
    assert "numbered" in (tmp_path / "own.svg").read_text(encoding="utf-8")


class Twice(Numbered):
    def allocate(self, request: ServedRequest, num_tokens: int) -> Iterable[int] | None:
        return [0] * (-(-num_tokens // self.unit_tokens) - request.num_units)


class Outside(Numbered):
    def allocate(self, request: ServedRequest, num_tokens: int) -> Iterable[int] | None:
        return [len(self.free_units)]


class TooFew(Numbered):
    def allocate(self, request: ServedRequest, num_tokens: int) -> Iterable[int] | None:
        return []


class Stuck(Plain):
    def schedule(self, step: StepInMaking) -> None:
        if not step.running:
            step.admit_waiting()


class Strange(Plain):
    def admit(self, step: StepInMaking) -> Any:
        return "the first"


class Gone(Plain):
    def victim(self, step: StepInMaking, needs: ServedRequest) -> ServedRequest:
        return step.waiting[0] if step.waiting else needs


class Eager(Plain):
    def schedule(self, step: StepInMaking) -> None:
        step.serve_running()
        if step.running:
            step.compute(step.running[0])
        step.admit_waiting()


class Undecided(Plain):
    def schedule(self, step: StepInMaking) -> None:
        step.admit_waiting()
        for request in list(step.running):
            step.preempt(request)


class Patient(Plain):
    def admit(self, step: StepInMaking) -> ServedRequest | None:
        return step.waiting[0] if len(step.waiting) > 30 else None


class Thrashing(Plain):
    """Two requests whose prompts take turns in a pool that holds one of them."""

    def schedule(self, step: StepInMaking) -> None:
        for request in list(step.running):
            if request.computed_tokens + 16 >= request.prompt_tokens:
                step.preempt(request)
            else:
                step.compute(request, 16)
        if step.waiting and not step.running:
            step.admit(step.waiting[-1], 16)


class EvictsNone(Plain):
    def evict(self, step: StepInMaking, candidates: Sequence[CachedBlock]) -> list[CachedBlock]:
        return []


class Elsewhere(Plain):
    def evict(self, step: StepInMaking, candidates: Sequence[CachedBlock]) -> Any:
        return candidates[0].unit


class Unbound(Plain):
    def allocator(self, num_units: int) -> Any:
        """Lack the argument for the tokens of a unit, as a function does that takes no `self`."""


def with_allocator(kind: type[kvsim.Allocator]) -> kvsim.CustomPolicy:
    policy = Plain()
    policy.allocator = kind
    return policy


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (with_allocator(Twice), "allocated unit 0, which is in a table"),
        (with_allocator(Outside), "allocated unit 39 of a pool that has 0 to 38"),
        (with_allocator(TooFew), "a table of 0 units of 16 tokens"),
        (Unbound(), "the policy 'plain' failed in allocator: TypeError"),
        (Stuck(), "the clock would not advance"),
        (Strange(), "returned 'the first', which is no request"),
        (Gone(), "as victim, and it does not run"),
        (Eager(), "compute twice in one step"),
        (EvictsNone(), "named None to evict, which is no free block"),
        (Elsewhere(), "to evict, which is no free block that keeps a prefix"),
        (Undecided(), "preempts what it has just admitted, for ever: rows 0"),
        (Patient(), "admits no request, although none runs: rows 0"),
        (Thrashing(), r"tokens without a new output token.*rows \d+, "),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Plain) else "",
)
def test_what_no_policy_may_do_is_a_sentence(
    requests: kvsim.Workload, machine: kvsim.Machine, policy: Any, sentence: str
) -> None:
    with pytest.raises(PolicyError, match=sentence):
        kvsim.simulate(requests, policy, machine)


def test_it_is_never_compiled(requests: kvsim.Workload, machine: kvsim.Machine) -> None:
    with pytest.raises(UsageError, match="the policy 'plain' is in Python, which is not compiled"):
        kvsim.simulate(requests, Plain(), machine, engine="compiled")


def test_it_is_not_compared_with_vllm(requests: kvsim.Workload, machine: kvsim.Machine) -> None:
    with pytest.raises(RecordingError, match="under rules of its own"):
        kvsim.verify(kvsim.simulate(requests, Plain(), machine))


def test_a_sweep_tells_policies_apart_by_what_they_do(requests: kvsim.Workload, machine: kvsim.Machine) -> None:
    def key(policy: Any) -> str:
        return Point(settings={}, workload=requests, policy=policy, machine=machine).key

    assert key(Plain()) == key(Plain())
    assert len({key(Plain()), key(ByHand()), key(kvsim.Paged()), key(Plain(cache=PagedSettings(block_size=32)))}) == 4
    assert source_of(kvsim.Paged()) == []
    made: dict[str, Any] = {}
    exec("import kvsim\nclass Typed(kvsim.CustomPolicy):\n    name = 'typed'\n", made)
    with pytest.raises(UsageError, match="source of the policy 'typed' cannot be read"):
        key(made["Typed"]())


@settings(max_examples=15)
@given(seed=st.integers(0, 1000), ahead=st.booleans())
def test_whatever_a_rule_answers_every_slot_is_accounted_for(seed: int, ahead: bool) -> None:
    rng = random.Random(seed)

    class Random(Plain):
        def admit(self, step: StepInMaking) -> ServedRequest | None:
            return rng.choice([*step.waiting, None] if step.running else [*step.waiting])

        def victim(self, step: StepInMaking, needs: ServedRequest) -> ServedRequest:
            return rng.choice(step.running)

    workload = kvsim.generate(
        10,
        arrivals=kvsim.AllAtOnce(),
        prompt=kvsim.Uniform(low=1, high=60),
        output=kvsim.Uniform(low=1, high=60),
        seed=seed,
    )
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=12)
    run = kvsim.simulate(workload, Random(ContinuousSettings(async_scheduling=ahead)), machine, check=True)
    assert run.summary().num_finished == 10
    assert np.array_equal(run.requests.output_tokens, workload.output_tokens)


class Priced(Plain):
    """vLLM's rule; every step is priced when it is made, and the next decode before it is."""

    name = "priced"

    def __init__(self, scheduler: ContinuousSettings) -> None:
        super().__init__(scheduler)
        self.costs_s: list[float] = []

    def schedule(self, step: StepInMaking) -> None:
        assert step.cost_s() == 0.0
        alone = {request: step.cost_s({request: 1}) for request in (*step.running, *step.waiting)}
        together = step.cost_s(dict.fromkeys(alone, 1)) if alone else 0.0
        assert together >= max(alone.values(), default=0.0)
        super().schedule(step)
        if step.tokens_left < self.scheduler.max_num_batched_tokens:
            self.costs_s.append(step.cost_s())


def test_a_step_costs_what_it_takes(requests: kvsim.Workload, machine: kvsim.Machine) -> None:
    """What `cost_s` says of a step is the time from its beginning to the next, where nothing overlaps or waits."""
    policy = Priced(ContinuousSettings(async_scheduling=False, max_num_batched_tokens=256))
    run = kvsim.simulate(requests, policy, machine)
    took_s = np.diff(run.steps.start_s)
    busy = (run.steps.waiting[:-1] + run.steps.running[:-1] > 0) & (took_s < 2 * np.array(policy.costs_s[:-1]))
    assert len(policy.costs_s) == len(run.steps)
    assert busy.mean() > 0.9
    entry_s = took_s[busy] - np.array(policy.costs_s[:-1])[busy]  # the host lets requests in between two steps
    assert (entry_s > -1e-12).all()
    assert np.median(entry_s) < 1e-9


class Trying(Plain):
    """vLLM's rule; before and after each part of a step, it asks several times what waiting requests would cost."""

    name = "trying"

    def schedule(self, step: StepInMaking) -> None:
        self.ask(step)
        step.serve_running()
        self.ask(step)
        for request in step.waiting:
            if step.preempted or not step.admit(request):
                break
            self.ask(step)

    def ask(self, step: StepInMaking) -> None:
        for request in step.waiting:
            self.begin(step, request)
            costs = {step.cost_s({request: 1}) for _ in range(3)}
            assert len(costs) == 1

    def begin(self, step: StepInMaking, request: ServedRequest) -> None:
        """A test counts what is looked up from here on."""


def test_a_prefix_is_looked_up_once_for_all_steps_that_a_policy_tries(
    requests: kvsim.Workload, machine: kvsim.Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = list[int]()
    find = step_costs.cached_prefix

    def counted(engine: Engine, sequence: Any) -> tuple[int, int]:
        looked_up.append(sequence.number)
        return find(engine, sequence)

    class Checked(Trying):
        num_begun = 0

        def begin(self, step: Any, request: Any) -> None:
            """The price is by what is cached now, not by what was cached before the last change."""
            self.num_begun += 1
            assert step._cached_prefix(request.sequence) == find(step.engine, request.sequence)

    monkeypatch.setattr(step_costs, "cached_prefix", counted)
    policy = Checked()
    run = kvsim.simulate(requests, policy, machine)
    assert run.summary().num_finished == 24
    assert run.requests.cached_tokens.any()
    assert 0 < len(looked_up) <= policy.num_begun


@pytest.mark.parametrize("hook", ["admit", "victim", "evict", "eviction_rank"])
def test_a_policy_that_fails_is_named_in_a_sentence(
    requests: kvsim.Workload, machine: kvsim.Machine, hook: str
) -> None:
    def fail(*_: Any) -> Any:
        raise ZeroDivisionError("no hits")

    fail.__name__ = hook
    failing = type("Failing", (Plain,), {"name": "failing", hook: fail})()
    with pytest.raises(PolicyError, match=f"'failing' failed in {hook}: ZeroDivisionError: no hits") as found:
        kvsim.simulate(requests, failing, machine)
    error: BaseException | None = found.value
    while error is not None and not isinstance(error, ZeroDivisionError):
        error = error.__cause__
    assert error is not None  # so that Python shows where it happened


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"allocator": lambda *_: 1 // 0}, "'plain' failed in <lambda>: ZeroDivisionError"),
        ({"allocator": partial(Numbered, 1, 2, 3)}, "'plain' failed in allocator: TypeError"),
        ({"eviction_rank": lambda _, block: block}, "eviction_rank returned .*, which cannot be compared"),
        ({"allocator": type("Odd", (Numbered,), {"unusable_units": lambda *_: "x"})}, "says that 'x' of"),
    ],
)
def test_a_policy_that_answers_with_something_else_is_a_sentence(
    requests: kvsim.Workload, machine: kvsim.Machine, attributes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PolicyError, match=sentence):
        kvsim.simulate(requests, type("Odd", (Plain,), attributes)(), machine)


@pytest.mark.parametrize(
    ("attributes", "sentence"),
    [
        ({"name": 5}, "Odd.name should be of type str, not 5"),
        ({"allocator": 5}, "Odd.allocator should be a class or a function, not 5"),
        ({"name": property(lambda _: 1 // 0)}, "Odd.name fails: ZeroDivisionError"),
        ({"allocator": property(lambda _: 1 // 0)}, "Odd.allocator fails: ZeroDivisionError"),
        ({"scheduler": None}, "Odd.scheduler should be of type ContinuousSettings, not None"),
        ({"cache": {}}, "Odd.cache should be of type PagedSettings, not {}"),
        ({"unit_tokens": 0}, r"Odd.unit_tokens has no effect; set it with cache = PagedSettings\(block_size=...\)"),
        (
            {"max_model_len": property(lambda _: "long"), "allocator": Numbered},
            r"Odd.max_model_len has no effect; set it with scheduler = ContinuousSettings\(max_model_len=...\)",
        ),
    ],
)
def test_an_attribute_of_another_type_is_a_sentence(
    requests: kvsim.Workload, machine: kvsim.Machine, attributes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        kvsim.simulate(requests, type("Odd", (kvsim.CustomPolicy,), attributes)(), machine)


@pytest.mark.parametrize("chosen", ["", "P", "Policy"])
def test_a_class_with_two_names_in_its_file_is_one_policy(tmp_path: Path, chosen: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import kvsim\nclass P(kvsim.CustomPolicy):\n    name = 'mine'\nPolicy = P\n")
    assert policy_from_file(f"{file}:{chosen}" if chosen else str(file)).name == "mine"


def test_a_file_that_exits_is_no_policy(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit(3)\n")
    with pytest.raises(UsageError, match="cannot be made: SystemExit: 3"):
        policy_from_file(str(tmp_path / "mine.py"))


class RankedByHits(Plain):
    name = "ranked"

    def eviction_rank(self, block: CachedBlock) -> Any:
        return block.num_hits * (BLOCK + block.tokens_below), block.last_used_s


class ChosenByHits(Plain):
    name = "chosen"

    def evict(self, step: StepInMaking, candidates: Sequence[CachedBlock]) -> CachedBlock:
        return min(candidates, key=lambda block: (block.num_hits * (BLOCK + block.tokens_below), block.last_used_s))


@pytest.mark.parametrize("num_blocks", [30, 60])
def test_ranks_evict_what_a_look_at_all_candidates_evicts(
    requests: kvsim.Workload, make_machine: MakeMachine, num_blocks: int
) -> None:
    machine = make_machine(num_blocks * BLOCK)
    assert same(
        kvsim.simulate(requests, RankedByHits(), machine, check=True), kvsim.simulate(requests, ChosenByHits(), machine)
    )


def test_two_rules_of_eviction_are_refused(requests: kvsim.Workload, machine: kvsim.Machine) -> None:
    both = type("Both", (RankedByHits, ChosenByHits), {"name": "both"})()
    with pytest.raises(UsageError, match="the policy 'both' has both evict and eviction_rank; keep one of the two"):
        kvsim.simulate(requests, both, machine)
