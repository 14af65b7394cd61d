"""One request while it is being served."""

from __future__ import annotations

from collections.abc import Sequence as Row
from enum import Enum


class Status(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    ABORTED = "aborted"


class Sequence:
    """The state that a scheduler keeps of one request. `row` identifies it in the recording and the workload."""

    __slots__ = (
        "arrival",
        "blocks",
        "computed",
        "drafts",
        "max_tokens",
        "num_preemptions",
        "num_registered",
        "num_tokens",
        "output_tokens",
        "placeholders",
        "priority",
        "prompt_keys",
        "prompt_tokens",
        "row",
        "status",
    )

    def __init__(
        self,
        row: int,
        prompt_tokens: int,
        output_tokens: int,
        max_tokens: int,
        *,
        priority: int = 0,
        arrival: float = 0.0,
        prompt_keys: Row[int] = (),
    ) -> None:
        """A sequence that has just arrived.

        Args:
            row: its row in the workload; also breaks ties between equal arrivals.
            prompt_tokens: length of the prompt.
            output_tokens: outputs after which it stops by itself.
            max_tokens: outputs after which it is stopped; what the scheduler knows beforehand.
            priority: smaller is served first, where the policy looks at it.
            arrival: orders sequences of equal priority.
            prompt_keys: one key per full block of the prompt; equal keys mean equal prefixes.
        """
        self.row = row
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens
        self.max_tokens = max_tokens
        self.priority = priority
        self.arrival = arrival
        self.prompt_keys = prompt_keys
        self.status = Status.WAITING
        self.num_tokens = prompt_tokens
        """Tokens whose values are known: the prompt and the outputs so far."""
        self.computed = 0
        """Tokens scheduled so far; with asynchronous scheduling this may run ahead of `num_tokens`."""
        self.placeholders = 0
        """Outputs that are scheduled and not known yet."""
        self.drafts = 0
        """Tokens guessed to follow: to be verified in its next step, or, while a step runs, being verified in it."""
        self.blocks: list[int] = []
        self.num_registered = 0
        """Leading blocks whose keys are in the prefix cache."""
        self.num_preemptions = 0

    def __repr__(self) -> str:
        return f"<sequence {self.row}: {self.num_tokens} tokens, {self.computed} computed, {self.status.value}>"

    @property
    def num_outputs(self) -> int:
        """Outputs known so far."""
        return self.num_tokens - self.prompt_tokens

    def key_of(self, block: int) -> int:
        """The key of its `block`-th full block. Beyond the prompt nobody else can have the same tokens."""
        if block < len(self.prompt_keys):
            return self.prompt_keys[block]
        return -1 - (self.row << 32 | block)
