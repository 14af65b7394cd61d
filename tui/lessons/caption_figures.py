"""Fill in the figures that a caption names in braces, such as `{request.A.blocks}`, as they are at its moment.

A name begins with the subject:

- `waste`, `pool`, `now`, `host`, `tree`, `layers`: the run that the caption shows
- `request.A`: the request with the id A in that run
- `run.paged`, `run.paged.request.A`: the run with the label `paged`, and a request in it; they answer as `now` and
  `request` do
- `longer.static.paged`: how many times as long the first run takes as the second
- `step`: a decode step with the sequences that run
- `image`, `drafts`: computations beside the runs (`beside_figures`)
- `hits.3.paged`: percent of the prompt tokens that a run finds in its cache, with the third memory size of the drawing;
  `hits.3.tokens` is that size
- `fleet.in turn`: a fleet by its label
- `remedy.3`: a remedy against preemptions, in the order of the drawing
- `ladder.4`: a rung of the ladder, a list of servers (rungs) that each have one more optimization than the one before;
  `ladder.2.4.gain` is the product of the gains above rung 2 up to rung 4, and
  `ladder.total` that of all rungs

It ends with the figure. The function for each subject has the figures as the keys of its result.
"""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING

from kvsim.memory.waste import SlotState

from ..facts.tree_nodes import has_tree, tree_at
from ..look.wording import bytes_text, milliseconds, percent
from ..pool.host_blocks import HostBlockState, owners_of
from .beside_figures import simulated_figure
from .request_figures import layer_figures, request_figures

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvsim.experiments.rungs import RungResult
    from kvsim.metrics.fleet_totals import FleetTotals

    from ..facts.step_cost import StepCost
    from ..playback.session import RowsNow, Session
    from .run_drawings import RemedyResult

_FIELD = re.compile(r"\{([^{}]*)\}")
_NAMES_SHOWN = 6


class UnknownFigureError(ValueError):
    """A caption names a figure that cannot be computed."""


class Figures:
    """The figures of the current frame of `session`, and of other runs by their labels."""

    def __init__(
        self,
        session: Session,
        others: Mapping[str, Session],
        cost: StepCost,
        ladder: Callable[[], Sequence[RungResult]],
        found: Callable[[], Sequence[tuple[int, Sequence[float]]]],
        fleets: Mapping[str, FleetTotals] | None = None,
        remedies: Callable[[], Sequence[RemedyResult]] = tuple,
    ) -> None:
        """`others` are all runs by label, `cost` is the cost of a step, and `fleets` has each fleet's totals by label.

        The other arguments are functions that simulate, called only if a caption needs them. `ladder` returns results
        of servers, each with one more optimization than the one before. `found` returns sizes of the memory in tokens,
        each with the prefix-hit share of every run. `remedies` returns results with each remedy against preemptions.
        """
        self._session = session
        self._others = others
        self._cost = cost
        self._climb = ladder
        self._found = found
        self._fleets = fleets or {}
        self._remedies = remedies

    def fill(self, text: str) -> str:
        """Return `text` with the names in braces replaced by their figures.

        Raises:
            UnknownFigureError: a figure cannot be computed.
        """
        return _FIELD.sub(lambda match: self._figure(match[1]), text)

    def _figure(self, name: str) -> str:
        """Return the text of the figure `name`, such as `waste.free`."""
        match name.split("."):
            case ["waste", what]:
                found = self._waste(what)
            case ["pool", what]:
                found = self._pool().get(what)
            case ["layers", what]:
                found = layer_figures(self._session).get(what)
            case ["image" | "drafts" as kind, what]:
                found = simulated_figure(kind, what, self._session.recording)
            case ["host" | "tree" as kind, what]:
                found = (self._host() if kind == "host" else self._tree()).get(what)
            case ["now", what]:
                found = self._now(self._session, what)
            case ["step", what]:
                found = self._step().get(what)
            case ["request", request, what]:
                found = request_figures(self._session, request).get(what)
            case ["fleet" | "remedy", *_]:
                found = self._of_simulations(name.split("."))
            case _:
                found = self._of_runs(name.split("."))
        if found is None:
            raise UnknownFigureError(f"there is no figure {{{name}}}")
        return found

    def _of_simulations(self, name: list[str]) -> str | None:
        match name:
            case ["fleet", label, what] if label in self._fleets:
                return _fleet(self._fleets[label]).get(what)
            case ["remedy", number, what] if number.isdecimal() and 0 < int(number) <= len(self._remedies()):
                return _remedy(self._remedies()[int(number) - 1]).get(what)
        return None

    def _of_runs(self, name: list[str]) -> str | None:
        match name:
            case ["ladder", *what]:
                return self._ladder(what)
            case ["hits", *what]:
                return self._hits(what)
            case ["longer", one, other] if {one, other} <= set(self._others):
                return self._longer(self._others[one], self._others[other])
            case ["run", label, "request", request, what] if label in self._others:
                return request_figures(self._others[label], request).get(what)
            case ["run", *label, what] if ".".join(label) in self._others:
                return self._now(self._others[".".join(label)], what)
        return None

    def _waste(self, what: str) -> str | None:
        """Return a number of slots as text; None if `what` is unknown.

        `what` is SLOTS_UNIT, such as `token_percent`, `unused_slots` or `held_gib`. SLOTS is a state, `unused` (all but
        tokens) or `held` (all that requests hold). UNIT is `percent` of the pool, `slots` or `gib`.
        """
        session = self._session
        slots, capacity = session.breakdown, session.capacity
        name, _, unit = what.rpartition("_")
        if name == "unused":
            number = capacity - int(slots[SlotState.TOKEN])
        elif name == "held":
            number = capacity - int(slots[[SlotState.FREE, SlotState.CACHED, SlotState.EXTERNAL]].sum())
        elif name.upper() in SlotState.__members__:
            number = int(slots[SlotState[name.upper()]])
        else:
            return None
        return {
            "percent": percent(number, capacity),
            "slots": f"{number:,}",
            "gib": bytes_text(round(number * self._session.recording.meta.pool.bytes_per_slot)),
        }.get(unit)

    def _pool(self) -> dict[str, str]:
        replay = self._session.replay
        return {
            "slots": f"{self._session.capacity:,}",
            "gib": bytes_text(self._session.recording.meta.pool.num_bytes),
            "blocks": f"{replay.num_units:,}",
            "block_slots": f"{replay.unit_tokens:,}",
            "free_blocks": f"{int((replay.refs == 0).sum()):,}",
            "cached_blocks": f"{int(replay.cached.sum()):,}",
            "last_slots": f"{replay.unit_tokens - 1:,}",
        }

    def _tree(self) -> dict[str, str]:
        """Return figures of the radix tree; empty without a tree.

        `nodes` is the number of nodes, and `leaves` that of leaves that can be evicted. `first` is the number of slots
        of the leaf that is evicted first, or "none".
        """
        if not has_tree(self._session):
            return {}
        tree = tree_at(self._session)
        first = f"{tree.leaves[0].num_units:,}" if tree.leaves else "none"
        return {"leaves": f"{len(tree.leaves):,}", "nodes": f"{len(tree.nodes):,}", "first": first}

    def _host(self) -> dict[str, str]:
        """Return numbers of blocks in host memory: capacity (`slots`), `kept` there, `going` there and `coming` back.

        `kept_of` names the requests that own kept blocks, and `going_of` those of blocks on their way to the host.
        """
        host, replay = self._session.host, self._session.replay
        if host is None:
            return {}
        going, coming = host.copying_at(replay.frame, after_output=replay.after_output)
        kept = int(host.used[replay.frame]) - going
        numbers = {"kept": kept, "slots": host.num_slots, "going": going, "coming": coming}
        owners = {"kept_of": HostBlockState.KEPT, "going_of": HostBlockState.STORING}
        return {name: f"{number:,}" for name, number in numbers.items()} | {
            name: " and ".join(owners_of(self._session, which)) for name, which in owners.items()
        }

    @staticmethod
    def _now(session: Session, what: str) -> str | None:
        return (Figures._served(session) if session.rows is None else Figures._rows(session.rows)).get(what)

    @staticmethod
    def _rows(rows: RowsNow) -> dict[str, str]:
        return {
            "rows": f"{rows.num_rows:,}",
            "row_slots": f"{rows.row_tokens:,}",
            "placed": f"{rows.num_placed:,}",
            "sequences": f"{rows.num_sequences:,}",
            "tokens": f"{rows.num_tokens:,}",
            "padding": f"{rows.num_padding:,}",
            "used_percent": percent(rows.num_tokens, rows.num_rows * rows.row_tokens),
        }

    @staticmethod
    def _served(session: Session) -> dict[str, str]:
        """Return figures of a run, by their names in captions: requests, blocks and progress up to the current frame.

        `step_ms` is the mean duration of a step.
        """
        frame, time_s = session.player.frame, session.player.clock_s
        waiting = [session.request_name(row) for row in session.replay.waiting_requests()[:_NAMES_SHOWN].tolist()]
        served, total = int(session.served[frame]), int(session.served[-1])
        preempted = int(session.recording.steps.preempted[: frame + 1].sum())
        return {
            "running": f"{session.step_column('running')[frame] - session.num_complete_rows:,}",
            "waiting": f"{session.step_column('waiting')[frame]:,}",
            "waiting_names": ", ".join(waiting) or "no request",
            "finished": f"{session.num_finished:,}",
            "preempted": f"{preempted:,}",
            "entries": f"{int(session.replay.refs.sum()):,}",
            "held_blocks": f"{int((session.replay.refs > 0).sum()):,}",
            "pool_blocks": f"{session.replay.num_units:,}",
            "block_slots": f"{session.replay.unit_tokens:,}",
            "free_blocks": f"{int((session.replay.refs == 0).sum()):,}",
            "refused": f"{session.num_refused:,}",
            "served": f"{served:,}",
            "percent": f"{100 * served / max(total, 1):.0f}%",  # as beside the bar of the run
            "step": f"{frame:,}",
            "total_steps": f"{session.player.last_frame:,}",
            "time": milliseconds(time_s),
            "total_time": milliseconds(session.player.duration_s),
            "step_ms": f"{session.player.duration_s / max(session.player.last_frame, 1) * 1e3:.1f}",
            "tokens_per_s": f"{served / time_s:,.0f}" if time_s else "0",
        }

    @staticmethod
    def _longer(one: Session, other: Session) -> str:
        return f"{one.player.duration_s / other.player.duration_s:.1f}"

    def _hits(self, what: list[str]) -> str | None:
        match what:
            case [size, label] if size.isdecimal() and 0 < int(size) <= len(found := self._found()):
                num_tokens, shares = found[int(size) - 1]
                percents = (f"{100 * share:.0f}" for share in shares)
                return {"tokens": f"{num_tokens:,}", **dict(zip(self._others, percents, strict=True))}.get(label)
        return None

    def _ladder(self, what: list[str]) -> str | None:
        climbed = self._climb()
        match what:
            case ["total"]:
                return f"{climbed[-1].tokens_per_s / climbed[0].tokens_per_s:,.0f}"
            case [low, high, figure] if low.isdecimal() and high.isdecimal() and int(low) < int(high) <= len(climbed):
                gains = [
                    {"gain": rung.gain, "memory_gain": rung.memory_gain, "time_gain": rung.time_gain}.get(figure)
                    for rung in climbed[int(low) : int(high)]
                ]
                return None if None in gains else f"{prod(gain for gain in gains if gain is not None):.2f}"
            case [rung, figure] if rung.isdecimal() and 0 < int(rung) <= len(climbed):
                return self._rung(climbed[int(rung) - 1]).get(figure)
        return None

    @staticmethod
    def _rung(rung: RungResult) -> dict[str, str]:
        return {
            "tokens_per_s": f"{rung.tokens_per_s:,.0f}",
            "ample": f"{rung.ample_tokens_per_s:,.0f}",
            "gain": f"{rung.gain:.2f}",
            "memory_gain": f"{rung.memory_gain:.2f}",
            "time_gain": f"{rung.time_gain:.2f}",
            "batch": f"{rung.mean_batch:,.0f}",
        }

    def _step(self) -> dict[str, str]:
        cost = self._cost
        return {
            "weights_gib": bytes_text(round(cost.weight_bytes)),
            "kv_gib": bytes_text(cost.kv_bytes),
            "kv_percent": percent(cost.kv_bytes, cost.kv_bytes + cost.weight_bytes),
            "sequences": f"{cost.num_sequences:,}",
            "context": f"{cost.context_tokens:,}",
            "captured_ms": f"{cost.captured.alone_s * 1e3:.1f}",
            "eager_ms": f"{cost.eager.alone_s * 1e3:.1f}",
            "reading_ms": f"{cost.reading_s * 1e3:.1f}",
            "gpu_ms": f"{cost.gpu_s * 1e3:.1f}",
            "saved_percent": percent(cost.eager.alone_s - cost.captured.alone_s, cost.eager.alone_s),
            "tokens_per_s": f"{cost.num_sequences / cost.captured.alone_s:,.0f}" if cost.captured.alone_s else "0",
        }


def _fleet(totals: FleetTotals) -> dict[str, str]:
    """Return the totals of a fleet as texts, by their names in captions.

    `hits` and `one_pool` are percentages of prompt tokens. `one_pool` is the hit rate if all shared one endless cache.
    """
    return {
        "hits": f"{100 * totals.prefix_hit_rate:.0f}",
        "one_pool": f"{100 * totals.one_pool_hit_tokens / max(totals.prefix_queried_tokens, 1):.0f}",
        "held_twice": bytes_text(round(totals.mean_duplicate_bytes)) if totals.mean_duplicate_bytes else "nothing",
        "busiest": f"{totals.imbalance:.2f}",
        "ttft": milliseconds(totals.ttft_s.mean),
        "preempted": f"{totals.num_preemptions:,}",
        "total_time": milliseconds(totals.duration_s),
    }


def _remedy(one: RemedyResult) -> dict[str, str]:
    return {
        "total_time": milliseconds(one.duration_s),
        "twice": f"{one.recomputed_tokens:,}",
        "wait": milliseconds(one.longest_wait_s),
    }
