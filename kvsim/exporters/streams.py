"""Export requests in the formats of published traces, for other simulators and load generators.

These formats have no fields for images and adapters, which are left out. Prompt lengths count the tokens of images.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kvsim.errors import UsageError
from kvsim.files.atomic import whole_file
from kvsim.importers.mooncake import HASH_TOKENS
from kvsim.importers.plain import AZURE

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable, Iterable, Iterator

    from kvsim.workload import Workload


def write_azure(workload: Workload, path: str | os.PathLike[str]) -> Path:
    """Write a CSV file in the format of Azure's traces. Times are rounded to 100 ns and begin at 1970."""
    epoch = datetime(1970, 1, 1, tzinfo=UTC)

    def lines() -> Iterator[str]:
        yield ",".join(AZURE.columns.values())
        for arrival_s, prompt, output in _rows(workload):
            ticks = round(arrival_s * 1e7)
            moment = epoch + timedelta(seconds=ticks // 10_000_000)
            yield f"{moment:%Y-%m-%d %H:%M:%S}.{ticks % 10_000_000:07},{prompt},{output}"

    return _write(lines(), path)


def write_burstgpt(workload: Workload, path: str | os.PathLike[str]) -> Path:
    """Write a CSV file in the format of BurstGPT. The columns for the model and the kind of log have placeholders."""

    def lines() -> Iterator[str]:
        yield "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
        for arrival_s, prompt, output in _rows(workload):
            yield f"{arrival_s:.6f},kvsim,{prompt},{output},{prompt + output},API log"

    return _write(lines(), path)


def write_mooncake(workload: Workload, path: str | os.PathLike[str]) -> Path:
    """Write a JSON Lines file in the format of Mooncake's traces: times in milliseconds, and an id for each block of
    512 prompt tokens.

    Two prompts have the same id for a block if they are known to be equal up to the end of the block. Any other block
    has an id of its own; so has a last block with fewer tokens.

    Raises:
        UsageError: the workload's hash units neither divide 512 tokens nor are multiples of 512.
    """
    unit = workload.hash_unit_tokens
    if HASH_TOKENS % unit and unit % HASH_TOKENS:
        raise UsageError(
            f"the prompts are hashed in units of {unit} tokens, and Mooncake's are of {HASH_TOKENS}; "
            f"one must divide the other."
        )
    ids: dict[Hashable, int] = {}

    def lines() -> Iterator[str]:
        for row, (arrival_s, prompt, output) in enumerate(_rows(workload)):
            hashes = workload.prompt_hashes[row].tolist()
            known = _units_of_512(hashes, unit, prompt)
            keys: list[Hashable] = [*known, *((row, place) for place in range(len(known), -(-prompt // HASH_TOKENS)))]
            request = {
                "timestamp": round(1000 * arrival_s),
                "input_length": prompt,
                "output_length": output,
                "hash_ids": [ids.setdefault(key, len(ids)) for key in keys],
            }
            yield json.dumps(request)

    return _write(lines(), path)


def _units_of_512(hashes: list[int], unit: int, prompt_tokens: int) -> list[Hashable]:
    """Return a key for each full unit of 512 tokens whose prefix is known. Keys are equal if the prefixes are."""
    if HASH_TOKENS % unit == 0:
        factor = HASH_TOKENS // unit
        return [("hash", value) for value in hashes[factor - 1 :: factor]]
    factor = unit // HASH_TOKENS
    # The hash of a larger unit only shows whether two whole units are equal.
    full = min(len(hashes) * factor, prompt_tokens // HASH_TOKENS)
    return [("hash", hashes[place // factor], place % factor) for place in range(full)]


def _rows(workload: Workload) -> Iterable[tuple[float, int, int]]:
    columns = (workload.arrival_s, workload.prompt_tokens, workload.output_tokens)
    return zip(*(np.asarray(column).tolist() for column in columns), strict=True)


def _write(lines: Iterable[str], path: str | os.PathLike[str]) -> Path:
    with whole_file(path) as file, file.open("w", encoding="utf-8", newline="\n") as text:
        text.writelines(f"{line}\n" for line in lines)
    return Path(path)
