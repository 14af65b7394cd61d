"""Headlines: the first line of a screen, as parts. A narrow screen leaves the last parts out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvsim.machines import untimed_in

from ..look.wording import bytes_text, plural
from .requests import place_in_row, request_facts
from .units import unit_summary

if TYPE_CHECKING:
    from kvsim.recording.model import Meta

    from ..playback.compared_runs import ComparedRuns
    from ..playback.session import Session


def selection(session: Session) -> str:
    """Describe the selected unit and the followed request in one line. Empty without either."""
    parts = []
    if session.selected is not None:
        parts.append(unit_summary(session, session.selected))
    if session.followed is not None:
        facts = request_facts(session, session.followed)
        # Units of different policies differ in size; bytes do not.
        size = bytes_text(round(sum(facts.slots) * session.recording.meta.pool.bytes_per_slot))
        units = plural(facts.num_units, session.unit_name)
        held = f"{units} = {size}" if facts.holds and session.rows is None else units if facts.holds else "no memory"
        state = facts.state if session.rows is None else place_in_row(session, session.followed)
        if found := int(session.recording.requests.cached_tokens[session.followed]) * facts.holds:
            state = f"{plural(found, 'token')} found, {state.removeprefix('running: ')}"
        parts.append(f"{session.request_name(session.followed)}: {held}, {state}")
    return "; ".join(parts)


def headline(session: Session, *, short: bool) -> list[str]:
    """Return the parts of the headline of a session, the most important part first. `short` is for narrow screens."""
    meta, replay = session.recording.meta, session.replay
    engine = " ".join(str(meta.engine[key]) for key in ("name", "version") if key in meta.engine) or meta.source
    policy = meta.policy_name if meta.policy_name == "static" else f"{meta.policy_name} memory"
    if meta.rules_name != meta.policy_name:
        policy = meta.rules_name
    model, gpu, num_gpus = _model(meta), meta.gpu, _num_gpus(session)
    size = bytes_text(meta.pool.num_bytes)
    units = plural(replay.num_units, session.unit_name)
    if meta.pool.windows is not None:
        units += f" and {meta.pool.windows.num_units:,} of windows"
    elif len(replay.groups) > 1:
        units += f" for {len(replay.groups)} kinds of layers"
    elif replay.unit_tokens > 1 and not short:
        units += f" of {replay.unit_tokens} slots"
    each = _words_for_gpus_of_pool(session)
    memory = f"{size}{each} = {units}" if short else f"{size} for KV{each} = {units}"
    return [
        *filter(None, [session.server]),
        _origin(session, engine),
        policy,
        f"{model} on {_gpus(gpu, num_gpus)}",
        memory,
        *_step_time_source(meta),
        *_untimed(meta),
    ]


def comparison_headline(comparison: ComparedRuns, *, short: bool) -> list[str]:
    """Return the parts of the headline of a comparison: what all runs share. `short` is for narrow screens."""
    session = comparison.lanes[0].session
    meta, rows = session.recording.meta, session.rows
    if rows is not None:
        sequences, width = plural(rows.num_sequences, "sequence"), plural(rows.row_tokens, "slot")
        return [f"the same {sequences} for training", f"rows of {width}"]
    model, gpu, num_gpus = _model(meta), meta.gpu, _num_gpus(session)
    size = bytes_text(meta.pool.num_bytes)
    ids = {name for lane in comparison.lanes for name in lane.session.recording.requests.id.tolist()}
    requests = plural(len(ids), "request")  # count each id once: lanes can be servers with different requests
    origins = [_origin(lane.session, "") for lane in comparison.lanes]
    notes = ["uncalibrated"] if any("uncalibrated" in origin for origin in origins) else []
    clock, memory = (", one clock", f"{size} each") if short else (" on one clock", f"{size} for KV in each")
    if comparison.fastest_first:
        clock = ", fastest first" if short else f"{clock}, fastest first"
    gpus = _gpus(gpu, num_gpus)
    return [f"the same {requests}{clock}", *notes, f"{model} on {gpus}", memory, *_untimed(meta)]


def _model(meta: Meta) -> str:
    return str(meta.model.get("name", "unknown model")).rpartition("/")[2]


def _step_time_source(meta: Meta) -> list[str]:
    return ["Hugging Face's step times"] if "(hf-" in str(meta.engine.get("step_time", "")) else []


def _untimed(meta: Meta) -> list[str]:
    missing = re.sub(r" \([^)]*\)", "", untimed_in(str(meta.engine.get("step_time", ""))))
    return [f"not timed: {missing}"] if missing else []


def _num_gpus(session: Session) -> int:
    return _parallel_size(session, "tensor_parallel_size") * _parallel_size(session, "pipeline_parallel_size")


def _parallel_size(session: Session, name: str) -> int:
    """Return the parallel size `name` of the recorded engine, or else of the recorded model; 1 if neither states it."""
    return int({**session.recording.meta.model, **session.recording.meta.engine}.get(name, 1))


def _words_for_gpus_of_pool(session: Session) -> str:
    if _parallel_size(session, "pipeline_parallel_size") > 1:
        return f" in {_parallel_size(session, 'pipeline_parallel_size')} stages"
    return " on each" if _parallel_size(session, "tensor_parallel_size") > 1 else ""


def _gpus(name: str, number: int) -> str:
    name = name.removeprefix("NVIDIA ")
    return f"{number} x {name}" if number > 1 else name


def _origin(session: Session, engine: str) -> str:
    meta = session.recording.meta
    if meta.source != "simulation":
        return f"real run of {engine}"
    # A simulation whose step times were not fitted to a recording has "uncalibrated" in a note.
    return "simulation, uncalibrated" if "uncalibrated" in f"{meta.notes} {meta.engine} {meta.extra}" else "simulation"
