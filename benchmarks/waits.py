"""What people wait for, from the start of a process to its end: each figure beside its goal.

    python benchmarks/waits.py [FOLDER] [--only NAME]... [--mooncake conversation_trace.jsonl] [--list]

Seconds are CPU time, user and system, of the command and its children: on one quiet core that is what a person waits,
and on a busy machine it still says what the work costs. The wall clock and the peak of memory stand beside it. Inputs
are made once in FOLDER (a temporary one by default) and used again.

The exit code is 1 when a figure is more than 1.5 times over its goal. Goals are for a core that adds up a million whole
numbers in Python in 46 ms; on another machine they are stretched by what that takes there, beside each figure.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

TOLERATED = 1.5
REFERENCE_S = 0.046
"""A million additions on the machine for which the goals were set."""
SWEEP_POINTS, SWEEP_GOAL = 200, 0.9
KVSIM = [sys.executable, "-m", "kvsim"]
RUN = [*KVSIM, "run", "--no-band"]
LLAMA = ["--gpu", "H200", "--model", "Llama-3.1-8B", "--kv-gib", "112"]
OPEN = "import sys; from kvsim.recording import read; from kvsim.replay import Replay; Replay(read(sys.argv[1]))"
LIVE_VIEW = [sys.executable, str(Path(__file__).with_name("live_view.py"))]
MILLION = ["--arrivals", "poisson", "--rate", "30", "--num-requests", "1000000"]
SWEEP = [*KVSIM, "sweep", "--arrivals", "poisson", "--rate", "30", "--num-requests", "10000"]
"""Each point is five and a half minutes of traffic; to simulate one takes a twentieth of a second."""
TESTS = [sys.executable, "-m", "pytest", "--numprocesses", "auto", "-m", "not slow", "--quiet"]


class Inputs:
    """What the commands read: made when it is first asked for, and kept in a folder."""

    def __init__(self, folder: Path, mooncake: Path | None) -> None:
        self.folder, self._mooncake = folder, mooncake

    def compared(self) -> list[str]:
        """Three recordings of the same requests under three policies."""
        folder = self._made("compared", [*KVSIM, "compare", "-o"])
        return [str(folder / name) for name in ("paged", "contiguous", "static")]

    def steps(self, millions: int) -> Path:
        """A recording of so many million steps, five sequences at a time."""
        lengths = ["--prompt-tokens", "161:1", "--output-tokens", "338:1", "--rate", "3"]
        number = ["--arrivals", "poisson", "--num-requests", str(16_000 * millions)]
        return self._made(f"steps-{millions}m", [*RUN, *LLAMA, *lengths, *number, "-o"])

    def mooncake(self) -> Path | None:
        """Mooncake's trace of conversations; None where nobody has said where it is."""
        return self._mooncake

    def mooncake_run(self) -> Path | None:
        """Its recording under the paged policy."""
        trace = self._mooncake
        return None if trace is None else self._made("mooncake", [*mooncake_run(trace), "-o"])

    def live_log(self) -> Path:
        """What a server publishes in 47,000 steps of some 64 sequences."""
        lengths = ["--prompt-tokens", "161:1", "--output-tokens", "338:1", "--rate", "30"]
        number = ["--arrivals", "poisson", "--num-requests", "8800"]
        log = self.folder / "server.jsonl"
        if not log.exists():
            recording = self._made("server", [*RUN, *LLAMA, *lengths, *number, "-o"])
            subprocess.run([*LIVE_VIEW, str(log), "--from", str(recording)], check=True)
        return log

    def csv(self) -> Path:
        """Ten million requests as CSV."""
        file = self.folder / "ten-million.csv"
        if not file.exists():
            with file.with_suffix(".part").open("w") as rows:
                rows.write("arrival_s,prompt_tokens,output_tokens\n")
                rows.writelines(f"{n / 100},{1 + n % 1000},{1 + n % 77}\n" for n in range(10_000_000))
            file.with_suffix(".part").rename(file)
        return file

    def scratch(self, name: str) -> Path:
        """Where a command may write; nothing is there yet."""
        path = self.folder / "written" / f"{name}-{time.time_ns()}"
        path.parent.mkdir(exist_ok=True)
        return path

    def _made(self, name: str, command: list[str]) -> Path:
        path = self.folder / name
        if not path.exists():
            subprocess.run([*command, str(path)], check=True, stdout=subprocess.DEVNULL)
        return path


def mooncake_run(trace: Path) -> list[str]:
    return [*RUN, *LLAMA, "--workload", str(trace), "--max-model-len", "131072"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Something that people wait for."""

    name: str
    goal_s: float
    goal_mib: float | None = None
    command: Callable[[Inputs], list[str] | None]
    """None where an input is missing."""
    by_name: bool = False
    """Whether it is measured only when it is asked for by its name: it takes minutes, and more to be installed."""


def waiting_requests(count: int) -> Callable[[Inputs], list[str]]:
    return lambda _: [*RUN, "--policy", "static", *LLAMA, "--num-requests", str(count), "--arrivals", "at-once"]


def over(command: list[str], recording: Path | None, *more: str) -> list[str] | None:
    return None if recording is None else [*command, str(recording), *more]


WAITS = [
    Wait(name="run", goal_s=0.4, command=lambda _: [*KVSIM, "run"]),
    Wait(name="compare", goal_s=1.5, command=lambda _: [*KVSIM, "compare"]),
    Wait(
        name="plot waste-bars",
        goal_s=1.5,
        command=lambda to: [*KVSIM, "plot", "waste-bars", *to.compared(), "-o", f"{to.scratch('bars')}.png"],
    ),
    Wait(
        name="report",
        goal_s=5.0,
        command=lambda to: [*KVSIM, "report", *to.compared(), "-o", str(to.scratch("report"))],
    ),
    Wait(name="open two million steps", goal_s=1.0, command=lambda to: [sys.executable, "-c", OPEN, str(to.steps(2))]),
    Wait(
        name="mooncake: run and record",
        goal_s=8.0,
        goal_mib=1229,
        command=lambda to: (
            None if (trace := to.mooncake()) is None else [*mooncake_run(trace), "-o", str(to.scratch("mooncake"))]
        ),
    ),
    Wait(
        name="mooncake: nine figures",
        goal_s=10.0,
        goal_mib=1229,
        command=lambda to: over([*KVSIM, "plot", "--all"], to.mooncake_run(), "-o", str(to.scratch("figures"))),
    ),
    Wait(
        name="a million requests: run and record",  # nothing of which is read back
        goal_s=20.0,
        command=lambda to: [*RUN, *MILLION, "-o", str(to.scratch("million"))],
    ),
    Wait(name="static, 100,000 requests wait", goal_s=13.0, command=waiting_requests(100_000)),
    Wait(name="static, a million requests wait", goal_s=130.0, command=waiting_requests(1_000_000)),
    Wait(
        name="Perfetto of five million steps",
        goal_s=20.0,
        command=lambda to: [*KVSIM, "export", str(to.steps(5)), "-o", f"{to.scratch('trace')}.pftrace"],
    ),
    Wait(
        name="verify five million steps",
        goal_s=30.0,
        goal_mib=1024,
        command=lambda to: [*KVSIM, "verify", str(to.steps(5))],
    ),
    # A look each 170 steps, which is a second: the goal is the twentieth part of a processor.
    Wait(name="live view of 47,000 steps", goal_s=14.0, command=lambda to: [*LIVE_VIEW, str(to.live_log())]),
    Wait(
        name="import ten million rows of CSV",
        goal_s=60.0,
        command=lambda to: [*KVSIM, "import", str(to.csv()), "-o", f"{to.scratch('workload')}.parquet"],
    ),
    Wait(name="tests", goal_s=480.0, command=lambda _: TESTS, by_name=True),  # four minutes of two cores
]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a process took."""

    cpu_s: float
    wall_s: float
    peak_mib: float


def measure(command: list[str]) -> Measured:
    """Run `command` to its end, which must be a good one."""
    begin_s = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return Measured(usage.ru_utime + usage.ru_stime, time.perf_counter() - begin_s, usage.ru_maxrss / 1024)


def shown_sweep(backend: str, inputs: Inputs) -> bool:
    """Print how many times as fast a sweep is with a worker for each core as with one, from process start to exit, as a
    share of what these cores give; whether that is within what is tolerated. A cluster stands before the sweep comes,
    as clusters do; what it takes with one that is started for it is printed too. These are wall-clock times, so they
    mean something on a quiet machine only.
    """
    num_cores = len(os.sched_getaffinity(0))

    def wall_s(num_jobs: int, scheduler: str, num_points: int = SWEEP_POINTS) -> float:
        values = ",".join(map(str, range(2_000, 2_000 + num_points)))
        command = [*SWEEP, "--vary", f"num-blocks={values}", "--backend", backend, "--jobs", str(num_jobs)]
        where = ["--scheduler", scheduler] if scheduler else []
        return measure([*command, *where, "-o", f"{inputs.scratch('sweep')}.parquet"]).wall_s

    with standing(backend, num_cores) as scheduler:
        wall_s(num_cores, scheduler, 4 * num_cores)  # a worker imports once, whoever sends it its first point
        one_s, all_s = wall_s(1, scheduler), wall_s(num_cores, scheduler)
    own = f" ({wall_s(num_cores, ''):.1f} s with a cluster of its own)" if scheduler else ""
    give = num_cores * concurrency(num_cores)
    share = one_s / all_s / give
    took = f"{one_s:.1f} s with one worker, {all_s:.1f} s with {num_cores}{own}"
    scales = f"{share:.2f} of what the cores give, {give:.2f} times one; goal {SWEEP_GOAL}"
    print(f"sweep on {backend:25} {SWEEP_POINTS} points: {took}: {scales}", flush=True)
    return share >= SWEEP_GOAL / TOLERATED


@contextmanager
def standing(backend: str, num_workers: int) -> Iterator[str]:
    """The address of a cluster of this machine while this is open; nothing for processes that are no cluster."""
    if backend == "dask":
        from distributed import LocalCluster  # noqa: PLC0415

        with LocalCluster(n_workers=num_workers, threads_per_worker=1, dashboard_address=None) as cluster:
            yield cluster.scheduler_address
    elif backend == "ray":
        import ray  # noqa: PLC0415

        with ray.init(num_cpus=num_workers, include_dashboard=False, log_to_driver=False) as started:
            yield started.address_info["gcs_address"]
    else:
        yield ""


def concurrency(num_processes: int) -> float:
    """How fast each of so many processes that share nothing is, beside one alone: less than 1 where cores share."""

    def wall_s(number: int) -> float:
        begin_s = time.perf_counter()
        for process in [subprocess.Popen([sys.executable, "-c", "sum(range(100_000_000))"]) for _ in range(number)]:
            process.wait()
        return time.perf_counter() - begin_s

    return min(1.0, median(wall_s(1) for _ in range(3)) / median(wall_s(num_processes) for _ in range(3)))


def slowness() -> float:
    """How much longer this machine takes now than the one for which the goals were set; never less than 1."""

    def add_up() -> float:
        begin_s, total = time.process_time(), 0
        for number in range(1_000_000):
            total += number
        return time.process_time() - begin_s

    return max(1.0, median(add_up() for _ in range(10)) / REFERENCE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="Names that begin so; again.")
    parser.add_argument("--mooncake", type=Path, metavar="FILE", help="Mooncake's conversation_trace.jsonl.")
    parser.add_argument("--list", action="store_true", help="Say what there is, and measure nothing.")
    arguments = parser.parse_args()

    def is_chosen(name: str, *, by_name: bool = False) -> bool:
        return name.startswith(tuple(arguments.only)) if arguments.only else arguments.list or not by_name

    chosen = [wait for wait in WAITS if is_chosen(wait.name, by_name=wait.by_name)]
    sweeps = {f"sweep on {backend}": backend for backend in ("loky", "dask", "ray")}
    if arguments.list:
        print(*(wait.name for wait in chosen), *filter(is_chosen, sweeps), sep="\n")
        return
    # Bytecode is kept, as that of an installed package is: to compile kvsim's takes a tenth of a short command.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    subprocess.run([sys.executable, "-m", "compileall", "-q", Path(__file__).parents[1] / "kvsim"], check=False)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        inputs = Inputs(folder, arguments.mooncake)
        print(f"{'':34} {'CPU s':>8} {'slow':>5} {'goal':>6} {'times':>6} {'wall s':>8} {'MiB':>6} {'goal':>6}")
        missed = [wait.name for wait in chosen if not shown(wait, inputs)]
        missed += [name for name, on in sweeps.items() if is_chosen(name) and not shown_sweep(on, inputs)]
    if missed:
        raise SystemExit(f"more than {TOLERATED} times over: {', '.join(missed)}")


def shown(wait: Wait, inputs: Inputs) -> bool:
    """Print one row; whether it is within what is tolerated.

    A machine's speed changes within minutes: what stretches the goal is measured before and after.
    """
    command = wait.command(inputs)
    if command is None:
        print(f"{wait.name:34} not measured: its input is missing (--mooncake)")
        return True
    before, found, after = slowness(), measure(command), slowness()
    goal_s = wait.goal_s * (before + after) / 2
    times = max(found.cpu_s / goal_s, 0 if wait.goal_mib is None else found.peak_mib / wait.goal_mib)
    time_s = f"{found.cpu_s:8.2f} {(before + after) / 2:5.2f} {goal_s:6.1f} {times:6.2f} {found.wall_s:8.2f}"
    memory = f"{found.peak_mib:6.0f}" + ("" if wait.goal_mib is None else f" {wait.goal_mib:6.0f}")
    print(f"{wait.name:34} {time_s} {memory}", flush=True)
    return times <= TOLERATED


if __name__ == "__main__":
    main()
