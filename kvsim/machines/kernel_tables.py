"""Machine cards filled from measured kernel times of `aiconfigurator-core` (the extra `kvsim[kernels]`).

NVIDIA's package (Apache-2.0) has times of vLLM's kernels on a dozen GPUs: matrix products, attention, experts,
all-reduces, gated delta nets, and sparse attention as a whole module. So kvsim can predict models and GPUs that it has
not measured. The Parquet tables are read without conversion. The time of a matrix product is interpolated between the
four measured shapes around it, in logarithms of the time per weight. Times that are not in the tables (the host, gaps
between kernels, links) are those of the base card.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvsim.errors import MissingExtraError, UsageError
from kvsim.models.dtypes import DTYPE_BYTES
from kvsim.models.layers import GatedDeltaNet
from kvsim.steptime.card import Attention, Card, DeltaNet, Experts, LatentAttention, Products, SparseAttention
from kvsim.steptime.curves import attention_cost, product_curve
from kvsim.steptime.kernel_constants import FP8_MIXED_SHARE
from kvsim.steptime.sizes import captured_size
from kvsim.steptime.work import Weights, attention_products, work_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.hardware import Gpu
    from kvsim.models import Model
    from kvsim.steptime.work import AttentionKind, Work

PACKAGE = "aiconfigurator-core"
EXTRA = "kernels"
"""Extra of kvsim that installs the package with the tables."""
_SYSTEMS = {
    "A100-80G": "a100_sxm",
    "H100 SXM": "h100_sxm",
    "H200": "h200_sxm",
    "B200": "b200_sxm",
    "B300": "b300_sxm",
    "GB200": "gb200",
    "GB300": "gb300",
    "L40S": "l40s",
    "RTX PRO 6000": "rtx_pro_6000_server",
}
"""Folder of a GPU's tables in the package. Those for the RTX PRO 6000 are of its Server Edition."""
_WORSE = ("RTX PRO 6000",)
"""GPUs whose data sheet predicts better than kernel tables.

In a run that others recorded, end-to-end times were off by -1 % with the data sheet, and by -4 % with tables.
"""
_SIZES = (*sorted({captured_size(m) for m in range(1, 513)}), 640, 768, 1024, 1536, 2048, 4096, 8192, 16384)
_STREAMED_BYTES = 1 << 29
"""Size in bytes of weights that exceed every GPU's cache, so that each read comes from memory."""
_CONTEXTS = (128, 16384)
"""Smallest and largest context, in tokens, of the rows that are used, as in `kvsim measure`."""
_MOST_DECODES = 512
"""Largest number of decodes in the rows that are used, as in `kvsim measure`."""
_MIXED = {"num_decodes": 128, "decode_context": 1024, "prompt_tokens": 1024, "prompt_context": 1024}
"""Sizes of the estimated attention launch with both decodes and a prompt.

The tables lack such launches; see `_mixed`.
"""
_EVEN = "balanced"
"""Name in the tables of tokens that are spread evenly over the experts."""
_EXPERT_TYPES = {
    "": ("bfloat16",),
    "fp8": ("fp8_block", "fp8"),
    "mxfp4": ("w4a16_mxfp4",),
    "nvfp4": ("nvfp4",),
    "awq": ("int4_wo",),
    "gptq": ("int4_wo",),
}
"""Names in the tables of the weights of experts, by quantization method; "" is for weights that are not quantized.

The first name that has rows is used.
"""
_SELECTED_TOKENS = 2048
"""Number of tokens that the indexers of DeepSeek-V3.2 and GLM-5 select (`index_topk`)."""
_Kernels = tuple[tuple[str, ...], ...]
_DELTA_NET_DECODES: _Kernels = (("causal_conv1d_update",), ("fused_recurrent_gated_delta_rule_packed_decode",))
"""Kernels that a gated delta net runs for decodes, one after the other."""
_DELTA_NET_PROMPTS: _Kernels = (
    ("causal_conv1d_fn",),
    ("chunk_gated_delta_rule_flashinfer", "chunk_gated_delta_rule_triton"),
)
"""Kernels that a gated delta net runs for prompts, one after the other. Each may have alternatives."""
_LONG_PROMPT = 2048
"""Smallest number of prompt tokens of the rows to which sparse attention and MLA are fitted.

With shorter prompts, the GPU waited for launches.
"""


_Rows = dict[str, np.ndarray]
"""Columns of a table of the package, by name. All columns have the same length."""
_HEAD_COLUMNS = ("num_heads", "num_key_value_heads", "head_dim")


class _Heads(NamedTuple):
    num_heads: int
    num_kv_heads: int
    head_dim: int


class _GpuTables(NamedTuple):
    folder: Path
    """Folder of the GPU, with one folder for each kind of kernel."""
    source: str
    """Name and version of the package, for the label of the card."""

    def rows(self, kind: str, name: str, **wanted: Any) -> _Rows:
        """Return the columns of the newest table called `name`; an empty dictionary without a table or row.

        Only rows with the values of `wanted` are returned. Of several rows with the same sizes, only the fastest is.
        """
        from pyarrow import parquet  # noqa: PLC0415  slow to import

        files = sorted(
            (self.folder / kind / ("nccl" if name == "nccl" else "vllm")).glob(f"*/{name}_perf.parquet"), key=_release
        )
        if not files:
            return {}
        schema = parquet.read_schema(files[-1]).names
        filters = [(column, "==", value) for column, value in wanted.items() if column in schema]
        table = parquet.read_table(files[-1], filters=filters or None).sort_by("latency")
        columns = {column: table[column].to_numpy() for column in table.column_names}
        return _fastest(columns) if len(table) else {}


def _fastest(rows: _Rows) -> _Rows:
    """Return the fastest of all rows with the same sizes (integer columns). `rows` must be sorted by time."""
    sizes = np.stack([column for column in rows.values() if np.issubdtype(column.dtype, np.integer)], axis=1)
    _, first = np.unique(sizes, axis=0, return_index=True)
    return {name: column[first] for name, column in rows.items()}


def _release(file: Path) -> tuple[int, ...]:
    """Return the version of a table, from the name of its folder, as numbers that can be compared."""
    return tuple(map(int, re.findall(r"\d+", file.parent.name)))


@cache
def _tables_of(gpu: str) -> _GpuTables | None:
    """Return the tables of the GPU called `gpu`; None if the package is not installed or lacks this GPU."""
    spec = util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None or gpu not in _SYSTEMS:
        return None
    folder = Path(spec.origin).parent / "systems" / "data" / _SYSTEMS[gpu]
    return _GpuTables(folder, f"{PACKAGE} {metadata.version(PACKAGE)}") if folder.is_dir() else None


def is_installed() -> bool:
    """Tell whether the package with the tables is installed."""
    return util.find_spec(PACKAGE.replace("-", "_")) is not None


def has_tables(gpu: Gpu) -> bool:
    """Tell whether the package is installed and has tables of `gpu`."""
    return _tables_of(gpu.name) is not None


def is_better_by_tables(gpu: Gpu, base: Card) -> bool:
    """Tell whether kernel tables predict better than `base`, the best card without tables.

    The tables need not be installed. A card that was measured with the same number of GPUs is better: on one H100 or
    H200, the median error of end-to-end times is 3.6 % by cards and 5.1 % by tables, in 75 recordings of dense models.
    Cards with guessed all-reduces are worse than tables (CodeLlama-34B on two H100s: +13 %, and +4 % by tables). Data
    sheets are worse, too, except for the RTX PRO 6000.
    """
    return not base.measured and gpu.name in _SYSTEMS and gpu.name not in _WORSE


def table_card(gpu: Gpu, model: Model, base: Card) -> Card:
    """Return `base` with measured times for all kernels of `model` that the tables of `gpu` have.

    Raises:
        MissingExtraError: the package is not installed.
        UsageError: the package does not have this GPU.
    """
    if not is_installed():
        raise MissingExtraError(f"A table of measured kernels ({PACKAGE})", EXTRA)
    tables = _tables_of(gpu.name)
    if tables is None:
        raise UsageError(f"{PACKAGE} has no tables of {gpu.name}; it has those of {', '.join(_SYSTEMS)}.")
    work = work_of(model)
    rate = base.read_bytes_per_s if base.measured else _streaming_rate(tables) or base.read_bytes_per_s
    products = _all_products(tables, work, rate)
    sums = _sums(tables, model.tensor_parallel_size)
    is_fp8 = any(reading.is_fp8 for reading in work.readings)
    of_fp8 = _attention(tables, base, work, gpu, rate, is_fp8=True) if is_fp8 else ()
    return replace(
        base,
        num_gpus=model.tensor_parallel_size,
        source=f"{tables.source}, {_versions(tables)}; its host and gaps: {base.source}",
        measured=False,
        read_bytes_per_s=rate,
        products={**base.products, **products},
        attention=of_fp8 or _attention(tables, base, work, gpu, rate, is_fp8=False) or base.attention,
        has_fp8_attention=bool(of_fp8),
        all_reduce=sums or base.all_reduce,
        exchange=_exchange(tables, model.num_expert_gpus) if model.divides_experts_among_ranks else (),
        experts=_experts(tables, work, model),
        sparse=_sparse(tables, work, model, products),
        latent=_latent(tables, work, rate),
        delta_net=_delta_net(tables, model),
        is_of_tables=True,
    )


def _versions(tables: _GpuTables) -> str:
    rows = tables.rows("gemm", "gemm", m=1)
    return f"vLLM {rows['version'][0]} on {rows['device'][0]}"


def _streaming_rate(tables: _GpuTables) -> float:
    """Return the bytes per second at which a GPU reads weights that are too large for its cache."""
    rows = tables.rows("gemm", "gemm", gemm_dtype="bfloat16", m=1)
    num_bytes = 2.0 * rows["n"] * rows["k"]
    large = num_bytes >= _STREAMED_BYTES
    return float(np.median(num_bytes[large] / rows["latency"][large])) * 1e3


def _all_products(tables: _GpuTables, work: Work, bytes_per_s: float) -> dict[str, Products]:
    """Return the times of the matrix products of `work`, by type of the weights. Types without a table are left out.

    For fp8, the rows with one scale per tensor are used. In rows with one scale per block, the GPU waited for launches
    (57 us on an H200 for matrices that take 5 us). `bytes_per_s` is the rate at which weights are read.
    """
    item_bytes = {"bfloat16": 2.0, "fp8": 1.0}
    if work.product_type == "nvfp4":
        item_bytes["nvfp4"] = work.weight_bits / 8
    wanted = [*work.products, *([work.output] if work.output else [])]
    by_type = {dtype: _products(tables, dtype, wanted, bytes_per_s / size) for dtype, size in item_bytes.items()}
    return {dtype: products for dtype, products in by_type.items() if products is not None}


def _products(tables: _GpuTables, dtype: str, wanted: Sequence[Weights], weights_per_s: float) -> Products | None:
    """Return the times of products with the matrices `wanted`, for each of `_SIZES` tokens; None without a table of
    `dtype`.

    A product takes at least the time in which its weights are read from memory, at `weights_per_s` elements per second.
    Small products were measured with weights in the GPU's cache, where the weights of a model are not.
    """
    rows = tables.rows("gemm", "gemm", gemm_dtype=dtype)
    if not rows:
        return None
    of_sizes = {int(m): _grid(rows, rows["m"] == m) for m in np.unique(rows["m"])}
    sizes = np.array(_SIZES)
    seconds = []
    for weights in wanted:
        measured = [np.exp(_between(*grid, weights)) * weights.n * weights.k for grid in of_sizes.values()]
        at_sizes = np.interp(sizes, list(of_sizes), measured)
        seconds.append(tuple(np.maximum(at_sizes, weights.n * weights.k / weights_per_s).tolist()))
    return Products(sizes=_SIZES, shapes=tuple((each.n, each.k) for each in wanted), seconds=tuple(seconds))


_Grid = tuple[np.ndarray, np.ndarray, np.ndarray]


def _grid(rows: _Rows, chosen: np.ndarray) -> _Grid:
    """Return the times of the rows `chosen` as a table by the two sizes of the matrix.

    The three arrays are the numbers of outputs, the numbers of inputs, and float64[outputs, inputs]: the natural
    logarithm of the seconds per weight, NaN where there is no row.
    """
    n, k, milliseconds = (rows[name][chosen].astype(float) for name in ("n", "k", "latency"))
    outputs, inputs = np.unique(n), np.unique(k)
    table = np.full((len(outputs), len(inputs)), np.nan)
    table[np.searchsorted(outputs, n), np.searchsorted(inputs, k)] = np.log(milliseconds / 1e3 / (n * k))
    return outputs, inputs, table


def _between(outputs: np.ndarray, inputs: np.ndarray, table: np.ndarray, weights: Weights) -> float:
    """Interpolate the logarithm of the seconds per weight between the four measured matrices around `weights`.

    The closer a measured matrix, the more it counts. Matrices that `table` lacks (NaN) are left out. If it lacks all
    four, the result is the mean of the table. Beyond the measured sizes, the outermost ones are used.
    """
    row, column = _place(outputs, weights.n), _place(inputs, weights.k)
    total = share = 0.0
    for dn in (0, 1):
        for dk in (0, 1):
            part = abs(1 - dn - row % 1) * abs(1 - dk - column % 1)
            value = table[min(int(row) + dn, len(outputs) - 1), min(int(column) + dk, len(inputs) - 1)]
            if part and not np.isnan(value):
                total, share = total + part * value, share + part
    return total / share if share else float(np.nanmean(table))


def _place(values: np.ndarray, wanted: float) -> float:
    """Return the position of `wanted` in the ascending `values` as a fractional index, on a logarithmic scale."""
    return float(np.interp(np.log(wanted), np.log(values), np.arange(len(values))))


def _sums(tables: _GpuTables, num_gpus: int) -> tuple[tuple[int, float], ...]:
    """Return (bytes, seconds) of all-reduces in a captured graph, in ascending order; empty without a table.

    The table counts elements of two bytes.
    """
    rows = tables.rows("comm", "custom_allreduce", num_gpus=num_gpus, kernel_source="vLLM_custom_graph")
    if not rows:
        return ()
    order = np.argsort(rows["message_size"])
    return tuple((2 * int(rows["message_size"][row]), float(rows["latency"][row]) / 1e3) for row in order)


def _exchange(tables: _GpuTables, num_gpus: int) -> tuple[tuple[int, float], ...]:
    """Return (bytes, seconds) of an all-gather plus a reduce-scatter, in ascending order; empty without tables.

    The bytes are those of all GPUs together. By default, vLLM does the all-gather before the experts and the
    reduce-scatter after them. The table counts elements of two bytes.
    """
    wanted = {"num_gpus": num_gpus, "nccl_dtype": "half"}
    both = [tables.rows("comm", "nccl", op_name=name, **wanted) for name in ("all_gather", "reduce_scatter")]
    if not all(both):
        return ()
    of_size = [dict(zip(rows["message_size"].tolist(), rows["latency"].tolist(), strict=True)) for rows in both]
    common = sorted(set.intersection(*(set(each) for each in of_size)))
    return tuple((2 * size, sum(each[size] for each in of_size) / 1e3) for size in common)


def _read_bytes(row: Attention, element_bytes: int) -> int:
    return 2 * element_bytes * row.num_kv_heads * row.head_dim * row.num_decodes * row.decode_context


def _attention(
    tables: _GpuTables, base: Card, work: Work, gpu: Gpu, bytes_per_s: float, *, is_fp8: bool
) -> tuple[Attention, ...]:
    """Return the measured attention launches for a card, for every kind of layer; empty if the tables lack one kind.

    If `is_fp8`, the cache is in fp8. A launch takes at least the time in which its keys and values are read from
    memory, at `bytes_per_s`.
    """
    common = {"attn_dtype": "bfloat16", "kv_cache_dtype": "fp8" if is_fp8 else "bfloat16", "window_size": 0}
    decoding = tables.rows("attention", "generation_attention", **common)
    prompts = tables.rows("attention", "context_attention", **common, batch_size=1)
    if not decoding or not prompts:
        return ()
    measured: list[Attention] = []
    for reading in work.readings:
        heads = _nearest_heads(decoding, reading)
        if heads is None:
            return ()
        rows = [
            replace(row, seconds=max(row.seconds, _read_bytes(row, 1 if is_fp8 else 2) / bytes_per_s))
            for row in _rows_of(decoding, heads, decoding["step"] + 1, ("num_decodes", "decode_context"))
        ]
        alone = _rows_of(prompts, heads, prompts["isl"], ("prompt_tokens", "prompt_context"))
        if not rows or not alone:
            return ()
        rows += alone
        measured += [*rows, _mixed(rows, base, reading, gpu.num_processors, is_fp8=is_fp8)]
    return tuple(measured)


def _nearest_heads(rows: _Rows, reading: AttentionKind) -> _Heads | None:
    """Return the measured heads of the same size that are most similar to those of `reading`.

    None if no measured heads have this size, or if each query head has its own KV head, which the tables lack.
    """
    if reading.num_heads == reading.num_kv_heads:
        return None
    measured = {_Heads(*map(int, each)) for each in zip(*(rows[name] for name in _HEAD_COLUMNS), strict=True)}

    def distance(heads: _Heads) -> float:
        of_keys = abs(np.log2(heads.num_kv_heads / reading.num_kv_heads))
        return float(2 * of_keys + abs(np.log2(heads.num_heads / reading.num_heads)))

    return min((each for each in measured if each.head_dim == reading.head_dim), default=None, key=distance)


def _rows_of(rows: _Rows, heads: _Heads, contexts: np.ndarray, field_names: tuple[str, str]) -> list[Attention]:
    """Return the measured attention launches with these heads, within `_CONTEXTS` and `_MOST_DECODES`.

    `contexts` has the context of each row in tokens. `field_names` has the two fields of `Attention` to set:
    ("num_decodes", "decode_context") or ("prompt_tokens", "prompt_context"). The tokens of a prompt are equal to its
    context.
    """
    is_used = (contexts >= _CONTEXTS[0]) & (contexts <= _CONTEXTS[1]) & (rows["batch_size"] <= _MOST_DECODES)
    for name, number in zip(_HEAD_COLUMNS, heads, strict=True):
        is_used &= rows[name] == number
    first = rows["batch_size"] if field_names[0] == "num_decodes" else contexts
    return [
        _row(
            heads,
            rows["latency"][row] / 1e3,
            dict(zip(field_names, (int(first[row]), int(contexts[row])), strict=True)),
        )
        for row in np.flatnonzero(is_used)
    ]


def _row(heads: _Heads, seconds: float, sizes: dict[str, int]) -> Attention:
    """Return one attention launch for a card. `sizes` has the fields that are not 0."""
    counts = {"num_decodes": 0, "decode_context": 0, "prompt_tokens": 0, "prompt_context": 0} | sizes
    return Attention(**heads._asdict(), **counts, seconds=float(seconds))


def _mixed(
    rows: list[Attention], base: Card, reading: AttentionKind, num_processors: int, *, is_fp8: bool
) -> Attention:
    """Estimate the time of a launch with both decodes and a prompt, which the tables lack; `_MIXED` has its sizes.

    Reading the cache takes longer than for decodes alone, by the same factor as on the base card.
    """
    cost = attention_cost(replace(base, attention=tuple(rows), has_fp8_attention=is_fp8), reading, num_processors)
    longer = 1 + attention_cost(base, reading, num_processors).mixed_share + FP8_MIXED_SHARE * is_fp8
    decodes = sorted((row.decode_context, row.seconds) for row in rows if row.num_decodes == _MIXED["num_decodes"])
    prompts = sorted((row.prompt_tokens, row.seconds) for row in rows if row.prompt_tokens)
    read_s = float(np.interp(_MIXED["decode_context"], *np.transpose(decodes))) - cost.step_s
    prompt_s = float(np.interp(_MIXED["prompt_tokens"], *np.transpose(prompts)))
    heads = _Heads(rows[0].num_heads, rows[0].num_kv_heads, rows[0].head_dim)
    return _row(heads, prompt_s + read_s * longer, _MIXED)


def _experts(tables: _GpuTables, work: Work, model: Model) -> Experts | None:
    """Return the seconds of the experts of one layer by the number of tokens; None if the tables lack these experts."""
    if not work.expert_weights:
        return None
    method = model.quantization.method if model.quantization and model.quantization.expert_bits else ""
    wanted = {
        "distribution": _EVEN,
        "hidden_size": model.hidden_size,
        "inter_size": model.expert_intermediate_size or model.intermediate_size,
        "num_experts": work.num_experts,
        "topk": work.num_experts_per_token,
        "moe_tp_size": 1 if model.enable_expert_parallel else model.num_expert_gpus,
        "moe_ep_size": model.num_expert_gpus if model.enable_expert_parallel else 1,
    }
    candidates = (tables.rows("moe", "moe", moe_dtype=dtype, **wanted) for dtype in _EXPERT_TYPES.get(method, ()))
    rows = next(filter(None, candidates), None)
    if rows is None:
        return None
    order = np.argsort(rows["num_tokens"], kind="stable")
    tokens, seconds = rows["num_tokens"][order], rows["latency"][order] / 1e3
    least = {int(each): float(seconds[tokens == each].min()) for each in np.unique(tokens)}
    return Experts(sizes=tuple(least), seconds=tuple(least.values()))


def _sparse(tables: _GpuTables, work: Work, model: Model, products: dict[str, Products]) -> SparseAttention | None:
    """Fit the times of sparse attention without its matrix products; None without a table of the attention module.

    The time of decodes is fitted as a constant, plus seconds per sequence, per scored token and per selected token. The
    time of long prompts is fitted as seconds per scored and per selected pair of query and token.
    """
    reading = next((each for each in work.readings if each.is_sparse), None)
    if reading is None:
        return None
    is_fp8 = work.product_type == "fp8"
    wanted = {
        "architecture": model.architecture,
        "num_heads": reading.num_heads,
        "gemm_type": "fp8_block" if is_fp8 else "bfloat16",
        "kv_cache_dtype": "fp8" if reading.is_fp8 else "bfloat16",
    }
    decoding = tables.rows("sparse_attention", "dsa_generation_module", **wanted)
    prompts = tables.rows("sparse_attention", "dsa_context_module", **wanted, batch_size=1, step=0)
    table = products.get("fp8" if is_fp8 else "bfloat16")
    if not decoding or not prompts or table is None:
        return None
    weights = attention_products(model)
    few = decoding["batch_size"] <= _MOST_DECODES
    seqs, contexts = decoding["batch_size"][few].astype(float), decoding["step"][few] + 1.0
    read = np.minimum(contexts, _SELECTED_TOKENS)
    features = np.stack([np.ones_like(seqs), seqs, seqs * contexts, seqs * read], axis=1)
    step_s, sequence_s, token_s, selected_s = _fitted(
        features, _beside_products_s(table, weights, decoding["latency"][few], seqs)
    )
    long = prompts["isl"] >= _LONG_PROMPT
    queries = prompts["isl"][long].astype(float)
    pairs, selected = queries**2 / 2, _SELECTED_TOKENS * (queries - _SELECTED_TOKENS / 2)
    features = np.stack([pairs, selected], axis=1)
    pair_s, selected_pair_s = _fitted(features, _beside_products_s(table, weights, prompts["latency"][long], queries))
    return SparseAttention(
        selected_tokens=_SELECTED_TOKENS,
        step_s=step_s,
        sequence_s=sequence_s,
        token_s=token_s,
        selected_token_s=selected_s,
        pair_s=pair_s,
        selected_pair_s=selected_pair_s,
    )


def _latent(tables: _GpuTables, work: Work, bytes_per_s: float) -> LatentAttention | None:
    """Fit the times of MLA without its matrix products; None without a table.

    The table has the whole attention module in DeepSeek-V3's shape, with powers of two as numbers of heads. The fitted
    time of a launch without tokens is not used: on an H200, it is 35 us longer than in engines.
    """
    reading = next((each for each in work.readings if each.is_latent and not each.is_sparse), None)
    if reading is None:
        return None
    heads = 1 << round(np.log2(reading.num_heads))
    wanted = {"num_heads": heads, "gemm_type": "bfloat16", "kv_cache_dtype": "fp8" if reading.is_fp8 else "bfloat16"}
    decoding = tables.rows("mla", "mla_generation_module", **wanted)
    prompts = tables.rows("mla", "mla_context_module", **wanted, batch_size=1)
    beside = [Weights(*each) for each in _deepseek_v3_products(heads)]
    products = _products(tables, "bfloat16", beside, bytes_per_s / 2)
    if not decoding or not prompts or products is None:
        return None
    few = decoding["batch_size"] <= _MOST_DECODES
    seqs, contexts = decoding["batch_size"][few].astype(float), decoding["step"][few] + 1.0
    features = np.stack([np.ones_like(seqs), seqs, seqs * contexts], axis=1)
    _, sequence_s, token_s = _fitted(features, _beside_products_s(products, beside, decoding["latency"][few], seqs))
    long = prompts["isl"] >= _LONG_PROMPT
    queries = prompts["isl"][long].astype(float)
    features = np.stack([queries**2 / 2, queries], axis=1)  # the cost per token is part of `Work.element_bytes`
    pair_s, _ = _fitted(features, _beside_products_s(products, beside, prompts["latency"][long], queries))
    share = reading.num_heads / heads
    return LatentAttention(sequence_s=sequence_s, token_s=token_s * max(share, 1.0), pair_s=pair_s * share)


def _deepseek_v3_products(heads: int) -> list[tuple[int, int]]:
    """Return (outputs, inputs) of each matrix product in DeepSeek-V3's attention with `heads` heads on a GPU.

    The products yield both latents, the queries, the keys and values, and the output, in this order.
    """
    return [(1536 + 512 + 64, 7168), (heads * (128 + 64), 1536), (heads * 2 * 128, 512), (7168, heads * 128)]


def _delta_net(tables: _GpuTables, model: Model) -> DeltaNet | None:
    """Fit the times of a gated delta net, which has a convolution and the delta rule; None without a table.

    The recurrent state was measured in 32 bits. The time of a state in another type is proportional to its bytes. Times
    per launch are omitted, because the starts of these kernels are among the small kernels of `Work`.
    """
    layer = next((each for each in model.recurrent_layers if isinstance(each, GatedDeltaNet)), None)
    if layer is None:
        return None
    size = model.tensor_parallel_size
    wanted = {
        "num_k_heads": layer.num_key_heads // size,
        "num_v_heads": layer.num_value_heads // size,
        "head_k_dim": layer.key_head_dim,
        "head_v_dim": layer.value_head_dim,
        "d_conv": layer.conv_kernel,
    }
    sequence_s = token_s = 0.0
    for names in _DELTA_NET_DECODES:
        rows = _first_kernel(tables, names, wanted | {"phase": "generation"})
        few = rows["batch_size"] <= _MOST_DECODES if rows else None
        if few is None:
            return None
        sequence_s += _slope(rows["batch_size"][few], rows["latency"][few])
    for names in _DELTA_NET_PROMPTS:
        rows = _first_kernel(tables, names, wanted | {"phase": "context", "batch_size": 1})
        if not rows:
            return None
        token_s += _slope(rows["seq_len"], rows["latency"])
    *_, matrix = layer.state(size)
    return DeltaNet(sequence_s=sequence_s * DTYPE_BYTES[matrix.dtype] / DTYPE_BYTES["float32"], token_s=token_s)


def _first_kernel(tables: _GpuTables, names: Sequence[str], wanted: dict[str, Any]) -> _Rows:
    """Return the rows of the first kernel in `names` that has rows; an empty dictionary if none has."""
    found = (tables.rows("linear_attention", "gdn", kernel_source=name, **wanted) for name in names)
    return next(filter(None, found), {})


def _slope(sizes: np.ndarray, milliseconds: np.ndarray) -> float:
    """Fit a line through `milliseconds` over `sizes`. Return its slope in seconds per unit of size."""
    _, slope = _fitted(np.stack([np.ones(len(sizes)), sizes.astype(float)], axis=1), milliseconds / 1e3)
    return slope


def _beside_products_s(
    products: Products, weights: Sequence[Weights], milliseconds: np.ndarray, tokens: np.ndarray
) -> np.ndarray:
    """Return the seconds of measured attention modules without their matrix products.

    `milliseconds` and `tokens` have the time and the number of tokens of each module.
    """
    curves = [product_curve(products, *each) for each in weights]
    return np.array(milliseconds) / 1e3 - [sum(curve(int(each)) for curve in curves) for each in tokens]


def _fitted(features: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Return a factor for each column of `features`, so that the sum of all columns fits `seconds` best.

    No factor is negative. The fit has the smallest sum of squared relative errors. Rows with 0 seconds or less are left
    out.
    """
    from scipy.optimize import nnls  # noqa: PLC0415  slow to import

    used = seconds > 0
    costs, _ = nnls(features[used] / seconds[used, None], np.ones(int(used.sum())))
    return [float(cost) for cost in costs]
