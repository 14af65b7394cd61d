"""Whatever stands in a config.json: a model, or one sentence that says what is wrong with which file."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import UsageError
from kvsim.kv_groups import CacheSettings, plan_cache
from kvsim.models import Model
from kvsim.models.huggingface import from_fields


def whole(config: dict[str, Any]) -> dict[str, Any]:
    """The defaults of a class of Transformers, with what that class leaves open."""
    (architecture,) = config["architectures"]
    if architecture == "Glm4MoeForCausalLM":
        return config | {"head_dim": 42}
    return {"max_position_embeddings": 2048} | config if "Mamba" in architecture else config


ROWS = [
    whole(json.loads(line)["config"])
    for line in gzip.decompress(Path(__file__).with_name("parameter-counts.jsonl.gz").read_bytes()).splitlines()
]
EXTRAS: dict[str, Any] = {
    "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
    "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304},
    "text_config": {},
    "hybrid_override_pattern": "M*-E",
    "num_kv_shared_layers": 2,
}
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([10**9, 10**30, -(10**30)]),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.5, 1e300]),
    st.sampled_from(["", "float32", "\x00", "M*", "full_attention", "a" * 10_000]),
    st.lists(st.one_of(st.none(), st.integers(-1, 99), st.sampled_from(["mamba", "moe", "x"])), max_size=4),
    st.dictionaries(
        st.sampled_from(
            ["factor", "rope_type", "bits", "quant_method", "config_groups", "hidden_size", "0", "head_dim"]
        ),
        st.one_of(st.none(), st.integers(-1, 9), st.sampled_from(["yarn", math.inf, math.nan, "fp8", {}, []])),
        max_size=3,
    ),
)


@given(st.sampled_from(ROWS), st.data())
@settings(max_examples=400, deadline=None)
def test_a_damaged_config_is_a_model_or_an_error_in_a_sentence(config: dict[str, Any], data: st.DataObject) -> None:
    damaged = dict(config)
    for _ in range(data.draw(st.integers(1, 3))):
        key = data.draw(st.sampled_from([*config, *EXTRAS]))
        damaged[key] = data.draw(st.one_of(JUNK, st.just(EXTRAS.get(key))))
    try:
        model = from_fields(damaged, name="damaged", where="its config.json")
    except UsageError as error:
        assert "config.json" in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
        assert len(str(error)) < 1000  # noqa: PT017
        return
    check(model)


def check(model: Model) -> None:
    assert model.num_parameters > 0
    assert len(model.layers) == model.num_layers
    assert model.weight_bytes > 0
    assert model.kv_bytes_per_token >= 0
    try:
        plan = plan_cache(model, CacheSettings(max_model_len=4096), [1 << 40], insist=True)
    except UsageError as error:
        assert str(error).endswith(".")  # noqa: PT017
    else:
        assert plan.num_blocks >= 0


@pytest.mark.parametrize("config", ROWS, ids=lambda config: config["architectures"][0])
def test_a_field_that_is_left_out_is_asked_for_or_decides_nothing(config: dict[str, Any]) -> None:
    # The rows are the defaults of Transformers' classes: a model without a field of them is the same one, or refused.
    whole = from_fields(config, name="one", where="its config.json")
    for key in config:
        smaller = {name: value for name, value in config.items() if name != key}
        try:
            model = from_fields(smaller, name="one", where="its config.json")
        except UsageError as error:
            assert "config.json" in str(error)  # noqa: PT017
            continue
        if (config["model_type"], key) == ("internlm3", "num_key_value_heads"):
            continue  # it is given a Llama's architecture here, whose class has as many as attention heads
        if model.kv_lora_rank is not None:  # of latents, a head's size has no part in the cache
            model = replace(model, head_dim=whole.head_dim)
        assert model == whole, key


@pytest.mark.parametrize("config", ROWS, ids=lambda config: config["architectures"][0])
def test_a_number_of_another_type_is_refused_where_it_is_read(config: dict[str, Any]) -> None:
    right = from_fields(config, name="one", where="its config.json")
    for key in [key for key, value in config.items() if type(value) is int]:
        smaller = from_fields_or_none({name: value for name, value in config.items() if name != key})
        for value in (str(config[key]), float(config[key]), -1, 10**30, [config[key]], True):
            model = from_fields_or_none(config | {key: value})
            # What nothing depends on may be anything: then it may be left out, too.
            assert model is None or (model == right and smaller == right), (key, value)


def from_fields_or_none(config: dict[str, Any]) -> Model | None:
    try:
        return from_fields(config, name="one", where="its config.json")
    except UsageError:
        return None
