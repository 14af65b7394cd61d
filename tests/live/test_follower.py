"""What a viewer makes of a server's events, whenever it joins, however long it watches, and whatever comes."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.capture.publish import Publisher
from kvsim.errors import KvsimError, RecordingError
from kvsim.files.eventline import line
from kvsim.live import event_feed as feed_module
from kvsim.live import event_follower as module
from kvsim.live.event_feed import LiveFeed
from kvsim.live.event_follower import EventFollower
from kvsim.live.events import MAX_LINE_BYTES, parse
from kvsim.live.mirror import Mirror
from kvsim.live.tail import Excerpt
from kvsim.metrics.slot_account import waste
from kvsim.recording import Recording, eventlog, read, write
from kvsim.recording.provenance import meta_from_document
from kvsim.recording.tables import Requests
from kvsim.replay import Replay
from kvsim.replay.encoder_contents import EncoderContents
from kvsim_tui.playback.session import Session

from ..thinned import one_of
from ..vllm_engine.recordings import FEATURED, GROUPED, Live, in_main
from ..waiting import until

LOGS = sorted((Path(__file__).parent / "logs").glob("*.jsonl"))
"""What recorders inside vLLM's scheduler wrote, three of them in pipelines."""
META = {
    "format": "kvsim-recording",
    "version": 1,
    "source": "vllm",
    "gpu": "CPU",
    "engine": {"name": "vllm"},
    "model": {"name": "tiny"},
    "policy": {"name": "paged", "block_size": 4},
    "pool": {"unit_tokens": 4, "num_units": 10, "first_unit": 1, "bytes_per_unit": 64},
}
STEP = {
    "start_s": 0.0, "prefill_tokens": 4, "decode_tokens": 0, "num_scheduled": 1, "running": 1, "waiting": 0,
    "preempted": 0, "free_units": 9,
}  # fmt: skip


def lines_of(file: Path) -> list[bytes]:
    return file.read_bytes().splitlines(keepends=True)


def joined_at(lines: list[bytes], cut: int, **settings: Any) -> EventFollower:
    """A viewer that joins before line `cut` and hears the rest."""
    mirror, follower = Mirror(), EventFollower("server", **settings)
    for text in lines[:cut]:
        mirror.apply(json.loads(text))
    for event in mirror.snapshot():
        follower.hear(line(*event))
    for text in lines[cut:]:
        follower.hear(line(*mirror.apply(json.loads(text))))
    return follower


def assert_goes_on_like(there: Replay, joined: Recording, first: int) -> None:
    """From its step `first` on, `joined` holds what the last steps of `there` do."""
    here = Replay(joined)
    offset = len(there.recording.steps) - len(joined.steps)
    names, all_names = joined.requests.id, there.recording.requests.id
    for step in range(first, len(joined.steps)):
        here.seek(step)
        there.seek(step + offset)
        live, others = here.live_requests(), there.live_requests()
        assert sorted(names[live]) == sorted(all_names[others])
        tokens = dict(zip(all_names[others], there.computed(others), strict=True))
        assert dict(zip(names[live], here.computed(live), strict=True)) == tokens
        for row in live:
            table = there.block_table(int(np.flatnonzero(all_names == names[row])[0]))[1]
            assert here.block_table(int(row))[1].tolist() == table.tolist()


@pytest.mark.parametrize("file", one_of(2, LOGS), ids=lambda file: file.stem)
def test_a_log_that_begins_in_the_middle_goes_on_like_the_whole(file: Path) -> None:
    lines = lines_of(file)
    meta, whole = eventlog.replay(lines, "log")
    there = Replay(whole.finish(meta_from_document(meta, file)))
    cuts = [number for number, text in enumerate(lines) if text == line("seq") or text.startswith(b'["arrive"')]
    for cut in cuts[:: max(len(cuts) // 12, 1)]:
        joined = joined_at(lines, cut).recent()
        if joined is not None:
            assert_goes_on_like(there, joined.recording, 1)


@pytest.mark.parametrize("file", LOGS[:3], ids=lambda file: file.stem)
def test_what_is_shown_does_not_grow_with_the_time_that_somebody_watches(file: Path) -> None:
    lines = lines_of(file)
    meta, whole = eventlog.replay(lines, "log")
    there = Replay(whole.finish(meta_from_document(meta, file)))
    follower = joined_at(lines, 1, tail_steps=10)
    follower.recent()
    recent, everything = follower.recent(), follower.whole()
    assert recent is not None
    assert everything is not None
    assert len(everything.recording.steps) == len(there.recording.steps) > 40
    assert 10 <= len(recent.recording.steps) <= 2 * 10 + 2
    assert_goes_on_like(there, recent.recording, 1)
    assert "joined_at_step" not in everything.recording.meta.extra
    assert int(recent.recording.meta.extra["joined_at_step"]) == recent.first_step > 10
    assert recent.end_step == everything.end_step == len(there.recording.steps)


def looks_at(lines: list[bytes], every: int, **settings: Any) -> Iterator[tuple[Excerpt, Excerpt]]:
    """The last steps, and all that is kept, after each so many lines."""
    mirror, follower = Mirror(), EventFollower("server", **settings)
    mirror.apply(json.loads(lines[0]))
    for event in mirror.snapshot():
        follower.hear(line(*event))
    for number, text in enumerate(lines[1:]):
        follower.hear(text)
        recent = follower.recent() if number % every == 0 else None
        if recent is not None:
            whole = follower.whole()
            assert whole is not None
            yield recent, whole


def facts_of(requests: Requests) -> dict[str, list[object]]:
    """What is known of each request, by its name, but for the numbers that it has in one recording."""
    names = [
        name
        for name, spec in Requests.columns()
        if name not in ("request", "id", "arrival_seq", "prompt_hashes") and not spec.optional
    ]
    columns = (np.nan_to_num(getattr(requests, name), nan=-1.0).tolist() for name in names)
    facts = zip(requests.prompt_hashes.lengths.tolist(), *columns, strict=True)
    return dict(zip(requests.id.tolist(), map(list, facts), strict=True))


@pytest.mark.parametrize("tail_steps", one_of(3, [1, 4, 10], first=1))
@pytest.mark.parametrize("file", one_of(2, LOGS), ids=lambda file: file.stem)
def test_the_last_steps_are_as_they_are_in_all_that_is_kept(file: Path, tail_steps: int) -> None:
    """Every slot of every frame, whose each block is, what is cached, and what is known of each request."""
    num_tails = 0
    for recent, whole in looks_at(lines_of(file), 23, tail_steps=tail_steps):
        here, there = Replay(recent.recording), Replay(whole.recording)
        offset, first = len(whole.recording.steps) - len(recent.recording.steps), recent.num_summary_steps
        num_tails += offset > 0
        np.testing.assert_array_equal(waste(here).slots[first:], waste(there).slots[first + offset :])
        facts, all_facts = facts_of(recent.recording.requests), facts_of(whole.recording.requests)
        assert facts == {name: all_facts[name] for name in facts}
        ids, all_ids = (np.append(replay.recording.requests.id, "nobody") for replay in (here, there))
        for frame in range(first, len(recent.recording.steps), 5):
            here.seek(frame)
            there.seek(frame + offset)
            np.testing.assert_array_equal(here.refs, there.refs)
            np.testing.assert_array_equal(here.cached, there.cached)
            held, alone = here.refs > 0, here.refs < 2
            np.testing.assert_array_equal(here.position[held], there.position[held])
            assert ids[here.owner[alone]].tolist() == all_ids[there.owner[alone]].tolist()
            assert ids[here.waiting_requests()].tolist() == all_ids[there.waiting_requests()].tolist()
            live, all_live = here.live_requests(), there.live_requests()
            assert ids[live].tolist() == all_ids[all_live].tolist()
            assert here.computed(live).tolist() == there.computed(all_live).tolist()
    assert num_tails > 3 or len(whole.recording.steps) < 3 * tail_steps


@pytest.mark.parametrize("file", LOGS[2:5], ids=lambda file: file.stem)
def test_the_last_steps_are_the_same_when_they_are_read_again(file: Path, tmp_path: Path) -> None:
    *_, (recent, _) = looks_at(lines_of(file), 23, tail_steps=10)
    assert recent.recording.meta.initial_cached is not None
    write(recent.recording, tmp_path / "last-steps")
    again = read(tmp_path / "last-steps")
    np.testing.assert_array_equal(waste(again).slots, waste(recent.recording).slots)
    assert facts_of(again.requests) == facts_of(recent.recording.requests)
    for name in ("initial_cached", "initial_computed"):
        np.testing.assert_array_equal(getattr(again.meta, name), getattr(recent.recording.meta, name))


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 40, 300])
def test_between_two_polls_no_step_is_left_out(every: int) -> None:
    end = 0
    for recent, whole in looks_at(lines_of(LOGS[0]), every, tail_steps=3):
        assert recent.first_step <= max(end - 1, 0), "nor what comes behind the last that was seen"
        end = recent.end_step
        assert end == whole.end_step
        assert len(recent.recording.steps) <= 2 * 3 + every + 2


def test_everything_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STEPS", 30)
    sizes = [
        (len(whole.recording.steps), whole.first_step) for _, whole in looks_at(lines_of(LOGS[0]), 9, tail_steps=5)
    ]
    assert max(size for size, _ in sizes) <= 30 + 2
    assert all(size >= 15 or not first for size, first in sizes), "half of it stays"
    assert sizes[-1][1] > 30


def begun() -> EventFollower:
    follower = EventFollower("server")
    for event in (["meta", META], ["joined", [], 0, 0], ["arrive", "a", 0.0, 4, 4, 0, []], ["seq"]):
        follower.hear(line(*event))
    return follower


@pytest.mark.parametrize(
    "text",
    [
        b" \n", b"{}\n",
        b"[]\n", b'["nonsense"]\n', b"[[[[\n", b"[" * 100_000 + b"\n", b'["seq", NaN]\n', b"\xff\xfe\n",
        b'["tokens", 0.0, [[0, 0]]]\n', b'["tokens", 0.0, [[0, 0, 1, 2, 3]]]\n', b'["output", 0, 0.0, [[0]]]\n',
        b'["images", 0, [[1, 2]]]\n', b'["images", 0, [[1, 2, 3, 4]]]\n', b'["encoder", "eat", -1, 1]\n',
        b'["encoder", "hold", -1, 1]\n', b'["encoder", "evict", -1, 1]\n', b'["let_go", 0, [0], [1], [0]]\n',
        b'["encoder", "compute", -1, 99]\n',
        b'["let_go", 0, [0], [1], [0], 0]\n',
        b'["arrive", "b", 0.0, 1, 1, 0, [], -1]\n', b'["tokens", -1.0, []]\n', b'["tokens", 1e999, []]\n',
        b'["tokens", true, []]\n', b'["arrive", "b", 0.0, 1, 1, 0, [], 0, -1.0]\n',
        b'["arrive", "b", 0.0, 1, 1, 0, [], 0, 0.1, 0]\n',
        b'["append", 0, 0, [1.5]]\n', b'["append", 0, 0, [' + b"9" * 5_000 + b"]]\n", b'["append", -1, 0, [1]]\n',
        b'["append", 5, 0, [1]]\n', b'["release", 3, 1, 0]\n', b'["end", 0, "eaten", 1.0]\n',
        b'["end", 9, "aborted", 1.0]\n',
        b'["again", "x"]\n', b'["output", 99999999999999999999, 0.0]\n', b'["output", 7, 0.0]\n',
        b'["step", {}]\n', b'["step", {"start_s": 0}]\n', b'["meta", {}]\n', b'["joined", [1, 2], 3, 4]\n',
        b'["arrive", "' + b"x" * 300 + b'", 0.0, 1, 1, 0, []]\n', b'["arrive", 3, 0.0, 1, 1, 0, []]\n',
        b'["arrive", "b", 0.0, 1, 1, 0, [18446744073709551616]]\n', b'["refused", "16 viewers are connected"]\n',
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_is_a_sentence(text: bytes) -> None:
    with pytest.raises(RecordingError) as error:
        begun().hear(text)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([["append", 0, 0, [11]]], "outside the pool"),
        ([["append", 0, 0, [0]]], "outside the pool"),
        ([["append", 0, 3, [1]]], "position"),
        ([["release", 0, 2, 0]], "releases a table"),
    ],
)
def test_what_contradicts_itself_is_a_sentence(events: list[list[Any]], sentence: str) -> None:
    follower = begun()
    for event in events:
        follower.hear(line(*event))
    for event in (["tokens", 0.0, [[0, 0, 4]]], ["step", STEP]):
        follower.hear(line(*event))
    with pytest.raises(RecordingError, match=sentence):
        follower.recent()


def test_an_image_of_no_request_is_a_sentence() -> None:
    with pytest.raises(RecordingError, match=r"'encoder' does not follow .*no request has image 99"):
        begun().hear(line("encoder", "compute", -1, 99))


def test_an_image_that_an_ended_request_uses_is_a_sentence() -> None:
    follower = EventFollower("server", tail_steps=1)
    for event in (
        ["meta", META], ["joined", [], 0, 0], ["arrive", "a", 0.0, 4, 4, 0, []], ["images", 0, [[7, 0, 2]]],
        ["encoder", "compute", -1, 7], ["encoder", "hold", 0, 7], ["seq"], ["append", 0, 0, [1]],
        ["tokens", 0.0, [[0, 0, 4]]], ["step", STEP], ["end", 0, "finished", 1.0],
    ):  # fmt: skip
        follower.hear(line(*event))
    with pytest.raises(RecordingError, match="a request that has ended holds image 7"):
        follower.hear(line("seq"))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (["tokens", 0.0, [[0, 0, 4]]], ["tokens", 1.0, [[0, 4, 1, 5]]]),
        (["tokens", 0.0, [[0, 0, 4, 4]]], ["tokens", 1.0, [[0, 4, 1]]]),
        (["tokens", 0.0, [[0, 0, 4, 4]]], ["again", 1.0]),
        (["tokens", 0.0, [[0, 0, 1, 4]]], ["again", 1.0]),
    ],
)
def test_known_tokens_of_only_some_steps_are_a_sentence(first: list[Any], second: list[Any]) -> None:
    follower = begun()
    for event in (["append", 0, 0, [1]], first, ["step", STEP | {"prefill_tokens": first[2][0][2]}], ["seq"]):
        follower.hear(line(*event))
    with pytest.raises(RecordingError, match="known tokens should be given in every step or in none"):
        follower.hear(line(*second))
    excerpt = follower.whole()
    assert excerpt is not None
    assert len(excerpt.recording.steps) == 1, "what came before stays"


@pytest.mark.parametrize("num_units", [None, 1 << 23, 1 << 40, 0])
def test_a_pool_that_no_server_has_is_refused(num_units: int | None) -> None:
    with pytest.raises(RecordingError):
        EventFollower("server").hear(line("meta", META | {"pool": META["pool"] | {"num_units": num_units}}))


def test_a_server_that_holds_more_than_can_be_shown_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_VALUES", 1_000)
    monkeypatch.setattr(module, "_CHECK_EVERY_BYTES", 1_000)
    follower = begun()
    for number in range(999):
        follower.hear(line("arrive", f"r{number}", 0.0, 4, 4, 0, []))
    follower.hear(line("arrive", "one more", 0.0, 4, 4, 0, []))
    with pytest.raises(RecordingError, match="more than can be shown"):
        follower.hear(line("arrive", "too many", 0.0, 4, 4, 0, []))
    follower = begun()
    with pytest.raises(RecordingError, match="more than can be shown"):
        follower.hear(line("arrive", "b", 0.0, 4, 4, 0, list(range(3_000))))


def test_no_line_is_as_long_as_memory() -> None:
    assert MAX_LINE_BYTES == 8 << 20
    assert parse(line("seq")) == ["seq"]


def mutated(text: bytes, dice: random.Random) -> bytes:
    """One value of an event changed, or the line cut, or its bytes."""
    kind = dice.randrange(8)
    if kind == 0:
        return text[: dice.randrange(len(text))] + b"\n"
    if kind == 1:
        at = dice.randrange(len(text))
        return text[:at] + bytes([dice.randrange(256)]) + text[at + 1 :]
    event = json.loads(text)
    where = event
    while True:
        keys = list(where) if isinstance(where, dict) else range(len(where))
        if not len(keys):
            return text
        key = dice.choice(list(keys))
        if isinstance(where[key], list | dict) and dice.random() < 0.7:
            where = where[key]
            continue
        old = where[key]
        near = [old + 1, old - 1] if isinstance(old, int | float) else []
        where[key] = dice.choice([*near, 0, -1, 1, 10**9, 2**31, 2**63, 1e300, 0.5, None, "", "x" * 200, [], {}, True])
        return json.dumps(event).encode() + b"\n"


@pytest.mark.parametrize("seeds", [range(200), pytest.param(range(600), marks=pytest.mark.slow)], ids=str)
def test_no_server_brings_down_a_viewer(seeds: range) -> None:
    """Mutated logs end in a sentence, or in something that can be shown."""
    shown = refused = 0
    for seed in seeds:
        dice = random.Random(seed)
        lines = lines_of(dice.choice(LOGS))[:400]
        for at in dice.sample(range(len(lines)), dice.choice([1, 1, 2, 5])):
            lines[at] = mutated(lines[at], dice)
        follower = EventFollower("server")
        try:
            for text in lines[:1]:
                follower.hear(text)
            follower.hear(line("joined", [], 0, 0))
            for text in lines[1:]:
                follower.hear(text)
            excerpt = follower.recent()
            if excerpt is not None:
                Session(excerpt.recording)
                shown += 1
        except KvsimError as error:
            refused += "\n" not in str(error)
    assert shown > 2
    assert refused > 50


BEGINNING = b"".join(
    line(*event)
    for event in (
        ["meta", META], ["joined", [], 0, 0], ["arrive", "a", 0.0, 4, 4, 0, []], ["seq"], ["append", 0, 0, [1]],
        ["tokens", 0.0, [[0, 0, 4]]], ["step", STEP],
    )
)  # fmt: skip


@contextmanager
def serving(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that does something to the first client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                behave(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


def ended(feed: LiveFeed) -> str:
    for _ in range(500):
        if feed.ended is not None:
            feed.recent()
            return feed.ended
        time.sleep(0.01)
    pytest.fail("it did not end within five seconds")


def test_an_endless_line_ends_the_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_LINE_BYTES", 1 << 16)

    def endless(connection: socket.socket) -> None:
        connection.sendall(BEGINNING)
        while True:
            connection.sendall(b"[" * 4096)

    with serving(endless) as address:
        feed = LiveFeed(address)
        assert "sent a line of more than 65,536 bytes" in ended(feed)
        excerpt = feed.recent()
        assert excerpt is not None
        assert len(excerpt.recording.steps) == 1, "what was seen before stays"
        feed.close()


@pytest.mark.parametrize(
    ("bytes_sent", "sentence"),
    [
        (b"", "has hung up"),
        (BEGINNING, "has hung up"),
        (BEGINNING + b'["seq', "hung up within a line"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "is not followed further: 'HTTP/1.1 200 OK' is no line of JSON"),
        (b"\x1b]0;PWNED\x07\n", "is no line of JSON"),
        (
            BEGINNING
            + line("seq")
            + line("append", 0, 1, [99])
            + line("tokens", 1.0, [[0, 4, 1]])
            + line("step", STEP),
            "outside the",
        ),
        (BEGINNING + line("encoder", "compute", -1, 99), "'encoder' does not follow from the events before it"),
        (
            BEGINNING + line("end", 99, "finished", 1.0),
            "'end' does not follow from the events before it: nothing has the number 99",
        ),
        (line("refused", "16 viewers are connected, and no more are served"), "16 viewers are connected"),
    ],
)
def test_whatever_a_server_sends_ends_in_a_sentence(bytes_sent: bytes, sentence: str) -> None:
    with serving(lambda connection: connection.sendall(bytes_sent)) as address:
        feed = LiveFeed(address)
        assert sentence in ended(feed)
        feed.close()


def test_a_defect_ends_the_feed_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mirror, "apply", lambda *_: next(iter(())))
    with serving(lambda connection: connection.sendall(BEGINNING)) as address:
        feed = LiveFeed(address)
        assert ended(feed).endswith("StopIteration (StopIteration), a defect of kvsim.")
        feed.close()


def test_a_silent_server_is_known_to_be_silent() -> None:
    done = threading.Event()

    def silent(connection: socket.socket) -> None:
        connection.sendall(BEGINNING)
        done.wait(10)

    with serving(silent) as address:
        feed = LiveFeed(address)
        time.sleep(0.3)
        assert feed.quiet_s > 0.1
        assert feed.ended is None
        feed.close()
        assert feed.ended_before_close is None, "we hung up ourselves"
        done.set()


FEATURES = [*(file for file in FEATURED if file.parent.name != "kv"), *GROUPED]
QUICK = ("m_preempt", "g_mm_04", "s44")


def complete_at(lines: list[bytes]) -> list[int]:
    """Lines before which no change of the engine's state is under way."""
    return [number for number, text in enumerate(lines) if text == line("seq") or text.startswith(b'["arrive"')]


@pytest.mark.parametrize(
    "workload",
    [pytest.param(file, marks=() if file.stem in QUICK else pytest.mark.slow, id=file.stem) for file in FEATURES],
)
def test_what_a_viewer_sees_of_a_server_with_features_is_what_the_recording_says(workload: Path, live: Live) -> None:
    """With drafts, adapters, images and several groups, joined at any time and seen at any time."""
    file = live.log(workload) / eventlog.FILE_NAME
    lines = lines_of(file)
    meta, whole = eventlog.replay(lines, "log")
    there = Replay(whole.finish(meta_from_document(meta, file)))
    places = complete_at(lines)
    for cut in places[:: max(len(places) // 6, 1)]:
        joined = joined_at(lines, cut).recent()
        if joined is not None:
            assert_goes_on_like(there, joined.recording, 1)
    follower = joined_at(lines, 1, tail_steps=4)
    everything = follower.whole()
    assert everything is not None
    assert_same_account(everything, Excerpt(there.recording, 0, 0))
    follower = joined_at(lines[:1], 1, tail_steps=4)
    for begin, end in zip([1, *places[::9]], [*places[::9], len(lines)], strict=True):
        for text in lines[begin:end]:
            follower.hear(text)
        recent, everything = follower.recent(), follower.whole()
        if recent is not None and everything is not None:
            assert_same_account(recent, everything)


def assert_same_account(recent: Excerpt, whole: Excerpt) -> None:
    """Each slot of each frame, and each token in the encoder cache, is in the same state."""
    here, there = recent.recording, whole.recording
    first, offset = recent.num_summary_steps, len(there.steps) - len(here.steps)
    np.testing.assert_array_equal(waste(Replay(here)).slots[first:], waste(Replay(there)).slots[first + offset :])
    encoders = EncoderContents.of(here), EncoderContents.of(there)
    if encoders[0] is not None and encoders[1] is not None:
        for name in ("held_outputs", "idle_outputs"):
            ours, theirs = (getattr(each, name) for each in encoders)
            np.testing.assert_array_equal(ours[first:-1], theirs[first + offset : -1])


@in_main
def test_images_arrive_over_a_socket(live: Live) -> None:
    file = live.log(next(file for file in FEATURED if file.stem == "g_mm_04")) / eventlog.FILE_NAME
    publisher = Publisher("127.0.0.1:0")
    feed = LiveFeed(publisher.address)
    try:
        first, *rest = lines_of(file)
        publisher.write(first)
        until(lambda: feed.joined)
        publisher.write(b"".join(rest))
        num_steps = len(read(file.parent).steps)
        until(lambda: (found := feed.whole()) is not None and found.end_step == num_steps)
        found = feed.whole()
    finally:
        feed.close()
        publisher.close()
    recording = read(file.parent)
    assert found is not None
    assert found.recording.images is not None
    assert found.recording.encoder is not None
    assert recording.encoder is not None
    assert found.recording.encoder.kind.tolist() == recording.encoder.kind.tolist()


@in_main
def test_a_server_that_exchanges_kv_is_not_shown_live_and_says_so(live: Live) -> None:
    file = live.log(next(file for file in FEATURED if file.stem == "m_nixl_decode")) / eventlog.FILE_NAME
    with pytest.raises(RecordingError, match="it moves KV to host memory or to other servers"):
        joined_at(lines_of(file), 1)
