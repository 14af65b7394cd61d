"""`kvsim info`: print the origin and the results of a recording, and check it for contradictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from kvsim.cli.show import echo, json_option, print_json, print_table
from kvsim.display.text import size_words
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.recording import Recording


@click.command("info")
@click.argument("recording_name", metavar="[RECORDING]", required=False)
@click.option(
    "--check", is_flag=True, help="Check every row and step against the format; the exit code is 1 if a rule is broken."
)
@json_option
def command(*, recording_name: str | None, check: bool, as_json: bool) -> None:
    """Describe a recording: a folder, or the name of one that comes with kvsim. Without a name, list those.

    --check is meant for authors of programs that write recordings; docs/reference/recordings.md specifies the format.
    --check also takes the folder of a fleet.
    """
    if check:
        _check(recording_name, as_json=as_json)
    elif recording_name is None:
        from kvsim.recording import shipped_names

        names = shipped_names()
        if as_json:
            print_json({"shipped": names})
        else:
            click.echo("\n".join(names))
    else:
        _describe(recording_name, as_json=as_json)


def _describe(name: str, *, as_json: bool) -> None:
    from kvsim.cli.summary_lines import figures_document, print_summaries
    from kvsim.cli.turn_tables import print_losses, print_turns
    from kvsim.metrics import summarize
    from kvsim.metrics.contradictions import refuse_contradictions
    from kvsim.metrics.run_verdict import verdict_of
    from kvsim.metrics.steady import steady_part
    from kvsim.recording import find, read, server_folders

    if folders := server_folders(name):
        raise UsageError(
            f"{name} has the recordings of {len(folders):,} servers; kvsim info {folders[0]} describes one, kvsim info "
            f"{name} --check checks all, and kvsim tui {name} shows them."
        )
    folder = find(name)
    recording = read(folder)
    meta, summary = recording.meta, summarize(recording, refuse_contradictions(recording, folder))
    if as_json:
        about: dict[str, object] = {
            "source": meta.source,
            "gpu": meta.gpu,
            "engine": dict(meta.engine),
            "model": dict(meta.model),
        }
        about |= {"policy_settings": dict(meta.policy), "requests": len(recording.requests)}
        print_json(figures_document(recording, summary) | about)
        return
    echo(verdict_of(summary).sentence)
    if summary.duration_s:
        echo(steady_part(recording.requests).sentence)
    print_table(recording.name, ["", ""], _provenance(recording))
    print_summaries("what happened", [recording], [summary])
    print_turns(recording)
    print_losses(recording)


def _provenance(recording: Recording) -> list[tuple[str, str]]:
    meta, pool = recording.meta, recording.meta.pool
    units = "none: the cache grows with the batch"
    if pool.num_units is not None:
        has_more = pool.groups or pool.windows
        kind = pool.units_in_words if has_more else f"units of {pool.unit_tokens} tokens"
        units = f"{pool.num_units:,} {kind}, {size_words(pool.num_bytes)}"
    return [
        ("source", meta.source),
        ("engine", _values(meta.engine)),
        ("GPU", meta.gpu),
        ("model", f"{meta.model.get('name', '?')}, {meta.model.get('kv_bytes_per_token', '?')} B of KV per token"),
        ("policy", _values(meta.policy)),
        ("pool", units),
        ("requests", f"{len(recording.requests):,}"),
        ("steps", f"{len(recording.steps):,}"),
        ("memory events", f"{len(recording.memory):,}"),
        *([("created", meta.created)] if meta.created else []),
        *([("command", meta.command)] if meta.command else []),
        *([("notes", meta.notes)] if meta.notes else []),
    ]


def _values(settings: Mapping[str, Any]) -> str:
    """Return the settings in words. Settings that are empty texts are left out."""
    shown = {key: f"{value:.10g}" if isinstance(value, float) else value for key, value in settings.items()}
    return ", ".join(f"{key} {value}" for key, value in shown.items() if value != "")


def _check(name: str | None, *, as_json: bool) -> None:
    """Replay the memory of a recording through all its steps, compare figures that it states twice, and print counts.

    If `name` is the folder of a fleet, check every server, and its loads from a shared prefix store.

    Raises:
        UsageError: `name` is None.
        RecordingError: the recording contradicts itself.
    """
    from kvsim.metrics.contradictions import refuse_contradictions
    from kvsim.recording import find, read, server_folders
    from kvsim.simulation.store_records import check_loads

    if name is None:
        raise UsageError("--check needs a recording: kvsim info FOLDER --check.")
    folders = server_folders(name)
    servers, facts = [], Counter[str]()
    for folder in folders or [find(name)]:
        recording = read(folder, check_shipped=True)
        accounted = refuse_contradictions(recording, folder)
        facts["requests"] += len(recording.requests)
        facts["steps"] += len(recording.steps)
        facts["schedule_rows"] += len(recording.schedule)
        facts["memory_rows"] += len(recording.memory)
        if accounted is not None:
            facts["frames"] += len(accounted.slots)
        servers.append((folder, recording))
    num_loaded = check_loads(servers) if folders else 0
    if as_json:
        more = {"servers": len(servers), "loaded_blocks": num_loaded} if folders else {}
        print_json({"recording": name, "keeps_to_the_format": True, **facts, **more})
        return
    counts = ", ".join(f"{count:,} {what.replace('_', ' ')}" for what, count in facts.items())
    subject = f"its {len(servers):,} servers keep" if folders else "keeps"
    slots = "; every slot is accounted for in every frame" if facts["frames"] else ""
    loaded = f"; the prefix store held each of {num_loaded:,} loaded blocks" if num_loaded else ""
    echo(f"{name}: {subject} to the format ({counts}){slots}{loaded}")
