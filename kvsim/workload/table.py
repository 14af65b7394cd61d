"""Workload: the requests of a simulation as a table in order of arrival, with one array per field.

Arrays keep a million requests in about 40 MB, and make statistics fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.display.text import plural
from kvsim.errors import UsageError, described, shortened
from kvsim.setting_fields import check_instance, is_finite, is_whole
from kvsim.workload.columns import MAX_TOKENS, Numbered, Ragged, float_column, frozen, int_column
from kvsim.workload.image_histories import check_histories, history_with_tokens, replace_history, with_histories
from kvsim.workload.images import Images
from kvsim.workload.request import Request, SharedPrefix
from kvsim.workload.request_rules import SCALAR_COLUMNS, check_rows
from kvsim.workload.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import ArrayLike

    from kvsim.workload.columns import FloatArray, Int32Array, Int64Array
    from kvsim.workload.images import ImageDistribution
    from kvsim.workload.turns import Turns

_ADAPTERS = 4
"""Number of the stream of random numbers for adapters, which differs from those of other draws with the same seed."""
_AT_ONCE_S = 1e-12
"""Largest number of seconds between the first and the last arrival at which all requests count as arriving at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSummary:
    """Numbers that describe a workload. With sessions, only first turns count as arrivals."""

    num_requests: int
    duration_s: float
    """Seconds from the first arrival to the last."""
    rate_per_s: float | None
    """Mean number of arrivals per second; None if all requests arrive at once."""
    gap_cv: float | None
    """Standard deviation of the gaps between arrivals, divided by their mean; None if all requests arrive at once.

    For a Poisson process, it is about 1.
    """
    mean_prompt_tokens: float
    mean_output_tokens: float
    mean_max_tokens: float
    longest_request_tokens: int
    """Number of tokens in the longest request, prompt and answer together."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False, repr=False, eq=False)
class Workload:
    """Requests in order of arrival, at least one. Requests that arrive together keep the order in which they are given.

    The constructor copies the columns, checks every row and sorts the rows. By default, `max_tokens` is
    `output_tokens`, the priority is 0, ids are `r0`, `r1`, ..., and there are no shared prefixes, adapters, hashes,
    token ids, images or turns.

    A turn that waits for another turn arrives when that turn has ended and a pause is over. Its `arrival_s` is only a
    lower bound: the simulation computes when it arrives.

    Raises:
        UsageError: a column has the wrong shape or type.
        WorkloadError: a request is invalid; the message names the first such row, as numbered in the input.
    """

    arrival_s: FloatArray
    """Arrival times in seconds, in ascending order: float64[n]."""
    prompt_tokens: Int32Array
    """Number of tokens in each prompt: int32[n], as are all columns below without another type."""
    output_tokens: Int32Array
    """Number of tokens in each answer."""
    max_tokens: Int32Array
    """Largest number of tokens that each request allows for its answer."""
    priority: Int32Array
    """Priority of each request. Policies with priorities serve the smallest number first."""
    prefix_group: Int32Array
    """Index in `prefix_names` of the shared prefix of each request; -1 for none."""
    prefix_tokens: Int32Array
    """Number of leading tokens of each prompt that belong to its shared prefix; 0 for none."""
    adapter: Int32Array
    """Number of the adapter (LoRA) that each request asks for, from 1 on; 0 for none."""
    prefix_names: Sequence[str]
    """Names of the shared prefixes."""
    prompt_hashes: Ragged[np.int64]
    """Chained hashes of each prompt, one for each full unit of `hash_unit_tokens` tokens: int64 values. The last ones
    may be missing if they are not known.
    """
    hash_unit_tokens: int
    """Number of tokens in one unit. The hash of a unit also covers all units before it."""
    hash_ahead_tokens: int
    """Number of tokens after its unit that a hash also covers. Above 0 only for draft layers that read ahead."""
    prompt_token_ids: Ragged[np.int32] | None
    """Token ids of each prompt: an empty row where unknown, None if unknown for all prompts."""
    images: Images | None
    """Images in the prompts; None if no prompt has images.

    `prompt_tokens` does not include the tokens of images in pixels, which depend on the model: `with_image_tokens` adds
    them. It includes the tokens of all other images.
    """
    turns: Turns | None
    """Turns of sessions: the requests that each request waits for; None without sessions."""
    ids: Sequence[str]
    """Name of each request."""
    name: str
    description: str
    """One sentence about the source of the requests."""

    def __init__(
        self,
        *,
        arrival_s: ArrayLike,
        prompt_tokens: ArrayLike,
        output_tokens: ArrayLike,
        max_tokens: ArrayLike | None = None,
        priority: ArrayLike | None = None,
        prefix_group: ArrayLike | None = None,
        prefix_tokens: ArrayLike | None = None,
        adapter: ArrayLike | None = None,
        prefix_names: Sequence[str] = (),
        prompt_hashes: Ragged[np.int64] | None = None,
        hash_unit_tokens: int = 16,
        hash_ahead_tokens: int = 0,
        prompt_token_ids: Ragged[np.int32] | None = None,
        images: Images | None = None,
        turns: Turns | None = None,
        ids: Sequence[str] | None = None,
        name: str = "workload",
        description: str = "",
    ) -> None:
        arrivals = float_column("arrival_s", arrival_s)
        n = arrivals.size
        names = Numbered("r", range(n)) if ids is None else ids
        for column, values in (("ids", names), ("prefix_names", prefix_names)):
            _check_names(column, values)
        for column, rows in (("prompt_hashes", prompt_hashes), ("prompt_token_ids", prompt_token_ids)):
            check_instance(column, rows, Ragged | None, "a Ragged, as Ragged.from_rows returns it")
        check_instance("images", images, Images | None, "Images")
        check_instance("turns", turns, Turns | None, "Turns")
        numbers = _int_columns(
            n,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            max_tokens=output_tokens if max_tokens is None else max_tokens,
            priority=priority,
            prefix_group=-1 if prefix_group is None else prefix_group,
            prefix_tokens=prefix_tokens,
            adapter=adapter,
        )
        self._set(
            arrival_s=arrivals,
            **numbers,
            prefix_names=prefix_names,
            prompt_hashes=Ragged.empty(n, np.int64) if prompt_hashes is None else prompt_hashes,
            hash_unit_tokens=hash_unit_tokens,
            hash_ahead_tokens=hash_ahead_tokens,
            prompt_token_ids=prompt_token_ids,
            images=images if images is not None and len(images.content) else None,
            turns=turns,
            ids=names if isinstance(names, Numbered) else tuple(names),
            name=name,
            description=description,
        )
        self._check_and_sort()

    def _check_and_sort(self) -> None:
        check_rows(self)
        turns = self.turns
        if turns is not None:
            turns = turns.checked(self)
            self._set(turns=turns, arrival_s=turns.earliest_s(self.arrival_s))
            if self.images is not None:
                check_histories(self.images, turns, self.ids)
        order = _in_order(self.arrival_s, turns)
        if order is not None:
            self._set(**self._rows(order))

    @classmethod
    def from_requests(
        cls, requests: Iterable[Request], *, hash_unit_tokens: int = 16, name: str = "workload", description: str = ""
    ) -> Workload:
        """Return a workload of `requests`, which may be in any order."""
        if isinstance(requests, str | bytes) or not isinstance(requests, Iterable):
            raise UsageError(f"requests should be a list of Request, not {described(requests)}.")
        rows = list(requests)
        for row in rows:
            _check_request(row)
        prefixes = [row.prefix for row in rows]
        group_numbers = {group: number for number, group in enumerate(dict.fromkeys(p.group for p in prefixes if p))}
        prompts_known = any(row.prompt_token_ids is not None for row in rows)
        has_images = any(row.images for row in rows)
        return cls(
            arrival_s=[row.arrival_s for row in rows],
            prompt_tokens=[row.prompt_tokens for row in rows],
            output_tokens=[row.output_tokens for row in rows],
            max_tokens=[row.max_tokens for row in rows],
            priority=[row.priority for row in rows],
            prefix_group=[group_numbers[prefix.group] if prefix else -1 for prefix in prefixes],
            prefix_tokens=[prefix.tokens if prefix else 0 for prefix in prefixes],
            prefix_names=tuple(group_numbers),
            adapter=[row.adapter for row in rows],
            prompt_hashes=Ragged.from_rows([row.prompt_hashes for row in rows], np.int64),
            hash_unit_tokens=hash_unit_tokens,
            prompt_token_ids=(
                Ragged.from_rows([row.prompt_token_ids or () for row in rows], np.int32) if prompts_known else None
            ),
            images=Images.from_rows([row.images for row in rows]) if has_images else None,
            ids=[row.id for row in rows],
            name=name,
            description=description,
        )

    def __len__(self) -> int:
        return self.arrival_s.size

    def __getitem__(self, row: int) -> Request:
        row = range(len(self))[row]
        group = int(self.prefix_group[row])
        prefix_tokens = int(self.prefix_tokens[row])
        prompt = self.prompt_token_ids[row].tolist() if self.prompt_token_ids is not None else ()
        return Request(
            id=self.ids[row],
            arrival_s=float(self.arrival_s[row]),
            prompt_tokens=int(self.prompt_tokens[row]),
            output_tokens=int(self.output_tokens[row]),
            max_tokens=int(self.max_tokens[row]),
            priority=int(self.priority[row]),
            prefix=SharedPrefix(group=self.prefix_names[group], tokens=prefix_tokens) if group >= 0 else None,
            adapter=int(self.adapter[row]),
            prompt_hashes=tuple(self.prompt_hashes[row].tolist()),
            prompt_token_ids=tuple(prompt) if prompt else None,
            images=() if self.images is None else self.images[row],
        )

    def __iter__(self) -> Iterator[Request]:
        return (self[row] for row in range(len(self)))

    def __repr__(self) -> str:
        return f"<Workload {self.name!r}: {len(self)} requests in {self.arrival_s[-1] - self.arrival_s[0]:g} s>"

    def head(self, n: int) -> Workload:
        """Return the first `n` requests to arrive, or all if there are fewer.

        Raises:
            UsageError: `n` is below 1.
        """
        if not is_whole(n) or n < 1:
            raise UsageError(f"the first {shortened(n)} requests were asked for; ask for at least 1.")
        changes: dict[str, Any] = self._rows(np.arange(min(n, len(self))))
        return replace(self, **changes)

    def every(self, stride: int, first_row: int) -> Workload:
        """Return the requests in rows `first_row`, `first_row + stride`, and so on. They keep their ids."""
        changes: dict[str, Any] = self._rows(np.arange(first_row, len(self), stride))
        return replace(self, **changes | {"ids": self.ids[first_row::stride]})

    def take(self, rows: Int64Array) -> Workload:
        """Return the requests at the row indices `rows`, which must ascend. They keep their ids."""
        changes: dict[str, Any] = self._rows(rows)
        return replace(self, **changes | {"ids": [self.ids[row] for row in rows.tolist()]})

    def scaled_rate(self, factor: float) -> Workload:
        """Return the requests with an arrival rate `factor` times as high. In sessions, the pauses between turns stay.

        Raises:
            UsageError: `factor` is not a finite number above 0.
        """
        if not (is_finite(factor) and factor > 0):
            given = shortened(factor)
            raise UsageError(f"the arrival rate was to be scaled by {given}; it must be a finite number above 0.")
        description = f"{self.description}, arriving {factor:g} times as fast".removeprefix(", ")
        with np.errstate(over="ignore"):  # the constructor refuses infinite times with a better message
            arrival_s = self.arrival_s / factor
        return replace(self, arrival_s=arrival_s, description=description)

    def scaled_answers(self, factor: float) -> Workload:
        """Return the requests with answers `factor` times as long, rounded to whole tokens, at least 1.

        `max_tokens` grows by the same factor, and is at least the new length.

        Raises:
            UsageError: `factor` is not a finite number above 0, or there are sessions.
        """
        if not (is_finite(factor) and factor > 0):
            raise UsageError(f"answers were to be scaled by {shortened(factor)}; it must be a finite number above 0.")
        if self.turns is not None:
            raise UsageError("answers are part of the prompts of later turns, so those of sessions keep their lengths.")
        output = np.clip(np.rint(self.output_tokens * factor), 1, MAX_TOKENS).astype(np.int64)
        limit = np.maximum(np.clip(np.rint(self.max_tokens * factor), 1, MAX_TOKENS).astype(np.int64), output)
        return Workload(
            **{name: getattr(self, name) for name in SCALAR_COLUMNS} | {"output_tokens": output, "max_tokens": limit},
            prefix_names=self.prefix_names,
            prompt_hashes=self.prompt_hashes,
            hash_unit_tokens=self.hash_unit_tokens,
            hash_ahead_tokens=self.hash_ahead_tokens,
            prompt_token_ids=self.prompt_token_ids,
            images=self.images,
            ids=self.ids,
            name=self.name,
            description=f"{self.description}, with answers {factor:g} times as long".removeprefix(", "),
        )

    def with_adapters(self, number: int, skew: float, seed: int) -> Workload:
        """Return the requests, each with one of `number` adapters, chosen at random.

        The probability of adapter `n`, from 1, is proportional to 1 / n^`skew`.
        """
        weights = np.arange(1, number + 1, dtype=np.float64) ** -skew
        adapter = 1 + np.random.default_rng((seed, _ADAPTERS)).choice(number, len(self), p=weights / weights.sum())
        said = f"; {number:,} adapters, the n-th as often as 1/n^{skew:g}" if skew else f"; {number:,} adapters"
        return replace(self, adapter=frozen(adapter.astype(np.int32)), description=f"{self.description}{said}")

    def with_images(self, distribution: ImageDistribution, seed: int) -> Workload:
        """Return the requests with generated images, which follow the shared prefix of each prompt.

        In a turn of a session, they follow the history, which contains the images of the earlier turns.

        Raises:
            UsageError: the requests have images already, or have token ids or hashes, which would not cover new images;
                or a turn does not repeat all of the turn before it.
        """
        if self.images is not None or self.prompt_token_ids is not None or len(self.prompt_hashes.values):
            raise UsageError("images are drawn for prompts whose contents are not known; these have token ids, hashes "
                             "or images of their own.")  # fmt: skip
        said, turns = f"{self.description}; {distribution}", self.turns
        if turns is None:
            images = distribution.draw(self.prefix_tokens, seed)
        else:
            new = distribution.draw(np.where(turns.after < 0, self.prefix_tokens, turns.history_tokens), seed)
            text_tokens = (self.prompt_tokens.astype(np.int64) + self.output_tokens)[turns.after]
            images, before = with_histories(new, turns, text_tokens)
            turns = replace_history(turns, turns.history_tokens + before)
        added = np.diff(np.concatenate(([0], np.cumsum(images.tokens)))[images.offsets])
        return replace(self, prompt_tokens=self.prompt_tokens + added, images=images, turns=turns, description=said)

    def with_image_tokens(self, tokens_of: Callable[[int, int], int]) -> Workload:
        """Return the requests with the tokens of images in pixels added to their prompts.

        `tokens_of(width, height)` returns the number of tokens of an image, without its two marks: the token before it
        and the token after it.
        """
        if self.images is None or not self.images.in_pixels.any():
            return self
        images, added = self.images.measured(tokens_of)
        turns = None if self.turns is None else history_with_tokens(self.images, images, self.turns)
        return replace(self, prompt_tokens=self.prompt_tokens + added, images=images, turns=turns)

    def cut(self, max_model_len: int) -> Workload:
        """Return the requests, shortened for a server with this `max_model_len`.

        Prompts are cut to `max_model_len - 1` tokens, and answers to the tokens that are left. If there are sessions,
        nothing is cut: each session ends before its first turn with a longer prompt. If every prompt of the workload is
        longer than `max_model_len - 1` tokens, the requests are returned unchanged, and the server can serve none.

        Raises:
            UsageError: `max_model_len` is below 2, so that no request fits, or a prompt with images would be cut.
        """
        if max_model_len < 2:
            raise UsageError(f"max_model_len is {max_model_len}; a prompt and its answer need at least 2 tokens.")
        if self.turns is not None:
            return self._with_sessions_ended(max_model_len)
        prompt, total = self.prompt_tokens, self.prompt_tokens.astype(np.int64) + self.output_tokens
        num_prompts, num_cut = int((prompt >= max_model_len).sum()), int((total > max_model_len).sum())
        if not num_cut or num_prompts == len(self):
            return self
        if num_prompts and self.images is not None:
            raise UsageError(f"{num_prompts:,} prompts with images are longer than {max_model_len:,} tokens, and kvsim "
                             "cuts no images; ask for shorter prompts or a larger max_model_len.")  # fmt: skip
        prompt = np.minimum(prompt, max_model_len - 1)
        output = np.minimum(self.output_tokens, max_model_len - prompt)
        counts = f"{plural(num_prompts, 'prompt')}, {plural(num_cut - num_prompts, 'answer')}"
        ids, hashed_tokens = self.prompt_token_ids, np.maximum(prompt - self.hash_ahead_tokens, 0)
        return replace(
            self,
            prompt_tokens=prompt,
            prompt_token_ids=None if ids is None else ids.cut(prompt),
            prompt_hashes=self.prompt_hashes.cut(hashed_tokens // self.hash_unit_tokens),
            output_tokens=output,
            max_tokens=np.maximum(np.minimum(self.max_tokens, max_model_len - prompt), output),
            prefix_tokens=np.minimum(self.prefix_tokens, prompt),
            description=f"{self.description}; cut at {max_model_len:,} tokens: {counts}",
        )

    def _with_sessions_ended(self, max_model_len: int) -> Workload:
        """Drop every turn whose prompt leaves no room for an answer, and all turns that wait for it. If no turn would
        be left, drop none.

        Ids are kept, except for default ids, which are numbered anew.
        """
        assert self.turns is not None
        kept = self.turns.without_orphans(self.prompt_tokens < max_model_len)
        if kept.all() or not kept.any():
            return self
        changes: dict[str, Any] = self._rows(np.flatnonzero(kept))
        cut = f"; sessions end at {max_model_len:,} tokens: without {int((~kept).sum()):,} turns"
        return replace(self, **changes, description=f"{self.description}{cut}")

    def summary(self) -> WorkloadSummary:
        """Return numbers that describe the workload: how many requests, their arrival rate, and their mean lengths."""
        begins_s = self.arrival_s if self.turns is None else self.arrival_s[self.turns.after < 0]
        duration_s = float(begins_s[-1] - begins_s[0])
        gaps_s = np.diff(begins_s)
        passes = duration_s > _AT_ONCE_S
        return WorkloadSummary(
            num_requests=len(self),
            duration_s=duration_s,
            rate_per_s=len(gaps_s) / duration_s if passes else None,
            gap_cv=float((gaps_s / duration_s).std() * len(gaps_s)) if passes else None,
            mean_prompt_tokens=float(self.prompt_tokens.mean()),
            mean_output_tokens=float(self.output_tokens.mean()),
            mean_max_tokens=float(self.max_tokens.mean()),
            # The constructor has made sure that this sum fits into int32.
            longest_request_tokens=int((self.prompt_tokens + self.output_tokens).max()),
        )

    def _rows(self, rows: Int64Array) -> dict[str, object]:
        """Return the fields with one value per request, for the row indices `rows` in this order.

        Default ids are numbered anew, as the first `len(rows)` ids. A caller that keeps ids sets them itself.
        """
        prompts = self.prompt_token_ids
        return {
            **{column: frozen(getattr(self, column)[rows]) for column in SCALAR_COLUMNS},
            "prompt_hashes": self.prompt_hashes.take(rows),
            "prompt_token_ids": prompts.take(rows) if prompts is not None else None,
            "images": None if self.images is None else self.images.take(rows),
            "turns": None if self.turns is None else self.turns.take(rows),
            "ids": self.ids[: len(rows)] if isinstance(self.ids, Numbered) else tuple(self.ids[row] for row in rows),
        }

    def _set(self, **fields: object) -> None:
        for field, value in fields.items():
            object.__setattr__(self, field, value)


def _check_request(row: object) -> None:
    """Check the types of the parts of a request that are no numbers."""
    check_instance("each of the requests", row, Request, "a Request")
    assert isinstance(row, Request)
    check_instance("the prefix of a request", row.prefix, SharedPrefix | None, "a SharedPrefix")
    check_instance("prompt_hashes of a request", row.prompt_hashes, Iterable, "a tuple of integers")
    check_instance(
        "prompt_token_ids of a request", row.prompt_token_ids, Iterable | None, "a tuple of integers or None"
    )
    check_instance("images of a request", row.images, Iterable, "a tuple of images")


def _check_names(column: str, names: object) -> None:
    """Check that the argument `column` is a sequence of texts."""
    if isinstance(names, str | bytes) or not isinstance(names, Sequence):
        raise UsageError(f"{column} should be a list of texts, not {described(names)}.")
    wrong = [] if isinstance(names, Numbered) else [name for name in names if not isinstance(name, str)]
    if wrong:
        raise UsageError(f"{column} should be a list of texts, and has {described(wrong[0])}.")


def _int_columns(n: int, **columns: ArrayLike | None) -> dict[str, Int32Array]:
    """Return int32 columns with `n` rows. A single number is repeated in all rows, and None becomes 0."""
    given = {name: 0 if values is None else values for name, values in columns.items()}
    return {
        name: int_column(name, np.broadcast_to(values, n) if isinstance(values, int) else values, np.int32, n)
        for name, values in given.items()
    }


def _in_order(arrival_s: FloatArray, turns: Turns | None) -> Int64Array | None:
    """Return the rows in order of arrival, each turn behind the one in `Turns.after`; None if they are in order."""
    if turns is not None and (turns.after >= np.arange(len(turns))).any():
        return np.lexsort((turns.turn, arrival_s))  # by arrival, then by number of the turn
    return np.argsort(arrival_s, kind="stable") if np.any(np.diff(arrival_s) < 0) else None
