"""Lengths of the requests in published experiments.

Papers publish only the means. `lengths.toml` has whole distributions and their sources. A sample consists of evenly
spaced quantiles in random order, so that its mean does not depend on the seed.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.workload import Workload

if TYPE_CHECKING:
    import numpy.typing as npt

    from kvsim.workload import Arrivals

    Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedLengths:
    """Joint distribution of prompt and output lengths in tokens."""

    name: str
    about: str
    """Source of the lengths, for the description of a workload."""
    limit_tokens: int
    """Largest length of a sequence in tokens, prompt and output together."""
    prompt_quantiles: tuple[float, ...]
    prompt_tokens: tuple[float, ...]
    """Prompt length in tokens at each of `prompt_quantiles`."""
    output_quantiles: tuple[float, ...]
    output_tokens: tuple[tuple[float, ...], ...]
    """Output lengths in tokens at `output_quantiles`, for each of several equally large groups of prompts.

    The groups are in order of prompt length, the shortest first.
    """

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Int64Array, Int64Array]:
        """Draw `n` prompt lengths and the output length of each, in tokens: int64[n] each."""
        prompt = _round(np.interp(_midpoints(n), self.prompt_quantiles, self.prompt_tokens))
        output = np.empty(n, np.int64)
        for rows, tokens in zip(np.array_split(np.arange(n), len(self.output_tokens)), self.output_tokens, strict=True):
            output[rows] = _round(np.interp(rng.permutation(_midpoints(len(rows))), self.output_quantiles, tokens))
        order = rng.permutation(n)
        return prompt[order], np.minimum(output, self.limit_tokens - prompt)[order]

    def workload(self, n: int, *, arrivals: Arrivals, seed: int = 0) -> Workload:
        """Generate a workload of `n` requests with these lengths."""
        rng = np.random.default_rng(seed)
        prompt, output = self.sample(n, rng)
        return Workload(
            arrival_s=arrivals.sample(n, rng),
            prompt_tokens=prompt,
            output_tokens=output,
            name=self.name,
            description=f"{n} requests like {self.name}: {self.about}; {arrivals}, {seed=}.",
        )


@cache
def paper_lengths(name: str) -> PairedLengths:
    """Return the lengths of a data set: `sharegpt` or `alpaca`."""
    table: dict[str, Any] = tomllib.loads(Path(__file__).with_name("lengths.toml").read_text(encoding="utf-8"))[name]
    return PairedLengths(
        name=name,
        about=table["about"],
        limit_tokens=table["limit_tokens"],
        prompt_quantiles=tuple(table["prompt_quantiles"]),
        prompt_tokens=tuple(table["prompt_tokens"]),
        output_quantiles=tuple(table["output_quantiles"]),
        output_tokens=tuple(map(tuple, table["output_tokens"])),
    )


def _midpoints(n: int) -> npt.NDArray[np.float64]:
    return (np.arange(n) + 0.5) / n


def _round(tokens: npt.NDArray[np.float64]) -> Int64Array:
    return np.maximum(np.rint(tokens), 1).astype(np.int64)
