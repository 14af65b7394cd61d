"""vLLM's `--speculative-config`, checked as vLLM checks it and reduced to the keys that affect a simulation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from kvsim.errors import UnknownNameError, UsageError, shortened
from kvsim.policies.acceptance import checked_rates
from kvsim.policies.releases import rules_of

READS_STATES = ("eagle", "eagle3", "mtp")
"""Methods whose draft layers read hidden states of the model together with the next token."""
_LOOKS_UP = ("ngram", "ngram_gpu", "suffix")
"""Methods that copy drafts from earlier tokens, without draft layers."""
METHODS = (*READS_STATES, "dflash", "draft_model", *_LOOKS_UP)
_NOT_SIMULATED = ("dspark", "custom_class", "extract_hidden_states", "medusa", "mlp_speculator")
MOST_DRAFTS = 1 << 8
_SIMULATED = {
    "method": str,
    "model": str,
    "num_speculative_tokens": int,
    "num_speculative_tokens_per_batch_size": list,
    "draft_tensor_parallel_size": int,
    "parallel_drafting": bool,
    "disable_eagle_block_drop": bool,
    "disable_lookahead_block_hashes": bool,
    "rejection_sample_method": str,
    "synthetic_acceptance_rates": list,
    "synthetic_acceptance_length": float,
    "kv_cache_dtype": str,
    "quantization": str,
}
"""Keys that affect a simulation, and their types."""
_WITHOUT_EFFECT = (
    "attention_backend", "code_revision", "disable_padded_drafter_batch", "draft_load_config", "draft_sample_method",
    "enforce_eager", "fly_entropy_threshold", "fly_entropy_top_k", "fly_window_size", "index_share_for_mtp_iteration",
    "max_model_len", "moe_backend", "prompt_lookup_max", "prompt_lookup_min", "revision",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor", "suffix_decoding_max_tree_depth",
    "suffix_decoding_min_token_prob", "use_heterogeneous_vocab", "use_local_argmax_reduction",
)  # fmt: skip
"""Keys that affect neither the scheduler nor the pool: they choose drafts, kernels or files."""
_SINCE_33 = ("disable_eagle_block_drop", "disable_lookahead_block_hashes", "kv_cache_dtype")
_ASYNC_BEFORE_33 = ("eagle", "eagle3", "mtp", "draft_model", "ngram_gpu", "dflash")
"""Methods with which vLLM schedules asynchronously before 0.33. Of those releases, only 0.25 is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeConfig:
    """The keys of vLLM's `--speculative-config` that affect a simulation."""

    method: str
    num_tokens: int
    """Number of tokens drafted for every request and step (`num_speculative_tokens`)."""
    model: str | None = None
    by_batch: tuple[tuple[int, int, int], ...] = ()
    """Entries (first, last, tokens) of `num_speculative_tokens_per_batch_size`.

    After a step of `first` to `last` requests, inclusive, `tokens` tokens are drafted for each request. Between two
    ranges and beyond the last one, the range before applies. Without entries, the number is always `num_tokens`.
    """
    is_parallel: bool = False
    """True if all drafts of a request come from one pass of the draft model (`parallel_drafting`)."""
    drops_no_block: bool = False
    """True if the last block of a prefix hit is used instead of computed again (`disable_eagle_block_drop`)."""
    has_plain_hashes: bool = False
    """True if the key of a block covers no tokens after the block (`disable_lookahead_block_hashes`)."""
    tensor_parallel_size: int | None = None
    """Number of GPUs over which the draft model is split; None for the number of the model's GPUs."""
    kv_cache_dtype: str | None = None
    quantization: str | None = None
    synthetic_rates: tuple[float, ...] = ()
    """Acceptance rates by position with which vLLM itself draws accepted drafts; empty if the model verifies drafts.

    vLLM draws them if `rejection_sample_method` is "synthetic".
    """
    num_modules: int = 1
    """Number of modules for multi-token prediction (MTP), which draft one after the other."""

    @property
    def looks_up(self) -> bool:
        """True if drafts are copied from earlier tokens, so that there are no draft layers."""
        return self.method in _LOOKS_UP

    @property
    def lookahead_tokens(self) -> int:
        """Number of slots that every request holds after the slot of its last token."""
        return 0 if self.looks_up else self.num_tokens + (self.method == "dflash")

    @property
    def step_tokens(self) -> int:
        """Number of tokens of a step's budget (`max_num_batched_tokens`) that drafting takes for each request."""
        is_model = self.method == "draft_model"
        if self.is_parallel:
            return self.num_tokens if is_model else self.num_tokens - 1
        return int(is_model)

    def tokens_ahead(self, release: str) -> int:
        """Return how many tokens after the end of a block its prefix key also covers, in vLLM `release`; 0 for most."""
        covers = rules_of(release).keys_cover_drafts and self._needs_last_block(release) and not self.has_plain_hashes
        return min(self.num_modules, self.num_tokens) if covers else 0

    def drops_last_hit(self, release: str) -> bool:
        """Tell whether, in a release, the last block of every prefix hit is computed again for draft layers."""
        return self._needs_last_block(release) and not self.tokens_ahead(release)

    def _needs_last_block(self, release: str) -> bool:
        """Tell whether draft layers need hidden states of the last block of a prefix hit.

        Then this block is computed again, or the keys of blocks cover more tokens; see `drops_last_hit`.
        """
        if rules_of(release).keys_cover_drafts:
            return self.method in READS_STATES and not self.drops_no_block
        return self.method in (*READS_STATES, "dflash")

    def check_starts(self, release: str, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        """Check that drafting leaves tokens of a step's budget for the model.

        Raises:
            UsageError: drafting takes all tokens of a step, so vLLM does not start.
        """
        taken = 0 if rules_of(release).drafting_takes_tokens else self.step_tokens * max_num_seqs
        if self.method == "dflash":
            taken = max(taken, self.lookahead_tokens)
        if max_num_batched_tokens <= taken:
            raise UsageError(
                f"vLLM {release} does not start: drafting takes {taken:,} of {max_num_batched_tokens:,} tokens of a "
                "step; raise --max-num-batched-tokens, or lower --max-num-seqs or num_speculative_tokens."
            )

    def most_past_end(self, steps: int) -> int:
        """Return the largest number of tokens computed after a sequence's end, with `steps` steps in flight."""
        return steps * (1 + self.num_tokens) - 1

    def check_known_to(self, release: str) -> None:
        """Raise a `UsageError` if vLLM `release` does not know a key of this configuration."""
        for name, is_asked in zip(
            _SINCE_33, (self.drops_no_block, self.has_plain_hashes, self.kv_cache_dtype is not None), strict=True
        ):
            if is_asked and not rules_of(release).keys_cover_drafts:
                raise UsageError(f"vLLM {release} does not know {name} of speculative_config; leave it out.")

    def is_async(self, release: str) -> bool:
        """Tell whether vLLM `release` schedules asynchronously by default with this method."""
        if rules_of(release).drafts_have_v2_runner:
            return self.has_v2_runner(release) or self.method not in ("ngram", "suffix")
        return self.method in _ASYNC_BEFORE_33

    def has_v2_runner(self, release: str) -> bool:
        """Tell whether vLLM `release` serves this configuration with model runner V2."""
        by_runner_v2 = self.method in (*READS_STATES, "dflash") or rules_of(release).drafts_have_v2_runner
        return by_runner_v2 and not self.is_parallel and self.method != "suffix"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a configuration as vLLM's flag takes it: JSON, with vLLM's keys.

        Raises:
            UsageError: the text is not a JSON object, vLLM refuses it, or kvsim does not simulate a part of it.
        """
        return cls.of(read_config(text))

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read a configuration given as a mapping; see `parse`."""
        _check_keys(document)
        given = {name: value for name, value in document.items() if value is not None}
        method = _method_of(given)
        num_tokens = given.get("num_speculative_tokens")
        if num_tokens is None:
            raise UsageError(
                "--speculative-config should say num_speculative_tokens: kvsim does not load the draft model that vLLM "
                "would read it from."
            )
        if not 1 <= num_tokens <= MOST_DRAFTS:
            raise UsageError(
                f"num_speculative_tokens should be at least 1 and at most {MOST_DRAFTS}, not {shortened(num_tokens)}."
            )
        if method in ("eagle", "eagle3", "dflash", "draft_model") and "model" not in given:
            raise UsageError(
                "--speculative-config should name the model that drafts: vLLM does not start method "
                f"{method!r} without."
            )
        return cls(
            method=method,
            num_tokens=num_tokens,
            model=given.get("model"),
            by_batch=_ranges(given.get("num_speculative_tokens_per_batch_size") or (), num_tokens),
            is_parallel=given.get("parallel_drafting", False),
            drops_no_block=given.get("disable_eagle_block_drop", False),
            has_plain_hashes=given.get("disable_lookahead_block_hashes", False),
            tensor_parallel_size=given.get("draft_tensor_parallel_size"),
            kv_cache_dtype=given.get("kv_cache_dtype"),
            quantization=given.get("quantization"),
            synthetic_rates=_synthetic_rates(given, num_tokens),
        )


def canonical(config: Any) -> str:
    """Return a configuration, given as JSON or as a mapping, as JSON with sorted keys. An empty text stays empty.

    Raises:
        UsageError: `config` is no JSON object.
    """
    if config == "":
        return ""
    if isinstance(config, str):
        config = read_config(config)
    if not isinstance(config, Mapping):
        raise UsageError(f"speculative_config should be a dict or its JSON, not {shortened(config)}.")
    try:
        return json.dumps({str(name): value for name, value in config.items()}, sort_keys=True)
    except (TypeError, ValueError) as error:
        raise UsageError(f"speculative_config should be JSON: {error}.") from error


def read_config(text: str) -> dict[str, Any]:
    """Return the JSON object `text` of `--speculative-config`.

    Raises:
        UsageError: `text` is not a JSON object.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--speculative-config should be a JSON object in quotes: {error}.") from error
    if not isinstance(document, dict):
        raise UsageError(f"--speculative-config should be a JSON object, not {shortened(text)}.")
    return document


def _check_keys(document: Mapping[str, Any]) -> None:
    if "tensor_parallel_size" in document:
        raise UsageError("--speculative-config takes draft_tensor_parallel_size, not tensor_parallel_size.")
    for name, value in document.items():
        if name not in _SIMULATED and name not in _WITHOUT_EFFECT:
            raise UnknownNameError("key of --speculative-config", str(name), [*_SIMULATED, *_WITHOUT_EFFECT])
        kind: Any = _SIMULATED.get(name)
        kinds = (list, tuple) if kind is list else (int, float) if kind is float else (kind,)
        # A bool is an int in Python, and no number here.
        has_type = kind is None or (isinstance(value, kinds) and (kind is bool or not isinstance(value, bool)))
        if value is not None and not has_type:
            raise UsageError(f"{name} of --speculative-config should be {kind.__name__}, not {shortened(value)}.")


def _method_of(given: Mapping[str, Any]) -> str:
    """Return the method that the configuration names; else the method that vLLM infers from the draft model."""
    method = given.get("method") or ("ngram" if given.get("model") in ("ngram", "[ngram]") else None)
    if method is None:
        name = str(given.get("model", "")).lower()
        found = [each for each in ("eagle3", "eagle", "dflash") if each in name]
        return found[0] if found else "draft_model"
    method = "mtp" if method.endswith("_mtp") else "ngram" if method == "[ngram]" else method
    if method in _NOT_SIMULATED:
        raise UsageError(f"kvsim does not follow drafts of the method {method!r}; it follows {', '.join(METHODS)}.")
    if method not in METHODS:
        raise UnknownNameError("method", str(method), METHODS)
    return str(method)


def _ranges(entries: Sequence[Any], num_tokens: int) -> tuple[tuple[int, int, int], ...]:
    name, before = "num_speculative_tokens_per_batch_size", 0
    for entry in entries:
        numbers = tuple(entry) if isinstance(entry, list | tuple) else ()
        if len(numbers) != 3 or not all(type(number) is int for number in numbers):
            raise UsageError(f"{name} should list [from, to, tokens] in whole numbers, not {shortened(entry)}.")
        begin, end, tokens = numbers
        if begin <= before or end < begin:
            raise UsageError(f"{name} should list ranges that rise and do not overlap, not {shortened(entry)}.")
        if not 0 <= tokens <= num_tokens:
            raise UsageError(f"{name} may draft 0 to num_speculative_tokens ({num_tokens}) tokens, not {tokens}.")
        before = end
    if entries and entries[0][0] != 1:
        raise UsageError(f"the first range of {name} should begin at 1, not {entries[0][0]}.")
    return tuple((begin, end, tokens) for begin, end, tokens in entries)


def _synthetic_rates(given: Mapping[str, Any], num_tokens: int) -> tuple[float, ...]:
    """Return the rates by position with which vLLM itself draws accepted drafts; empty if the model verifies drafts."""
    rates, length = given.get("synthetic_acceptance_rates"), given.get("synthetic_acceptance_length")
    if given.get("rejection_sample_method") != "synthetic":
        if rates is not None or length is not None:
            raise UsageError("synthetic_acceptance_rates and synthetic_acceptance_length are for "
                             "rejection_sample_method 'synthetic' alone; name it too.")  # fmt: skip
        return ()
    if (rates is None) == (length is None):
        raise UsageError("rejection_sample_method 'synthetic' takes synthetic_acceptance_rates or "
                         "synthetic_acceptance_length, and not both.")  # fmt: skip
    if length is not None:
        if not 1 <= length <= num_tokens + 1:
            raise UsageError(f"synthetic_acceptance_length should be 1 to {num_tokens + 1}, not {shortened(length)}.")
        # The mean length is 1 plus the sum of the rates: whole drafts are always accepted, a last one by the fraction.
        return tuple(min(max(length - 1 - index, 0.0), 1.0) for index in range(num_tokens))
    rates = rates or ()
    if len(rates) != num_tokens:
        raise UsageError(f"synthetic_acceptance_rates should be {num_tokens} shares, one a draft, not {len(rates)}.")
    return checked_rates(rates, "synthetic_acceptance_rates")
