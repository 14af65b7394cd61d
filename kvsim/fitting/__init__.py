"""Simulations that find whether a load fits a server, what limits it, and which changes help.

The question is a `Server` (vLLM) or `SGLangServer`, a `Load`, and a `Goal` with targets. `changes` lists the possible
changes of the server, and `Search` simulates them. This package prints nothing.
"""

from kvsim.fitting.changes import changes
from kvsim.fitting.goal import Goal
from kvsim.fitting.load_answer import Answer, answer
from kvsim.fitting.offered_load import Load, repeated, requests_for
from kvsim.fitting.outcome import Outcome, evaluate
from kvsim.fitting.search import RUNS_OF_LARGEST_LOAD, Remedy, Search, engine_for, ranked
from kvsim.fitting.searched_server import SearchedServer
from kvsim.fitting.server_change import Kind, ServerChange
from kvsim.fitting.sglang_server import SGLangServer
from kvsim.fitting.vllm_server import Server

__all__ = [
    "RUNS_OF_LARGEST_LOAD",
    "Answer",
    "Goal",
    "Kind",
    "Load",
    "Outcome",
    "Remedy",
    "SGLangServer",
    "Search",
    "SearchedServer",
    "Server",
    "ServerChange",
    "answer",
    "changes",
    "engine_for",
    "evaluate",
    "ranked",
    "repeated",
    "requests_for",
]
