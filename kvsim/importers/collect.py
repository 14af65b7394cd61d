"""Collector that makes a workload of the requests in a file, for the readers of all text formats."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import WorkloadError
from kvsim.workload import Images, Ragged, Workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from kvsim.importers.arrival_times import Clock
    from kvsim.importers.source import SourceRow, TextSource
    from kvsim.importers.turn_lines import TurnLines
    from kvsim.workload import Image


@dataclass(slots=True, kw_only=True)
class RequestCollector:
    """Collector of the requests of one file, in its order. Those without a prompt or an output are only counted."""

    source: TextSource
    kind: str
    """Kind of the file for descriptions, such as "Azure LLM inference trace"."""
    clock: Clock | None = None
    """Converter of arrival times; None if the file has none."""
    hash_unit_tokens: int = 16
    turns: TurnLines | None = None
    """Turns of sessions, which the reader fills; None if the file has no sessions."""
    num_left_out: int = 0
    """Number of requests that were left out, because they have no prompt or no output."""
    arrivals: list[float] = field(default_factory=list)
    """Time of each request, as `clock.read` returns it."""
    prompt_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    max_tokens: list[int] = field(default_factory=list)
    priority: list[int] = field(default_factory=list)
    adapter: list[int] = field(default_factory=list)
    images: list[Sequence[Image]] = field(default_factory=list)
    prefix: list[tuple[str, int] | None] = field(default_factory=list)
    hashes: list[Sequence[int]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def add(
        self,
        row: SourceRow,
        arrival: Any,
        prompt_tokens: int,
        output_tokens: int,
        *,
        max_tokens: int | None = None,
        priority: int = 0,
        adapter: int = 0,
        images: Sequence[Image] = (),
        prefix: tuple[str, int] | None = None,
        hashes: Sequence[int] = (),
        request_id: str | None = None,
    ) -> bool:
        """Add the request of `row`. Return False if it is only counted, because it has no prompt or no output.

        `prefix` is the name of a group of requests with a common prefix, and the number of its tokens. `hashes` are
        those of the prompt's blocks, and `adapter` is the number of the LoRA adapter, 0 for none.
        """
        time = 0.0 if self.clock is None else self.clock.read(row, arrival)
        if not (prompt_tokens and output_tokens):
            self.num_left_out += 1
            return False
        self.arrivals.append(time)
        self.prompt_tokens.append(prompt_tokens)
        self.output_tokens.append(output_tokens)
        self.max_tokens.append(output_tokens if max_tokens is None else max_tokens)
        self.priority.append(priority)
        self.adapter.append(adapter)
        self.images.append(images)
        self.prefix.append(prefix)
        self.hashes.append(hashes)
        if request_id is not None:
            self.ids.append(request_id)
        return True

    def add_plain(
        self, arrivals: Sequence[str] | None, prompt_tokens: Sequence[int], output_tokens: Sequence[int]
    ) -> bool:
        """Add requests without optional fields at once. Return False, with none added, if they must come one by one."""
        if not (all(prompt_tokens) and all(output_tokens)):
            return False
        count = len(prompt_tokens)
        times = [0.0] * count if self.clock is None or arrivals is None else self.clock.read_many(arrivals)
        if times is None:
            return False
        self.arrivals += times
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        self.max_tokens += output_tokens
        self.priority += [0] * count
        self.adapter += [0] * count
        self.images += [()] * count
        self.prefix += [None] * count
        self.hashes += [()] * count
        return True

    def workload(self, note: str = "") -> Workload:
        """Return the requests as a workload. `note` is the end of its description.

        Raises:
            WorkloadError: no request has both a prompt and an output, or the arrival times are ambiguous.
        """
        if not self.arrivals:
            raise WorkloadError(
                f"{self.source.path} has {self.num_left_out} requests, none with both a prompt and an answer."
            )
        arrival_s, times_note = (self.arrivals, "") if self.clock is None else self.clock.seconds(self.arrivals)
        names = {name: number for number, name in enumerate(dict.fromkeys(p[0] for p in self.prefix if p))}
        without = f", without {self.num_left_out} that have no prompt or no answer" if self.num_left_out else ""
        return Workload(
            arrival_s=arrival_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            max_tokens=self.max_tokens,
            priority=self.priority,
            adapter=self.adapter,
            images=Images.from_rows(self.images) if any(map(len, self.images)) else None,
            prefix_group=[names[prefix[0]] if prefix else -1 for prefix in self.prefix] if names else None,
            prefix_tokens=[prefix[1] if prefix else 0 for prefix in self.prefix] if names else None,
            prefix_names=tuple(names),
            prompt_hashes=Ragged.from_rows(self.hashes, np.int64) if any(map(len, self.hashes)) else None,
            hash_unit_tokens=self.hash_unit_tokens,
            turns=None if self.turns is None else self.turns.turns(),
            ids=self.ids or None,
            name=self.source.name,
            description=(
                f"the {len(arrival_s):,} requests of {self.source.path.name} ({self.kind}){without}{times_note}{note}"
            ),
        )
