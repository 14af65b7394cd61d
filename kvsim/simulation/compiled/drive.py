"""A workload through the compiled engine."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvsim.policies import Contiguous, Paged
from kvsim.recording import Pool, RecordingBuilder
from kvsim.scheduling.keys import all_prompt_keys, knows_prefixes, prompt_keys
from kvsim.simulation.arrivals import ProgressCallback, hash_tokens
from kvsim.simulation.choice import coefficients_of
from kvsim.simulation.compiled import packing, slices
from kvsim.simulation.compiled.results import Tables, Totals
from kvsim.steptime import StepTimeModel
from kvsim.workload import Ragged, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledRun:
    """One run: what `Arrivals` and an engine are told, in one place."""

    workload: Workload
    policy: Paged | Contiguous
    pool: Pool
    step_time: StepTimeModel
    concurrency: int | None
    stamp_at_entry: bool
    progress: ProgressCallback | None

    def run(self, builder: RecordingBuilder | None = None) -> Totals:
        """Run to the end and return the sums; everything there is to record goes to `builder`, if there is one."""
        workload, keys = self.workload, self._keys(recording=builder is not None)
        times = coefficients_of(self.step_time)
        assert times is not None
        begun = packing.pack(
            workload, packing.Lengths.of(workload, self.policy.max_model_len), self.policy, self.pool, times,
            keys=keys, concurrency=self.concurrency, stamp_at_entry=self.stamp_at_entry, recording=builder is not None,
        )  # fmt: skip
        totals, tables = Totals(self.pool), None if builder is None else Tables(builder)
        for engine in slices.run(begun, self.step_time):
            totals.take(engine)
            if tables is not None:
                tables.take(engine)
            if self.progress:
                self.progress(engine.state[0].num_ended, len(workload))
        totals.take_requests(engine, workload)
        if builder is not None:
            builder.append(totals.requests(self._hashes(keys)))
        return totals

    def _keys(self, *, recording: bool) -> Ragged[np.int64]:
        """The keys of prompts, where a prefix cache looks them up or a recording lists them."""
        caching = isinstance(self.policy, Paged) and self.policy.cache.enable_prefix_caching
        if not ((caching or recording) and knows_prefixes(self.workload)):
            return Ragged.empty(len(self.workload), np.int64)
        return prompt_keys(self.workload, hash_tokens(self.workload, self.policy))

    def _hashes(self, keys: Ragged[np.int64]) -> Ragged[np.int64]:
        """What a recording says of every prompt."""
        return all_prompt_keys(keys, self.workload.prompt_tokens // hash_tokens(self.workload, self.policy))
