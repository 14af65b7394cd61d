from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import RecordingError, UnknownNameError, UsageError
from kvsim.models import Model, all_models, find_model, find_quantization, listed, taken_for
from kvsim.models.huggingface import from_fields
from tests.models.test_damaged_configs import whole

KIB = 1024
COUNTS = Path(__file__).with_name("parameter-counts.jsonl.gz")
LLAMA = {
    "name": "llama-3-8b",
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "kv_bytes_per_token": 131072,
}


@pytest.mark.parametrize(
    ("name", "num_bytes"),
    [
        ("facebook/opt-13b", 800 * KIB),  # PagedAttention paper, section 3
        ("01-ai/Yi-6B", 64 * KIB),  # vAttention paper
        ("meta-llama/Meta-Llama-3-8B", 128 * KIB),
        ("01-ai/Yi-34B", 240 * KIB),
        ("ibm-granite/granite-4.0-350m", 28_672),
        ("ibm-granite/granite-4.0-h-tiny", 8_192),
        ("deepseek-ai/DeepSeek-V3", 61 * 576 * 2),
        ("Qwen/Qwen2.5-7B-Instruct", 57_344),
    ],
)
def test_kv_bytes_per_token_as_published(name: str, num_bytes: int) -> None:
    assert find_model(name).kv_bytes_per_token == num_bytes


@pytest.mark.parametrize(("name", "slots_k"), [("opt-66b", 21), ("opt-175b", 264)])
def test_the_larger_opt_models_hold_what_table_1_of_the_paper_says(name: str, slots_k: int) -> None:
    published = {21: 9_700, 264: 60_100}[slots_k]
    assert slots_k * 2**30 / find_model(name).kv_bytes_per_token == pytest.approx(published, rel=0.02)


def test_85_models_with_distinct_names_and_a_source_each() -> None:
    models = all_models()
    assert len({model.name for model in models}) == len(models) == 85
    assert all(model.sources for model in models)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("deepseek-ai/DeepSeek-V3", 37.6),
        ("ibm-granite/granite-4.0-h-small", 8.8),
        ("ibm-granite/granite-4.0-h-tiny", 1.5),
        ("meta-llama/Llama-3.1-70B", 70.6),
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    assert find_model(name).num_active_parameters / 1e9 == pytest.approx(billions, abs=0.05)


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.name)
def test_figures_of_every_model_are_consistent(model: Model) -> None:
    assert model.num_kv_layers <= model.num_layers
    assert model.num_attention_heads % model.num_kv_heads == 0
    assert 0 < model.flops_per_token < 2 * model.num_active_parameters <= 2 * model.num_parameters
    assert model.num_parameters - model.num_expert_parameters <= model.num_active_parameters
    assert len(model.layers) == model.num_layers
    assert (model.state_bytes_per_sequence > 0) == bool(model.recurrent_layers)
    assert (model.num_experts > 0) == (model.num_expert_parameters > 0)


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.name)
def test_every_model_is_found_by_its_full_name_and_by_its_last_part(model: Model) -> None:
    assert find_model(model.name.upper()) is model
    assert find_model(model.name.rpartition("/")[2]) is model


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("meta-llama/llama-3-8b", "meta-llama/Meta-Llama-3-8B"),
        ("granite-4.0-350m", "ibm-granite/granite-4.0-350m"),
        ("Llama-2-7b", "meta-llama/Llama-2-7b-hf"),
        ("llama-13b", "huggyllama/llama-13b"),
        ("qwen2.5-7b", "Qwen/Qwen2.5-7B"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B"),
        ("mistral-7b", "mistralai/Mistral-7B-Instruct-v0.3"),
        ("qwen3-30b", "Qwen/Qwen3-30B-A3B"),
        (" phi-4 ", "microsoft/phi-4"),
        ("Meta-Llama-3-8B-Instruct", "meta-llama/Meta-Llama-3-8B"),
        ("meta-llama/Llama-3.1-70B-Instruct", "meta-llama/Llama-3.1-70B"),
        ("gemma-3-27b", "google/gemma-3-27b-it"),
        ("Qwen3-Next-80B-A3B", "Qwen/Qwen3-Next-80B-A3B-Instruct"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        ("Mistral-7B-v0.3", "mistralai/Mistral-7B-Instruct-v0.3"),
        ("Qwen3-32B-AWQ", "Qwen/Qwen3-32B"),
        ("Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B"),
        ("google/gemma-2-9b", "google/gemma-2-9b-it"),
        ("google/gemma-2-27b-it-AWQ", "google/gemma-2-27b-it"),
        ("Qwen2.5-VL-7B", "Qwen/Qwen2.5-VL-7B-Instruct"),
        ("/data/model/Qwen/Qwen2___5-VL-32B-Instruct-AWQ", "Qwen/Qwen2.5-VL-32B-Instruct"),
        ("~/.cache/huggingface/hub/models--Qwen--QwQ-32B-AWQ/snapshots/0a1b", "Qwen/QwQ-32B"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-ai/DeepSeek-V3-0324"),
    ],
)
def test_names_as_people_write_them(name: str, found: str) -> None:
    assert find_model(name).name == found


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("gemma-2-2b-it", 2_614_341_888),
        ("gemma-2-9b-it", 9_241_705_984),
        ("gemma-2-27b-it", 27_227_128_320),
        ("Qwen2.5-VL-3B-Instruct", 3_754_622_976),
        ("Qwen2.5-VL-7B-Instruct", 8_292_166_656),
        ("Qwen2.5-VL-32B-Instruct", 33_452_718_336),
        ("Qwen2.5-VL-72B-Instruct", 73_410_777_344),
    ],
)
def test_the_fields_give_the_parameters_of_the_checkpoint(name: str, published: int) -> None:
    model = find_model(name)
    assert model.num_parameters + model.encoder_bytes / model.dtype_bytes == pytest.approx(published, rel=0.003)


def test_gemma_2_has_a_window_in_every_other_layer() -> None:
    windows = [getattr(layer, "window", None) for (layer,) in find_model("gemma-2-9b-it").layers]
    assert windows == [4096, None] * 21


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("google/gemma-3-27b-it-int4-awq", "awq"),
        ("unsloth/gemma-2-9b-it-bnb-4bit", "bitsandbytes"),
        ("RedHatAI/gemma-2-9b-it-FP8", "fp8"),
        ("models--Qwen--Qwen3-8B-FP8", "fp8"),
    ],
)
def test_a_sibling_has_the_quantization_of_its_name(name: str, method: str) -> None:
    quantization = find_model(name).quantization
    assert quantization is not None
    assert quantization.method == method
    assert f"with {method} weights" in taken_for(name, find_model(name))


@pytest.mark.parametrize(("name", "method"), [("awq_marlin", "awq"), ("modelopt_fp4", "nvfp4"), ("W8A8_INT8", "int8")])
def test_kernels_of_one_quantization_are_one(name: str, method: str) -> None:
    assert find_quantization(name) is find_quantization(method)


def test_a_variant_is_stored_as_its_name_says() -> None:
    plain, awq = find_model("Qwen3-32B"), find_model("Qwen3-32B-AWQ")
    assert awq.weight_bytes < plain.weight_bytes / 3
    assert awq.layers == plain.layers


def test_a_folder_here_is_found_after_the_listed_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "phi-4"):
        (tmp_path / name).mkdir()
        config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
        config |= {"num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 512}
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    assert find_model("mine").num_layers == 2
    assert find_model("phi-4").num_layers == 40
    assert find_model("./phi-4").num_layers == 2


@pytest.mark.parametrize("name", [
    "", "llama", "gemma-3", "13b", "lama-3-8", "-", "mistral", "deepseek-v2", "nemotron-h",
    "falcon-h1", "phi-3-mini", "Mistral-7B-v0.1", "deepseek-ai/DeepSeek-V3.9", "Qwen/Qwen3-30B-A3B-Instruct-2607",
    "gemma-2", "qwen2.5-vl", "deepseek-ai/DeepSeek-R1-Distill-Yi-34B",
])  # fmt: skip
def test_no_model_is_guessed(name: str) -> None:
    with pytest.raises(UnknownNameError):
        find_model(name)


def test_the_nearest_model_is_suggested() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean .*meta-llama/Meta-Llama-3-8B"):
        find_model("Lama-3-8B")


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("llama3", "meta-llama/Meta-Llama-3-8B or meta-llama/Meta-Llama-3-70B"),
        ("llama-4-scout", "meta-llama/Llama-4-Scout-17B-16E-Instruct"),
        ("mistral", "mistralai/Mistral-7B-Instruct-v0.3 or mistralai/Mistral-7B-Instruct-v0.2"),
    ],
)
def test_the_models_with_most_words_in_common_are_suggested(name: str, suggested: str) -> None:
    with pytest.raises(UnknownNameError, match=rf"did you mean {suggested}\?"):
        find_model(name)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", r"taken for meta-llama/Llama-3.1-8B: .* 131,072 tokens"),
        ("Qwen/Qwen3-8B-FP8", "Qwen/Qwen3-8B with fp8 weights"),
        ("mistral-7b", "Mistral-7B-Instruct-v0.3"),
        ("someone/phi-4", "taken for microsoft/phi-4: "),
        ("unsloth/Meta-Llama-3.1-8B-Instruct", "taken for meta-llama/Llama-3.1-8B: "),
        ("/models/Qwen2.5-14B-Instruct-AWQ/", "taken for Qwen/Qwen2.5-14B-Instruct with awq weights"),
        ("RedHatAI/Llama-3.3-70B-Instruct-quantized.w8a8", "Llama-3.3-70B-Instruct with int8 weights"),
        ("TheBloke/Llama-2-7B-Chat-GPTQ", "taken for meta-llama/Llama-2-7b-hf with gptq weights"),
        ("casperhansen/deepseek-r1-distill-llama-70b-awq", "DeepSeek-R1-Distill-Llama-70B with awq weights"),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "^$"),
        ("llama-3-8b", "^$"),
        ("Qwen/Qwen2.5-72B", "^$"),
        ("phi-4", "^$"),
    ],
)
def test_what_was_taken_is_said_where_it_is_not_what_was_asked_for(name: str, words: str) -> None:
    assert re.search(words, taken_for(name, find_model(name)))


@pytest.mark.parametrize(
    ("name", "longest"),
    [("Qwen2.5-7B", 131_072), ("Qwen2.5-7B-Instruct", 32_768), ("Qwen3-8B-Base", 32_768), ("Qwen3-8B", 40_960)],
)
def test_siblings_of_one_shape_keep_their_own_longest_sequence(name: str, longest: int) -> None:
    assert find_model(name).max_position_embeddings == longest


def test_the_cache_of_hugging_face_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "models--someone--Fine-3B"
    config = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
    config |= {"num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 512}
    for commit, layers in (("aaa", 2), ("bbb", 3)):
        snapshot = folder / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
        assert find_model(str(snapshot)).name == "someone/Fine-3B"
    with pytest.raises(UsageError, match="2 snapshots, aaa, bbb"):
        find_model(str(folder))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("bbb\n")
    assert find_model(str(folder)).num_layers == 3
    with pytest.raises(UsageError, match=r"has no config\.json"):
        find_model(str(tmp_path))


def test_tables_are_those_of_the_file() -> None:
    document = tomllib.loads(Path(listed.__file__).with_name("listed.toml").read_text(encoding="utf-8"))
    assert [{"model": [entry]} for entry in document["model"]] == [*map(tomllib.loads, listed._tables().values())]
    assert [entry["name"] for entry in document["model"]] == list(listed._tables())


def test_a_shape_equals_the_listed_model() -> None:
    built, listed = Model.from_shape(LLAMA), find_model("llama-3-8b")
    assert built.num_parameters == listed.num_parameters == 8_030_261_248
    assert built.kv_bytes_per_token == 131_072
    assert built.weight_bytes == listed.weight_bytes
    assert built.flops_per_token == listed.flops_per_token


@pytest.mark.parametrize("model", all_models(), ids=lambda model: model.name)
def test_a_model_survives_being_written_down(model: Model) -> None:
    assert Model.from_shape(json.loads(json.dumps(asdict(model)))) == model


@pytest.mark.parametrize("name", ["llama-2-7b", "llama-3.1-70b", "phi-4", "granite-4.0-350m", "qwen3-8b", "yi-34b"])
def test_parameters_computed_from_a_shape_are_those_of_the_table(name: str) -> None:
    listed = find_model(name)
    shape = {key: getattr(listed, key) for key in Model.__dataclass_fields__ if "parameters" not in key}
    assert Model.from_shape(shape).num_parameters == pytest.approx(listed.num_parameters, rel=1e-5)


@pytest.mark.parametrize(
    "folder",
    sorted(file.parent for file in (Path(__file__).parents[2] / "traces").glob("*/meta.json")),
    ids=lambda path: path.name,
)
def test_models_of_the_shipped_recordings(folder: Path) -> None:
    meta = json.loads((folder / "meta.json").read_text())
    served = {key: meta["engine"][key] for key in ("tensor_parallel_size", "kv_cache_dtype") if key in meta["engine"]}
    model = Model.from_shape(served | meta["model"])
    if groups := meta.get("kv_cache_groups"):
        assert sum(group["num_layers"] for group in groups) == model.num_layers
        return
    assert model.kv_bytes_per_token * meta["pool"]["unit_tokens"] == meta["pool"]["bytes_per_unit"]
    assert model.num_parameters == find_model(meta["model"]["name"]).num_parameters


@given(
    key=st.sampled_from(sorted(LLAMA)),
    value=st.none() | st.booleans() | st.integers(-1, 9) | st.text() | st.lists(st.none(), max_size=2),
)
@settings(max_examples=100)
def test_a_damaged_shape_is_a_model_or_an_error_that_names_the_field(key: str, value: object) -> None:
    try:
        model = Model.from_shape(LLAMA | {key: value})
    except RecordingError as error:
        assert key in str(error) or "kv_bytes_per_token" in str(error)  # noqa: PT017
    else:
        assert model.kv_bytes_per_token == 131_072


@pytest.mark.parametrize("key", ["num_layers", "head_dim", "num_parameters", "kv_lora_rank"])
@pytest.mark.parametrize("value", [0, -1, True, "8", 2.5, []])
def test_a_count_that_is_no_positive_integer_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(RecordingError, match=rf"says {key} = .*at least 1"):
        Model.from_shape(LLAMA | {key: value})


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("num_kv_heads", 0, "a whole number of at least 1"), ("head_dim", 0, "a whole number of at least 1"),
        ("head_dim", -1, "a whole number of at least 1"), ("window", True, "a whole number of at least 1"),
    ],
)  # fmt: skip
def test_a_layer_without_heads_or_elements_is_refused_by_name(field: str, value: object, right: str) -> None:
    window = {"kind": "sliding_window", "num_kv_heads": 8, "head_dim": 128, "value_head_dim": 128, "window": 512}
    shape = LLAMA | {"layer_kinds": [window | {field: value}], "layer_caches": [[0]] * 32}
    with pytest.raises(
        RecordingError, match=f"says {field} = {value} in layer_kinds, kind sliding_window; it must be {right}"
    ):
        Model.from_shape(shape)


def test_fields_of_a_layer_that_are_no_numbers_have_their_own_types() -> None:
    latent = {"kind": "mla", "kv_lora_rank": 512, "rope_dim": 0, "sparse": False}
    shape = {key: value for key, value in LLAMA.items() if key != "kv_bytes_per_token"}
    shape |= {"layer_kinds": [latent], "layer_caches": [[0]] * 32}
    assert Model.from_shape(shape).kv_lora_rank == 512
    with pytest.raises(RecordingError, match="says sparse = 'bfloat16' in layer_kinds, kind mla; it must be true or"):
        Model.from_shape(shape | {"layer_kinds": [latent | {"sparse": "bfloat16"}]})
    convolution = {"kind": "short_conv", "inner_size": 64, "conv_kernel": 3, "dtype": True}
    with pytest.raises(RecordingError, match="says dtype = True in layer_kinds, kind short_conv; it must be one of"):
        Model.from_shape(shape | {"layer_kinds": [convolution]})


def test_what_is_missing_or_contradictory_is_named() -> None:
    with pytest.raises(
        RecordingError, match=r"'llama-3-8b' does not say head_dim; it must be a whole number of at least 1"
    ):
        Model.from_shape({key: value for key, value in LLAMA.items() if key != "head_dim"})
    with pytest.raises(RecordingError, match=r"dtype = 'int3'.*bfloat16"):
        Model.from_shape(LLAMA | {"dtype": "int3"})
    with pytest.raises(RecordingError, match=r"kv_bytes_per_token = 1; it must be 131,072, by its shape"):
        Model.from_shape(LLAMA | {"kv_bytes_per_token": 1})


def test_parameters_of_any_configuration_are_those_of_the_model_that_is_built_from_it() -> None:
    # The default configuration of every class that Transformers 5.23 and kvsim both know, and what the model counts.
    rows = [json.loads(line) for line in gzip.decompress(COUNTS.read_bytes()).splitlines()]
    assert len(rows) >= 50
    for row in rows:
        (architecture,) = row["config"]["architectures"]
        model = from_fields(whole(row["config"]), name=architecture, where=architecture)
        assert model.num_parameters == pytest.approx(row["num_parameters"], rel=0.001), architecture
        assert model.num_active_parameters <= model.num_parameters


def test_heads_are_dealt_out_among_gpus_and_the_latent_is_not() -> None:
    llama, deepseek = find_model("llama-3-8b"), find_model("deepseek-v3")
    per_gpu = [llama.served(tensor_parallel_size=size).kv_bytes_per_token for size in (1, 2, 8, 16)]
    assert per_gpu == [131_072, 65_536, 16_384, 16_384]
    assert deepseek.served(tensor_parallel_size=8).kv_bytes_per_token == deepseek.kv_bytes_per_token == 61 * 1152


def test_importing_the_module_does_not_read_the_table() -> None:
    code = "from kvsim.models.listed import _tables; raise SystemExit(_tables.cache_info().currsize)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
