"""Files of requests that could mean several things are refused with the column's name, or read right and said.

Each class has what a careless exporter, a spreadsheet or another program's log makes of a good file.
"""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsim.errors import KvsimError, UsageError, WorkloadError
from kvsim.importers import read_workload

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.workload import Workload

HEADER = "{},prompt_tokens,output_tokens"


def column(name: str, *times: object, mark: str = ",") -> str:
    """A CSV file whose requests arrive at `times`, as they stand in the column `name`."""
    quoted = [f'"{time}"' if mark in str(time) else str(time) for time in times]
    rows = [f"{time}{mark}{10 + number}{mark}5" for number, time in enumerate(quoted)]
    return "\n".join([HEADER.format(f'"{name}"' if mark in name else name).replace(",", mark), *rows]) + "\n"


def read(folder: Path, content: str | bytes, name: str = "w.csv", **options: Any) -> Workload:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_workload(path, **options)


REFUSED = {
    # marks of thousands
    "thousands": (column("arrival_s", "999", "1,000", "1,500"), "line 3: arrival_s is '1,000', which may be 1000 or"),
    "thousands alone": (column("arrival_s", "1,000", "2,000"), "arrival_s is '1,000'"),
    "millions": (column("arrival_s", "0", "1,000,000"), "line 3: arrival_s should be"),
    "thousands and a point": (column("arrival_s", "0", "1,000.5"), "line 3: arrival_s should be"),
    "points of thousands": (column("arrival_s", "998", "999", "1.000", "1.500"), "arrival_s is '1.000', which may be"),
    "points of thousands, semicolons": (column("time", "1", "999", "1.000", mark=";"), "time is '1.000', which may be"),
    "points and a comma": (column("arrival_s", "0", "1.000,5", mark=";"), "line 3: arrival_s should be"),
    "two points": (column("arrival_s", "0", "1.000.000"), "line 3: arrival_s should be"),
    "apostrophes": (column("arrival_s", "0", "1'000"), "line 3: arrival_s should be"),
    "spaces": (column("arrival_s", "0", "1 000"), "line 3: arrival_s should be"),
    "narrow spaces": (column("arrival_s", "0", "1\u202f000"), "line 3: arrival_s should be"),
    "underscores": (column("arrival_s", "0", "1_000"), "line 3: arrival_s should be"),
    "thousands of tokens": ('arrival_s,prompt_tokens,output_tokens\n0,"1,000",5\n', "prompt_tokens should be a whole"),
    "points of tokens": ("arrival_s,prompt_tokens,output_tokens\n0,1.000,5\n", "prompt_tokens should be a whole"),
    # decimal marks
    "both decimal marks": (column("arrival_s", "0.5", "1,5"), "line 3: arrival_s is '1,5', and earlier numbers have"),
    "both, the other way": (column("arrival_s", "0,5", "1.5", mark=";"), "line 3: arrival_s is '1.5'"),
    "half of a token": ("arrival_s,prompt_tokens,output_tokens\n0,10.5,5\n", "prompt_tokens should be a whole number"),
    "unquoted commas": ("arrival_s,prompt_tokens,output_tokens\n0,5,10,5\n", "line 2: there are 4 fields, not 3"),
    # numbers that are none
    "hexadecimal": (column("arrival_s", "0", "0x10"), "line 3: arrival_s should be"),
    "hexadecimal tokens": (
        "arrival_s,prompt_tokens,output_tokens\n0,0x10,5\n",
        "prompt_tokens should be a whole number",
    ),
    "digits of another script": (column("arrival_s", "0", "\u0661"), "line 3: arrival_s should be"),
    "digits of full width": (column("arrival_s", "0", "\uff11"), "line 3: arrival_s should be"),
    "not a number": (column("arrival_s", "0", "NaN"), "line 3: arrival_s should be"),
    "infinity": (column("arrival_s", "0", "Infinity"), "line 3: arrival_s should be"),
    "beyond every number": (column("arrival_s", "0", "1e999"), "line 3: arrival_s should be"),
    "beyond 64 bits": (column("arrival_s", "0", "1e19"), "line 3: arrival_s should be"),
    "five thousand digits": (column("arrival_s", "0", "9" * 5000), "line 3: arrival_s should be"),
    "below nothing": (column("arrival_s", "0", "-0.5"), "line 3: arrival_s should be"),
    "true": (column("arrival_s", "0", "True"), "line 3: arrival_s should be"),
    "none": (column("arrival_s", "0", ""), "line 3: arrival_s should be"),
    "a unit": (column("arrival_s", "0", "5s"), "line 3: arrival_s should be"),
    "a fraction": (column("arrival_s", "0", "1/2"), "line 3: arrival_s should be"),
    "per cent": (column("arrival_s", "0", "5%"), "line 3: arrival_s should be"),
    "a formula": (column("arrival_s", "0", "=1+1"), "line 3: arrival_s should be"),
    "tokens with a power": (
        "arrival_s,prompt_tokens,output_tokens\n0,1e3,5\n",
        "prompt_tokens should be a whole number",
    ),
    # ages and units
    "epochs of two units": (column("timestamp", 1700000000, 1700000000500), "column timestamp goes from 1700000000 to"),
    "an epoch and a zero": (column("timestamp", 0, 1700000000), "column timestamp goes from 0 to 1700000000"),
    "an epoch in seconds, called ms": (column("arrival_ms", 1700000000, 1700003600), "name the column arrival_s"),
    "an epoch in ms, called seconds": (column("arrival_s", 1700000000000, 1700000000500), "name the column arrival_ms"),
    "an epoch in ns, called ms": (column("start_ms", 10**18, 10**18 + 10**9), "name the column arrival_ns"),
    "an epoch in seconds, called ns": (column("t_start_ns", 1), "begins no known format"),
    "an epoch in s, called ns": (column("timestamp_ns", 1700000000, 1700003600), "name the column arrival_s"),
    "an epoch without its last digits": (
        column("timestamp", "1.7E+12", "1.7E+12"),
        "timestamp has times such as 1.7E+12",
    ),
    "rounded seconds": (
        column("arrival_s", "6.48E+07", "6.48E+07"),
        "arrival_s has times such as 6.48E+07, which have",
    ),
    "ticks": (column("timestamp", 638_000_000_000_000_000), "column timestamp begins at"),
    "file times": (column("timestamp", 133_000_000_000_000_000), "column timestamp begins at"),
    "seconds since 2001": (column("timestamp", 720_000_000, 720_000_001), "column timestamp begins at 720000000"),
    "a date without marks": (column("timestamp", 20261116, 20261117), "column timestamp begins at 20261116"),
    "a date and time without marks": (column("timestamp", 20261116181546), "column timestamp begins at"),
    "a time of day without marks": (column("time", 181546, 181547), "column time begins at 181546"),
    "days of a spreadsheet": (column("date", 45000.5, 45000.6), "column date begins at 45,000.5"),
    "days, called a timestamp": (column("timestamp", 45000.5, 45000.6), "column timestamp begins at 45,000.5"),
    "days since 1970": (column("time", 19675.5, 19675.6), "column time begins at 19,675.5"),
    "Julian days": (column("start_time", 2460000.5, 2460000.6), "column start_time begins at 2,460,000.5"),
    "days, called a date": (column("Date", 0.5, 0.6), "column Date begins at 0.5"),
    "days, called seconds": (column("arrival_s", 45000.5, 45000.6), "arrival_s goes from 45,000.5 to 45,000.6, which"),
    "days, called ms": (column("Arrival (ms)", 45000.5, 45000.6), "are hardly milliseconds"),
    "a date and time, called ms": (column("arrival_ms", 20261116181546, 20261116181547), "are hardly milliseconds"),
    "a date and time, called us": (column("time_us", 20261116181546, 20261116181547), "are hardly microseconds"),
    "a date and time, called minutes": (column("time_min", 20261116181546, 20261116181547), "are hardly minutes"),
    "a hundred years": (
        column("time", "1926-11-16T18:15:46", "2026-11-16T18:15:46"),
        "column time goes from 1926-11-16",
    ),
    # dates
    "dates and seconds": (
        column("timestamp", "2026-11-16T18:15:46", 5.0),
        "line 3: timestamp is '5.0', one of numbers",
    ),
    "seconds and dates": (
        column("timestamp", 5.0, "2026-11-16T18:15:46"),
        "line 3: timestamp is '2026-11-16T18:15:46'",
    ),
    "a zone in half": (
        column("timestamp", "2026-11-16T18:15:46+09:00", "2026-11-16T18:15:47"),
        "line 3: timestamp is '2026-11-16T18:15:47', one of dates without a time zone",
    ),
    "no zone, then one": (
        column("timestamp", "2026-11-16 18:15:46", "2026-11-16 18:15:47Z"),
        "of dates with a time zone",
    ),
    "day first": (column("timestamp", "16/11/2026 18:15:46"), "line 2: timestamp should be"),
    "month first": (column("timestamp", "11/16/2026 18:15:46"), "line 2: timestamp should be"),
    "day or month first": (column("timestamp", "01.02.2026 18:15:46"), "line 2: timestamp should be"),
    "two digits of a year": (column("timestamp", "26-11-16 18:15:46"), "line 2: timestamp should be"),
    "a name of a month": (column("timestamp", "16 Nov 2026 18:15:46"), "line 2: timestamp should be"),
    "a web log": (column("timestamp", "16/Nov/2026:18:15:46 +0000"), "line 2: timestamp should be"),
    "twelve hours": (column("timestamp", "2026-11-16 06:15:46 PM"), "line 2: timestamp should be"),
    "a named zone": (column("timestamp", "2026-11-16 18:15:46 CET"), "line 2: timestamp should be"),
    "a leap second": (column("timestamp", "2016-12-31T23:59:60Z"), "line 2: timestamp should be"),
    "no such day": (column("timestamp", "2026-02-30T00:00:00"), "line 2: timestamp should be"),
    "a day alone": (column("date", "2026-11-16"), "line 2: date should be"),
    "a time of day alone": (column("time", "18:15:46"), "line 2: time should be"),
    "a duration": (column("time", "PT5S"), "line 2: time should be"),
    "a week": (column("time", "2026-W47-1T18:15:46"), "line 2: time should be"),
    "some without times": (column("timestamp", "2026-11-16T18:15:46", "XXX"), "line 3: timestamp is 'XXX'"),
    # columns
    "two prompts": (
        "arrival_s,prompt_tokens,input_tokens,output_tokens\n0,10,99,5\n",
        "'prompt_tokens' and 'input_tokens'",
    ),
    "two spellings": (
        "arrival_s,Prompt Tokens,prompt_tokens,output_tokens\n0,9,9,5\n",
        "'Prompt Tokens' and 'prompt_to",
    ),
    "two cases": (
        "arrival_s,prompt_tokens,PROMPT_TOKENS,output_tokens\n0,9,9,5\n",
        "'prompt_tokens' and 'PROMPT_TOKENS'",
    ),
    "camels": ("arrival_s,prompt_tokens,promptTokens,output_tokens\n0,9,9,5\n", "'prompt_tokens' and 'promptTokens'"),
    "a text and its length": ("arrival_s,prompt,prompt_len,output_len\n0,hello,9,5\n", "'prompt' and 'prompt_len'"),
    "two programs": (
        "num_prefill_tokens,num_decode_tokens,prompt_len\n9,5,9\n",
        "'num_prefill_tokens' and 'prompt_len'",
    ),
    "two answers": ("arrival_s,prompt_tokens,output_tokens,completion_tokens\n0,9,5,5\n", "both say output_tokens"),
    "two decodes": ("arrival_s,prompt_tokens,output_len,num_decode_tokens\n0,9,5,5\n", "both say output_tokens"),
    "two arrivals": ("arrival_s,timestamp,prompt_tokens,output_tokens\n0,9,9,5\n", "'arrival_s' and 'timestamp'"),
    "two units": ("arrival_s,arrival_ms,prompt_tokens,output_tokens\n0,9,9,5\n", "'arrival_s' and 'arrival_ms'"),
    "a date and a time": ("date,time,prompt_tokens,output_tokens\n2026-11-16,18:15:46,9,5\n", "'date' and 'time'"),
    "two ids": ("id,ID,prompt_tokens,output_tokens\na,b,9,5\n", "'id' and 'ID' both say id"),
    "two limits": ("arrival_s,prompt_tokens,output_tokens,max_tokens,Max Tokens\n0,9,5,5,6\n", "both say max_tokens"),
    "one name twice": (
        "arrival_s,prompt_tokens,output_tokens,output_tokens\n0,9,5,5\n",
        "output_tokens is there more than",
    ),
    "a prompt beside BurstGPT's": (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type,input_len\n5,m,9,5,14,API log,8\n",
        "'Request tokens' and 'input_len' both say prompt_tokens",
    ),
    "no header": ("0,10,5\n1,20,5\n", "begins no known format"),
    "no header, tabulators": ("0\t10\t5\n1\t20\t5\n", "begins no known format"),
    "a unit of tokens": ("arrival_s,prompt_ktokens,output_tokens\n0,9,5\n", "begins no known format"),
    "letters, not tokens": ("arrival_s,prompt_chars,output_chars\n0,9,5\n", "begins no known format"),
    "minutes or thousandths": ("arrival_m,prompt_tokens,output_tokens\n0,9,5\n", "begins no known format"),
    "one id twice": ('id,prompt_tokens,output_tokens\n"a\nb",9,5\n"a\nb",9,5\n', "has the id 'a\\nb' already"),
    "a title above": ("My requests,,\narrival_s,prompt_tokens,output_tokens\n0,9,5\n", "begins no known format"),
    "a sum below": ("arrival_s,prompt_tokens,output_tokens\n0,9,5\nTotal,9,5\n", "line 3: arrival_s should be"),
    "a comment": ("arrival_s,prompt_tokens,output_tokens\n# noon\n0,9,5\n", "line 2: there are 1 fields"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_mean_several_things_is_refused(tmp_path: Path, case: str) -> None:
    content, sentence = REFUSED[case]
    with pytest.raises(WorkloadError) as caught:
        read(tmp_path, content)
    assert sentence in str(caught.value)
    assert "w.csv" in str(caught.value)
    assert str(caught.value).endswith(".")


_MS = "arrival times read as milliseconds"
READ = {
    "an epoch in seconds": (column("timestamp", 1700000000, 1700000001), [0, 1], "read as seconds since 1970"),
    "with a fraction": (column("timestamp", "1700000000.25", "1700000000.75"), [0, 0.5], "read as seconds since 1970"),
    "in milliseconds": (column("timestamp", 1700000000000, 1700000000500), [0, 0.5], f"{_MS} since 1970"),
    "in microseconds": (
        column("time", 1700000000000000, 1700000000500000),
        [0, 0.5],
        "read as microseconds since 1970",
    ),
    "in nanoseconds": (
        column("created", 1700000000000000000, 1700000000000000007),
        [0, 7e-9],
        "read as nanoseconds since 1970",
    ),
    "as it is called": (column("timestamp_ms", 1700000000000, 1700000000500), [0, 0.5], f"{_MS} since 1970"),
    "in our own column": (column("arrival_s", 1700000000, 1700000002), [0, 2], "read as seconds since 1970"),
    "under a date": (column("date", 1700000000, 1700000002), [0, 2], "read as seconds since 1970"),
    "milliseconds": (column("arrival_ms", 1000, 1500), [0, 0.5], _MS),
    "milliseconds in brackets": (column("Arrival (ms)", 1000, 1500), [0, 0.5], _MS),
    "milliseconds, camels": (column("arrivalTimeMs", 1000, 1500), [0, 0.5], _MS),
    "microseconds": (column("timestamp_us", 1000, 1500), [0, 0.0005], "read as microseconds"),
    "Greek microseconds": (column("time [\u00b5s]", 1000, 1500), [0, 0.0005], "read as microseconds"),
    "nanoseconds": (column("start_ns", 1000, 1500), [0, 5e-7], "read as nanoseconds"),
    "minutes": (column("Arrival (min)", 1, "1.5"), [0, 30], "read as minutes"),
    "hours": (column("arrival_hours", 1, "1.5"), [0, 1800], "read as hours"),
    "days": (column("time_days", "0", "0.5"), [0, 43200], "read as days"),
    "no unit": (column("timestamp", 100, "100.5"), [0, 0.5], "arrival times read as seconds"),
    "seconds, which is said by the name": (column("start_time_s", 100, "100.5"), [0, 0.5], "(CSV)"),
    "decimal commas": (column("arrival_s", "0,5", "1,000", mark=";"), [0.5, 1], "read with decimal commas"),
    "quoted decimal commas": (column("time", "0,5", "1,25"), [0, 0.75], "read as seconds with decimal commas"),
    "a comma behind whole numbers": (column("arrival_s", "0", "1", "12,5"), [0, 1, 12.5], "with decimal commas"),
    "three digits behind a point": (column("arrival_s", "0.125", "1.000", "1.500"), [0.125, 1, 1.5], "(CSV)"),
    "three digits behind each point": (column("arrival_s", "1.000", "2.500"), [1, 2.5], "(CSV)"),
    "a power of ten": (column("arrival_s", "0", "1.5e1"), [0, 15], "(CSV)"),
    "a power of ten with all digits": (
        column("time", "1.700000000500000000e+09", "1.700000001000000000e+09"),
        [0, 0.5],
        "read as seconds since 1970",
    ),
    "a late beginning": (column("arrival_s", 45000.5, 45002), [45000.5, 45002], "the first arrives after 45,000.5 s"),
    "dates": (
        column("time", "2026-11-16T18:15:46", "2026-11-16T18:15:48"),
        [0, 2],
        "without a time zone are read as UTC",
    ),
    "dates with a space": (column("time", "2026-11-16 18:15:46.5", "2026-11-16 18:15:48"), [0, 1.5], "read as UTC"),
    "dates in UTC": (column("time", "2026-11-16T18:15:46Z", "2026-11-16T18:15:48+00:00"), [0, 2], "(CSV)"),
    "dates of two zones": (column("time", "2026-11-16T18:15:46Z", "2026-11-16T19:15:48+01:00"), [0, 2], "(CSV)"),
    "a log's comma": (column("time", "2026-11-16 18:15:46,500", "2026-11-16 18:15:48,250"), [0, 1.75], "read as UTC"),
    "nine digits": (column("time", "2026-11-16T18:15:46.000000001Z", "2026-11-16T18:15:46Z"), [0, 1e-9], "(CSV)"),
    "dates of our own column": (column("arrival_s", "2026-11-16T18:15:46Z", "2026-11-16T18:15:48Z"), [0, 2], "(CSV)"),
    "two marks of order": ("\ufeff\ufeff" + column("arrival_s", 1, 2), [1, 2], "(CSV)"),
    "a mark of order": ("\ufeff" + column("arrival_s", 0, 1), [0, 1], "(CSV)"),
    "lines of another system": (column("arrival_s", 0, 1).replace("\n", "\r\n"), [0, 1], "(CSV)"),
    "no times": (column("TIMESTAMP", "XXX", "XXX"), [0, 0], "it has no arrival times"),
    "tabulators": (column("arrival_s", 0, 1, mark="\t"), [0, 1], "(CSV)"),
    "a column of an index": ("," + column("arrival_s", 0, 1).replace("\n", "\n0,", 2), [0, 1], "(CSV)"),
}


@pytest.mark.parametrize("case", READ)
def test_what_is_certain_is_read_and_said(tmp_path: Path, case: str) -> None:
    content, arrivals, said = READ[case]
    workload = read(tmp_path, content)
    assert workload.arrival_s.tolist() == pytest.approx(arrivals, abs=1e-12)
    assert said in workload.description
    assert ("read as" in workload.description) == ("read as" in said)


def test_the_user_says_which_column_and_unit_holds(tmp_path: Path) -> None:
    two = "ts,time,prompt_tokens,Prompt Tokens,output_tokens\n45000500,5,10,99,5\n45001000,6,20,88,5\n"
    workload = read(tmp_path, two, columns={"arrival_ms": "ts", "prompt_tokens": "Prompt Tokens"})
    assert workload.arrival_s.tolist() == [0.0, 0.5]
    assert workload.prompt_tokens.tolist() == [99, 88]
    days = column("date", 45000.5, 45000.75)
    assert read(tmp_path, days, columns={"arrival_s": "date"}).arrival_s.tolist() == [0.0, 0.25]
    assert read(tmp_path, days, columns={"arrival_d": "date"}).arrival_s.tolist() == [0.0, 21600.0]
    for columns in ({"arrival_s": "ts", "arrival_ms": "time"}, {"prompt_tokens": "ts", "output_tokens": "ts"}):
        with pytest.raises(UsageError, match="is named twice; give each a column of its own"):
            read(tmp_path, two, columns=columns)


def test_a_line_end_inside_of_an_id_stays(tmp_path: Path) -> None:
    rows = 'id,arrival_s,prompt_tokens,output_tokens\n"a\nb",0,10,5\n"ab",1,20,5\n"a\r\nb",2,20,5\n'
    assert list(read(tmp_path, rows).ids) == ["a\nb", "ab", "a\r\nb"]


MOONCAKE = {"timestamp": 0, "input_length": 10, "output_length": 5}
JSON_REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "an epoch in seconds": ([{**MOONCAKE, "timestamp": 1700000000}], "column timestamp is in milliseconds"),
    "two lengths": ([{**MOONCAKE, "prompt_tokens": 9}], "'input_length' and 'prompt_tokens' both say prompt_tokens"),
    "two spellings": ([{**MOONCAKE, "Input Length": 9}], "'input_length' and 'Input Length' both say prompt_tokens"),
    "two times": ([{**MOONCAKE, "arrival_s": 9}], "'timestamp' and 'arrival_s' both say arrival_s"),
    "a true time": ([{**MOONCAKE, "timestamp": True}], "line 1: timestamp should be a finite number"),
    "no time": ([{**MOONCAKE, "timestamp": None}], "line 1: timestamp should be a finite number"),
    "a list of times": ([{**MOONCAKE, "timestamp": [0]}], "line 1: timestamp should be a finite number"),
    "an underscore": ([{**MOONCAKE, "timestamp": "1_000"}], "line 1: timestamp should be a finite number"),
    "thousands": ([{**MOONCAKE, "timestamp": "1,000"}], "line 1: timestamp is '1,000', which may be"),
    "a date and a number": ([MOONCAKE, {**MOONCAKE, "timestamp": "2026-11-16T18:15:46"}], "line 2: timestamp is"),
    "tokens with a point": ([{**MOONCAKE, "input_length": 10.0}], "line 1: input_length should be a whole number"),
    "true tokens": ([{**MOONCAKE, "output_length": True}], "line 1: output_length should be a whole number"),
    "three years": ([MOONCAKE, {**MOONCAKE, "timestamp": 10**12}], "column timestamp goes from 0 to"),
    "not a number": ([{**MOONCAKE, "timestamp": float("nan")}], "line 1: timestamp should be a finite number"),
}


@pytest.mark.parametrize("case", JSON_REFUSED)
def test_lines_of_json_that_could_mean_several_things_are_refused(tmp_path: Path, case: str) -> None:
    lines, sentence = JSON_REFUSED[case]
    with pytest.raises(WorkloadError) as caught:
        read(tmp_path, "\n".join(map(json.dumps, lines)), "w.jsonl")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mooncake", '{"timestamp": 0, "input_length": 10, "input_length": 99, "output_length": 5}'),
        ("sharegpt", '[{"conversations": [{"from": "human", "value": "a", "value": "abcdefghi"}]}]'),
        ("lines", '{"conversations": [], "conversations": []}'),
        ("vllm", '{"total_input_tokens": 1, "input_lens": [1], "input_lens": [9], "output_lens": [1]}'),
    ],
)
def test_a_key_that_is_there_twice_is_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(WorkloadError, match=r"an object has the key '.*' more than once"):
        read(tmp_path, text, f"{name}.json")


def test_mooncake_since_1970_begins_at_its_first_request(tmp_path: Path) -> None:
    lines = [{**MOONCAKE, "timestamp": 1700000000000 + late} for late in (500, 0)]
    workload = read(tmp_path, "\n".join(map(json.dumps, lines)), "w.jsonl")
    assert workload.arrival_s.tolist() == [0.0, 0.5]
    assert workload.description.endswith("(Mooncake trace); arrival times read as milliseconds since 1970")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"request_rate": True}, "request_rate should be a number above 0 or inf, not True"),
        ({"request_rate": "1_0"}, "request_rate should be a number above 0 or inf, not '1_0'"),
        ({"request_rate": "4"}, "request_rate should be a number above 0 or inf, not '4'"),
        ({"start_times": [1700000000000, 1700000000500]}, "column start_times is in seconds"),
        ({"start_times": [0, 1700000000]}, "column start_times goes from 0 to 1700000000"),
        ({"start_times": [True, 1]}, "start_times should be a finite number"),
        ({"start_times": [0, float("inf")]}, "start_times should be a finite number"),
    ],
)
def test_a_benchmark_that_cannot_be_right_is_refused(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    document = {"total_input_tokens": 3, "input_lens": [1, 2], "output_lens": [1, 1], **change}
    with pytest.raises(WorkloadError) as caught:
        read(tmp_path, json.dumps(document), "w.json")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x28\xb5\x2f\xfd\0\0", "packed with zstd"),
        (b"BZh91AY", "packed with bzip2"),
        (b"\xfd7zXZ\0\0", "packed with xz"),
        (b"PK\x03\x04\0", "a zip archive or a spreadsheet"),
        ("arrival_s,prompt_tokens,output_tokens\n0,9,5\n".encode("utf-16"), "text in UTF-16"),
        (gzip.compress(b"PK\x03\x04\0", mtime=0), "a zip archive or a spreadsheet"),
    ],
    ids=("zstd", "bzip2", "xz", "zip", "utf-16", "packed zip"),
)
def test_a_file_of_another_kind_is_told_by_what_it_is(tmp_path: Path, content: bytes, what: str) -> None:
    with pytest.raises(WorkloadError, match=f"is {what}; give it as text in UTF-8, plain or packed with gzip"):
        read(tmp_path, content)


MOMENT = st.datetimes(datetime(2001, 9, 10), datetime(2098, 1, 1))
QUIET = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(moment: datetime, way: str, offset_h: int) -> str:
    """A moment of UTC in one of the ways in which files have it."""
    since = moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    micros = since // timedelta(microseconds=1)
    here = moment.replace(tzinfo=UTC).astimezone(timezone(timedelta(hours=offset_h)))
    return {
        "s": f"{micros // 10**6}.{micros % 10**6:06}",
        "ms": f"{micros // 1000}",
        "us": f"{micros}",
        "ns": f"{micros}000",
        "local": f"{moment:%Y-%m-%d %H:%M:%S.%f}",
        "zoned": here.isoformat(),
        "day": f"{since / timedelta(days=1) + 25569:.10f}",
    }[way]


@QUIET
@given(
    start=MOMENT,
    gaps_ms=st.lists(st.integers(0, 10**9), min_size=1, max_size=5),
    ways=st.sampled_from(["s", "ms", "us", "ns", "local", "zoned", "day"]),
    name=st.sampled_from(["timestamp", "time", "date", "arrival_s", "arrival_ms", "created_at", "start_us", "time_ns"]),
    other=st.sampled_from(["s", "ms", "us", "ns", "local", "zoned", "day", None]),
    odd=st.integers(0, 5),
    offset_h=st.integers(-12, 14),
)
def test_moments_written_in_any_way_are_read_right_or_refused(
    tmp_path: Path,
    start: datetime,
    gaps_ms: list[int],
    ways: str,
    name: str,
    other: str | None,
    odd: int,
    offset_h: int,
) -> None:
    start = start.replace(microsecond=start.microsecond // 1000 * 1000)
    moments = [start + timedelta(milliseconds=gap) for gap in (0, *gaps_ms)]
    texts = [written(moment, ways, offset_h) for moment in moments]
    row = odd % len(texts)
    texts[row] = texts[row] if other is None else written(moments[row], other, offset_h)
    if ways == "day" and name == "arrival_s" and other in (None, "day"):
        return  # they are called seconds, and might be
    try:
        workload = read(tmp_path, column(name, *texts))
    except KvsimError as error:
        assert name in str(error)  # noqa: PT017  either is right
        return
    expected = sorted((moment - min(moments)) / timedelta(seconds=1) for moment in moments)
    assert workload.arrival_s.tolist() == pytest.approx(expected, abs=1e-6)
    zoned = ways == "zoned" and (other in (None, "zoned"))
    assert zoned or "read as" in workload.description


@QUIET
@given(
    thousands=st.lists(st.integers(1, 10**7), min_size=2, max_size=6),
    mark=st.sampled_from([",", ".", " ", "'", "_", "\u00a0"]),
    delimiter=st.sampled_from([",", ";", "\t"]),
)
def test_marks_of_thousands_never_make_a_number_smaller(
    tmp_path: Path, thousands: list[int], mark: str, delimiter: str
) -> None:
    texts = [f"{number:,}".replace(",", mark) for number in sorted(thousands)]
    marked = [mark in text for text in texts]
    try:
        workload = read(tmp_path, column("arrival_s", *texts, mark=delimiter))
    except WorkloadError as error:
        assert "arrival_s" in str(error)  # noqa: PT017  either is right
        return
    # Points in all rows are decimal ones, in which nothing contradicts them.
    assert not any(marked) or (mark == "." and workload.arrival_s.tolist() == [float(text) for text in texts])
