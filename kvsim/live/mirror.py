"""Follow the event log of a server and keep its state, so that a new log can begin with this state.

There are two uses. The process that serves viewers (`kvsim.capture.viewers`) begins a new log for each viewer that
joins, and need not ask the engine. A viewer begins a new log when it drops old steps (`event_follower._Window`), and
need not ask the server.

A row of a request is its number on the server, from 0 in order of arrival. Its local number is its index among the
present requests, which the new log has as its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_CACHED = "initial_cached"
"""Key in the first line of a log that begins in the middle: the free blocks with a cached prefix."""
_COMPUTED = "initial_computed"
"""Key in the first line of such a log: for each present request, the largest number of tokens computed for it."""
_IMAGES = "initial_images"
"""Key in such a log's first line: [image id, number of encoder outputs] of cached images, by order of eviction."""


@dataclass(slots=True)
class _LiveRequest:
    arrival: list[Any]
    tables: dict[int, dict[int, int]] = field(default_factory=dict)
    computed: int = 0
    """Number of tokens whose KV is in the blocks, including the tokens of the step in progress."""
    admission: int = 0
    """Rank of the request by the time at which it got its first block."""
    most: int = 0
    """Largest value that `computed` has had. A preemption resets `computed` alone."""
    known: int | None = None
    """Number of tokens whose ids are known; None in a run without drafts."""
    images: list[list[Any]] = field(default_factory=list)


class Mirror:
    """State of a server, updated by each event of its log."""

    def __init__(self) -> None:
        self._meta: dict[str, Any] | None = None
        self._requests: dict[int, _LiveRequest] = {}
        self._num_rows = self._num_steps = self._num_admissions = 0
        self._scheduled: list[int] = []
        self._holders: dict[int, int] = {}
        self._cached: set[int] = set()
        self._computed_before: Sequence[int] = ()
        """Tokens computed before the snapshot that is being read, for each of its requests; empty at other times."""
        self._columns: dict[str, float] = {}
        self._time_s = 0.0
        self._spell_out = False
        """True if the next `again` must be replaced by `tokens`; see `apply`."""
        self._encoder = _EncoderMirror()

    @property
    def begun(self) -> bool:
        """True if the log's first line has been applied."""
        return self._meta is not None

    @property
    def num_steps(self) -> int:
        """Number of steps that the server has run."""
        return self._num_steps

    @property
    def rows(self) -> list[int]:
        """Rows of the present requests, in order of arrival."""
        return list(self._requests)

    def apply(self, event: list[Any]) -> list[Any]:
        """Apply one event, and return the event to forward.

        An event `again` says that the requests of the last step were scheduled again. A new log lacks the step before
        its snapshot, so the first `again` after a snapshot is replaced by `tokens`, which lists the requests.
        """
        match event:
            case ["meta", meta]:
                self._meta = meta
                self._cached = set(meta.get(_CACHED, ()))
                self._computed_before = meta.get(_COMPUTED, ())
                self._encoder.begin(meta.get(_IMAGES, ()))
            case ["arrive", _, time_s, *_]:
                self._time_s = time_s
                # The requests of a snapshot arrive first, in the order of `_computed_before`.
                before = self._computed_before[self._num_rows] if self._num_rows < len(self._computed_before) else 0
                self._requests[self._num_rows] = _LiveRequest(event, most=before)
                self._num_rows += 1
            case ["images", row, images]:
                self._requests[row].images = images
            case ["encoder", kind, row, image]:
                self._encoder.apply(kind, row, image, self._requests)
            case ["tokens", time_s, rows]:
                self._spell_out = False
                self._note_scheduled(time_s, rows)
            case ["again", time_s]:
                rows = [[row, self._requests[row].computed, 1] for row in self._scheduled]
                self._note_scheduled(time_s, rows)
                if self._spell_out:
                    self._spell_out = False
                    return ["tokens", time_s, rows]
            case ["step", columns]:
                self._columns = columns
                self._num_steps += 1
            case ["output", _, _, given]:  # only with drafts; other runs state outputs by `emit`
                self._add_outputs(given)
            case ["end", row, _, time_s]:
                self._time_s = time_s
                del self._requests[row]
            case ["joined", rows, next_row, next_step]:
                self._computed_before = ()
                self._encoder.renumber(rows)
                requests = self._requests.values()
                self._requests = dict(zip(rows, requests, strict=True))
                self._scheduled = [rows[local] for local in self._scheduled]
                self._num_rows, self._num_steps = next_row, next_step
            case _:
                self._apply_to_memory(event)
        return event

    def _apply_to_memory(self, event: list[Any]) -> None:
        """Change the mirrored tables, holders and cached blocks as `event` says."""
        match event:
            case ["append" | "share", row, position, blocks, *group]:
                request = self._requests[row]
                if not any(request.tables.values()):
                    self._num_admissions += 1
                    request.admission = self._num_admissions
                table = request.tables.setdefault(group[0] if group else 0, {})
                table.update(enumerate(blocks, position))
                self._hold(blocks)
            case ["release", row, _, num_cached, *group]:
                request = self._requests[row]
                table = request.tables.pop(group[0] if group else 0, {})
                for position, block in table.items():
                    self._release(block, position < num_cached)
                request.computed = 0
            case ["let_go", row, positions, blocks, kept, group]:
                table = self._requests[row].tables[group]
                for position, block, is_kept in zip(positions, blocks, kept, strict=True):
                    del table[position]
                    self._release(block, bool(is_kept))
            case ["evict", blocks]:
                self._cached.difference_update(blocks)

    def snapshot(self) -> list[list[Any]]:
        """Return a log that brings a new reader to the present state. The next event `again` is replaced; see `apply`.

        In this log, the present requests arrive and get their blocks in one step. Its last event has the rows of these
        requests on the server, and the server's next numbers of requests and steps.
        """
        assert self._meta is not None, "a log begins with its meta line"
        self._spell_out = True
        meta = self._meta
        if self._num_steps:
            # The order of the free queue is not tracked, so the new log lacks it.
            meta = {key: value for key, value in meta.items() if key != "initial_free"} | {
                _CACHED: sorted(self._cached),
                _COMPUTED: [request.most for request in self._requests.values()],
            }
            if images := self._encoder.images():
                meta[_IMAGES] = images
        events: list[list[Any]] = [["meta", meta]]
        for local, request in enumerate(self._requests.values()):
            events.append([*request.arrival[:2], self._time_s, *request.arrival[3:]])
            if request.images:
                events.append(["images", local, request.images])
        events += self._past_step()
        events.append(["joined", list(self._requests), self._num_rows, self._num_steps])
        return events

    def _past_step(self) -> list[list[Any]]:
        """Return the events of an invented step that gives requests their blocks; empty if they have none."""
        assert self._meta is not None
        memory: list[list[Any]] = []
        held = set[int]()
        # In order of admission: the request that was admitted first allocates a block, later ones share it.
        for local, request in sorted(enumerate(self._requests.values()), key=lambda entry: entry[1].admission):
            for group, table in request.tables.items():
                memory += _table_events(local, table, held, [group] if self._meta.get("kv_cache_groups") else [])
                held.update(table.values())
        memory += self._encoder.uses({row: local for local, row in enumerate(self._requests)})
        if not memory:
            return []
        tokens = [
            [local, 0, request.computed, *([] if request.known is None else [request.known])]
            for local, request in enumerate(self._requests.values())
            if request.computed
        ]
        columns = self._columns | {
            "start_s": self._time_s,
            "prefill_tokens": sum(computed for _, _, computed, *_ in tokens),
            "decode_tokens": 0,
            "num_scheduled": len(tokens),
            "running": len(tokens),
            "waiting": len(self._requests) - len(tokens),
            "preempted": 0,
            "free_units": self._meta["pool"]["num_units"] - len(held),
        }
        step = [["seq"], *memory, ["tokens", self._time_s, tokens], ["step", columns]]
        return [*step, ["seq"], ["output", 0, self._time_s]]

    def _hold(self, blocks: list[int]) -> None:
        for block in blocks:
            self._holders[block] = self._holders.get(block, 0) + 1
        self._cached.difference_update(blocks)

    def _release(self, block: int, is_kept: bool) -> None:
        holders = self._holders.pop(block) - 1
        if holders:
            self._holders[block] = holders
        elif is_kept:
            self._cached.add(block)

    def _add_outputs(self, given: list[list[int]]) -> None:
        for row, tokens in given:
            request = self._requests.get(row)
            if request is not None and request.known is not None:
                request.known += tokens

    def _note_scheduled(self, time_s: float, rows: list[list[int]]) -> None:
        self._time_s = time_s
        self._scheduled = [row[0] for row in rows]
        requests = self._requests
        for row, before, count, *known in rows:
            request = requests[row]
            request.computed = computed = before + count
            request.most = max(request.most, computed)
            if known:
                request.known = known[0]


def _table_events(row: int, table: dict[int, int], held: set[int], group: list[int]) -> list[list[Any]]:
    """Return the events that give the request its block table in a KV-cache group.

    `table` has the block at each position, `held` the blocks of other requests, and `group` the index of the group;
    empty if there is one group.
    Each event is for a range of positions, whose blocks are either all shared with other requests or all not.
    """
    events: list[list[Any]] = []
    end, last = -1, ""
    for position, block in sorted(table.items()):
        kind = "share" if block in held else "append"
        if (position, kind) != (end, last):
            events.append([kind, row, position, [], *group])
        events[-1][3].append(block)
        end, last = position + 1, kind
    return events


class _EncoderMirror:
    def __init__(self) -> None:
        self._outputs: dict[int, int] = {}
        self._users: dict[int, dict[int, None]] = {}
        self._idle: dict[int, None] = {}
        """Images that no request holds. The first is evicted first."""

    def begin(self, images: Sequence[tuple[int, int]]) -> None:
        self._outputs = dict(images)
        self._users = {image: {} for image in self._outputs}
        self._idle = dict.fromkeys(self._outputs)

    def apply(self, kind: str, row: int, image: int, requests: dict[int, _LiveRequest]) -> None:
        if kind == "compute":
            self._outputs[image] = _outputs_of(image, requests)
            self._users[image] = {}
        elif kind == "hold":
            self._users[image][row] = None
            self._idle.pop(image, None)
        elif kind == "let_go":
            del self._users[image][row]
            if not self._users[image]:
                self._idle[image] = None
        elif kind == "evict":
            del self._idle[image], self._users[image], self._outputs[image]

    def renumber(self, rows: Sequence[int]) -> None:
        """Replace the local numbers of a snapshot's requests by their rows on the server, `rows`."""
        self._users = {image: dict.fromkeys(rows[local] for local in users) for image, users in self._users.items()}

    def images(self) -> list[list[int]]:
        """Return [image id, number of encoder outputs] of all cached images: first the idle ones in the order of
        eviction, then the others.
        """
        used = [image for image in self._users if image not in self._idle]
        return [[image, self._outputs[image]] for image in (*self._idle, *used)]

    def uses(self, local: dict[int, int]) -> list[list[Any]]:
        """Return the events with which requests begin to hold images; `local` has the local id of each server id.

        Raises:
            LookupError: a request that has ended holds an image.
        """
        for image, users in self._users.items():
            if not users.keys() <= local.keys():
                raise LookupError(f"a request that has ended holds image {image}")
        return [["encoder", "hold", local[row], image] for image, users in self._users.items() for row in users]


def _outputs_of(image: int, requests: dict[int, _LiveRequest]) -> int:
    for request in requests.values():
        for number, _, tokens, *ranges in request.images:
            if number == image:
                return sum(ranges[0][1::2]) if ranges else tokens
    raise LookupError(f"no request has image {image}")
