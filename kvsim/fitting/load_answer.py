"""Answer of `kvsim fit`: whether a load fits a server, what limits it, and the changes that help."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvsim.errors import BudgetError
from kvsim.fitting.goal import TOO_SHORT
from kvsim.fitting.limit import limit_words, prompts_too_long
from kvsim.fitting.outcome import milliseconds
from kvsim.fitting.search import affordable, helpful, without_gain
from kvsim.fitting.split_effect import splits_words

if TYPE_CHECKING:
    from kvsim.fitting.goal import Goal
    from kvsim.fitting.offered_load import Load
    from kvsim.fitting.outcome import Outcome
    from kvsim.fitting.search import Remedy, Search
    from kvsim.fitting.searched_server import SearchedServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Outcome of a load on a server, and the remedies that were found."""

    server: SearchedServer
    """Server as it starts: `max_model_len` is reduced if it would not start otherwise."""
    load: Load
    goal: Goal
    outcome: Outcome
    band: dict[str, tuple[float, float]]
    """Prediction interval (low, high) of each figure of `outcome`, by the names in `figures_of`."""
    largest: float | None
    """Largest load that fits: a number of users, or a factor on the arrival rate.

    Infinity if every load that was tried fits. None if none fits, or if `searched` is False.
    """
    largest_is_least: bool
    """True if `largest` is a lower bound; see `Largest.is_lower_bound`."""
    searched: bool
    """True if the largest load was searched for."""
    remedies: tuple[Remedy, ...]
    """Changes that bring the load nearest to its goal, best first, with their prediction intervals."""
    tried: tuple[Remedy, ...]
    """All changes that were simulated."""
    shortened_from: int | None = None
    """Requested `max_model_len`, if the server does not start with it; None if it starts."""
    left_out: str = ""
    """Sentence on simulations that were left out because they take long; empty if none was."""

    def __repr__(self) -> str:
        return f"<Answer: {self.verdict}>"

    @property
    def fits(self) -> bool:
        """True if the load fits the unchanged server."""
        return self.goal.is_met(self.outcome)

    @property
    def verdict(self) -> str:
        """Sentences on whether the load fits: one to three."""
        doubts = ", and ".join(f"{name} lies between {low} and {high}" for name, (low, high) in self.doubts.items())
        not_certain = f"Not certain: with the known error, {doubts}." if doubts else ""
        caveat = "" if self.outcome.error else self.server.caveat
        return " ".join(filter(None, (_verdict(self), not_certain, caveat)))

    @property
    def doubts(self) -> dict[str, tuple[str, str]]:
        """Prediction interval (low, high), as text, of each latency whose target lies in this interval, by name.

        It is empty if another condition is missed, because the load then certainly does not fit.
        """
        targets = {"TTFT p99": ("ttft_p99_s", self.goal.ttft_p99_s), "TPOT p99": ("tpot_p99_s", self.goal.tpot_p99_s)}
        misses, found = set(self.goal.misses(self.outcome)), {}
        for name, (figure, target) in targets.items():
            low, high = self.band.get(figure, (math.nan, math.nan))
            if target is not None and low <= target < high:
                found[name] = (milliseconds(low), milliseconds(high))
        return found if misses <= set(found) else {}

    @property
    def without_gain(self) -> list[Remedy]:
        """Single changes that were tried without effect, the best of each kind."""
        return without_gain(self.tried, self.remedies)

    @property
    def splits(self) -> str:
        """Sentence that compares equal servers with a split into prefill and decode servers; empty without a split."""
        return splits_words(self.server, self.load, self.outcome, self.goal, self.tried)

    @property
    def limit(self) -> str:
        """Sentence on what limits the load."""
        return limit_words(self.outcome, self.server, self.load, self.goal)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer for JSON."""
        splits = {"splits": self.splits} if self.splits else {}
        return {
            "verdict": self.verdict,
            "fits": self.fits,
            "misses": self.goal.misses(self.outcome),
            "doubts": list(self.doubts),
            "limit": self.limit,
            **splits,
            **({"bound": self.left_out} if self.left_out else {}),
            "largest": self.largest,
            "largest_is_least": self.largest_is_least,
            "largest_in": "users" if self.load.users is not None else "times the arrivals",
            "load": {
                "requests": self.load.workload.description,
                "users": self.load.users,
                "think_s": self.load.think_s,
                "rate_per_s": self.load.rate_per_s,
            },
            **command_dict(self.server),
            "outcome": self.outcome.as_dict() | {"band": bands(self.band)},
            "remedies": [remedy_dict(each) for each in self.remedies],
            "without_gain": [each.change.words for each in self.without_gain],
            "tried": [{"change": each.change.words, "fits": each.fits} | each.outcome.as_dict() for each in self.tried],
        }


def answer(
    server: SearchedServer, load: Load, goal: Goal, search: Search, *, most: int = 60, find_largest: bool = True
) -> Answer:
    """Simulate `load` on `server` and on up to `most` changes of it. If every prompt is too long, no change is tried.

    Args:
        server: the server. If vLLM would not start with its `max_model_len`, the longest that fits is used.
        load: the requests and their senders.
        goal: targets that decide whether the load fits.
        search: how to run the simulations.
        most: maximum number of changes to try.
        find_largest: True to search for the largest load that fits.
    """
    try:
        starting = server.starting()
    except BudgetError:  # no block is left: the outcome has the reason
        starting = server
    lengths = load.workload.prompt_tokens + load.workload.output_tokens
    [outcome] = search.outcomes([(starting, load, 1.0)])
    if not outcome.error and prompts_too_long(starting, load):  # no change that is tried allows longer sequences
        most, find_largest = 0, False
    find_largest = find_largest and not outcome.error
    num_changes, finds = affordable(starting, outcome, most, find_largest=find_largest)
    largest, tried = search.survey(
        starting, load, goal, longest_tokens=int(lengths.max()), most=num_changes, find_largest=finds
    )
    return Answer(
        server=starting,
        load=load,
        goal=goal,
        outcome=outcome,
        band=search.band(starting, load, outcome),
        largest=None if largest is None else largest.size,
        largest_is_least=largest is not None and largest.is_lower_bound,
        searched=finds,
        remedies=tuple(search.with_bands(helpful(tried, outcome, goal), load)),
        tried=tuple(tried),
        shortened_from=server.length_limit.value if starting is not server else None,
        left_out=""
        if (num_changes, finds) == (most, find_largest)
        else _left_out(starting, outcome, num_changes, most),
    )


def _left_out(server: SearchedServer, outcome: Outcome, num_changes: int, most: int) -> str:
    tried = f"at most {num_changes:,} of {most:,} changes were tried, and " if num_changes < most else ""
    model = server.model
    ranks = f" of {model.data_parallel_size} ranks that wait for each other" * model.divides_experts_among_ranks
    servers = f"{server.replicas:,} servers" if server.replicas > 1 else "a server"
    return (
        f"Runs of {servers}{ranks} with {outcome.num_requests:,} requests take long: {tried}the largest "
        "load was not searched. Give fewer requests with --num-requests to try more."
    )


def command_dict(server: SearchedServer) -> dict[str, Any]:
    """Return a dict for JSON: "command" starts the server; without a checkpoint, "needs" says what is missing."""
    return {
        "command": server.command() if server.has_checkpoint else None,
        "needs": None if server.has_checkpoint else server.command(),
    }


def bands(band: dict[str, tuple[float, float]]) -> dict[str, list[float]]:
    """Return the prediction intervals `band` for JSON, with lists in place of tuples.

    Figures without an interval (NaN) are left out.
    """
    return {name: [low, high] for name, (low, high) in band.items() if not math.isnan(low)}


def remedy_dict(remedy: Remedy) -> dict[str, Any]:
    """Return a remedy for JSON: the change, the command of the changed server, and the outcome."""
    return {
        "change": remedy.change.words,
        "kind": remedy.change.kind.name.lower(),
        "fits": remedy.fits,
        "num_gpus": remedy.change.server.num_gpus,
        "replicas": remedy.change.server.replicas,
        **command_dict(remedy.change.server),
        "band": bands(remedy.band),
        **remedy.outcome.as_dict(),
    }


def _verdict(answer: Answer) -> str:
    if answer.outcome.error:
        return f"No: {answer.outcome.error}"
    users, longest = answer.load.users, answer.server.length_limit.value
    shortened = (
        f" vLLM does not start with --max-model-len {answer.shortened_from}, so {longest:,} tokens were taken."
        if answer.shortened_from is not None
        else ""
    )
    if answer.fits:
        return f"Yes: {_yes(answer)}.{shortened}"
    if TOO_SHORT in answer.goal.misses(answer.outcome):
        return (
            f"Too short to tell: after {answer.outcome.num_requests:,} requests the server has not settled.{shortened}"
        )
    misses = "; ".join(_misses(answer))
    if users is not None:
        if not answer.searched:
            return f"No: {users:,} users do not fit; {misses}.{shortened}"
        fitting = answer.largest or 0
        return f"No: {_least(answer)}{fitting:,.0f} of {users:,} users fit; {misses}.{shortened}"
    return f"No: {_share_served(answer)}; {misses}.{shortened}"


def _yes(answer: Answer) -> str:
    users, rate = answer.load.users, answer.load.rate_per_s
    if users is not None:
        return f"{users:,} user{'s fit' if users > 1 else ' fits'}{_more(answer, users)}"
    if rate is None:
        return f"{len(answer.load.workload):,} requests at once fit"
    asked = _arriving(answer, rate)
    return f"{asked} a second fit{'s' if _is_one(rate) else ''}{_more(answer, 1.0, rate)}"


def _arriving(answer: Answer, rate: float) -> str:
    """Return a rate with the noun for what arrives in an open loop, such as "2 requests"."""
    noun = "request" if answer.load.workload.turns is None else "session"
    return f"{_number(rate)} {noun}{'' if _is_one(rate) else 's'}"


def _is_one(rate: float) -> bool:
    return _number(rate) == "1"


def _more(answer: Answer, asked: float, unit: float = 1.0) -> str:
    largest = answer.largest
    if largest is None or largest <= asked:
        return ""
    if math.isinf(largest):
        return ", and so would more than sixteen times as many"
    if answer.largest_is_least:
        return f"; at least {_number(largest * unit)} would: of more, no run has settled"
    return f"; about {_number(largest * unit)} would"


def _least(answer: Answer) -> str:
    return "at least " if answer.largest_is_least and answer.largest else ""


def _number(value: float) -> str:
    """Format a number with three significant digits, without an exponent."""
    return f"{float(f'{value:.3g}'):,.10g}"


def _share_served(answer: Answer) -> str:
    rate, largest = answer.load.rate_per_s, answer.largest
    if rate is None:
        return f"{len(answer.load.workload):,} requests at once do not fit"
    asked = _arriving(answer, rate)
    if not answer.searched or not largest:
        not_fitting = f"{asked} a second {'does' if _is_one(rate) else 'do'} not fit"
        return f"{not_fitting}, nor does a sixteenth" if answer.searched else not_fitting
    return f"{_least(answer)}{_number(largest * rate)} of {asked} a second fit{'s' if _is_one(largest * rate) else ''}"


def _misses(answer: Answer) -> list[str]:
    """Describe each missed condition with the figures that miss it."""
    outcome, goal, found = answer.outcome, answer.goal, []
    misses = goal.misses(outcome)
    if "preemptions" in misses:
        found.append(
            f"{outcome.preemptions_per_min:,.0f} preemptions a minute, {100 * outcome.vain_share:.0f} % of all tokens "
            "are computed in vain"
        )
    if "overload" in misses:
        found.append(f"what arrives in a second takes {1 + outcome.overload:.1f} s to serve, so the queue grows")
    elif "waiting" in misses:
        found.append(f"{100 * outcome.waiting_share:.0f} % of the requests wait in the queue")
    if "refused" in misses:
        found.append(f"{100 * outcome.refused_share:.0f} % of the requests can never be served")
    for name, value, target in (
        ("TTFT p99", outcome.ttft_s.p99, goal.ttft_p99_s),
        ("TPOT p99", outcome.tpot_s.p99, goal.tpot_p99_s),
    ):
        if name in misses and target is not None:
            found.append(f"{name} is {milliseconds(value)}, above {milliseconds(target)}")
    return found
