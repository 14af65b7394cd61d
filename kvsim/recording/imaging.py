"""Collect the images of prompts, and the events of the encoder cache, as a recorded engine reports them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kvsim.recording.growing import GrowingTable
from kvsim.recording.tables import EncoderEvents, ImageEventKind, IntArray, PromptImages
from kvsim.workload import Ragged


class ImagesSoFar:
    """Growing tables of the images, and of the events of the encoder cache."""

    def __init__(self) -> None:
        self._images, self._events = GrowingTable(PromptImages), GrowingTable(EncoderEvents)
        self._runs: list[list[int]] = []
        self._has_runs = self._are_reported = False

    def __len__(self) -> int:
        return len(self._images) + len(self._events)

    @property
    def num_events(self) -> int:
        """Number of events of the encoder cache."""
        return len(self._events)

    def add(self, request: int, images: Iterable[Sequence[Any]]) -> None:
        """Record the images of a request, in the order of their places.

        An image has a number, a place and a number of tokens. If only some tokens use an output of the encoder, their
        ranges follow, each as first token and number of tokens.
        """
        for image, place, tokens, *runs in images:
            _append(self._images, request, image, place, tokens)
            self._runs.append([int(number) for number in runs[0]] if runs else [])
        self._has_runs |= any(self._runs)
        self._are_reported = True

    def happened(self, kind: str, request: int, image: int, *, seq: int, step: int) -> None:
        """Record an event of the encoder cache; `kind` is the name of an `ImageEventKind` in lower case."""
        _append(self._events, seq, step, ImageEventKind[kind.upper()], request, image)

    def extend(self, table: PromptImages | EncoderEvents) -> None:
        """Add final rows."""
        if isinstance(table, EncoderEvents):
            self._events.extend(table)
            return
        self._images.extend(table)
        runs = Ragged.empty(len(table), np.int64) if table.embedded is None else table.embedded
        self._runs += [runs[row].tolist() for row in range(len(table))]
        self._has_runs |= table.embedded is not None

    def images(self, requests: IntArray | None = None) -> PromptImages | None:
        """Return the images of all `requests`, or of those in these rows; None if no prompt has an image."""
        if not len(self._images):
            return None
        columns = self._images.rows()
        chosen = np.arange(len(self._images))
        if requests is not None:
            chosen = np.flatnonzero(np.isin(columns["request"], requests))
        runs = Ragged.from_rows([self._runs[row] for row in chosen.tolist()], np.int64) if self._has_runs else None
        return PromptImages(**{name: column[chosen] for name, column in columns.items()}, embedded=runs)

    def events(self, first: int = 0) -> EncoderEvents | None:
        """Return the events from row `first` on; None without images, or without an encoder cache."""
        is_there = self._are_reported or len(self._events) > 0
        return EncoderEvents(**self._events.rows(slice(first, None))) if is_there else None


def _append(table: GrowingTable, *values: object) -> None:
    for column, value in zip(table.columns.values(), values, strict=True):
        column.append(int(value))  # type: ignore[call-overload]
