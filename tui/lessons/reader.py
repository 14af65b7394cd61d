"""Lesson files: their format, checked to the last key.

A lesson is a small scenario with captions, in TOML, so that a teacher can write another one::

    title = "Room for the longest answer"
    summary = "What a system loses that sets aside room for the longest answer."
    try = "Press z to see single slots."   # ends the last caption; may be left out
    color = "layers"               # what colour means at first: owner, state, layers, sharing, age; may be left out

    [machine]                      # what everything runs on
    model = "Qwen3-8B"
    gpu = "H200"
    kv_gb = 10                     # or kv_tokens = 384
    captured_graphs = true         # false: the host starts every kernel; may be left out

    [[run]]                        # one run is watched; up to four are compared
    policy = "contiguous"          # or "static", "paged", "radix"; with its settings. For training, "padded", "packed"
    reserve = "max"
    max_model_len = 16384
    servers = 2                    # a fleet: each server is shown beside the other, as "LABEL, server 0"
    route = "prefix"               # the name of the fleet's router
    vllm = "0.25.1"                # release whose rules are followed; may be left out for the newest that is known

    [[request]]
    id = "A"
    prompt = 20                    # tokens
    answer = 60

    [generate]                     # instead of [[request]]: many, which are all there at the beginning
    number = 40
    prompt_tokens = 180            # mean, and prompt_sigma of a log-normal distribution; the same for answers
    answer_tokens = 90

    [[caption]]
    at = "start"                   # see `caption_moments`
    title = "Four answers, and the memory is gone"
    text = "They hold {waste.token_percent} of the pool."     # see `caption_figures`
    follow = "A"                   # all other requests are grey until the next caption
    draws = "table"                # or reads, launches, ladder, hits, fleets, remedies, schedule: below the pool
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, get_args

from kvsim.display.text import printable_lines, printable_values
from kvsim.errors import UsageError, WorkloadError
from kvsim.files.contents import TOML_BYTES, content_of
from kvsim.hardware import find_gpu
from kvsim.models import find_model
from kvsim.policies import EVERY_POLICY, Contiguous, Paged, Radix, RadixSettings, SGLangSettings, Static
from kvsim.policies.releases import DEFAULT_RELEASE
from kvsim.policies.routers import RouteName
from kvsim.policies.settings import ContiguousSettings, ContinuousSettings, PagedSettings, Reserve, StaticSettings
from kvsim.workload import AllAtOnce, LogNormal, Request, SharedPrefix, SharedPrefixes, Workload, generate

from ..pool.paint import ColorBy
from .drawings import Drawing
from .lesson import CaptionSpec, Lesson, LessonRun
from .toml_table import LessonError, TomlTable
from .training_rows import TrainingRows

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.policies import Policy

_MAX_RUNS = 4
_FITS: Final = ("first", "best", "next", "buddy")


def read_lesson(file: Path) -> Lesson:
    """Read the lesson in `file`, whose name begins with its number: `3-a-page-at-a-time.toml`.

    Raises:
        LessonError: it is not there, or something in it cannot be right.
    """
    number = re.match(r"\d+", file.name)
    if number is None:
        raise LessonError(f"{file}: a lesson's file name should begin with its number, such as 3-pages.toml.")
    try:
        document = printable_values(tomllib.loads(content_of(file, TOML_BYTES).decode()), printable_lines)
    except OSError as error:
        raise LessonError(f"{file} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise LessonError(f"{file} is not TOML: {error}.") from error
    lesson = TomlTable(file, "", document)
    machine, runs = _machine(lesson.table("machine")), _runs(lesson)
    try:
        workload = _workload(lesson, file.stem)
    except (UsageError, WorkloadError) as error:
        raise lesson.error("request", str(error).rstrip(".")) from error
    labels = [run.label for run in runs]
    captions = tuple(_caption(table, labels, list(workload.ids)) for table in lesson.tables("caption"))
    found = Lesson(
        number=int(number[0]),
        file=file,
        title=lesson.text("title"),
        summary=lesson.text("summary"),
        **machine,
        runs=runs,
        workload=workload,
        try_this=" ".join(lesson.text("try", "").split()),
        color_by=ColorBy(lesson.choice("color", [by.value for by in ColorBy])) if lesson.has("color") else None,
        captions=captions,
    )
    lesson.end()
    return found


def _machine(table: TomlTable) -> dict[str, Any]:
    model, gpu = (table.named(key, find) for key, find in (("model", find_model), ("gpu", find_gpu)))
    kv_gb, kv_tokens = table.number("kv_gb", 0.0), table.whole("kv_tokens", 0)
    if (kv_gb > 0) == (kv_tokens > 0):
        raise table.error("kv_gb", "give the memory as kv_gb or as kv_tokens, and make it positive")
    captured = table.flag("captured_graphs", default=True)
    table.end()
    kv_bytes = int(kv_gb * 1e9) or kv_tokens * model.kv_bytes_per_token
    return {"gpu": gpu, "model": model, "kv_bytes": kv_bytes, "captured_graphs": captured}


def _runs(lesson: TomlTable) -> tuple[LessonRun, ...]:
    runs = tuple(run for table in lesson.tables("run") for run in _servers(table))
    if len(runs) > _MAX_RUNS:
        raise lesson.error("run", f"at most {_MAX_RUNS} runs can be compared, not {len(runs)}")
    num_rows = sum(isinstance(run.policy, TrainingRows) for run in runs)
    if num_rows and (num_rows, len(runs)) != (2, 2):
        raise lesson.error("run", "padded and packed are shown beside each other; give both and nothing else")
    return runs


def _run(table: TomlTable) -> LessonRun:
    name = table.choice("policy", (*EVERY_POLICY, TrainingRows.PADDED, TrainingRows.PACKED))
    try:
        policy = _policy(table, name)
    except UsageError as error:
        raise table.error("policy", str(error).rstrip(".")) from error
    return LessonRun(label=table.text("label", name), policy=policy)


def _servers(table: TomlTable) -> list[LessonRun]:
    run, num_servers = _run(table), table.whole("servers", 1)
    if num_servers == 1:
        table.end()
        return [run]
    if isinstance(run.policy, TrainingRows) or not 1 < num_servers <= _MAX_RUNS:
        raise table.error("servers", f"a fleet has 2 to {_MAX_RUNS} servers, and none for training")
    route = table.choice("route", list(get_args(RouteName)))
    table.end()
    fleet = replace(run, fleet=run.label, route=route, num_servers=num_servers)
    return [replace(fleet, label=f"{run.label}, server {server}", server=server) for server in range(num_servers)]


def _policy(table: TomlTable, name: str) -> Policy | TrainingRows:
    if name in (TrainingRows.PADDED, TrainingRows.PACKED):
        return TrainingRows(packed=name == TrainingRows.PACKED)
    max_model_len = table.whole("max_model_len", 4096)
    if name == Static.name:
        return Static(scheduler=StaticSettings(batch_size=table.whole("batch_size", 16), max_model_len=max_model_len))
    if name == Radix.name:
        return Radix(
            scheduler=SGLangSettings(context_length=max_model_len),
            cache=RadixSettings(page_size=table.whole("page_size", 1)),
        )
    scheduler = ContinuousSettings(
        max_model_len=max_model_len,
        max_num_seqs=table.whole("max_num_seqs", 256),
        max_num_batched_tokens=table.whole("max_num_batched_tokens", 8192),
        enable_chunked_prefill=table.flag("chunked_prefill", default=True),
        vllm=table.text("vllm", DEFAULT_RELEASE),
    )
    if table.has("async_scheduling"):
        scheduler = replace(scheduler, async_scheduling=table.flag("async_scheduling", default=True))
    if name == Contiguous.name:
        reserve = Reserve(table.choice("reserve", [reserve.value for reserve in Reserve]))
        return Contiguous(
            scheduler=scheduler, cache=ContiguousSettings(reserve=reserve, fit=table.choice("fit", _FITS, "first"))
        )
    return Paged(
        scheduler=scheduler,
        cache=PagedSettings(
            block_size=table.whole("block_size", 16),
            enable_prefix_caching=table.flag("prefix_caching", default=True),
            uniform_cache=table.flag("uniform_cache", default=False),
            kv_offloading_size=table.number("host_gib", 0.0),
        ),
    )


def _workload(lesson: TomlTable, name: str) -> Workload:
    if not lesson.has("generate"):
        return Workload.from_requests([_request(table) for table in lesson.tables("request")], name=name)
    table = lesson.table("generate")
    prompt, answer = (
        LogNormal(mean_tokens=table.whole(f"{what}_tokens"), sigma=table.number(f"{what}_sigma", 0.5))
        for what in ("prompt", "answer")
    )
    prefix_tokens = table.whole("prefix_tokens", 0)
    workload = generate(
        table.whole("number"),
        arrivals=AllAtOnce(),
        prompt=prompt,
        output=answer,
        prefixes=SharedPrefixes(num_groups=1, tokens=prefix_tokens) if prefix_tokens else None,
        seed=table.whole("seed", 0),
    )
    table.end()
    return workload


def _request(table: TomlTable) -> Request:
    prefix, prefix_tokens = table.text("prefix", ""), table.whole("prefix_tokens", 0)
    answer = table.whole("answer")
    request = Request(
        id=table.text("id"),
        arrival_s=table.number("arrives_s", 0.0),
        prompt_tokens=table.whole("prompt"),
        output_tokens=answer,
        max_tokens=table.whole("at_most", answer),
        prefix=SharedPrefix(group=prefix, tokens=prefix_tokens) if prefix else None,
    )
    table.end()
    return request


def _caption(table: TomlTable, labels: list[str], ids: list[str]) -> CaptionSpec:
    label, follow = table.text("run", labels[0]), table.text("follow", "")
    if label not in labels:
        raise table.error("run", f"there is no run {label!r}; there are {' and '.join(labels)}")
    if follow and follow not in ids:
        raise table.error("follow", f"there is no request {follow!r}; there are {', '.join(ids)}")
    draws = Drawing(table.choice("draws", [drawing.value for drawing in Drawing])) if table.has("draws") else None
    if draws is Drawing.TABLE and not follow:
        raise table.error("draws", "the block table of the followed request is drawn; give follow, too")
    caption = CaptionSpec(
        where=table.key,
        at=table.text("at"),
        title=table.text("title"),
        text=" ".join(table.text("text").split()),
        run=labels.index(label),
        follow=follow or None,
        draws=draws,
    )
    table.end()
    return caption
