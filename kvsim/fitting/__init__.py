"""Find by simulation whether a load fits a server, its limit, and the changes that help.

`Server` and `Load` describe the question, `Goal` the targets, `changes` the possible changes; `Search` tries them. This
package prints nothing, and knows no command-line flags except those of vLLM.
"""

from kvsim.fitting.changes import Kind, ServerChange, changes
from kvsim.fitting.goal import Goal
from kvsim.fitting.load_answer import Answer, answer
from kvsim.fitting.offered_load import Load, repeated, requests_for
from kvsim.fitting.outcome import Outcome, evaluate
from kvsim.fitting.search import Remedy, Search, engine_for, ranked
from kvsim.fitting.vllm_server import Server

__all__ = [
    "Answer",
    "Goal",
    "Kind",
    "Load",
    "Outcome",
    "Remedy",
    "Search",
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
