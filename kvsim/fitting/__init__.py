"""Find by simulation whether a load fits a server, what limits it, and what would make it fit.

`Server` and `Load` describe the question, `Goal` the targets, `changes` the possible changes; `Search` tries them. This
room prints nothing, and knows no command-line flags except those of vLLM.
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
