"""Settings that cannot be right are refused with the name of the setting and the value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvsim.engine.custom.custom_rules import CustomRules
from kvsim.errors import UsageError
from kvsim.hardware import find_gpu
from kvsim.policies import EVERY_POLICY, Allocator, Contiguous, CustomPolicy, Paged, Policy, Static, describe, limited
from kvsim.policies.custom import ServedRequest, StepInMaking, check_hooks
from kvsim.policies.settings import (
    ContiguousSettings,
    ContinuousSettings,
    EngineDefaults,
    Order,
    PagedSettings,
    Reserve,
    StaticSettings,
)
from kvsim.sizing.machine_settings import MachineSettings


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (ContinuousSettings, "max_num_seqs"),
        (ContinuousSettings, "max_num_batched_tokens"),
        (ContinuousSettings, "max_model_len"),
        (PagedSettings, "block_size"),
        (StaticSettings, "batch_size"),
        (StaticSettings, "max_model_len"),
    ],
)
def test_sizes_are_positive(settings: type, name: str, value: int) -> None:
    with pytest.raises(UsageError, match=f"^{name} should be at least 1, not {value}\\.$"):
        settings(**{name: value})
    with pytest.raises(UsageError, match=f"^{name} should be at most [0-9,]+, not 2147483648\\.$"):
        settings(**{name: 1 << 31})
    assert getattr(settings(**{name: 1}), name) == 1


@pytest.mark.parametrize("watermark", [-0.01, 1.0, 2.0, float("nan"), float("inf")])
def test_a_watermark_is_a_share(watermark: float) -> None:
    with pytest.raises(UsageError, match=r"watermark should be (at least 0|below 1), not"):
        PagedSettings(watermark=watermark)
    assert PagedSettings(watermark=0.99).watermark == 0.99


def test_a_threshold_may_be_absent_and_not_negative() -> None:
    assert ContinuousSettings(long_prefill_token_threshold=0).long_prefill_token_threshold == 0
    with pytest.raises(UsageError, match="long_prefill_token_threshold should be at least 0, not -1"):
        ContinuousSettings(long_prefill_token_threshold=-1)


def test_settings_are_values() -> None:
    assert PagedSettings() == PagedSettings(block_size=16, enable_prefix_caching=True, watermark=0.0)
    assert hash(ContinuousSettings()) == hash(ContinuousSettings(order=Order.FCFS))
    with pytest.raises(AttributeError):
        PagedSettings().block_size = 32  # type: ignore[misc]


@pytest.mark.parametrize(
    ("entry_point", "gpu", "max_num_seqs", "max_num_batched_tokens"),
    [
        ("llm", "H200", 1024, 16384),
        ("server", "H200", 1024, 8192),
        ("llm", "A100-80GB-SXM", 256, 8192),
        ("server", "A100-80GB-SXM", 256, 2048),
        ("llm", "T4", 256, 8192),
        ("server", "T4", 256, 2048),
    ],
)
def test_vllms_own_defaults(entry_point: str, gpu: str, max_num_seqs: int, max_num_batched_tokens: int) -> None:
    card = find_gpu(gpu)
    defaults = EngineDefaults.of(entry_point, card)
    assert (defaults.max_num_seqs, defaults.max_num_batched_tokens) == (max_num_seqs, max_num_batched_tokens)


@pytest.mark.parametrize("policy", [Paged(), Contiguous(), Static()], ids=lambda policy: policy.name)
def test_a_policy_describes_every_setting_in_plain_values(policy: Policy) -> None:
    described = describe(policy)
    assert described["name"] == policy.name in EVERY_POLICY
    assert described["max_model_len"] == described.get("max_num_seqs") is None
    described = describe(policy, limited(policy, 8192, EngineDefaults.LLM_LARGE))
    assert described["max_model_len"] == 8192
    assert all(isinstance(value, (str, int, float, bool)) for value in described.values())


def test_what_a_policy_says_of_itself() -> None:
    contiguous = Contiguous(cache=ContiguousSettings(reserve=Reserve.POW2, fit="buddy"))
    assert describe(contiguous).items() >= {"reserve": "pow2", "fit": "buddy", "order": "fcfs"}.items()
    assert contiguous.unit_tokens == Static().unit_tokens == 1
    assert Paged(cache=PagedSettings(block_size=32)).unit_tokens == 32


@pytest.mark.parametrize(
    ("given", "num_seqs", "num_tokens"),
    [
        ({}, 1024, 16384),
        ({"max_num_batched_tokens": 512}, 512, 512),
        ({"max_num_seqs": 4, "max_model_len": 256}, 4, 1024),
        ({"enable_chunked_prefill": False, "max_model_len": 40_000}, 1024, 40_000),
        ({"max_num_seqs": 2000}, 2000, 16384),
    ],
)
def test_limits_that_are_left_out_are_adjusted_as_vllm_does(
    given: dict[str, int], num_seqs: int, num_tokens: int
) -> None:
    limits = ContinuousSettings(**given).limited(8192, EngineDefaults.LLM_LARGE)  # type: ignore[arg-type]
    assert (limits.max_num_seqs, limits.max_num_batched_tokens) == (num_seqs, num_tokens)
    limits.check_starts()


def test_limits_with_which_vllm_does_not_start_are_refused_with_its_reason() -> None:
    with pytest.raises(UsageError, match=r"max_num_batched_tokens \(10\) below max_num_seqs \(16\)"):
        ContinuousSettings(max_num_batched_tokens=10, max_num_seqs=16).check_starts()
    whole = ContinuousSettings(
        max_num_seqs=256, max_num_batched_tokens=4096, max_model_len=8192, enable_chunked_prefill=False
    )
    with pytest.raises(UsageError, match=r"below max_model_len \(8,192\) where prompts are not chunked"):
        whole.check_starts()


def test_a_misspelt_hook_is_refused_with_the_right_name() -> None:
    class Mine(CustomPolicy):
        def admitt(self, step: StepInMaking) -> ServedRequest | None:
            return step.waiting[0]

    class Units(Allocator):
        def alocate(self, request: ServedRequest, num_tokens: int) -> None: ...

    class Own(CustomPolicy):
        allocator = Units  # type: ignore[assignment]

        def shortest(self) -> None:
            """A method of its own, which is like no hook."""

    with pytest.raises(UsageError, match=r"Mine\.admitt is never called; CustomPolicy has admit\."):
        check_hooks(Mine())
    with pytest.raises(UsageError, match=r"Units\.alocate is never called; Allocator has allocate\."):
        check_hooks(Own())

    class Later(Mine):
        """The misspelt hook is inherited."""

    with pytest.raises(UsageError, match=r"Later\.admitt is never called; CustomPolicy has admit\."):
        check_hooks(Later())
    made = Own()
    made.allocator = lambda num_units, unit_tokens: Units()  # type: ignore[assignment,abstract]  # noqa: ARG005
    with pytest.raises(UsageError, match=r"Units\.alocate is never called; Allocator has allocate\."):
        CustomRules(made, 10)


@pytest.mark.parametrize(
    ("make", "name", "value", "words"),
    [
        (ContinuousSettings, "max_num_seqs", True, "an integer, not True"),
        (ContinuousSettings, "max_num_seqs", "64", "an integer, not '64'"),
        (PagedSettings, "block_size", 16.0, r"an integer, not 16\.0"),
        (PagedSettings, "block_size", np.int64(0), "at least 1, not 0"),
        (PagedSettings, "watermark", "0.1", "a number, not '0.1'"),
        (PagedSettings, "enable_prefix_caching", "no", "True or False, not 'no'"),
        (MachineSettings, "kv_gib", "1", "a number, not '1'"),
        (MachineSettings, "num_blocks", False, "an integer, not False"),
    ],
)
def test_a_value_of_another_type_is_refused(make: type, name: str, value: object, words: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} should be {words}\\.$"):
        make(**{name: value})


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    given: dict[str, Any] = {
        "block_size": np.int32(32),
        "watermark": np.float32(0.5),
        "hybrid_manager": np.bool_(False),
    }
    settings = PagedSettings(**given)
    assert settings == PagedSettings(block_size=32, watermark=0.5, hybrid_manager=False)
    assert (type(settings.block_size), type(settings.watermark), type(settings.hybrid_manager)) == (int, float, bool)
    assert PagedSettings(hybrid_manager=0) == PagedSettings(hybrid_manager=False)  # type: ignore[arg-type]
