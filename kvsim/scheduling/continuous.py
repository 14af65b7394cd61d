"""Iteration-level scheduling as in vLLM V1: every step decides anew which sequences compute how many tokens.

One call of `schedule` first serves what runs, in order of admission, preempting when memory is short, then admits
from the queue. `update` takes the outputs of a step that was scheduled earlier, so that an engine may schedule ahead.
The memory behind it is a `MemoryManager`: a paged pool, or contiguous reservations as in Orca.
"""

from __future__ import annotations

from kvsim.errors import UsageError
from kvsim.scheduling.manager import MemoryManager
from kvsim.scheduling.queues import waiting_queue
from kvsim.scheduling.sequence import Sequence, Status
from kvsim.scheduling.settings import ContinuousSettings, Order
from kvsim.scheduling.speculation import Speculation


class Batch:
    """One scheduled step."""

    __slots__ = ("emitting", "num_admitted", "preempted", "tokens")

    def __init__(
        self, tokens: dict[Sequence, int], emitting: list[Sequence], preempted: list[Sequence], num_admitted: int
    ) -> None:
        self.tokens = tokens
        """Tokens that each sequence computes, in order of scheduling."""
        self.emitting = emitting
        """Sequences that produce an output: all but those whose prompt is not computed to its end."""
        self.preempted = preempted
        self.num_admitted = num_admitted

    def __len__(self) -> int:
        return len(self.tokens)


class ContinuousScheduler:
    """The decisions of one engine, step by step."""

    def __init__(
        self, settings: ContinuousSettings, memory: MemoryManager, speculation: Speculation | None = None
    ) -> None:
        """Schedule over `memory`, with drafted tokens if there is `speculation`.

        Raises:
            UsageError: tokens are to be drafted and the next step scheduled before it is known which were accepted.
        """
        if speculation is not None and settings.async_scheduling:
            raise UsageError(
                "speculative decoding is modelled for synchronous scheduling only: a step scheduled ahead cannot know "
                "how many tokens the one before it accepts; set async_scheduling to False (--no-async-scheduling)."
            )
        self.settings = settings
        self.memory = memory
        self._speculation = speculation
        self.waiting = waiting_queue(settings.order)
        self.running: list[Sequence] = []
        self._unflushed = False
        """Whether a sequence has left since the last call of `schedule`: the engine calls once more to hear of it."""

    @property
    def has_work(self) -> bool:
        """Whether another call of `schedule` is due."""
        return bool(self.running) or bool(self.waiting) or self._unflushed

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that has arrived."""
        self.waiting.push(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Drop a sequence at once, wherever it stands; outputs still under way are ignored."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        elif sequence.status in (Status.WAITING, Status.PREEMPTED):
            self.waiting.remove(sequence)
        else:
            return
        self.memory.free(sequence)
        sequence.status = Status.ABORTED
        self._unflushed = True

    def schedule(self) -> Batch:
        """Decide the next step and allocate its memory."""
        return self.schedule_rest(0, self.settings.max_num_batched_tokens, [])

    def schedule_rest(self, num_served: int, budget: int, preempted: list[Sequence]) -> Batch:
        """Decide the next step for all but the first `num_served` running sequences, which have had their tokens of it.

        `budget` is what they have left of `max_num_batched_tokens`, and `preempted` who had to make room for them. The
        caller has made sure that none of them would have to be preempted for others.
        """
        tokens: dict[Sequence, int] = {}
        budget = self._schedule_running(tokens, preempted, budget, num_served)
        num_admitted = 0
        if not preempted:
            num_running = len(self.running)
            self._admit(tokens, budget)
            num_admitted = len(self.running) - num_running

        emitting = []
        for sequence, num_tokens in tokens.items():
            sequence.computed += num_tokens
            if sequence.computed >= sequence.num_tokens + sequence.placeholders:
                emitting.append(sequence)
                if self.settings.async_scheduling:
                    sequence.placeholders += 1
                if self._speculation is not None:
                    sequence.drafts = sequence.computed - sequence.num_tokens
        self._unflushed = False
        return Batch(tokens, emitting, preempted, num_admitted)

    def num_outputs_of(self, sequence: Sequence) -> int:
        """Outputs that the step under way yields for `sequence`, which is emitting: one, and the drafts accepted."""
        if self._speculation is None:
            return 1
        left = min(sequence.output_tokens, sequence.max_tokens) - sequence.num_outputs
        return min(1 + self._speculation.num_accepted(sequence), left)

    def update(self, batch: Batch) -> list[Sequence]:
        """Process the outputs of `batch` and return the sequences that ended by it."""
        ended = []
        for sequence in batch.emitting:
            if sequence.status in (Status.FINISHED, Status.ABORTED):
                continue
            if self._speculation is None:
                sequence.num_tokens += 1
            else:
                self._take_outputs(sequence, self._speculation)
            if self.settings.async_scheduling:
                sequence.placeholders -= 1
                if sequence.status is Status.RUNNING:
                    self.memory.commit(sequence, sequence.computed - sequence.placeholders)
            if self._is_complete(sequence):
                self.memory.free(sequence)
                ended.append(sequence)
        for sequence in ended:
            if sequence.status is Status.PREEMPTED:
                self.waiting.remove(sequence)
            sequence.status = Status.FINISHED
        if ended:
            self.running = [sequence for sequence in self.running if sequence.status is Status.RUNNING]
            self._unflushed = True
        return ended

    def _schedule_running(self, tokens: dict[Sequence, int], preempted: list[Sequence], budget: int, index: int) -> int:
        """Give every running sequence from `index` on its next tokens; return what is left of `budget`."""
        running, memory = self.running, self.memory
        longest = self.settings.max_model_len - 1
        threshold = self.settings.long_prefill_token_threshold
        while index < len(running) and budget > 0:
            sequence = running[index]
            placeholders = sequence.placeholders
            if placeholders and sequence.computed + 2 - placeholders >= sequence.prompt_tokens + sequence.max_tokens:
                index += 1  # its last token is under way already
                continue
            num_tokens = sequence.num_tokens + sequence.drafts + placeholders - sequence.computed
            if 0 < threshold < num_tokens:
                num_tokens = threshold
            num_tokens = min(num_tokens, budget, longest - sequence.computed)
            if num_tokens <= 0:
                index += 1
                continue
            while not memory.grow(sequence, num_tokens):
                victim = self._choose_victim()
                running.remove(victim)
                if victim in tokens:
                    budget += tokens.pop(victim)
                    index -= 1
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    return budget
            tokens[sequence] = num_tokens
            budget -= num_tokens
            index += 1
        return budget

    def _admit(self, tokens: dict[Sequence, int], budget: int) -> None:
        """Admit from the head of the queue for as long as the head fits; nobody overtakes it."""
        settings, memory = self.settings, self.memory
        threshold = settings.long_prefill_token_threshold
        while self.waiting and budget > 0 and len(self.running) < settings.max_num_seqs:
            sequence = self.waiting.peek()
            hits = memory.lookup(sequence)
            computed = memory.tokens_in(hits)
            num_tokens = sequence.num_tokens - computed
            if 0 < threshold < num_tokens:
                num_tokens = threshold
            if not settings.enable_chunked_prefill and num_tokens > budget:
                return
            num_tokens = min(num_tokens, budget)
            if not memory.admit(sequence, num_tokens, hits, others_running=bool(self.running)):
                return
            self.waiting.pop()
            self.running.append(sequence)
            sequence.status = Status.RUNNING
            sequence.computed = computed
            tokens[sequence] = num_tokens
            budget -= num_tokens

    def _choose_victim(self) -> Sequence:
        """The sequence to preempt: the last admitted, or the least important."""
        if self.settings.order is Order.FCFS:
            return self.running[-1]
        return max(self.running, key=lambda sequence: (sequence.priority, sequence.arrival))

    def preempt_last(self) -> Sequence:
        """Preempt the sequence that was admitted last, and return it."""
        sequence = self.running.pop()
        self._preempt(sequence)
        return sequence

    def _preempt(self, sequence: Sequence) -> None:
        """Take everything back from a running sequence; it computes its tokens again unless the memory has a copy."""
        sequence.status = Status.PREEMPTED
        self.memory.free(sequence)
        sequence.computed = 0
        sequence.drafts = 0
        sequence.num_preemptions += 1
        self.waiting.push_preempted(sequence)

    def _take_outputs(self, sequence: Sequence, speculation: Speculation) -> None:
        """Append the outputs of a step that verified drafts; the slots of rejected ones will be written again."""
        sequence.num_tokens += self.num_outputs_of(sequence)
        sequence.computed = sequence.num_tokens - 1
        sequence.drafts = speculation.num_tokens

    def _is_complete(self, sequence: Sequence) -> bool:
        outputs = sequence.num_outputs
        return (
            outputs >= sequence.output_tokens
            or outputs >= sequence.max_tokens
            or sequence.num_tokens >= self.settings.max_model_len
        )
