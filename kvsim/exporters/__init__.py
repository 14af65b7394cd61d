"""Exports of recordings: for trace viewers, data frames, and simulators that read published traces."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kvsim.exporters.perfetto import write_perfetto
from kvsim.exporters.streams import write_azure, write_burstgpt, write_mooncake
from kvsim.exporters.table_files import write_tables
from kvsim.importers import workload_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvsim.recording import Recording
    from kvsim.workload import Workload


def _stream(write: Callable[[Workload, Path], Path]) -> Callable[[Recording, Path], Path]:
    return lambda recording, path: write(workload_of(recording), path)


EXPORTERS: dict[str, Callable[[Recording, Path], Path]] = {
    "perfetto": write_perfetto,
    "csv": partial(write_tables, form="csv"),
    "parquet": partial(write_tables, form="parquet"),
    "azure": _stream(write_azure),
    "mooncake": _stream(write_mooncake),
    "burstgpt": _stream(write_burstgpt),
}
"""Functions that write exports, by name on the command line. `csv` and `parquet` write a folder, all others a file."""

__all__ = ["EXPORTERS", "write_azure", "write_burstgpt", "write_mooncake", "write_perfetto", "write_tables"]
