"""What it costs to watch a server: every event heard, and a look each second, as `kvsim tui --attach` takes it.

    python benchmarks/live_view.py SERVER.jsonl [--steps-per-look 170]
    python benchmarks/live_view.py SERVER.jsonl --from RECORDING        # write what a server would have published

The second form takes a recording of a paged run without groups or host memory. The first prints, in milliseconds of CPU
time, what a step costs to hear and what a look costs, for each sixth of the log: looks should not become dearer.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.files.eventline import line
from kvsim.live.event_follower import EventFollower
from kvsim.live.mirror import Mirror
from kvsim.recording import Recording, read
from kvsim.recording.tables import MemoryKind, Steps
from kvsim_tui.live.past import Past

PARTS = 6
NOT_SAID = ("step", "schedule_seq", "output_seq", "end_s")
"""Columns of a step that its event does not name."""
Event = tuple[Any, ...]


def events_of(recording: Recording, meta: dict[str, Any]) -> Iterator[Event]:
    """What the recorder inside a server would have published."""
    requests, steps, memory = recording.requests, recording.steps, recording.memory
    yield ("meta", meta)
    computes, rows_at = computed_in_steps(recording), defaultdict[int, list[int]](list)
    for row, seq in enumerate(memory.seq.tolist()):
        rows_at[seq].append(row)
    arrived = {seq: row for row, seq in enumerate(requests.arrival_seq.tolist())}
    scheduled = {seq: step for step, seq in enumerate(steps.schedule_seq.tolist())}
    processed = {seq: step for step, seq in enumerate(steps.output_seq.tolist())}
    names = [name for name, _ in Steps.columns() if name not in NOT_SAID and getattr(steps, name) is not None]
    last, answered = (
        dict(zip(memory.request[memory.end_rows].tolist(), memory.end_rows.tolist(), strict=True)),
        set[int](),
    )
    for seq in range(max(*scheduled, *processed) + 1):
        if seq in arrived:
            yield arrival(recording, arrived[seq])
            continue
        yield ("seq",)
        step = processed.get(seq)
        if step is not None:
            time_s = float(steps.end_s[step])
            for request, before, tokens in computes[step]:
                if request not in answered and before + tokens >= requests.prompt_tokens[request]:
                    answered.add(request)
                    yield ("emit", request, time_s, 1)
        for row in rows_at[seq]:
            yield from change(recording, row, is_end=last.get(int(memory.request[row])) == row)
        if step is not None:
            for row in rows_at[seq]:
                request = int(memory.request[row])
                if last.get(request) == row:
                    if requests.output_tokens[request] > 1:
                        yield ("emit", request, time_s, int(requests.output_tokens[request]) - 1)
                    yield ("end", request, "finished", time_s)
            yield ("output", step, time_s)
        if seq in scheduled:
            step = scheduled[seq]
            goes_on = [(request, before + tokens, 1) for request, before, tokens in computes[step - 1]]
            start_s = float(steps.start_s[step])
            yield ("again", start_s) if computes[step] == goes_on else ("tokens", start_s, computes[step])
            yield ("step", {name: getattr(steps, name)[step].item() for name in names})


def computed_in_steps(recording: Recording) -> dict[int, list[tuple[int, int, int]]]:
    """By step, the requests that it computes: row, tokens before, and tokens."""
    schedule = recording.schedule
    columns = (schedule.step, schedule.request, schedule.computed_before, schedule.tokens, schedule.repeats)
    computes = defaultdict[int, list[tuple[int, int, int]]](list)
    for step, request, before, tokens, repeat in zip(*(column.tolist() for column in columns), strict=True):
        for nth in range(repeat):
            computes[step + nth].append((request, before + tokens * nth, tokens))
    return computes


def arrival(recording: Recording, row: int) -> Event:
    requests = recording.requests
    name, time_s = str(requests.id[row]), float(requests.arrival_s[row])
    prompt, most = int(requests.prompt_tokens[row]), int(requests.max_tokens[row])
    return ("arrive", name, time_s, prompt, most, 0, requests.prompt_hashes[row].tolist())


def change(recording: Recording, row: int, *, is_end: bool) -> Iterator[Event]:
    """What a row of the memory tells."""
    memory = recording.memory
    kind, request = MemoryKind(int(memory.kind[row])), int(memory.request[row])
    units = list(range(int(memory.address[row]), int(memory.address[row] + memory.length[row])))
    if kind is MemoryKind.RELEASE:
        yield ("release", request, int(memory.length[row]), 0 if memory.cached is None else int(memory.cached[row]))
        if not is_end:
            yield ("preempt", request)
    elif kind is MemoryKind.EVICT:
        yield ("evict", units)
    else:
        yield (kind.name.lower(), request, int(memory.position[row]), units)


def watch(log: Path, steps_per_look: int) -> list[tuple[int, float, float]]:
    """Follow a log; for each look the step, and CPU seconds of hearing what came since the last and of looking."""
    follower, past, mirror, looks, num_steps = EventFollower("server"), Past(), Mirror(), [], 0
    with log.open("rb") as lines:
        mirror.apply(json.loads(next(lines)))
        for event in mirror.snapshot():
            follower.hear(line(*event))
        begin_s = time.process_time()
        for text in lines:
            follower.hear(text)
            num_steps += text.startswith(b'["step"')
            if not text.startswith(b'["step"') or num_steps % steps_per_look:
                continue
            heard_s = time.process_time()
            recent = follower.recent()
            assert recent is not None
            session = past.open(recent)
            session.player.go_to_frame(session.player.last_frame - 1)
            session.show()
            looked_s = time.process_time()
            looks.append((num_steps, heard_s - begin_s, looked_s - heard_s))
            begin_s = looked_s
    return looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log", type=Path)
    parser.add_argument("--from", dest="recording", type=Path)
    parser.add_argument("--steps-per-look", type=int, default=170)
    arguments = parser.parse_args()
    if arguments.recording is not None:
        meta = json.loads((arguments.recording / "meta.json").read_text())
        with arguments.log.open("wb") as lines:
            lines.writelines(line(*event) for event in events_of(read(arguments.recording), meta))
        return
    looks = watch(arguments.log, arguments.steps_per_look)
    if not looks:
        sys.exit(f"{arguments.log} has fewer than {arguments.steps_per_look} steps")
    print(f"{'steps':>17} {'hear a step':>12} {'a look':>8}   milliseconds of CPU time")
    for part in np.array_split(np.array(looks), PARTS):
        steps, heard_s, looked_s = part.T
        hear_ms = 1e3 * heard_s.sum() / (arguments.steps_per_look * len(part))
        print(f"{steps[0]:8,.0f} {steps[-1]:8,.0f} {hear_ms:12.3f} {1e3 * np.median(looked_s):8.2f}")


if __name__ == "__main__":
    main()
