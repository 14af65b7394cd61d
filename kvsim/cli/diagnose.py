"""`kvsim diagnose`: the causes of waiting and preemptions on a server, and remedies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from kvsim.cli.attach import kv_event_ranks, kv_events_options
from kvsim.cli.options import engine_option, jobs_option
from kvsim.cli.show import echo, json_option, print_json, print_table, progress
from kvsim.display.text import message
from kvsim.errors import UsageError

if TYPE_CHECKING:
    from kvsim.diagnosis import Diagnosis, MetricsDiagnosis
    from kvsim.live.event_feed import LiveFeed
    from kvsim.live.kv_event_ranks import KvEventRanks
    from kvsim.live.metrics_feed import MetricsFeed
    from kvsim.recording import Recording
    from kvsim.simulation import EngineName


@click.command("diagnose")
@click.argument("source", metavar="RECORDING|URL|HOST:PORT")
@click.option("--ttft-p99", type=float, metavar="SECONDS", help="Target of the remedies: TTFT p99 is at most this.")
@click.option("--tpot-p99", type=float, metavar="SECONDS", help="Target of the remedies: TPOT p99 is at most this.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=10.0,
    show_default=True,
    help="Seconds for which a live server is watched.",
)
@kv_events_options
@click.option("--profile", metavar="PROFILE", help="Step times: a profile or a machine card.  [the one that matches]")
@click.option("--points", type=click.IntRange(0, 100_000), default=40, show_default=True, help="Changes to simulate.")
@jobs_option
@engine_option
@json_option
def command(
    *,
    source: str,
    ttft_p99: float | None,
    tpot_p99: float | None,
    seconds: float,
    kv_events: str | None,
    kv_events_replay: str | None,
    profile: str | None,
    points: int,
    jobs: int,
    engine: EngineName,
    as_json: bool,
) -> None:
    """Diagnose a server: waiting and preemptions, their causes, and remedies.

    With a RECORDING (a folder, or the name of one that comes with kvsim) or the HOST:PORT at which a server publishes
    kvsim's events, the output tells when requests waited, and predicts how each change of a setting affects the same
    requests.

    With the http:// address or HOST:PORT of a server's /metrics, it has only some of these facts, and the output tells
    how to record the others.
    """
    from kvsim.diagnosis import RUNS_BESIDE_CHANGES, diagnose, engine_of
    from kvsim.fitting import Goal, Search

    goal = Goal(ttft_p99_s=ttft_p99, tpot_p99_s=tpot_p99)
    if (metrics_url := _metrics_url(source)) is not None:
        with kv_event_ranks(kv_events, kv_events_replay) as ranks:
            seen = _glance(metrics_url, seconds, ranks)
        if as_json:
            print_json(seen.as_dict())
        else:
            _print_glance(seen)
        return
    if kv_events is not None:
        raise UsageError(f"--kv-events is for the /metrics of a server, and {source} is none; leave it out.")
    recording = _recording(source, seconds)
    if recording.meta.policy_name == "radix":
        from kvsim.cli.diagnose_sglang import diagnose_sglang

        diagnose_sglang(recording, tries=points > 0, as_json=as_json)
        return
    if engine == "auto":
        engine = engine_of(recording, points + RUNS_BESIDE_CHANGES)
    with progress("diagnose") as report:
        search = Search(num_jobs=jobs, engine=engine, progress=report)
        found = diagnose(recording, search, goal=goal, times=profile, most=points)
    if as_json:
        print_json(found.as_dict())
    else:
        _print(found)


def _metrics_url(source: str) -> str | None:
    """Return the URL of a server's metrics; None for a recording, or a server that publishes kvsim's events."""
    from pathlib import Path

    from kvsim.live.address import page_of

    if Path(source).exists():
        return None
    try:
        return page_of(source)
    except UsageError:
        return None


def _recording(source: str, seconds: float) -> Recording:
    """Return the recording called `source`, or a recording of what the server at `source` publishes in `seconds`."""
    from pathlib import Path

    from kvsim.errors import RecordingError
    from kvsim.live.address import parse_address
    from kvsim.recording import find, read

    if Path(source).exists():
        return read(find(source))
    try:
        parse_address(source)
    except UsageError:
        return read(find(source))
    from kvsim.live.event_feed import LiveFeed

    feed = LiveFeed(source)
    try:
        ended = _watch(feed, seconds)
        seen = feed.whole()
    finally:
        feed.close()
    if seen is None:
        silent = f"the server at {source} took no step in {seconds:g} s; give it longer: --seconds."
        raise RecordingError(ended or silent)
    _warn_of_end(ended)
    return seen.recording


def _glance(url: str, seconds: float, ranks: KvEventRanks | None) -> MetricsDiagnosis:
    from kvsim.diagnosis import diagnose_metrics
    from kvsim.live.metrics_feed import MetricsFeed

    feed = MetricsFeed(url)
    try:
        _warn_of_end(_watch(feed, seconds))
        if feed.restarts:
            echo(
                "warning: counters fell, because the server restarted. The diagnosis is of the time after the restart.",
                err=True,
            )
        if ranks is None:
            return diagnose_metrics(feed.polls())
        _warn_of_end(ranks.ended)
        return diagnose_metrics(feed.polls(), ranks.state())
    finally:
        feed.close()


def _watch(feed: LiveFeed | MetricsFeed, seconds: float) -> str | None:
    with progress("watching") as report:
        begin_s = time.monotonic()
        while feed.ended is None and (passed_s := time.monotonic() - begin_s) < seconds:
            report(int(passed_s), int(seconds))
            time.sleep(min(0.2, seconds - passed_s))
    return feed.ended


def _warn_of_end(ended: str | None) -> None:
    if ended is not None:
        echo(f"warning: {message(ended)} The diagnosis is of the time before.", err=True)


def _print(found: Diagnosis) -> None:
    from kvsim.cli.answer import pool_words, times_rows
    from kvsim.cli.fit_answer import print_ineffective_remedies, print_remedies
    from kvsim.fitting.search import without_gain
    from kvsim.metrics.run_verdict import wasted_percent

    summary, server = found.summary, found.server
    echo(found.verdict)
    echo(found.cause)
    for sentence in found.moments:
        echo(f"- {sentence}")
    lost = f"{summary.vain_tokens:,} of {summary.computed_tokens:,} computed tokens"
    rows = [
        ("recording", f"{found.recording.name}, {found.load.workload.description}"),
        ("server", f"{server.command()}  # {server.num_gpus} x {server.gpu.name}"),
        ("KV cache", pool_words(found.recording.meta)),
        ("wasted", f"{lost} by preemptions and late stops; {wasted_percent(summary):.1f} % of the pool by rounding"),
        ("prefix hits", found.hits),
        *times_rows(found.simulated.label),
    ]
    print_table("", ["", ""], rows)
    echo(found.sureness)
    if found.tried:
        fits = not found.summary.num_preemptions
        print_remedies(found.remedies, found.simulated, fits=fits)
        print_ineffective_remedies(without_gain(found.tried, found.remedies), fits=fits)


def _print_glance(seen: MetricsDiagnosis) -> None:
    echo(seen.verdict)
    for fact in seen.facts:
        echo(f"- {fact}")
    echo("Metrics cannot say:")
    for words in seen.unknown:
        echo(f"- {words}")
    echo(f"To know more: {seen.to_record}")
