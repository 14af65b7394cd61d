"""A sweep: one row per point, wherever it was computed, and whatever happened on the way."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvsim.errors import UsageError
from kvsim.experiments import sweeps as sweeping
from kvsim.experiments.on_loky import LokyWorkers, loky_workers
from kvsim.experiments.sweeps import Point, run_point, sweep
from kvsim.experiments.workers import Backend, Workers
from kvsim.metrics import summarize
from kvsim.plots.sweep_figures import draw_sweep
from kvsim.policies import Paged
from kvsim.policies.custom import CustomPolicy, ServedRequest, StepInMaking
from kvsim.policies.settings import ContinuousSettings, PagedSettings
from kvsim.simulation import Machine, simulate
from kvsim.workload import Images, Ragged, Workload
from tests.waiting import until

MakeMachine = Callable[[int], Machine]


@pytest.fixture
def points(make_machine: MakeMachine, make_workload: Callable[..., Workload]) -> list[Point]:
    workload = make_workload(*[(0.01 * row, 20 + row, 30) for row in range(12)])
    return [
        Point(
            settings={"num_blocks": num_blocks, "block_size": block_size},
            workload=workload,
            policy=Paged(scheduler=ContinuousSettings(max_model_len=256), cache=PagedSettings(block_size=block_size)),
            machine=make_machine(num_blocks * block_size),
        )
        for num_blocks in (20, 60)
        for block_size in (8, 16)
    ]


def rows_of(table: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(table).to_pylist()
    return rows


def test_every_point_is_a_row_with_the_figures_of_its_run(points: list[Point], tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    outcome = sweep(points, tmp_path / "t.parquet", num_jobs=2, progress=lambda *counts: seen.append(counts))
    assert (outcome.num_done, outcome.num_kept, outcome.num_failed, outcome.lost) == (4, 0, 0, [])
    assert seen == [(done, 4) for done in range(1, 5)]
    rows = {(row["num_blocks"], row["block_size"]): row for row in rows_of(outcome.table)}
    assert len(rows) == 4
    for point in points:
        row = rows[point.settings["num_blocks"], point.settings["block_size"]]
        summary = summarize(simulate(point.workload, point.policy, point.machine))
        assert row["output_tokens_per_s"] == summary.output_tokens_per_s
        assert row["num_preemptions"] == summary.num_preemptions
        assert row["ttft_s.p99"] == summary.ttft_s.p99
        assert row["error"] == ""
        assert row["limit"] == ("memory" if summary.num_preemptions else "nothing")
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"], "nothing stands beside a finished table"


def test_what_is_done_is_not_run_again(points: list[Point], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "t.parquet"
    before = sweep(points[:2], table, num_jobs=2)
    assert before.num_done == 2
    first = rows_of(table)
    after = sweep(points, table, num_jobs=2)
    assert (after.num_done, after.num_kept) == (2, 2)
    assert rows_of(table)[:2] == first

    def no_workers(*_: object, **_rest: object) -> None:
        pytest.fail("nothing is left to do")

    monkeypatch.setattr(sweeping, "workers", no_workers)
    assert sweep(points, table).num_kept == 4


def test_an_interrupted_sweep_goes_on(points: list[Point], tmp_path: Path) -> None:
    def interrupt(done: int, _: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(points, tmp_path / "t.parquet", num_jobs=2, progress=interrupt)
    assert not (tmp_path / "t.parquet").exists()
    outcome = sweep(points, tmp_path / "t.parquet", num_jobs=2)
    assert (outcome.num_done, outcome.num_kept) == (1, 3)
    assert len(rows_of(outcome.table)) == 4


CLUSTERS = [pytest.param(backend, marks=pytest.mark.slow) for backend in ("dask", "ray")]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let processes that a test starts hear of Ctrl-C: a shell that runs the tests in the background tells all of them
    to ignore it.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def another_dashboard() -> Iterator[None]:
    """Somebody else's cluster shows its dashboard where Dask would show ours."""
    with ExitStack() as until_then:
        with suppress(OSError):  # if it is there, so much the better
            until_then.enter_context(socket.create_server(("", 8787)))
        yield


@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
@pytest.mark.usefixtures("interruptible", "another_dashboard")
@pytest.mark.parametrize("backend", ["loky", *CLUSTERS])
def test_ctrl_c_ends_every_process_and_keeps_what_is_done(backend: str, tmp_path: Path) -> None:
    pytest.importorskip({"loky": "joblib", "dask": "distributed", "ray": "ray"}[backend])
    # Two at a time, and each takes long enough that many are left when the first is done.
    num_points = 10
    seeds = ",".join(map(str, range(num_points)))
    work = ["--arrivals", "poisson", "--rate", "20", "--num-requests", "6000", "--vary", f"seed={seeds}", "--jobs", "2"]
    command = [sys.executable, "-m", "kvsim", "sweep", *work, "-o", "s.parquet", "--backend", backend]
    parts = tmp_path / "s.parquet.parts"
    # A terminal tells every process of its session.
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        until(lambda: any(parts.glob("*.json")), within_s=60)
        for _ in range(3):  # again, while the processes end
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.2)
        _, said = process.communicate()
    assert process.returncode == 130
    kept = len(list(parts.glob("*.json")))
    assert 0 < kept < num_points
    # It may be interrupted when a result has been written and is not counted yet.
    sentences = [
        f"kvsim: stopped with {n} of {num_points} points done; this command again goes on." for n in (kept - 1, kept)
    ]
    assert said.strip() in sentences
    until(lambda: not session(process.pid), within_s=60)
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"s.parquet: {num_points - kept} done, {kept} kept, 0 failed, 0 lost" in again.stdout


def session(leader: int) -> list[str]:
    """The processes of a session that run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, _, _, number = stat.read_text().rpartition(")")[2].split()[:4]
            if int(number) == leader and state != "Z":
                found.append(stat.parent.name)
    return found


def test_a_point_that_cannot_be_served_is_a_row_with_the_reason(points: list[Point], tmp_path: Path) -> None:
    machine = replace(points[0].machine, kv_bytes=1)
    small = replace(points[0], settings={"num_blocks": 3, "block_size": 8}, machine=machine)
    assert "hold no usable unit" in run_point(small)["error"]
    outcome = sweep([small, points[3]], tmp_path / "t.parquet", num_jobs=2)
    assert (outcome.num_done, outcome.num_failed) == (2, 1)
    errors = {row["num_blocks"]: row["error"] for row in rows_of(outcome.table)}
    assert errors[60] == ""
    assert "hold no usable unit" in errors[3]


def test_one_run_at_a_time_gives_the_rows_of_several_also_if_a_policy_has_state(
    points: list[Point], tmp_path: Path
) -> None:
    class Late(CustomPolicy):
        """It serves the newest request first, but from its fifth admission on."""

        name = "late"
        scheduler = ContinuousSettings(max_model_len=256, max_num_seqs=2)

        def __init__(self) -> None:
            self.num_admitted = 0

        def admit(self, step: StepInMaking) -> ServedRequest | None:
            self.num_admitted += 1
            return step.waiting[0 if self.num_admitted < 5 else -1]

    policy = Late()
    several = [replace(each, policy=policy) for each in points]
    rows = []
    for num_jobs in (1, 2):
        outcome = sweep(several, tmp_path / f"{num_jobs}.parquet", num_jobs=num_jobs)
        assert (outcome.num_done, outcome.num_failed) == (4, 0)
        rows.append(outcome.rows)
    assert rows[0] == rows[1]
    assert policy.num_admitted == 0


def test_a_killed_worker_loses_its_point_and_not_the_sweep(
    points: list[Point], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deadly:  # local, so that it travels to the worker as it stands
        label, calibrated = "deadly", False

        def entry_s(self, prompt_tokens: int) -> float:  # noqa: ARG002
            os.kill(os.getpid(), signal.SIGKILL)
            return 0.0

    at_a_time = []

    class Counted(LokyWorkers):
        def results(self, call: Any, tasks: Any) -> Any:
            at_a_time.append(len(tasks))
            return super().results(call, tasks)

    @contextmanager
    def counted(*_: object, **settings: Any) -> Iterator[Workers]:
        with loky_workers(settings["num_jobs"]):
            yield Counted(settings["num_jobs"])

    monkeypatch.setattr(sweeping, "workers", counted)
    more = [replace(points[0], settings={"num_blocks": 20, "block_size": 8, "nth": nth}) for nth in range(30)]
    deadly = replace(more[0], machine=replace(points[1].machine, step_time=Deadly()))  # type: ignore[arg-type]
    outcome = sweep([deadly, *more[1:]], tmp_path / "t.parquet", num_jobs=2)
    assert outcome.lost == [deadly.settings]
    assert outcome.num_done == 29
    assert sorted(row["nth"] for row in rows_of(outcome.table)) == list(range(1, 30))
    assert at_a_time[0] == 30
    assert at_a_time[-1] > 1, "what was not under way is run together again"
    assert at_a_time[1:-1] == [1] * (len(at_a_time) - 2)


@pytest.mark.filterwarnings("ignore")  # of the cluster's own making
@pytest.mark.parametrize("backend", CLUSTERS)
def test_a_cluster_of_this_machine(backend: Backend, points: list[Point], tmp_path: Path) -> None:
    pytest.importorskip("distributed" if backend == "dask" else "ray")
    done: list[tuple[int, int]] = []

    def report(number: int, total: int) -> None:
        done.append((number, total))

    outcome = sweep(points[:3], tmp_path / "t.parquet", backend=backend, num_jobs=2, progress=report)
    assert (outcome.num_done, outcome.lost) == (3, [])
    again = sweep(points, tmp_path / "t.parquet", backend=backend, num_jobs=2, progress=report)
    assert (again.num_kept, again.num_done) == (3, 1)
    assert done == [(1, 3), (2, 3), (3, 3), (4, 4)]
    expected = {(row["num_blocks"], row["block_size"]): row["output_tokens_per_s"] for row in map(run_point, points)}
    assert {
        (row["num_blocks"], row["block_size"]): row["output_tokens_per_s"] for row in rows_of(again.table)
    } == expected


@pytest.mark.filterwarnings("ignore")  # of the cluster's own making
def test_a_dask_scheduler_with_two_workers(points: list[Point], tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        outcome = sweep(points, tmp_path / "t.parquet", backend="dask", scheduler=cluster.scheduler_address)
    assert (outcome.num_done, outcome.lost) == (4, [])
    expected = {(row["num_blocks"], row["block_size"]): row["output_tokens_per_s"] for row in map(run_point, points)}
    assert {
        (row["num_blocks"], row["block_size"]): row["output_tokens_per_s"] for row in rows_of(outcome.table)
    } == expected


def test_misuse(points: list[Point], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="at least one point"):
        sweep([], tmp_path / "t.parquet")
    with pytest.raises(UsageError, match="address of a cluster"):
        sweep(points, tmp_path / "t.parquet", scheduler="tcp://nowhere:1")
    for backend, module, address in (("dask", "distributed", "nonsense"), ("ray", "ray", "127.0.0.1:1")):
        if find_spec(module) is not None:
            with pytest.raises(UsageError, match=f"no {backend} cluster answers at '{address}'"):
                sweep(points, tmp_path / "t.parquet", backend=backend, scheduler=address)  # type: ignore[arg-type]
    (tmp_path / "other.parquet").write_text("no table")
    with pytest.raises(UsageError, match="is no table of a sweep"):
        sweep(points, tmp_path / "other.parquet")


def test_the_figure_has_a_line_for_each_value_of_the_second_setting(points: list[Point], tmp_path: Path) -> None:
    outcome = sweep(points, tmp_path / "t.parquet", num_jobs=2)
    picture = draw_sweep(outcome.table, ["num_blocks", "block_size"])
    (axes,) = picture.axes
    assert [line.get_label() for line in axes.lines] == ["block size 8", "block size 16"]
    assert [np.asarray(line.get_xdata()).tolist() for line in axes.lines] == [[20, 60], [20, 60]]
    with pytest.raises(UsageError, match="no run that could be served with rate"):
        draw_sweep(outcome.table, ["rate"])


def test_what_a_killed_sweep_has_left_is_cleared(points: list[Point], tmp_path: Path) -> None:
    parts = tmp_path / "t.parquet.parts"
    parts.mkdir()
    (parts / "half").write_text('{"half a')
    (parts / "0123.json").write_text('{"half a')
    (parts / "4567.json").write_text("[]")
    outcome = sweep(points[:2], tmp_path / "t.parquet", num_jobs=2)
    assert (outcome.num_done, outcome.num_kept) == (2, 0)
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]


def test_two_sweeps_on_one_table_do_not_disturb_each_other(points: list[Point], tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"

    def another(*_: int) -> None:
        with pytest.raises(UsageError, match="another sweep is at work on"):
            sweep(points, table, num_jobs=2)

    assert sweep(points, table, num_jobs=2, progress=another).num_done == 4
    assert len(rows_of(table)) == 4


@pytest.mark.parametrize(
    "columns",
    [
        {"point": ["a"]},
        {"error": [""]},
        {"point": ["a", "a"], "error": ["", ""]},
        {"point": [None], "error": [""]},
        {"point": [["a"]], "error": [""]},
        {"point": ["a"], "error": [0]},
    ],
)
def test_a_table_that_is_no_sweeps_is_left_alone(
    points: list[Point], tmp_path: Path, columns: dict[str, list[Any]]
) -> None:
    table = tmp_path / "t.parquet"
    pq.write_table(pa.table(columns), table)
    before = table.read_bytes()
    with pytest.raises(UsageError, match="is no table of a sweep"):
        sweep(points, table)
    assert table.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["t.parquet"]


def test_a_column_of_two_types_is_a_sentence(points: list[Point], tmp_path: Path) -> None:
    table = tmp_path / "t.parquet"
    (name, _), *_ = points[0].settings.items()
    sweep([replace(points[0], settings={name: "many"})], table, num_jobs=1)
    with pytest.raises(UsageError, match="do not go with those of this sweep"):
        sweep(points[:1], table, num_jobs=1)


def test_a_table_that_was_edited_is_refused_whatever_was_changed(points: list[Point], tmp_path: Path) -> None:
    table, edited = tmp_path / "t.parquet", tmp_path / "edited.parquet"
    sweep(points[:2], table, num_jobs=1)
    whole = pq.read_table(table)
    draw = random.Random(0)
    edits = [whole.slice(0, 1), pa.concat_tables([whole.slice(0, 1), whole]), whole.append_column("more", [[1, 2]])]
    edits += [whole.drop_columns([name]) for name in whole.column_names if name not in ("point", "error")]
    for index, name in enumerate(whole.column_names):
        values = whole[name].to_pylist()
        row = draw.randrange(2)
        values[row] = 0 if values[row] else 93.5
        if not isinstance(whole[name][0].as_py(), str):
            edits.append(whole.set_column(index, name, [values]))
    assert len(edits) > 100
    for edit in edits:
        pq.write_table(edit, edited)
        with pytest.raises(UsageError, match=r"is not as kvsim wrote it|is no table of a sweep"):
            sweeping.rows_of(edited)
    assert len(sweeping.rows_of(table)) == 2


def test_other_images_are_another_point(points: list[Point]) -> None:
    """An image that an earlier prompt has is not encoded again, so equal lengths do not make equal runs."""
    workload = points[0].workload
    number = len(workload)
    rows = {"offsets": np.arange(number + 1), "place": [0] * number, "tokens": [1] * number}
    equal, different = (Images(content=content, **rows) for content in ([1] * number, range(1, number + 1)))
    others = [workload, replace(workload, images=equal), replace(workload, images=different)]
    assert len({replace(points[0], workload=other).key for other in others}) == 3


def test_prompts_that_share_other_prefixes_are_another_point(points: list[Point]) -> None:
    """Equal hashes in rows of other lengths, and token ids, are other requests."""
    workload, num_requests = points[0].workload, len(points[0].workload)
    few, many = [1] * num_requests, [2] * num_requests
    lengths = [many[:1] + few[1:], few[:-1] + many[:1]]
    hashes = [Ragged(np.arange(sum(each)), np.cumsum([0, *each]), np.int64) for each in lengths]
    ids = [Ragged.from_rows([[nth] * int(n) for n in workload.prompt_tokens], np.int32) for nth in (1, 2)]
    others = [
        *(replace(workload, prompt_hashes=each, hash_unit_tokens=4) for each in hashes),
        replace(workload, prompt_hashes=hashes[0], hash_unit_tokens=8),
        *(replace(workload, prompt_token_ids=each) for each in ids),
        workload,
    ]
    assert len({replace(points[0], workload=other).key for other in others}) == len(others)


def test_workers_do_not_outlive_a_sweep_that_is_killed(tmp_path: Path) -> None:
    varied = f"max-num-seqs={','.join(map(str, range(10, 50)))}"
    arguments = ["sweep", "--num-requests", "150", "--vary", varied, "-o", "s.parquet"]
    process = subprocess.Popen([sys.executable, "-m", "kvsim", *arguments], cwd=tmp_path, stdout=subprocess.DEVNULL)
    parts = tmp_path / "s.parquet.parts"
    until(lambda: any(parts.glob("*.json")), within_s=60)
    tasks = Path(f"/proc/{process.pid}/task").glob("*/children")
    children = {int(pid) for task in tasks for pid in task.read_text().split()}
    process.kill()
    process.wait()
    until(lambda: not any(Path(f"/proc/{child}").exists() for child in children), within_s=60)
    assert children
