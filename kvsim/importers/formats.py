"""Formats of request files, detection of the format of a file, and `read_workload`, which reads any of the formats."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import UnknownNameError, UsageError, WorkloadError, reason_of
from kvsim.files.arrow_table import is_parquet
from kvsim.importers import column_names, conversations, mooncake, plain, ragpulse, sharegpt, vllm_bench, workload_file
from kvsim.importers.recordings import workload_of
from kvsim.importers.source import TextSource
from kvsim.setting_fields import check_instance

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """Format of CSV or JSON files, plain or compressed with gzip."""

    kind: str
    looks_like: Callable[[TextSource], bool]
    read: Callable[[TextSource], Workload]


def _csv(trace: plain.Published) -> TextFormat:
    return TextFormat(kind=f"{trace.kind}, CSV", looks_like=trace.looks_like, read=trace.read)


FORMATS = {
    "azure": _csv(plain.AZURE),
    "burstgpt": _csv(plain.BURSTGPT),
    "conversations": TextFormat(
        kind="conversations and agents, JSON Lines", looks_like=conversations.looks_like, read=conversations.read
    ),
    "mooncake": TextFormat(kind="Mooncake trace, JSON Lines", looks_like=mooncake.looks_like, read=mooncake.read),
    "ragpulse": TextFormat(kind="RAGPulse trace, JSON Lines", looks_like=ragpulse.looks_like, read=ragpulse.read),
    "sharegpt": TextFormat(kind="ShareGPT conversations, JSON", looks_like=sharegpt.looks_like, read=sharegpt.read),
    "sharegpt-turns": TextFormat(
        kind="ShareGPT conversations with all their turns, JSON", looks_like=lambda _: False, read=sharegpt.read_turns
    ),
    "vidur": _csv(plain.VIDUR),
    "vllm-bench": TextFormat(
        kind="result of vllm bench serve --save-detailed, JSON", looks_like=vllm_bench.looks_like, read=vllm_bench.read
    ),
    # Last, because it recognises the columns of the other formats too.
    "csv": TextFormat(
        kind=f"CSV with the columns {', '.join(column_names.COLUMNS)}, and perhaps {', '.join(column_names.OPTIONAL)}",
        looks_like=plain.looks_like,
        read=plain.read,
    ),
}
"""Text formats by their name on the command line. Folders of recordings and Parquet files of workloads need no name."""


def read_workload(
    path: str | os.PathLike[str], *, form: str | None = None, columns: Mapping[str, str] | None = None
) -> Workload:
    """Read the requests in `path`: a recording, a Parquet file of `kvsim import`, or a file in one of `FORMATS`.

    Args:
        path: file, or folder of a recording.
        form: name of the format; None to detect it from the content.
        columns: names of columns in a CSV file, by kvsim's names.

    Raises:
        UnknownNameError: `form` is not a format.
        UsageError: `columns` are given for a format without columns.
        RecordingError: the folder is not a recording.
        WorkloadError: the format is unknown, or a request is invalid.
    """
    check_instance("the path of a workload", path, str | os.PathLike, "a text or a path")
    check_instance("form", form, str | None, f"one of {', '.join(FORMATS)}, or None")
    if form is not None and form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    check_instance("columns", columns, Mapping | None, "a mapping such as {'arrival_s': 'time'}")
    for part in (part for pair in (columns or {}).items() for part in pair):
        check_instance("a name in columns", part, str, "a text")
    file = Path(path)
    if columns:
        if form not in (None, "csv"):
            raise UsageError(f"--columns are those of a CSV file, not of the format {form}; leave them out.")
        return plain.read(TextSource.open(file), columns)
    if form is None and file.is_dir():
        from kvsim.recording import read  # noqa: PLC0415  imports pyarrow

        return workload_of(read(file))
    try:
        is_table = form is None and file.is_file() and is_parquet(file)
    except OSError as error:
        raise WorkloadError(f"{file} cannot be read: {reason_of(error)}.") from error
    if is_table:
        return workload_file.read(file)
    source = TextSource.open(file)
    return FORMATS[form or detect(source)].read(source)


def detect(source: TextSource) -> str:
    """Return the name of the format of `source`.

    Raises:
        WorkloadError: no format matches.
    """
    found = next((name for name, form in FORMATS.items() if form.looks_like(source)), None)
    if found is None and len(source.header) > 1 and not source.lines[0].lstrip().startswith(("{", "[")):
        raise plain.unknown_columns(source, {})
    if found is None:
        raise WorkloadError(
            f"{source.path}, line 1: {source.lines[0].strip()[:60]!r} begins no known format; "
            f"the known ones are {', '.join(FORMATS)}."
        )
    return found
