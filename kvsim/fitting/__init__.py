"""Does a load fit a server, what limits it, and what would make it fit: answers found by simulation.

`Server` and `Load` say what there is and what is asked of it, `Goal` when that is well, `changes` what could be done,
and `Search` tries it. Nothing here prints; nothing here knows flags of a command line, but for those of vLLM.
"""

from kvsim.fitting.answer import Answer
from kvsim.fitting.changes import Change, Kind, changes
from kvsim.fitting.fit import answer
from kvsim.fitting.goal import Goal
from kvsim.fitting.load import Load, repeated, requests_for
from kvsim.fitting.outcome import Outcome, evaluate
from kvsim.fitting.search import Remedy, Search, engine_for, ranked
from kvsim.fitting.server import Server

__all__ = [
    "Answer",
    "Change",
    "Goal",
    "Kind",
    "Load",
    "Outcome",
    "Remedy",
    "Search",
    "Server",
    "answer",
    "changes",
    "engine_for",
    "evaluate",
    "ranked",
    "repeated",
    "requests_for",
]
