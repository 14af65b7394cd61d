"""Many simulations in parallel, each of which becomes one row of a table.

Every row is stored beside the table as soon as it is known. So an interrupted sweep continues where it was interrupted,
and a sweep with more points computes only the new ones. When a worker process dies, the points that it may have been
running are run again one by one, and only those whose process dies again are lost. A point that cannot be served
becomes a row with an error.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from copy import deepcopy
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.display.text import in_full
from kvsim.errors import KvsimError, UsageError, WorkerDiedError
from kvsim.experiments.workers import Backend, Workers, check_number_of_jobs, workers
from kvsim.files.arrow_table import read_table
from kvsim.files.atomic import check_folder, unwritable, whole_file
from kvsim.files.marks import maker_of
from kvsim.files.scratch import locked
from kvsim.memory.waste import SlotState
from kvsim.metrics.run_verdict import limit_of, limit_words
from kvsim.policies import AnyPolicy, describe
from kvsim.policies.custom import CustomPolicy
from kvsim.policies.kinds import evicts_optimally
from kvsim.simulation import Machine, Measured, measure
from kvsim.workload import Workload

Setting = str | int | float | bool | None
Row = dict[str, Any]
Progress = Callable[[int, int], None]

_USELESS = (SlotState.INTERNAL, SlotState.PADDING, SlotState.EXPIRED, SlotState.EXTERNAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One simulation of a sweep."""

    settings: Mapping[str, Setting]
    """Names and values that identify the point; they are columns of the table."""
    workload: Workload
    policy: AnyPolicy
    machine: Machine
    refuse_misfits: bool = False
    """True to leave out requests that could never be served. If False, with such a request the row has an error."""
    check: bool = False
    """True to verify at every step that all slots are accounted for."""

    @property
    def key(self) -> str:
        """Digest of everything on which the result depends. Points with equal keys have equal results."""
        machine, workload = self.machine, self.workload
        on = ", ".join(f"{field.name}={in_full(getattr(machine, field.name))}" for field in fields(machine))
        settings = sorted(describe(self.policy).items()) + source_of(self.policy)
        digest = hashlib.sha256(f"(Machine({on}), {settings!r}, {self.refuse_misfits!r})".encode())
        digest.update(json.dumps(dict(self.settings), sort_keys=True).encode())
        for column in (workload.arrival_s, workload.prompt_tokens, workload.output_tokens, workload.max_tokens,
                       workload.priority, workload.prefix_group, workload.prefix_tokens, workload.adapter):  # fmt: skip
            digest.update(np.ascontiguousarray(column).tobytes())
        digest.update(np.ascontiguousarray(workload.prompt_hashes.values).tobytes())
        if len(workload.prompt_hashes.values):
            digest.update(workload.prompt_hashes.offsets.tobytes())
            digest.update(str(workload.hash_unit_tokens).encode())
            digest.update(f"+{workload.hash_ahead_tokens}".encode() if workload.hash_ahead_tokens else b"")
        if workload.prompt_token_ids is not None:
            digest.update(workload.prompt_token_ids.offsets.tobytes())
            digest.update(workload.prompt_token_ids.values.tobytes())
        if workload.turns is not None:
            turns = workload.turns
            also = turns.also_after
            for waits in (turns.after, turns.pause_s, turns.history_tokens, also.offsets, also.values):
                digest.update(waits.tobytes())
        if (images := workload.images) is not None:
            for values in (images.offsets, images.content, images.place, images.tokens, images.width, images.height):
                digest.update(values.tobytes())
        return digest.hexdigest()[:16]


def source_of(policy: AnyPolicy) -> list[tuple[str, str]]:
    """Return texts that identify a custom policy, as pairs (name, text); empty if the policy is built in.

    "source" is the source code of the policy's module, or of its class if that was typed in a Python session. "values"
    are the attributes of the policy object.
    """
    if not isinstance(policy, CustomPolicy):
        return []
    kind = type(policy)
    try:
        module = inspect.getmodule(kind)
        has_file = module is not None and getattr(module, "__file__", None) is not None
        text = policy.source or inspect.getsource(module if has_file and module is not None else kind)
    except (OSError, TypeError) as error:
        raise UsageError(
            f"the source of the policy {policy.name!r} cannot be read, so its runs cannot be identified; write it into "
            "a file."
        ) from error
    return [("source", text), ("values", in_full(sorted(vars(policy).items())))]


@dataclass(slots=True, kw_only=True)
class SweepResult:
    """Result of a sweep: its rows, and the numbers of points."""

    table: Path
    num_done: int = 0
    """Number of points that were simulated in this call."""
    num_kept: int = 0
    """Number of points that were simulated in an earlier call."""
    num_failed: int = 0
    """Number of points that could not be served. Their rows have an error."""
    lost: list[Mapping[str, Setting]] = field(default_factory=list)
    """Settings of the points whose worker process died even when they ran alone. They have no row in the table."""
    rows: list[Row] = field(default_factory=list)
    """Rows of the given points in their order, without those in `lost`; equal points have one row. See `run_point`."""

    @property
    def best(self) -> Row | None:
        """Row with the most output tokens per second, the first of equal ones; None if no point was served."""
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
) -> SweepResult:
    """Simulate the `points` that are not yet in `table`, and write the table again with their rows.

    Args:
        points: points with the same names of settings.
        table: Parquet file; its rows for other points are kept. During the sweep, finished rows are stored in a folder
            beside it, from which an interrupted sweep continues.
        num_jobs: runs at a time; -1 for all cores, or all workers of the cluster. One run at a time is made in this
            process; if it needs too much memory, the sweep ends, and is continued by a further call.
        backend: "loky" for processes of this machine, "dask" or "ray" for a cluster.
        scheduler: address of a Dask or Ray cluster, such as `tcp://host:8786`; if empty, one starts on this machine.
        progress: function called with the number of finished points, and of all points.
    """
    if not points:
        raise UsageError("a sweep needs at least one point.")
    file = Path(table)
    check_folder(file)
    check_number_of_jobs(num_jobs)
    parts = file.with_name(f"{file.name}.parts")
    with _locked(parts, file):
        by_key = {point.key: point for point in points}
        return _sweep(by_key, file, parts, num_jobs=num_jobs, backend=backend, scheduler=scheduler, progress=progress)


def _sweep(
    by_key: Mapping[str, Point],
    file: Path,
    parts: Path,
    *,
    num_jobs: int,
    backend: Backend,
    scheduler: str,
    progress: Progress | None,
) -> SweepResult:
    """Simulate the points that have no row in `file` or in the folder `parts`. Each row is stored in `parts` at once,
    and all rows in `file` at the end.
    """
    rows = rows_of(file) | _rows_of_parts(parts)
    outcome = SweepResult(table=file, num_kept=sum(key in rows for key in by_key))

    def keep(key: str, row: Row) -> None:
        rows[key] = row
        outcome.num_done += 1
        _keep(row, parts / f"{key}.json")
        if progress is not None:
            progress(outcome.num_kept + outcome.num_done, len(by_key))

    def run(processes: Workers, keys: Iterable[str]) -> frozenset[str]:
        """Run the points with these keys and store their rows. If a worker died, return the keys of the points that
        were running then; otherwise an empty set.
        """
        tasks = {key: (by_key[key].workload, _without_workload(by_key[key])) for key in keys}
        try:
            with closing(processes.results(_run, tasks)) as made:
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
                # Run each of these points alone, to find the one whose worker dies.
                for key in [key for key in todo if key in under_way] or todo[:1]:
                    todo.remove(key)
                    if run(found, [key]):
                        outcome.lost.append(by_key[key].settings)
    outcome.rows = [rows[key] for key in by_key if key in rows]
    outcome.num_failed = sum(bool(row["error"]) for row in outcome.rows)
    # Order the rows by points, not by completion: equal sweeps give equal bytes.
    order = [key for key in rows if key not in by_key] + [key for key in by_key if key in rows]
    _write({key: rows[key] for key in order}, file)
    for part in parts.iterdir():  # keep a user's own files
        if re.fullmatch(rf"{_INCOMPLETE}|[0-9a-f]+\.json", part.name):
            part.unlink(missing_ok=True)
    return outcome


@contextmanager
def _locked(parts: Path, file: Path) -> Iterator[None]:
    """Lock the folder `parts` against other sweeps, and remove it at the end if it is empty."""
    with ExitStack() as stack:
        try:
            parts.mkdir(exist_ok=True)
            alone = stack.enter_context(locked(parts))
        except OSError as error:
            raise UsageError(f"cannot write {parts}: {error.strerror}; choose a folder that may be written.") from error
        if not alone:
            raise UsageError(f"another sweep is at work on {file}; wait until it has ended, or name another file.")
        try:
            yield
        finally:
            with suppress(OSError):  # not empty
                parts.rmdir()


def _without_workload(point: Point) -> Callable[..., Point]:
    """Return a function that makes `point` from a workload. Points share the workload, so only this is sent."""
    return partial(Point, **{each.name: getattr(point, each.name) for each in fields(Point) if each.name != "workload"})


def _run(workload: Workload, point_of: Callable[..., Point]) -> Row:
    own = deepcopy(point_of)  # a custom policy may have state, which another point with the same policy must not see
    return run_point(own(workload=workload))


def run_point(point: Point) -> Row:
    """Return the row of a point: its settings, and its figures or the reason why it could not be served."""
    pool = {
        "series": _series(point.policy),
        "unit_tokens": point.policy.unit_tokens,
        "kv_bytes": point.machine.kv_bytes,
    }
    row: Row = {**point.settings, **pool, "source": "", "error": ""}
    try:
        measured = measure(
            point.workload, point.policy, point.machine, refuse_misfits=point.refuse_misfits, check=point.check
        )
    except KvsimError as error:
        return row | {"error": str(error)}
    return row | {"source": f"times: {measured.meta.engine['step_time']}"} | _figures(measured)


def _series(policy: AnyPolicy) -> str:
    return f"{policy.name} (optimal eviction)" if evicts_optimally(policy) else policy.name


def _figures(measured: Measured) -> Row:
    summary = measured.summary
    figures = {
        "unused_percent": float(summary.waste.pool_percent[list(_USELESS)].sum()),
        "hit_percent": 100 * summary.prefix_hit_rate,
        "limit": limit_words(limit_of(summary)),
    }
    return summary.as_row() | figures


_INCOMPLETE = "half"
"""Name of the file to which a row is written before the file gets its final name."""


def _keep(row: Row, file: Path) -> None:
    """Write `row` to `file`, which appears only when it is complete. No other process writes to its folder."""
    half = file.with_name(_INCOMPLETE)
    try:
        half.write_text(json.dumps({"row": row, "digest": _digest(row)}), encoding="utf-8")
        half.replace(file)
    except OSError as error:
        raise unwritable(file, error.strerror or str(error)) from error


def _rows_of_parts(parts: Path) -> dict[str, Row]:
    rows = {}
    for file in sorted(parts.glob("*.json")):
        with suppress(OSError, ValueError, RecursionError):  # compute it again
            document = json.loads(file.read_text(encoding="utf-8"))
            if isinstance(document, dict) and _digest(document.get("row")) == document.get("digest"):
                rows[file.stem] = document["row"]
    return rows


def rows_of(file: Path) -> dict[str, Row]:
    """Return the rows of a sweep's table, by the keys of their points; empty if there is no file."""
    if not file.exists():
        return {}
    wrong = UsageError(f"{file} exists and is no table of a sweep; name another file.")
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
