"""Describe what each layer needs from the block pool: its kind, its tokens per block, and its bytes per page.

A page is a block in one layer. Names and rules are those of vLLM 0.25.1. `kvsim.kv_groups.grouping` groups the layers
by these specs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, lcm
from typing import TYPE_CHECKING

from kvsim.errors import UsageError
from kvsim.kv_groups.group import CacheKind, MambaMode
from kvsim.models.cache_bytes import element_bytes
from kvsim.models.layers import ChunkedLocal, FullAttention, Indexer, Mla, SlidingWindow
from kvsim.setting_fields import whole_number

if TYPE_CHECKING:
    from kvsim.models import Model
    from kvsim.models.layers import Layer, Recurrent

BACKEND_BLOCK = 16
"""Number of tokens in the smallest block of FlashAttention and Triton, which is also vLLM's default block."""
FLASHMLA_BLOCK = 64
"""Tokens in a block of FlashMLA: for MLA with an fp8 cache on Hopper GPUs, and for all sparse attention."""
FLASHINFER_MLA_BLOCK = 32
"""Number of tokens in a block of FlashInfer's MLA kernels, on data-center Blackwell GPUs."""
_DEFAULT_CHUNK = 2048
"""Number of tokens that a recurrent kernel processes at a time, if the configuration of the model has no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """Cache of one layer: its kind, and a block's tokens and bytes. Layers with equal specs may share a group."""

    kind: CacheKind
    block_size: int
    bytes_per_token: int
    """Number of bytes of one token on one GPU; 0 for a recurrent layer."""
    state_bytes: int = 0
    """Number of bytes of one state on one GPU; 0 for an attention layer."""
    window: int | None = None
    """Number of tokens in the window or chunk; None if there is neither. A sliding-window layer that `as_full` has
    converted keeps every token, and still has its window.
    """
    padded_page_bytes: int | None = None
    """Number of bytes of a page with padding; None if the page has no padding."""
    pads_pages: bool = False
    """True if pages may have padding: the layer's kernels accept any distance in memory from one block to the next."""
    mamba_mode: MambaMode | None = None
    """Recurrent states that stay in blocks; None for an attention layer."""
    num_speculative_blocks: int = 0
    """Number of additional blocks that each sequence has, one for each drafted token; 0 for an attention layer."""
    other_properties: tuple[object, ...] = ()
    """Other values that must be equal in all layers of a group, such as the number of KV heads and their size."""
    bytes_per_token_as_full: int | None = None
    """Bytes of a token if `as_full` converts the layer; None if the layer keeps every token or has none."""
    is_draft: bool = field(default=False, compare=False)
    """True for a layer of a draft model. It may share a group with layers of the model."""

    @property
    def page_bytes(self) -> int:
        """Number of bytes that a block takes in the layer, padding included."""
        return self.padded_page_bytes or self.content_bytes

    @property
    def content_bytes(self) -> int:
        """Number of bytes that a block takes in the layer, without padding."""
        return self.block_size * self.bytes_per_token + self.state_bytes

    @property
    def keeps_all(self) -> bool:
        """True if the layer keeps every token of a sequence, as full attention and MLA do."""
        return self.kind in (CacheKind.FULL, CacheKind.MLA)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Settings of an engine that determine its groups and blocks. The defaults are those of vLLM on a Hopper GPU."""

    max_model_len: int
    """Number of tokens in the longest sequence, prompt and output together."""
    max_num_batched_tokens: int = 8192
    block_size: int | None = None
    """Number of tokens in a block of full attention; None to leave the choice to the attention backend."""
    enable_prefix_caching: bool | None = None
    """True to cache prefixes, False not to. None for vLLM's choice: True, except for models with recurrent layers."""
    keeps_every_state: bool = False
    """True to keep the recurrent state at the end of every block, if the model can; False to keep only some."""
    hybrid_manager: bool = True
    """True to put layers of different kinds into separate groups. False (`--disable-hybrid-kv-cache-manager`) to put
    all layers into one group; see `group_layers`.
    """
    uniform: bool = False
    """True to convert every layer with a window or chunk to one that keeps every token, even if all layers have the
    same window. vLLM has no such setting: it gives a memory with which that of vLLM is compared.
    """
    mla_block_size: int | None = None
    """Number of tokens in the smallest block of the GPU's backend for MLA. None for that of a Hopper GPU: 16
    (FlashAttention), or 64 with an fp8 cache (FlashMLA).
    """
    hash_block_size: int | None = None
    """Number of tokens that one prefix hash covers; None for vLLM's choice."""
    num_speculative_tokens: int = 0
    draft_layers: tuple[Layer, ...] = ()
    """Layers of the draft model. They come after the layers of the model, on its last pipeline stage."""

    def __post_init__(self) -> None:
        """Check the numbers of tokens, and convert those of NumPy.

        Raises:
            UsageError: one is not an integer of at least 1; `num_speculative_tokens` may be 0.
        """
        for name in ("max_model_len", "max_num_batched_tokens", "block_size", "hash_block_size", "mla_block_size"):
            value = getattr(self, name)
            if value is not None or name.startswith("max"):
                object.__setattr__(self, name, whole_number(name, value))
        drafts = whole_number("num_speculative_tokens", self.num_speculative_tokens, at_least=0)
        object.__setattr__(self, "num_speculative_tokens", drafts)

    def caches_prefixes(self, model: Model) -> bool:
        """Tell whether prefixes of `model` are cached."""
        return not model.recurrent_layers if self.enable_prefix_caching is None else self.enable_prefix_caching

    def mamba_mode(self, model: Model) -> MambaMode:
        """Return the mode that says which recurrent states of `model` stay in blocks, so that prefix hits find them."""
        if not self.caches_prefixes(model):
            return MambaMode.NONE
        can_keep = all(layer.keeps_block_states for layer in model.recurrent_layers)
        return MambaMode.ALL if can_keep and self.keeps_every_state else MambaMode.ALIGN


def layer_specs(model: Model, settings: CacheSettings) -> tuple[tuple[LayerSpec, ...], ...]:
    """Return the specs of every layer of `model` and then of `CacheSettings.draft_layers`, in vLLM's order. A layer
    with several caches has several specs.
    """
    block_size = _block_size(model, settings)
    recurrent = model.recurrent_layers
    every = (*model.layers, *((layer,) for layer in settings.draft_layers))
    if not recurrent:
        return tuple(tuple(_attention(model, layer, block_size) for layer in caches) for caches in every)
    mode = settings.mamba_mode(model)
    page_bytes = None
    if model.attention_layers:
        block_size, page_bytes = _block_for_state(model, settings, mode, block_size)
    state_block = settings.max_model_len if mode is MambaMode.NONE else block_size
    return tuple(
        tuple(
            _recurrent(model, layer, mode, state_block, page_bytes, settings)
            if layer in recurrent
            else _attention(model, layer, block_size)
            for layer in caches
        )
        for caches in every
    )


def as_full(spec: LayerSpec) -> LayerSpec:
    """Return the spec of a layer with a window or chunk, changed to keep every token. Others are returned unchanged.

    The spec keeps a sliding window, because it still limits what the layer reads; it does not keep a chunk. With
    `int4_per_token_head`, vLLM stores one element per byte in a converted chunked layer, and two in other full layers.
    """
    if spec.bytes_per_token_as_full is None:
        return spec
    return replace(
        spec,
        kind=CacheKind.FULL,
        window=spec.window if spec.kind is CacheKind.SLIDING_WINDOW else None,
        bytes_per_token=spec.bytes_per_token_as_full,
        bytes_per_token_as_full=None,
    )


def check_length(model: Model, max_model_len: int | None) -> None:
    """Raise a `UsageError` if vLLM does not serve `model` with `max_model_len` tokens. None, not set, is accepted."""
    longest = model.max_position_embeddings
    if max_model_len is not None and whole_number("max_model_len", max_model_len) > longest:
        raise UsageError(
            f"vLLM does not serve {model.name} with --max-model-len {max_model_len}: its configuration allows "
            f"{longest:,} tokens (max_position_embeddings); take that or less."
        )


def check_block_size(model: Model, block_size: int | None) -> None:
    """Raise a `UsageError` if vLLM has no attention kernel for `model` with this `block_size`. None is accepted."""
    least = FLASHMLA_BLOCK if model.has_sparse_attention else BACKEND_BLOCK
    if block_size is not None and model.attention_layers and whole_number("block_size", block_size) % least:
        raise UsageError(
            f"vLLM has no attention kernel for blocks of {block_size} tokens; --block-size should be a multiple of "
            f"{least} for {model.name}."
        )


def smallest_block(model: Model, settings: CacheSettings) -> int:
    """Return the number of tokens in the smallest block that the attention backend for `model` supports."""
    if model.has_sparse_attention:
        return FLASHMLA_BLOCK
    if model.kv_lora_rank is None:
        return BACKEND_BLOCK
    if settings.mla_block_size is not None:
        return settings.mla_block_size
    return FLASHMLA_BLOCK if model.kv_cache_dtype.startswith("fp8") else BACKEND_BLOCK


def _block_size(model: Model, settings: CacheSettings) -> int:
    """Return the number of tokens in an attention block: those of all GPUs over which decode context parallelism
    divides the tokens of a sequence.
    """
    own = smallest_block(model, settings) if settings.block_size is None else settings.block_size
    return own * model.decode_context_parallel_size


def _attention(model: Model, layer: Layer, block_size: int) -> LayerSpec:
    """Return an attention layer's spec for blocks of `block_size` tokens; with a window, at most `BACKEND_BLOCK`."""
    window, kind = None, CacheKind.FULL
    if isinstance(layer, SlidingWindow):
        # A window uses the smallest block, which is enlarged if pages must be equal.
        window, kind, block_size = layer.window, CacheKind.SLIDING_WINDOW, min(BACKEND_BLOCK, block_size)
    elif isinstance(layer, ChunkedLocal):
        window, kind = layer.window, CacheKind.CHUNKED_LOCAL
    elif isinstance(layer, Mla | Indexer):
        kind = CacheKind.MLA
    return LayerSpec(
        kind=kind,
        block_size=block_size,
        bytes_per_token=model.layer_bytes_per_token(layer),
        bytes_per_token_as_full=_bytes_as_full(model, layer),
        window=window,
        pads_pages=kind in (CacheKind.FULL, CacheKind.SLIDING_WINDOW),
        other_properties=_other_properties(model, layer),
    )


def _bytes_as_full(model: Model, layer: Layer) -> int | None:
    if isinstance(layer, SlidingWindow):
        full = FullAttention(
            num_kv_heads=layer.num_kv_heads, head_dim=layer.head_dim, value_head_dim=layer.value_head_dim
        )
        return model.layer_bytes_per_token(full)
    if isinstance(layer, ChunkedLocal):
        size = element_bytes(model.dtype, model.kv_cache_dtype)
        return 2 * layer.heads_on_gpu(model.tensor_parallel_size) * layer.head_dim * size
    return None


def _other_properties(model: Model, layer: Layer) -> tuple[object, ...]:
    if isinstance(layer, FullAttention):
        return (layer.heads_on_gpu(model.tensor_parallel_size), layer.head_dim, layer.value_head_dim)
    return (layer,)


def _recurrent(
    model: Model, layer: Recurrent, mode: MambaMode, block_size: int, page_bytes: int | None, settings: CacheSettings
) -> LayerSpec:
    state_bytes = _state_bytes(model, layer, settings)
    return LayerSpec(
        kind=CacheKind.MAMBA,
        block_size=block_size,
        bytes_per_token=0,
        state_bytes=state_bytes,
        padded_page_bytes=None if page_bytes in (None, state_bytes) else page_bytes,
        mamba_mode=mode,
        num_speculative_blocks=settings.num_speculative_tokens,
        other_properties=(layer,),
    )


def _block_for_state(model: Model, settings: CacheSettings, mode: MambaMode, block_size: int) -> tuple[int, int]:
    """Return (tokens, bytes in one layer) of an attention block that has at least `block_size` tokens and at least as
    many bytes as a recurrent state.

    As in vLLM, the bytes of a token are those of the first attention layer, and the bytes of a state those of the first
    recurrent layer.
    """
    per_token = model.layer_bytes_per_token(model.attention_layers[0])
    state_bytes = _state_bytes(model, model.recurrent_layers[0], settings)
    least = max(smallest_block(model, settings), block_size)
    if mode is MambaMode.ALL:
        step = lcm(model.mamba_chunk_size or _DEFAULT_CHUNK, least)
        num_tokens = step * ceil(ceil(state_bytes / per_token) / step)
    else:
        num_tokens = least * ceil(state_bytes / (least * per_token))
    num_tokens = max(block_size, num_tokens)
    return num_tokens, num_tokens * per_token


def _state_bytes(model: Model, layer: Recurrent, settings: CacheSettings) -> int:
    tensors = layer.state(model.tensor_parallel_size, settings.num_speculative_tokens)
    return sum(tensor.num_bytes for tensor in tensors)
