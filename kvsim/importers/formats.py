"""Every format that requests can be read from, and which of them a file is in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.errors import UnknownNameError, UsageError, WorkloadError
from kvsim.files.arrow_table import is_parquet
from kvsim.importers import mooncake, names, parquet, plain, ragpulse, sharegpt, vllm_bench
from kvsim.importers.recordings import workload_of
from kvsim.importers.source import Source

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from kvsim.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFormat:
    """One format of CSV or JSON, plain or compressed with gzip."""

    what: str
    looks_like: Callable[[Source], bool]
    read: Callable[[Source], Workload]


FORMATS = {
    "azure": TextFormat(what=f"{plain.AZURE.what}, CSV", looks_like=plain.AZURE.looks_like, read=plain.AZURE.read),
    "burstgpt": TextFormat(
        what=f"{plain.BURSTGPT.what}, CSV", looks_like=plain.BURSTGPT.looks_like, read=plain.BURSTGPT.read
    ),
    "mooncake": TextFormat(what="Mooncake trace, JSON Lines", looks_like=mooncake.looks_like, read=mooncake.read),
    "ragpulse": TextFormat(what="RAGPulse trace, JSON Lines", looks_like=ragpulse.looks_like, read=ragpulse.read),
    "sharegpt": TextFormat(what="ShareGPT conversations, JSON", looks_like=sharegpt.looks_like, read=sharegpt.read),
    "vidur": TextFormat(what=f"{plain.VIDUR.what}, CSV", looks_like=plain.VIDUR.looks_like, read=plain.VIDUR.read),
    "vllm-bench": TextFormat(
        what="result of vllm bench serve --save-detailed, JSON", looks_like=vllm_bench.looks_like, read=vllm_bench.read
    ),
    # Last, because it knows the columns of the others too.
    "csv": TextFormat(
        what=f"CSV with the columns {', '.join(names.COLUMNS)}, and perhaps {', '.join(names.OPTIONAL)}",
        looks_like=plain.looks_like,
        read=plain.read,
    ),
}
"""Name on the command line -> how to read it. A recording (a folder) and a workload (Parquet) need no name."""


def read_workload(
    path: str | os.PathLike[str], *, form: str | None = None, columns: Mapping[str, str] | None = None
) -> Workload:
    """The requests in `path`: a recording, a Parquet file of `kvsim import`, or a file in one of `FORMATS`.

    Args:
        path: a file, or the folder of a recording.
        form: the format's name; found from the content if left out.
        columns: what the columns of a CSV file stand for: our name of each, and the file's.

    Raises:
        UnknownNameError: there is no format `form`.
        RecordingError: it is a folder and no recording.
        WorkloadError: it is in no known format, or a request in it cannot be right.
    """
    if form is not None and form not in FORMATS:
        raise UnknownNameError("format", form, FORMATS)
    file = Path(path)
    if columns:
        if form not in (None, "csv"):
            raise UsageError(f"--columns are those of a CSV file, not of the format {form}.")
        return plain.read(Source.open(file), columns)
    if form is None and file.is_dir():
        from kvsim.recording import read  # noqa: PLC0415  brings pyarrow

        return workload_of(read(file))
    if form is None and file.is_file() and is_parquet(file):
        return parquet.read(file)
    source = Source.open(file)
    return FORMATS[form or detect(source)].read(source)


def detect(source: Source) -> str:
    """The name of the format that `source` is in.

    Raises:
        WorkloadError: none of them recognises it.
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
