"""Machine cards: measured times of the kernels, the links and the host of one machine, and their TOML files.

A card describes a machine without any model. `kvsim measure` makes a card, and `kvsim.steptime.reduction` computes the
step times of any model from it. `docs/machines.md` describes the format of the file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvsim.errors import UsageError, shortened
from kvsim.files.atomic import whole_file
from kvsim.files.marks import HASH_COMMENT
from kvsim.files.values import is_integer, is_number, read_toml

_RATES = (
    *("read_bytes_per_s", "copy_bytes_per_s", "kernel_s", "launch_s"),
    *("to_gpu_bytes_per_s", "to_host_bytes_per_s"),
)
_FACTORS = ("gpu", "host", "woken", "front_end")
"""Keys of `Card.factors`."""
_FACTOR = (1e-3, 1e3)
"""(lowest, highest) valid value of a factor."""
_BOUNDS = {**{name: (1e3, 1e18) if name.endswith("_per_s") else (1e-9, 1e3) for name in _RATES}, "us": (1e-6, 1e9)}
"""(lowest, highest) valid value of each time and each rate in a file, by name.

Rates, whose names end in `_per_s`, are in bytes per second. `us` is in microseconds. All others are in seconds.
"""
_ATTENTION = (
    *("num_heads", "num_kv_heads", "head_dim"),
    *("num_decodes", "decode_context", "prompt_tokens", "prompt_context"),
)
"""Fields of `Attention` in a row of a file, beside the time `us`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Measured seconds of matrix products x[m, k] @ w[n, k].T, for some shapes (n, k) and numbers of rows m."""

    sizes: tuple[int, ...]
    """Numbers of rows m, in ascending order."""
    shapes: tuple[tuple[int, int], ...]
    """Number of outputs n and number of inputs k of each matrix w."""
    seconds: tuple[tuple[float, ...], ...]
    """Seconds of each product: one row per shape, one column per size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Measured seconds of one attention launch in one layer.

    The launch has decodes with equal contexts, one prompt, or both.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_decodes: int
    """Number of decoding sequences, with one query each; 0 without decodes."""
    decode_context: int
    """Number of keys that each decoding sequence reads; 0 without decodes."""
    prompt_tokens: int
    """Number of queries of the prompt; 0 without a prompt."""
    prompt_context: int
    """Number of keys that the last query of the prompt reads; 0 without a prompt."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Seconds of the experts in one layer of one model, with tokens spread evenly over the experts."""

    sizes: tuple[int, ...]
    """Numbers of tokens in the step, in ascending order."""
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SparseAttention:
    """Seconds of sparse attention (DeepSeek's) in one layer of one model on each GPU.

    For each query, an indexer scores all cached tokens. The query reads only the tokens with the highest scores. The
    four matrix products that MLA also has without an indexer are not included.
    """

    selected_tokens: int
    """Largest number of tokens that a query reads."""
    step_s: float
    """Seconds per step with this attention, independent of the step's size."""
    sequence_s: float
    """Seconds per decoding sequence."""
    token_s: float
    """Seconds to score one cached token for one sequence."""
    selected_token_s: float
    """Seconds to read one selected token."""
    pair_s: float
    """Seconds to score one cached token for one query of a prompt."""
    selected_pair_s: float
    """Seconds in which one query of a prompt reads one selected token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Seconds of MLA in one layer of one model on each GPU, without matrix products and kernel starts."""

    sequence_s: float
    """Seconds per decoding sequence."""
    token_s: float
    """Seconds to read one cached token for one sequence."""
    pair_s: float
    """Seconds to compute the attention of one query of a prompt to one key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaNet:
    """Seconds of a gated delta net in one layer of one model on each GPU, without matrix products and kernel starts."""

    sequence_s: float
    """Seconds to read and write the recurrent state of one decoding sequence."""
    token_s: float
    """Seconds per token of a prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """Machine card: speeds of a machine, in seconds and in bytes per second."""

    gpu: str
    """Name of the GPU: as the driver spells it if the card was measured, else as `kvsim size --list` spells it."""
    num_gpus: int = 1
    """Number of GPUs between which `all_reduce` was measured."""
    source: str
    """Date and program of the measurement, or another source of the times."""
    measured: bool
    """True if all times were measured on the machine; False if some are estimates."""
    read_bytes_per_s: float
    """Bytes per second at which the GPU reads its memory."""
    copy_bytes_per_s: float
    """Bytes per second at which the GPU copies within its memory, counted as bytes read plus bytes written."""
    kernel_s: float
    """Seconds from the start of a small kernel to the start of the next, in a captured graph."""
    launch_s: float
    """Seconds in which the host launches one small kernel from Python. Other host times are multiples of this."""
    to_gpu_bytes_per_s: float
    """Bytes per second of copies from host memory to GPU memory."""
    to_host_bytes_per_s: float
    """Bytes per second of copies from GPU memory to host memory."""
    products: Mapping[str, Products]
    """Times of matrix products by the type of the weights: "bfloat16" (also for float16), "fp8" or "nvfp4"."""
    attention: tuple[Attention, ...]
    """Measured attention launches, for several kinds of heads."""
    all_reduce: tuple[tuple[int, float], ...] = ()
    """(bytes on each GPU, seconds) of all-reduces between `num_gpus` GPUs, in ascending order; empty for one GPU."""
    exchange: tuple[tuple[int, float], ...] = ()
    """(bytes, seconds) of exchanges between all GPUs that share experts, in ascending order; empty if unknown.

    An exchange is an all-gather and a reduce-scatter. The bytes are those of the all-gather's whole result. This field
    and the following ones, up to `is_of_tables`, come from kernel tables and are not in files of cards.
    """
    has_fp8_attention: bool = False
    """True if `attention` was measured with an fp8 cache."""
    experts: Experts | None = None
    """Times of experts in the one model for which kernel tables were read; None if unknown."""
    sparse: SparseAttention | None = None
    """Times of sparse attention in the one model for which kernel tables were read; None if unknown."""
    latent: LatentAttention | None = None
    """Times of MLA without an indexer in the one model for which kernel tables were read; None if unknown."""
    delta_net: DeltaNet | None = None
    """Times of gated delta nets in the one model for which kernel tables were read; None if unknown."""
    is_of_tables: bool = False
    """True if the times come from kernel tables."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """Factors by which times predicted from the card are multiplied, to match an engine on this machine.

    They are fitted to recordings. The keys are `gpu` (all GPU times), `host` (all host times), `woken` (further factor
    on the host times of a host that has slept) and `front_end` (times of the HTTP server). A missing `front_end` is
    equal to `host`. Any other missing factor is 1.
    """
    fitted_to: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the recordings to which the factors were fitted, by the recordings' model."""


def load_card(path: str | os.PathLike[str]) -> Card:
    """Read a card from its TOML file.

    Raises:
        UsageError: the file cannot be read, or is no complete and valid card.
    """
    file = Path(path)
    document = read_toml(file, "the machine card")
    if "coefficients" in document:
        raise UsageError(f"{file} is a profile, not a machine card; calibrate one with --card auto, or measure one.")
    try:
        return _card(document)
    except (KeyError, TypeError, ValueError) as error:
        what = f"{error.args[0]} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"the machine card {file} is incomplete or wrong: {what}.") from error


def _card(document: Mapping[str, Any]) -> Card:
    rates, products = _table(document, "rates"), _table(document, "products")
    filled = {"all_reduce": [], "factors": {}, "fitted_to": {}, **document}
    return Card(
        gpu=_text(document, "gpu"),
        num_gpus=_whole(document, "num_gpus"),
        source=_text(document, "source"),
        measured=_yes_or_no(document, "measured"),
        has_fp8_attention=False,
        exchange=(),
        experts=None,
        sparse=None,
        latent=None,
        delta_net=None,
        is_of_tables=False,
        **{name: _positive(rates, name) for name in _RATES},
        products={
            dtype: Products(
                sizes=tuple(_whole({"sizes": size}, "sizes") for size in table["sizes"]),
                shapes=tuple((_whole(row, "n"), _whole(row, "k")) for row in _rows(table, "weights")),
                seconds=tuple(_microseconds(row, len(table["sizes"])) for row in _rows(table, "weights")),
            )
            for dtype, table in ((key, _table(products, key)) for key in products)
        },
        attention=tuple(
            Attention(**{name: int(row[name]) for name in _ATTENTION}, seconds=_positive(row, "us") / 1e6)
            for row in _rows(document, "attention")
        ),
        all_reduce=tuple((_whole(row, "bytes"), _positive(row, "us") / 1e6) for row in _rows(filled, "all_reduce")),
        factors={_factor(name): _positive(filled["factors"], name) for name in _table(filled, "factors")},
        fitted_to={model: _names(filled["fitted_to"], model) for model in _table(filled, "fitted_to")},
    )


def _table(table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if not isinstance(table[name], dict):
        raise TypeError(f"{name} should be a table, not {shortened(table[name])}")
    return table[name]  # type: ignore[no-any-return]


def _rows(table: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    rows = table[name]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TypeError(f"{name} should be a list of tables, not {shortened(rows)}")
    return rows


def _names(table: Mapping[str, Any], name: str) -> tuple[str, ...]:
    names = table[name]
    if not isinstance(names, list) or not all(isinstance(each, str) for each in names):
        raise TypeError(f"fitted_to.{name} should be a list of recordings' names, not {shortened(names)}")
    return tuple(names)


def _factor(name: str) -> str:
    if name not in _FACTORS:
        raise ValueError(f"factors has {shortened(name)}, which is none of {', '.join(_FACTORS)}")
    return name


def _yes_or_no(table: Mapping[str, Any], name: str) -> bool:
    if not isinstance(table[name], bool):
        raise TypeError(f"{name} should be true or false, not {shortened(table[name])}")
    return bool(table[name])


def _text(table: Mapping[str, Any], name: str) -> str:
    if not isinstance(table[name], str):
        raise TypeError(f"{name} should be text, not {table[name]!r}")
    return str(table[name])


def _whole(table: Mapping[str, Any], name: str) -> int:
    value = table[name]
    if not is_integer(value, 1, (1 << 40) - 1):
        raise ValueError(f"{name} should be a whole number from 1 on, not {value!r}")
    return value


def _positive(table: Mapping[str, Any], name: str) -> float:
    value = table[name]
    least, most = _BOUNDS.get(name, _FACTOR)
    if not is_number(value, least, most):
        raise ValueError(f"{name} should be a number from {least:g} to {most:g}, not {shortened(value)}")
    return float(value)


def _microseconds(row: Mapping[str, Any], number: int) -> tuple[float, ...]:
    """Return the times in the list `us` of `row`, in seconds. The list must have `number` times."""
    if len(row["us"]) != number:
        raise ValueError(f"the product of n = {row['n']} and k = {row['k']} should have {number} times")
    return tuple(_positive({"us": value}, "us") / 1e6 for value in row["us"])


def save_card(card: Card, path: str | os.PathLike[str], header: str = "", *, made_by: str = "") -> Path:
    """Write a card as a TOML file, and return its path. An interrupted call leaves no incomplete file.

    `header` becomes comment lines. `made_by` is the command that a further comment names; if it is empty, that comment
    is left out.
    """
    with whole_file(path, made_by=made_by, comment=HASH_COMMENT) as scratch:
        scratch.write_text("\n".join(_lines(card, header)) + "\n", encoding="utf-8")
    return Path(path)


def _lines(card: Card, header: str) -> Iterator[str]:
    yield from (f"# {line}".rstrip() for line in header.splitlines())
    yield f"gpu = {_quoted(card.gpu)}"
    yield f"num_gpus = {card.num_gpus}"
    yield f"source = {_quoted(card.source)}"
    yield f"measured = {str(card.measured).lower()}"
    yield from ("", "# One layer's attention in one launch, microseconds.", "attention = [")
    for row in card.attention:
        cells = ", ".join(f"{name} = {getattr(row, name)}" for name in _ATTENTION)
        yield f"    {{ {cells}, us = {_us(row.seconds)} }},"
    yield "]"
    if card.all_reduce:
        yield from ("", f"# A sum over {card.num_gpus} GPUs, microseconds.", "all_reduce = [")
        yield from (f"    {{ bytes = {size}, us = {_us(seconds)} }}," for size, seconds in card.all_reduce)
        yield "]"
    if card.factors:
        yield from ("", "[factors]  # how many times longer an engine takes here than the curves say")
        yield from (f"{name} = {value:.4f}" for name, value in card.factors.items())
    if card.fitted_to:
        yield from ("", "[fitted_to]  # recordings that the factors were fitted to, by model")
        for model, names in card.fitted_to.items():
            yield f"{_quoted(model)} = [{', '.join(map(_quoted, names))}]"
    yield from ("", "[rates]")
    yield from (f"{name} = {getattr(card, name):.4g}" for name in _RATES)
    for dtype, products in card.products.items():
        yield from ("", f"[products.{dtype}]  # microseconds of x[m, k] @ w[n, k].T for each m of sizes")
        yield f"sizes = [{', '.join(map(str, products.sizes))}]"
        yield "weights = ["
        for (n, k), row_s in zip(products.shapes, products.seconds, strict=True):
            yield f"    {{ n = {n}, k = {k}, us = [{', '.join(map(_us, row_s))}] }},"
        yield "]"


def _quoted(text: str) -> str:
    """Return `text` as a quoted TOML string. TOML accepts the escapes of JSON."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.4g}"
