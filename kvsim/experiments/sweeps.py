"""Many runs at once: one row of a table for each, wherever they are computed.

A sweep hands points to processes of this machine, or to a Dask or Ray cluster. What is done is kept as it
comes in, beside the table: a sweep that was interrupted goes on where it stopped, and one with more points computes
only those. A worker that dies takes its point with it and nothing else; what cannot be served is a row with an error.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.display.text import in_full
from kvsim.errors import KvsimError, UsageError, WorkerDiedError
from kvsim.experiments.workers import Backend, Workers, workers
from kvsim.files.arrow_table import read_table
from kvsim.files.atomic import unwritable, whole_file
from kvsim.files.marks import maker_of
from kvsim.files.scratch import alone_in
from kvsim.memory.waste import SlotState
from kvsim.policies import AnyPolicy, describe
from kvsim.policies.custom import CustomPolicy
from kvsim.simulation import Machine, Measured, measure
from kvsim.workload import Workload

Setting = str | int | float | bool | None
Row = dict[str, Any]
Progress = Callable[[int, int], None]

_USELESS = (SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED, SlotState.EXTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One run to be made."""

    settings: Mapping[str, Setting]
    """Settings that tell the point from the others; columns of the table."""
    workload: Workload
    policy: AnyPolicy
    machine: Machine
    refuse_misfits: bool = False
    """Refuse requests that could never be served; otherwise the run is a row with an error."""

    @property
    def key(self) -> str:
        """Equal for equal runs: a digest of everything that the result depends on."""
        machine, workload = self.machine, self.workload
        on = ", ".join(f"{field.name}={in_full(getattr(machine, field.name))}" for field in fields(machine))
        settings = sorted(describe(self.policy).items()) + source_of(self.policy)
        digest = hashlib.sha256(f"(Machine({on}), {settings!r}, {self.refuse_misfits!r})".encode())
        digest.update(json.dumps(dict(self.settings), sort_keys=True).encode())
        for column in (workload.arrival_s, workload.prompt_tokens, workload.output_tokens, workload.max_tokens,
                       workload.priority, workload.prefix_group, workload.prefix_tokens):  # fmt: skip
            digest.update(np.ascontiguousarray(column).tobytes())
        digest.update(np.ascontiguousarray(workload.prompt_hashes.values).tobytes())
        if len(workload.prompt_hashes.values):
            digest.update(workload.prompt_hashes.offsets.tobytes())
            digest.update(str(workload.hash_unit_tokens).encode())
        if workload.prompt_token_ids is not None:
            digest.update(workload.prompt_token_ids.offsets.tobytes())
            digest.update(workload.prompt_token_ids.values.tobytes())
        return digest.hexdigest()[:16]


def source_of(policy: AnyPolicy) -> list[tuple[str, str]]:
    """Return the source of a custom policy: its module, or its class if typed in a session, and its arguments."""
    if not isinstance(policy, CustomPolicy):
        return []
    kind = type(policy)
    try:
        module = inspect.getmodule(kind)
        has_file = module is not None and getattr(module, "__file__", None) is not None
        text = inspect.getsource(module if has_file and module is not None else kind)
    except (OSError, TypeError) as error:
        raise UsageError(
            f"the source of the policy {policy.name!r} cannot be read, so its runs cannot be told from others; write "
            "it into a file."
        ) from error
    return [("source", text), ("values", in_full(sorted(vars(policy).items())))]


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a sweep."""

    table: Path
    num_done: int = 0
    """Points computed now."""
    num_kept: int = 0
    """Points that were in the table, or beside it, already."""
    num_failed: int = 0
    """Points that could not be served: rows with an error."""
    lost: list[Mapping[str, Setting]] = field(default_factory=list)
    """Points whose worker died, twice; they are not in the table."""
    rows: list[Row] = field(default_factory=list)
    """The rows of the points, in their order; see `run_point`."""

    @property
    def best(self) -> Row | None:
        """The row with the most output tokens per second, of equal ones the first; None if none could be served."""
        served = [row for row in self.rows if not row["error"] and row.get("output_tokens_per_s") is not None]
        return max(served, key=lambda row: float(row["output_tokens_per_s"]), default=None)


def sweep(
    points: Sequence[Point],
    table: str | os.PathLike[str],
    *,
    num_jobs: int = -1,
    backend: Backend = "loky",
    scheduler: str = "",
    progress: Progress | None = None,
) -> Outcome:
    """Make every run of `points` that `table` does not have yet, and write the table anew.

    Args:
        points: the runs, all with the same settings.
        table: a Parquet file; rows that it has and `points` does not are kept. Unfinished work stands beside it.
        num_jobs: runs at a time; -1 for as many as there are cores (or workers of the cluster).
        backend: `loky` for processes of this machine.
        scheduler: where a cluster listens, such as `tcp://host:8786`; without, one is started on this machine.
        progress: called with the number of points that are done, and of all.
    """
    if not points:
        raise UsageError("a sweep needs at least one point.")
    file = Path(table)
    parts = file.with_name(f"{file.name}.parts")
    with _alone(parts, file):
        return _sweep({point.key: point for point in points}, file, parts, num_jobs, backend, scheduler, progress)


def _sweep(
    by_key: Mapping[str, Point],
    file: Path,
    parts: Path,
    num_jobs: int,
    backend: Backend,
    scheduler: str,
    progress: Progress | None,
) -> Outcome:
    rows = rows_of(file) | _rows_of_parts(parts)
    outcome = Outcome(table=file, num_kept=sum(key in rows for key in by_key))

    def keep(key: str, row: Row) -> None:
        rows[key] = row
        outcome.num_done += 1
        _keep(row, parts / f"{key}.json")
        if progress is not None:
            progress(outcome.num_kept + outcome.num_done, len(by_key))

    def run(on: Workers, keys: Iterable[str]) -> frozenset[str]:
        """Run points, each result being kept as it comes; those that were under way when a worker died, if one did."""
        tasks = {key: (by_key[key].workload, _without_workload(by_key[key])) for key in keys}
        try:
            with closing(on.results(_run, tasks)) as made:
                for key, row in made:
                    keep(key, row)
        except WorkerDiedError as error:
            return error.under_way
        return frozenset()

    todo = [key for key in by_key if key not in rows]
    if todo:
        with workers(backend, scheduler, num_jobs=num_jobs) as found:
            while todo:
                under_way = run(found, todo)
                todo = [key for key in todo if key not in rows]
                # Whose fault it was that a worker died shows when each of them is run again by itself.
                for key in [key for key in todo if key in under_way] or todo[:1]:
                    todo.remove(key)
                    if run(found, [key]):
                        outcome.lost.append(by_key[key].settings)
    outcome.rows = [rows[key] for key in by_key if key in rows]
    outcome.num_failed = sum(bool(row["error"]) for row in outcome.rows)
    # In the order of the points, whichever was done first: equal sweeps are equal bytes.
    order = [key for key in rows if key not in by_key] + [key for key in by_key if key in rows]
    _write({key: rows[key] for key in order}, file)
    for part in parts.iterdir():  # what a person keeps there stays
        if re.fullmatch(rf"{_HALF}|[0-9a-f]+\.json", part.name):
            part.unlink(missing_ok=True)
    return outcome


@contextmanager
def _alone(parts: Path, file: Path) -> Iterator[None]:
    """Keep other sweeps away from what is done so far: one that ends takes it away. It stays if this one fails."""
    with ExitStack() as stack:
        try:
            parts.mkdir(parents=True, exist_ok=True)
            alone = stack.enter_context(alone_in(parts))
        except OSError as error:
            raise UsageError(f"cannot write {parts}: {error.strerror}; choose a folder that may be written.") from error
        if not alone:
            raise UsageError(f"another sweep is at work on {file}; wait until it has ended, or name another file.")
        try:
            yield
        finally:
            with suppress(OSError):  # unless something is in it
                parts.rmdir()


def _without_workload(point: Point) -> Callable[..., Point]:
    """What makes `point` of its workload: points of a sweep often have one in common, which travels once."""
    return partial(Point, **{each.name: getattr(point, each.name) for each in fields(Point) if each.name != "workload"})


def _run(workload: Workload, point_of: Callable[..., Point]) -> Row:
    return run_point(point_of(workload=workload))


def run_point(point: Point) -> Row:
    """One row: the settings, where the memory went, how long requests took; or why it could not be served."""
    pool = {"series": point.policy.name, "unit_tokens": point.policy.unit_tokens, "kv_bytes": point.machine.kv_bytes}
    row: Row = {**point.settings, **pool, "source": f"times: {point.machine.step_time.label}", "error": ""}
    try:
        measured = measure(point.workload, point.policy, point.machine, refuse_misfits=point.refuse_misfits)
    except KvsimError as error:
        return row | {"error": str(error)}
    return row | _figures(measured)


def _figures(measured: Measured) -> Row:
    summary = measured.summary
    figures = {
        "unused_percent": float(summary.waste.pool_percent[list(_USELESS)].sum()),
        "hit_percent": 100 * summary.prefix_hit_rate,
    }
    return summary.as_row() | figures


_HALF = "half"
"""Name of a row that is being written, beside those of points that are done."""


def _keep(row: Row, file: Path) -> None:
    """Write `row` as `file`, which appears when it is whole. Nobody else writes to its folder while the sweep runs."""
    half = file.with_name(_HALF)
    try:
        half.write_text(json.dumps({"row": row, "digest": _digest(row)}), encoding="utf-8")
        half.replace(file)
    except OSError as error:
        raise unwritable(file, error.strerror or str(error)) from error


def _rows_of_parts(parts: Path) -> dict[str, Row]:
    rows = {}
    for file in sorted(parts.glob("*.json")):
        with suppress(OSError, ValueError, RecursionError):  # then it is computed again
            document = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(document, dict) and _digest(document.get("row")) == document.get("digest"):
                rows[file.stem] = document["row"]
    return rows


def rows_of(file: Path) -> dict[str, Row]:
    """The rows of a sweep's table, by the keys of their points; none where there is no file."""
    if not file.exists():
        return {}
    wrong = UsageError(f"{file} is there and is no table of a sweep; name another file.")
    if not file.is_file():
        raise wrong
    try:
        rows = read_table(file).to_pylist()
    except ValueError as error:
        raise wrong from error
    if not all(isinstance(row.get("point"), str) and isinstance(row.get("error"), str) for row in rows):
        raise wrong
    if len({row["point"] for row in rows}) < len(rows):
        raise wrong
    if maker_of(file) != "sweep":
        raise UsageError(
            f"{file} is not as kvsim wrote it: it was edited, or is of another version; name another file, and "
            "its runs are made again."
        )
    return {row.pop("point"): row for row in rows}


def _digest(row: Any) -> str:
    """Digest of a row that is kept beside the table, by which one that was edited or damaged is told."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def _write(rows: Mapping[str, Row], file: Path) -> None:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    from kvsim.files.arrow_columns import from_values  # noqa: PLC0415

    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    columns = {"point": list(rows)} | {name: [row.get(name) for row in rows.values()] for name in names}
    with whole_file(file, made_by="sweep") as scratch:
        try:
            contents = pa.table({name: from_values(values) for name, values in columns.items()})
        except (pa.ArrowException, TypeError, OverflowError) as error:
            raise UsageError(
                f"the rows that {file} has do not go with those of this sweep: a column would have two types; "
                "name another file."
            ) from error
        pq.write_table(contents, scratch, compression="zstd")
