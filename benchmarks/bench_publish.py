"""What clients of KVSIM_PUBLISH cost the engine's process, by what they do:

    python benchmarks/bench_publish.py [--step-ms 10] [--seconds 5]

An engine runs 256 sequences in a pool of 30,000 blocks. A step is Python for a third of its time, as a scheduler is,
and waits for a GPU in the rest. Each client is a program of its own. Three things are measured in the engine's
process, per step: the CPU time that the engine's thread spends in publishing, that of all other threads, and how many
threads and descriptors there are. The goal: at most 1% of a step, whatever clients do.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from kvsim.capture.publish import Publisher
from kvsim.recording.eventlog import line

NUM_RUNNING, BLOCKS_EACH, NUM_BLOCKS, BLOCK = 256, 100, 30_000, 16
GOAL_PERCENT = 1.0
CLIENTS = {
    "nobody": "",
    "one viewer": "s = connect()\nwhile s.recv(1 << 20): pass",
    "reconnects in a loop": "while True:\n s = connect(); s.close()",
    "reads a byte, reconnects": "while True:\n s = connect(); s.recv(1); s.close()",
    "500 viewers": "ss = [connect() for _ in range(500)]\nwhile True:\n for s in ss:\n  s.setblocking(False)\n"
    "  try: s.recv(1 << 20)\n  except OSError: pass\n time.sleep(0.01)",
    "garbage": "while True:\n s = connect()\n try: s.sendall(bytes(1 << 20))\n except OSError: pass\n s.close()",
    "12 that never read": "ss = [connect() for _ in range(12)]\ntime.sleep(3600)",
    "connects, leaves (reset)": "import struct\nwhile True:\n s = connect()\n"
    " s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0)); s.close()",
}
"""What each client does, given `connect`."""
PRELUDE = """
import socket, sys, time, os
os.nice(10)
def connect():
    while True:
        try: return socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
        except OSError: time.sleep(0.001)
"""


class Engine:
    """Publishes what a server with long answers does: every sixteenth step, each sequence gets a block."""

    def __init__(self, publisher: Publisher, step_s: float) -> None:
        self._publisher, self._step_s = publisher, step_s
        self._number = 0
        meta = {"format": "kvsim-recording", "version": 1, "pool": {"num_units": NUM_BLOCKS, "unit_tokens": BLOCK}}
        publisher.write(line("meta", meta | {"initial_free": list(range(1, NUM_BLOCKS + 1))}))
        tables = [list(range(1 + row, NUM_BLOCKS, NUM_RUNNING))[:BLOCKS_EACH] for row in range(NUM_RUNNING)]
        lines = [line("arrive", f"request-{row}", 0.0, 1600, 4096, 0, list(range(100))) for row in range(NUM_RUNNING)]
        lines += [line("seq"), *(line("append", row, 0, table) for row, table in enumerate(tables))]
        lines += [line("tokens", 0.0, [[row, 0, 1600] for row in range(NUM_RUNNING)]), self._step()]
        publisher.write(b"".join(lines))

    def step(self) -> float:
        """Take one step; return the seconds of CPU time that publishing took."""
        lines = [line("seq")]
        if self._number % BLOCK == 0:
            at = BLOCKS_EACH + self._number // BLOCK
            lines += [line("append", row, at, [row + 1]) for row in range(NUM_RUNNING)]
        lines += [line("again", float(self._number)), self._step(), line("seq"), line("output", self._number, 0.0)]
        self._number += 1
        text = b"".join(lines)
        begin_s, cpu_s = time.perf_counter(), time.thread_time()
        self._publisher.write(text)
        took_s = time.thread_time() - cpu_s
        while time.perf_counter() - begin_s < self._step_s / 3:
            pass
        time.sleep(self._step_s * 2 / 3)
        return took_s

    def _step(self) -> bytes:
        columns = {"start_s": float(self._number), "prefill_tokens": 0, "decode_tokens": NUM_RUNNING, "waiting": 0}
        columns |= {"num_scheduled": NUM_RUNNING, "running": NUM_RUNNING, "preempted": 0, "free_units": 1000}
        return line("step", columns)


def measure(kind: str, seconds: float, step_s: float) -> bool:
    """Print one row; say whether the goal is met."""
    publisher = Publisher("127.0.0.1:0")
    engine = Engine(publisher, step_s)
    host, _, port = publisher.address.rpartition(":")
    client = subprocess.Popen([sys.executable, "-c", PRELUDE + CLIENTS[kind], host, port])
    try:
        for _ in range(50):
            engine.step()
        cpu_s, own_cpu_s, begin_s = time.process_time(), time.thread_time(), time.perf_counter()
        took_s = []
        while time.perf_counter() - begin_s < seconds:
            took_s.append(engine.step())
        others_s = (time.process_time() - cpu_s) - (time.thread_time() - own_cpu_s)
        steps_per_s = len(took_s) / (time.perf_counter() - begin_s)
        num_descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir())
        num_threads = threading.active_count()
    finally:
        client.kill()
        client.wait()
        publisher.close()
    percent = 100 * (statistics.fmean(took_s) + others_s / len(took_s)) / step_s
    print(
        f"{kind:26} {1e6 * statistics.fmean(took_s):9.1f} {1e6 * others_s / len(took_s):10.1f} {percent:8.2f} "
        f"{steps_per_s:8.1f} {num_threads:8} {num_descriptors:6}"
    )
    return percent <= GOAL_PERCENT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    arguments = parser.parse_args()
    print(f"{'client':26} {'thread us':>9} {'others us':>10} {'% step':>8} {'steps/s':>8} threads descr.")
    met = [measure(kind, arguments.seconds, arguments.step_ms / 1e3) for kind in CLIENTS]
    sys.exit(not all(met))


if __name__ == "__main__":
    main()
