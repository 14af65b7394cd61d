"""Reader of conversations and agents in JSON Lines: one turn per line, after the turn that it waits for.

A line has `output_tokens`, and `prompt_tokens` (the whole prompt) or `new_tokens` (the part after the history). A turn
waits for the previous line of the same `session`, or for the turn whose `id` is in `after`, which allows branches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvsim.errors import shortened
from kvsim.importers.arrival_times import NO_ARRIVALS, Clock
from kvsim.importers.collect import RequestCollector
from kvsim.importers.column_of_images import ImageColumn
from kvsim.importers.turn_lines import TurnLines
from kvsim.setting_fields import is_finite
from kvsim.workload.turns import NONE, WHOLE

if TYPE_CHECKING:
    from kvsim.importers.source import SourceRow, TextSource
    from kvsim.workload import Workload

_KNOWN = (
    "id", "session", "after", "arrival_s", "pause_s", "prompt_tokens", "new_tokens", "history_tokens", "output_tokens",
    "max_tokens", "priority", "prefix_group", "prefix_tokens", "images",
)  # fmt: skip
_MOST = 2**31 - 1


def looks_like(source: TextSource) -> bool:
    """Tell whether the first line is an object with `output_tokens`, and with `prompt_tokens` or `new_tokens`."""
    first = source.first_object().keys()
    return "output_tokens" in first and bool(first & {"prompt_tokens", "new_tokens"})


def read(source: TextSource) -> Workload:
    """Return the requests. A turn that waits for another arrives `pause_s` seconds after the other has ended."""
    clock = Clock(path=source.path, column="arrival_s", unit="s", from_first=False)
    timed = "arrival_s" in source.first_object()
    requests = RequestCollector(source=source, kind="conversations", clock=clock if timed else None, turns=TurnLines())
    images = ImageColumn()
    for row in source.json_rows():
        _add(requests, row, images)
    return requests.workload("" if timed else NO_ARRIVALS)


def _add(requests: RequestCollector, row: SourceRow, images: ImageColumn) -> None:
    """Add the turn in `row`, and check its fields against the earlier turn for which it waits."""
    unknown = [name for name in row.fields if name not in _KNOWN]
    if unknown:
        raise row.error(f"there is no field {shortened(unknown[0])}; the fields are {', '.join(_KNOWN)}")
    turns = requests.turns
    assert turns is not None
    name, session, names = _text(row, "id"), _text(row, "session"), _names(row)
    if name is not None and not requests.ids and requests.prompt_tokens:
        raise row.error("it has an id, and the first line has none; give one to the first line, too")
    after = turns.before(row, session, names)
    there = 0 if after == NONE else requests.prompt_tokens[after] + requests.output_tokens[after]
    if after == NONE and (given := [name for name in ("pause_s", "history_tokens") if name in row.fields]):
        raise row.error(f"{given[0]} is of a turn that waits for another; name that one in after, or give a session")
    history = row.whole("history_tokens", maximum=there) if "history_tokens" in row.fields else WHOLE
    repeated = there if history == WHOLE else history
    before = requests.images[after] if after != NONE else ()
    prompt = _prompt_tokens(row, repeated, sum(image.size.tokens for image in before if image.place < repeated))
    prefix, repeated = _prefix(row, prompt), min(repeated, prompt)
    start = prefix[1] if prefix and after == NONE else 0
    listed, image_tokens = images.read_turn(row, prompt - repeated, start, before, repeated)
    output = row.whole("output_tokens")
    added = requests.add(
        row,
        _arrival(row, requests, after),
        prompt + image_tokens,
        output,
        max_tokens=row.whole("max_tokens", minimum=output) if "max_tokens" in row.fields else None,
        priority=row.whole("priority", minimum=-_MOST) if "priority" in row.fields else 0,
        prefix=prefix,
        images=listed,
        request_id=name or (f"line-{row.line}" if requests.ids else None),
    )
    if added:
        pause_s = _seconds(row, "pause_s") if "pause_s" in row.fields else 0.0
        turns.add(after, pause_s, history, name=name, session=session, names=names)


def _prompt_tokens(row: SourceRow, repeated: int, image_tokens: int) -> int:
    """Return the number of tokens of a prompt without its new images.

    `repeated` is the number of tokens of its history, of which `image_tokens` are those of images.
    """
    if ("new_tokens" in row.fields) == ("prompt_tokens" in row.fields):
        raise row.error("it has prompt_tokens, the whole prompt, or new_tokens, what follows the history; give one")
    if "new_tokens" in row.fields:
        return row.whole("new_tokens", maximum=_MOST) + repeated
    return row.whole("prompt_tokens", maximum=_MOST) + image_tokens


def _names(row: SourceRow) -> list[str]:
    names = row.fields.get("after")
    if not isinstance(names, list):
        return [] if names is None else [_text(row, "after") or ""]
    if not names or not all(isinstance(name, str) for name in names):
        raise row.error("after should be the id of a turn, or a list of such")
    return names


def _arrival(row: SourceRow, requests: RequestCollector, after: int) -> Any:
    """Return the arrival time. A turn without a time of its own gets that of request `after`, as a lower bound."""
    if requests.clock is None and "arrival_s" in row.fields:
        raise row.error("arrival_s is here and not in the first line; give it to every first turn of a session")
    if requests.clock is None:
        return None
    return row.fields.get("arrival_s", requests.arrivals[after]) if after != NONE else row.value("arrival_s")


def _text(row: SourceRow, name: str) -> str | None:
    value = row.fields.get(name)
    if value is not None and not (isinstance(value, str | int) and not isinstance(value, bool)):
        raise row.error(f"{name} should be a text or a whole number, not {shortened(value)}")
    return None if value is None else str(value)


def _seconds(row: SourceRow, name: str) -> float:
    value = row.value(name)
    if not is_finite(value) or value < 0:
        raise row.error(f"{name} should be a number of seconds, 0 or more, not {shortened(value)}")
    return float(value)


def _prefix(row: SourceRow, prompt_tokens: int) -> tuple[str, int] | None:
    group = _text(row, "prefix_group")
    if (group is None) != ("prefix_tokens" not in row.fields):
        raise row.error("prefix_group and prefix_tokens go together; give both or neither")
    return None if group is None else (group, row.whole("prefix_tokens", minimum=1, maximum=prompt_tokens))
