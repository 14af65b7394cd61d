"""Answer whether a load fits a server, by simulations of it and of changes of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.errors import BudgetError
from kvsim.fitting.answer import Answer
from kvsim.fitting.search import Search, helpful

if TYPE_CHECKING:
    from kvsim.fitting.goal import Goal
    from kvsim.fitting.load import Load
    from kvsim.fitting.server import Server


def answer(
    server: Server, load: Load, goal: Goal, search: Search, *, most: int = 60, find_largest: bool = True
) -> Answer:
    """Simulate `load` on `server` and on up to `most` changes of it.

    Args:
        server: server; if vLLM would not start with its `max_model_len`, the longest that fits is used.
        load: requests.
        goal: targets that decide whether the load fits.
        search: number of cores, and engine.
        most: maximum number of changes to try.
        find_largest: whether to search the largest load that fits.
    """
    try:
        starting = server.starting()
    except BudgetError:  # no block is left: the outcome has the reason
        starting = server
    lengths = load.workload.prompt_tokens + load.workload.output_tokens
    [outcome] = search.outcomes([(starting, load, 1.0)])
    largest, tried = search.survey(
        starting, load, goal, longest_tokens=int(lengths.max()), most=most,
        find_largest=find_largest and not outcome.error,
    )  # fmt: skip
    return Answer(
        server=starting,
        load=load,
        goal=goal,
        outcome=outcome,
        band=search.band(starting, load, outcome),
        largest=largest,
        searched=find_largest,
        remedies=tuple(search.with_bands(helpful(tried, outcome, goal), load)),
        tried=tuple(tried),
        shortened_from=server.max_model_len if starting is not server else None,
    )
