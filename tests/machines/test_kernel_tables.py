"""Kernel tables of an optional package: what is read of them, and which answers they change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib import invalidate_caches
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kvsim.cli.run import command as run_command
from kvsim.errors import MissingExtraError, UsageError
from kvsim.hardware import find_gpu
from kvsim.machines import Basis, card_of, choice, class_in, kernel_tables, plain_words, step_times
from kvsim.machines.known_errors import with_error
from kvsim.models import find_model
from kvsim.steptime import StepShape, reduce
from kvsim.steptime.curves import experts_s, product_curve, reduce_s
from kvsim.steptime.work import attention_products, work_of

H100 = find_gpu("H100 SXM")
RATE = 3e12
"""Bytes per second of the products in these tables; each starts in 2 us."""


_WIDTHS = (512, 1024, 4096, 8192, 16384, 65536)
SIZES = list(product((1, 8, 64, 512, 4096, 16384), _WIDTHS, _WIDTHS))


def product_ms(m: int, n: int, k: int) -> float:
    return 1e3 * (2e-6 + 2 * n * k / RATE + 2 * m * n * k / 7e14)


def write(folder: Path, kind: str, name: str, rows: list[dict[str, Any]]) -> None:
    file = folder / "systems/data/h100_sxm" / kind / "vllm/0.24.0" / f"{name}_perf.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    common = {"version": "0.24.0", "device": "a GPU"}
    pq.write_table(pa.Table.from_pylist([common | row for row in rows]), file)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with the names of the real one and tables of an H100 that follow formulas."""
    folder = tmp_path / "aiconfigurator_core"
    folder.mkdir()
    (folder / "__init__.py").touch()
    metadata = tmp_path / "aiconfigurator_core-9.9.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 9.9\n")
    write(folder, "gemm", "gemm", [
        {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": product_ms(m, n, k)} for m, n, k in SIZES
    ])  # fmt: skip
    write(folder, "comm", "custom_allreduce", [
        {"kernel_source": source, "num_gpus": 2, "message_size": 1 << power, "latency": late + (1 << power) / 2e8}
        for source, late in (("vLLM_custom_graph", 0.004), ("vLLM_custom_eager", 0.02)) for power in range(7, 28)
    ])  # fmt: skip
    write(folder, "moe", "moe", [
        {"moe_dtype": "bfloat16", "distribution": spread, "hidden_size": 4096, "inter_size": 14336, "num_experts": 8,
         "topk": 2, "moe_tp_size": 2, "moe_ep_size": 1, "num_tokens": tokens, "latency": late * (0.4 + tokens / 4096)}
        for spread, late in (("balanced", 1.0), ("power_law_1.2", 3.0)) for tokens in (1, 2, 4, 8, 64, 512, 4096)
    ])  # fmt: skip
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(kernel_tables, "PACKAGE", "aiconfigurator-core")
    yield from _fresh(folder)


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kernel_tables, "PACKAGE", "no-such-package")
    yield from _fresh(None)


def _fresh(value: Any) -> Iterator[Any]:
    def forget() -> None:
        invalidate_caches()
        kernel_tables._tables_of.cache_clear()
        choice._from_known_card.cache_clear()

    forget()
    yield value
    forget()


def served(name: str, size: int) -> Any:
    return find_model(name).served(tensor_parallel_size=size)


@pytest.mark.usefixtures("package")
def test_a_measured_weight_has_its_measured_time() -> None:
    model = served("CodeLlama-34b", 2)
    card = kernel_tables.table_card(H100, model, card_of(H100, 2))
    at = product_curve(card.products["bfloat16"], 8192, 4096)  # the output projection of its attention
    for m in (1, 8, 64, 512, 4096):
        assert at(m) == pytest.approx(product_ms(m, 8192, 4096) / 1e3, rel=1e-6)


@pytest.mark.usefixtures("package")
def test_a_weight_in_between_is_between_its_neighbours_for_each_weight() -> None:
    model = served("CodeLlama-34b", 2)
    card = kernel_tables.table_card(H100, model, card_of(H100, 2))
    for weights in work_of(model).products:
        time_s = product_curve(card.products["bfloat16"], *weights)(64)
        assert time_s == pytest.approx(product_ms(64, *weights) / 1e3, rel=0.05)


@pytest.mark.usefixtures("package")
def test_sums_are_those_of_a_captured_graph_in_bytes() -> None:
    card = kernel_tables.table_card(H100, served("CodeLlama-34b", 2), card_of(H100, 2))
    assert reduce_s(card.all_reduce, 2 << 20) == pytest.approx((0.004 + (1 << 20) / 2e8) / 1e3)


@pytest.mark.usefixtures("package")
def test_experts_are_of_even_tokens_and_few_tokens_reach_few() -> None:
    model = served("Mixtral-8x7B-v0.1", 2)
    card = kernel_tables.table_card(H100, model, card_of(H100, 2))
    assert card.experts is not None
    assert card.experts.seconds[-1] == pytest.approx(1.4e-3)
    times = [experts_s(card.experts, m, 8, 2) for m in (1, 2, 4, 16, 512, 4096, 8192)]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(2 * 1.4e-3, rel=0.01)


SPARSE = {"step_s": 1e-4, "sequence_s": 5e-7, "token_s": 4e-11, "selected_token_s": 2e-10}
SPARSE_PAIRS = {"pair_s": 2e-12, "selected_pair_s": 4e-10}


def test_sparse_attention_is_told_apart_from_its_products(package: Path) -> None:
    model = served("DeepSeek-V3.2", 8)
    common = {
        "architecture": model.architecture,
        "num_heads": 16,
        "gemm_type": "fp8_block",
        "kv_cache_dtype": "bfloat16",
    }
    alone = kernel_tables.table_card(H100, model, card_of(H100, 8))
    curves = [product_curve(alone.products["bfloat16"], *weights) for weights in attention_products(model)]
    fp8 = [{"gemm_dtype": "fp8", "m": m, "n": n, "k": k, "latency": product_ms(m, n, k)} for m, n, k in SIZES]
    bf16 = [row | {"gemm_dtype": "bfloat16"} for row in fp8]
    write(package, "gemm", "gemm", fp8 + bf16)

    def module_ms(seconds: float, tokens: int) -> float:
        return 1e3 * (seconds + sum(curve(tokens) for curve in curves))

    def decoding_s(seqs: int, context: int) -> float:
        features = {
            "step_s": 1,
            "sequence_s": seqs,
            "token_s": seqs * context,
            "selected_token_s": seqs * min(context, 2048),
        }
        return sum(SPARSE[name] * count for name, count in features.items())

    def prompt_s(queries: int) -> float:
        return SPARSE_PAIRS["pair_s"] * queries**2 / 2 + SPARSE_PAIRS["selected_pair_s"] * 2048 * (queries - 1024)

    write(package, "sparse_attention", "dsa_generation_module", [
        common | {"batch_size": seqs, "step": context - 1, "latency": module_ms(decoding_s(seqs, context), seqs)}
        for seqs, context in product((1, 8, 64, 256), (256, 1024, 4096, 32768))
    ])  # fmt: skip
    write(package, "sparse_attention", "dsa_context_module", [
        common | {"batch_size": 1, "step": 0, "isl": queries, "latency": module_ms(prompt_s(queries), queries)}
        for queries in (64, 2048, 4096, 8192, 16384)
    ])  # fmt: skip
    card = kernel_tables.table_card(H100, model, card_of(H100, 8))
    assert card.sparse is not None
    for name, cost in (SPARSE | SPARSE_PAIRS).items():
        assert getattr(card.sparse, name) == pytest.approx(cost, rel=0.03), name
    assert "sparse attention (each token" not in step_times(H100, model, "vllm", source="kernels").label


LATENT = {"sequence_s": 3e-7, "token_s": 4e-10}


def test_latent_attention_has_the_slopes_of_its_module_and_the_start_of_the_card(package: Path) -> None:
    model = served("DeepSeek-V3", 8)
    common = {"num_heads": 16, "gemm_type": "bfloat16", "kv_cache_dtype": "bfloat16"}
    beside = [(2112, 7168), (16 * 192, 1536), (16 * 256, 512), (7168, 16 * 128)]

    def module_ms(seconds: float, tokens: int) -> float:
        return 1e3 * seconds + sum(product_ms(tokens, *each) for each in beside)

    write(package, "mla", "mla_generation_module", [
        common | {"batch_size": seqs, "step": context - 1, "latency":
                  module_ms(9e-5 + LATENT["sequence_s"] * seqs + LATENT["token_s"] * seqs * context, seqs)}
        for seqs, context in product((1, 8, 64, 512), (256, 1024, 4096, 32768))
    ])  # fmt: skip
    write(package, "mla", "mla_context_module", [
        common | {"batch_size": 1, "isl": queries, "latency": module_ms(8e-12 * queries**2 / 2, queries)}
        for queries in (2048, 4096, 8192, 16384)
    ])  # fmt: skip
    card = kernel_tables.table_card(H100, model, card_of(H100, 8))
    assert card.latent is not None
    for name, cost in (LATENT | {"pair_s": 8e-12}).items():
        assert getattr(card.latent, name) == pytest.approx(cost, rel=0.05), name
    times, plain = (reduce(each, model) for each in (card, replace(card, latent=None)))
    assert times.sequence_s != plain.sequence_s
    assert times.context_token_s == pytest.approx(61 * card.latent.token_s)
    assert times.step_s == plain.step_s


def attention_rows(cache: str, byte_s: float) -> dict[str, list[dict[str, Any]]]:
    """Tables of 32 heads on 8, of which a decode reads a byte in `byte_s`."""
    element_bytes = 1 if cache == "fp8" else 2
    common = {"attn_dtype": "bfloat16", "kv_cache_dtype": cache, "window_size": 0,
              "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128}  # fmt: skip
    read = 2 * element_bytes * 8 * 128
    return {
        "generation_attention": [
            common | {"batch_size": n, "step": c - 1, "latency": 1e3 * (1e-5 + n * c * read * byte_s)}
            for n, c in product((1, 8, 64, 128, 512), (128, 1024, 16384))
        ],
        "context_attention": [
            common | {"batch_size": 1, "isl": q, "latency": 1e3 * (1e-5 + q * q / 2 * 16384 / 5e14)}
            for q in (128, 1024, 4096, 16384)
        ],
    }


def test_a_gated_delta_net_has_the_slopes_of_its_kernels_and_its_state_the_bytes_of_its_type(package: Path) -> None:
    mixture = served("Qwen3.5-35B-A3B", 1)
    common = {"num_k_heads": 16, "num_v_heads": 32, "head_k_dim": 128, "head_v_dim": 128, "d_conv": 4}
    of_sequence = {"causal_conv1d_update": 3e-5, "fused_recurrent_gated_delta_rule_packed_decode": 1e-3}
    of_token = {"causal_conv1d_fn": 1e-5, "chunk_gated_delta_rule_triton": 4e-5}
    write(package, "linear_attention", "gdn", [
        *(common | {"kernel_source": name, "phase": "generation", "batch_size": seqs, "seq_len": 1, "num_tokens": seqs,
                    "latency": 2e-3 + slope * seqs}
          for name, slope in of_sequence.items() for seqs in (1, 8, 64, 256)),
        *(common | {"kernel_source": name, "phase": "context", "batch_size": 1, "seq_len": tokens, "num_tokens": tokens,
                    "latency": 8e-3 + slope * tokens}
          for name, slope in of_token.items() for tokens in (1, 64, 1024, 16384)),
    ])  # fmt: skip
    card = kernel_tables.table_card(H100, mixture, card_of(H100))
    assert card.delta_net is not None
    assert card.delta_net.sequence_s == pytest.approx(1.03e-6, rel=1e-3)
    assert card.delta_net.token_s == pytest.approx(5e-8, rel=1e-3)
    halves = kernel_tables.table_card(H100, served("Qwen3-Next-80B-A3B", 1), card_of(H100)).delta_net
    assert halves is not None
    assert halves.sequence_s == pytest.approx(1.03e-6 / 2, rel=1e-3), "its state is in 16 bits"
    labels = {source: step_times(H100, mixture, "vllm", source=source).label for source in ("none", "kernels")}
    assert "recurrent layers other than Mamba 2" in labels["none"]
    assert "recurrent layers other than Mamba 2" not in labels["kernels"]
    assert all("error never measured" in label for label in labels.values())
    told, untold = reduce(card, mixture), reduce(replace(card, delta_net=None), mixture)

    def longer_s(shape: StepShape) -> float:
        return told.step_time(shape).gpu_s - untold.step_time(shape).gpu_s

    layers = len(mixture.recurrent_layers)
    longer_prompt_s = longer_s(StepShape(1, 8192, 8192, 8192, 0)) - longer_s(StepShape(1, 4096, 4096, 4096, 0))
    assert longer_prompt_s == pytest.approx(layers * 4096 * 5e-8, rel=0.05)


def test_a_cache_in_fp8_is_read_at_its_measured_pace(package: Path) -> None:
    plain, fp8 = attention_rows("bfloat16", 1e-12), attention_rows("fp8", 1.5e-12)
    for name, rows in plain.items():
        write(package, "attention", name, [*rows, *fp8[name]])
    model = served("Llama-3.1-8B", 1)
    card, of_fp8 = (
        kernel_tables.table_card(H100, each, card_of(H100, 1)) for each in (model, model.served(kv_cache_dtype="fp8"))
    )
    assert (card.has_fp8_attention, of_fp8.has_fp8_attention) == (False, True)
    times, of_fp8_times = reduce(card, model), reduce(of_fp8, model.served(kv_cache_dtype="fp8"))
    assert of_fp8_times.context_token_s / times.context_token_s == pytest.approx(1.5 / 2, rel=0.05)


@pytest.mark.usefixtures("package")
def test_tables_are_taken_where_sums_would_be_guessed_and_say_so() -> None:
    by_default = step_times(H100, served("CodeLlama-34b", 2), "vllm")
    asked = step_times(H100, served("CodeLlama-34b", 2), "vllm", source="kernels")
    assert by_default == asked
    assert by_default.label.startswith("kernel tables of H100 SXM (aiconfigurator-core 9.9, vLLM 0.24.0 on a GPU")
    kind = class_in(by_default.label)
    assert kind is not None
    assert kind.basis is Basis.TABLES
    assert not by_default.calibrated


@pytest.mark.usefixtures("package")
def test_a_measured_card_goes_before_tables_unless_they_are_asked_for() -> None:
    model = served("Llama-3.1-8B", 1)
    measured, asked = step_times(H100, model, "vllm"), step_times(H100, model, "vllm", source="kernels")
    assert "kernel tables" not in measured.label
    assert asked.label.startswith("kernel tables")


@pytest.mark.usefixtures("no_package")
def test_without_the_package_asking_for_it_names_the_install_line() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'kvsim\[kernels\]'"):
        step_times(H100, served("Llama-3.1-8B", 1), "vllm", source="kernels")


@pytest.mark.usefixtures("package")
def test_the_command_line_takes_tables_and_prints_them() -> None:
    flags = ["--gpu", "H100", "--model", "Llama-3.1-8B", "--num-requests", "2", "--rate", "1", "--prompt-tokens", "50"]
    flags += ["--output-tokens", "4", "--no-band", "--all"]
    said = CliRunner().invoke(run_command, [*flags, "--profile", "kernels"], catch_exceptions=False).stdout
    assert "kernel tables of H100 SXM (aiconfigurator-core 9.9" in said
    assert "kernel tables" not in CliRunner().invoke(run_command, flags, catch_exceptions=False).stdout


@pytest.mark.usefixtures("no_package")
def test_without_the_package_a_guess_says_what_would_be_better() -> None:
    label = step_times(H100, served("CodeLlama-34b", 2), "vllm").label
    assert "; kvsim[kernels] would add measured kernels" in label
    assert plain_words(label).endswith("; kvsim[kernels] would add measured kernels")
    assert "kvsim[kernels]" not in step_times(H100, served("Llama-3.1-8B", 1), "vllm").label


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    ("gpu", "engine", "words"), [("T4", "vllm", "has no tables of T4"), ("H100 SXM", "hf-dynamic", "not of hf-dynamic")]
)
def test_a_source_that_cannot_be_is_refused(gpu: str, engine: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        step_times(find_gpu(gpu), served("Qwen3-8B", 1), engine, source="kernels")


def test_a_class_that_nobody_checked_says_so() -> None:
    model = served("Llama-3.1-8B", 1)
    kind = choice.class_of(Basis.TABLES, find_gpu("B200"), model, "vllm")
    assert "kernel tables, never checked against a recording" in with_error("times", kind, model)
