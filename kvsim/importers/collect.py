"""Rows of a file, gathered into a workload: what every text format does with a request once its fields are known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload import Ragged, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.importers.source import Source


@dataclass(slots=True, kw_only=True)
class Requests:
    """The requests of one file, in its order. Those without a prompt or an answer are counted and left out."""

    source: Source
    what: str
    """Name of the kind of file: "Azure LLM inference trace"."""
    hash_unit_tokens: int = 16
    num_silent: int = 0
    arrival_s: list[float] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    max_tokens: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    prefix: list[tuple[str, int] | None] = field(default_factory=list)
    hashes: list[Sequence[int]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def add(
        self,
        arrival_s: float,
        prompt_tokens: int,
        output_tokens: int,
        *,
        max_tokens: int | None = None,
        priority: int = 0,
        prefix: tuple[str, int] | None = None,
        hashes: Sequence[int] = (),
        request_id: str | None = None,
    ) -> None:
        """Add one request; a failed one, which has no prompt or no answer, is only counted."""
        if not (prompt_tokens and output_tokens):
            self.num_silent += 1
            return
        self.arrival_s.append(arrival_s)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)
        self.max_tokens.append(output_tokens if max_tokens is None else max_tokens)
        self.priority.append(priority)
        self.prefix.append(prefix)
        self.hashes.append(hashes)
        if request_id is not None:
            self.ids.append(request_id)

    def add_plain(self, arrival_s: Sequence[float], prompt_tokens: Sequence[int], output_tokens: Sequence[int]) -> None:
        """Add requests of which nothing else is known."""
        if not (all(prompt_tokens) and all(output_tokens)):
            for request in zip(arrival_s, prompt_tokens, output_tokens, strict=True):
                self.add(*request)
            return
        count = len(arrival_s)
        self.arrival_s += arrival_s
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        self.max_tokens += output_tokens
        self.priority += [0] * count
        self.prefix += [None] * count
        self.hashes += [()] * count

    def workload(self, note: str = "", *, from_first: bool = False) -> Workload:
        """The requests as a workload.

        Args:
            note: what else a reader of the description must know.
            from_first: whether time begins with the first arrival, as it must where the file has dates.

        Raises:
            WorkloadError: no request is left.
        """
        if not self.arrival_s:
            raise WorkloadError(
                f"{self.source.path} has {self.num_silent} requests, none with both a prompt and an answer."
            )
        arrival_s = np.array(self.arrival_s)
        names = {name: number for number, name in enumerate(dict.fromkeys(p[0] for p in self.prefix if p))}
        without = f", without {self.num_silent} that have no prompt or no answer" if self.num_silent else ""
        return Workload(
            arrival_s=arrival_s - arrival_s.min() if from_first else arrival_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            max_tokens=self.max_tokens,
            priority=self.priority,
            prefix_group=[names[prefix[0]] if prefix else -1 for prefix in self.prefix] if names else None,
            prefix_tokens=[prefix[1] if prefix else 0 for prefix in self.prefix] if names else None,
            prefix_names=tuple(names),
            prompt_hashes=Ragged.from_rows(self.hashes, np.int64) if any(map(len, self.hashes)) else None,
            hash_unit_tokens=self.hash_unit_tokens,
            ids=self.ids or None,
            name=self.source.name,
            description=f"the {len(arrival_s):,} requests of {self.source.path.name} ({self.what}){without}{note}",
        )


NO_ARRIVALS = "; it has no arrival times"
"""Then all requests arrive at once, until they are given new arrivals."""
