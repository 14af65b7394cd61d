"""One case: a good file, something that happens to it, and a command that reads it."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import flags
from tests.fuzz.judging import Outcome, judge
from tests.fuzz.mutations import mutate_bytes, mutate_json_file, mutate_parquet, mutate_text
from tests.fuzz.seeds import Seeds

Arguments = list[str]


def run_case(number: int, seeds: Seeds, folder: Path) -> Outcome:
    """Make case `number` in `folder`, which is emptied, and run it."""
    rng = random.Random(number)
    inside = _inside(folder)
    kind = rng.choices(tuple(_KINDS), [weight for weight, _ in _KINDS.values()])[0]
    return judge(kind, _KINDS[kind][1](rng, seeds, inside), inside)


def run_flag(number: int, seeds: Seeds, folder: Path) -> Outcome:
    """Run the call of that number among those of every flag, in `folder`, which is emptied."""
    return judge("flags", flags.every(seeds)[number].words, _inside(folder))


def _inside(folder: Path) -> Path:
    """A folder inside `folder`, which is emptied: names that begin with `../..` are inside it, too."""
    shutil.rmtree(folder, ignore_errors=True)
    inside = folder / "a" / "b"
    inside.mkdir(parents=True)
    return inside


def _recording(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    path = Path(shutil.copytree(rng.choice(seeds.recordings), folder / "rec"))
    for _ in range(rng.choice((1, 1, 1, 2))):
        files = sorted(path.glob("*.parquet"))
        if rng.random() < 0.2 or not files:
            mutate_json_file(path / "meta.json", rng)
        elif rng.random() < 0.15:
            mutate_bytes(rng.choice(files), rng)
        else:
            mutate_parquet(rng.choice(files), rng)
    return _reading(rng, "rec")


def _reading(rng: random.Random, name: str) -> Arguments:
    few = ["--refuse-misfits", "--json"]
    return rng.choices(
        (
            ["info", "--json", name],
            ["info", name],
            ["run", "--workload", name, *few],
            ["import", name, "--json", "-o", "w.parquet"],
            ["export", name, "--to", rng.choice(("perfetto", "csv", "parquet", "azure", "mooncake", "burstgpt"))],
            ["verify", name, "--json"],
            ["validate", "auto", name, "--json"],
            ["calibrate", name, "-o", "p.toml", "--no-held-out", "--json"],
            ["plot", rng.choice(("waste-bars", "queue", "latency", "memory-map", "lifetimes", "sessions")), name],
            ["tui", name, "--screenshot", "s.svg", "--size", "80x24"],
        ),
        (30, 8, 12, 8, 12, 4, 4, 2, 2, 1),
    )[0]


def _log(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    path = Path(shutil.copytree(rng.choice(seeds.logs), folder / "rec"))
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice((mutate_json_file, mutate_json_file, mutate_text, mutate_bytes))(path / "events.jsonl", rng)
    return _reading(rng, "rec")


def _server_log(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    file = Path(shutil.copy(rng.choice(seeds.server_logs), folder / "server.log"))
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice((mutate_text, mutate_text, mutate_bytes))(file, rng)
    return ["doctor", "server.log", "--gpu", "H100", "--json"]


def _server_line(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    file = Path(shutil.copy(rng.choice(seeds.server_lines), folder))
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice((mutate_text, mutate_text, mutate_bytes))(file, rng)
    command = rng.choice((["size"], ["run", "--num-requests", "4"]))
    return [*command, "--gpu", "H100", "--json", "--from", file.name]


def _workload(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    seed = rng.choice(seeds.workloads)
    if seed.parent.name == "ragpulse":
        shutil.copytree(seed.parent, folder, dirs_exist_ok=True)
        file = rng.choice(sorted(folder.glob("*.jsonl")))
    else:
        file = Path(shutil.copy(seed, folder))
    for _ in range(rng.choice((1, 1, 2))):
        if file.suffix == ".parquet":
            rng.choice((mutate_parquet, mutate_parquet, mutate_parquet, mutate_bytes))(file, rng)
        elif file.suffix == ".csv":
            rng.choice((mutate_text, mutate_text, mutate_bytes))(file, rng)
        else:
            rng.choice((mutate_json_file, mutate_json_file, mutate_text, mutate_bytes))(file, rng)
    forms = ("azure", "burstgpt", "conversations", "csv", "mooncake", "ragpulse", "sharegpt", "sharegpt-turns", "vidur",
             "vllm-bench")  # fmt: skip
    form = ["--as", rng.choice(forms)] if rng.random() < 0.1 else []
    return ["import", seed.name, "--json", *form, *(["-o", "out.parquet"] if rng.random() < 0.5 else [])]


def _profile(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    file = Path(shutil.copy(rng.choice(seeds.profiles), folder / "p.toml"))
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice((mutate_text, mutate_text, mutate_text, mutate_bytes))(file, rng)
    policy = rng.choice(("paged", "contiguous", "static"))
    return ["run", "--policy", policy, "--profile", "p.toml", "--num-requests", "4", "--json"]


def _lesson(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    seed = rng.choice(seeds.lessons)
    file = Path(shutil.copy(seed, folder))
    for _ in range(rng.choice((1, 1, 2))):
        rng.choice((mutate_text, mutate_text, mutate_bytes))(file, rng)
    return ["explain", f"./{seed.name}", "--ascii"]


def _oracle(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    workload, steps = (Path(shutil.copy(file, folder)) for file in rng.choice(seeds.oracles))
    if rng.random() < 0.5:
        mutate_json_file(workload, rng)
    else:
        import gzip

        plain = folder / "steps.jsonl"
        plain.write_bytes(gzip.decompress(steps.read_bytes()))
        steps = plain
        rng.choice((mutate_json_file, mutate_text, mutate_bytes))(steps, rng)
    return ["verify", workload.name, "--oracle", steps.name, "--json"]


def _table(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    file = Path(shutil.copy(rng.choice(seeds.tables), folder / "t.parquet"))
    rng.choice((mutate_parquet, mutate_parquet, mutate_bytes))(file, rng)
    return ["plot", rng.choice(("throughput-memory", "throughput-block-size", "hits-capacity")), "t.parquet"]


def _flags(rng: random.Random, seeds: Seeds, folder: Path) -> Arguments:
    del folder
    return flags.some(rng, seeds)


_KINDS: dict[str, tuple[int, Callable[[random.Random, Seeds, Path], Arguments]]] = {
    "recording": (40, _recording),
    "log": (14, _log),
    "server log": (3, _server_log),
    "server line": (3, _server_line),
    "workload": (22, _workload),
    "profile": (5, _profile),
    "lesson": (2, _lesson),
    "oracle": (3, _oracle),
    "table": (2, _table),
    "flags": (4, _flags),
}
