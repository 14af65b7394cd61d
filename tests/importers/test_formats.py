"""Published formats, in small files of their own: what comes out, and the sentence where something cannot be right."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kvsim.errors import UnknownNameError, UsageError, WorkloadError
from kvsim.importers import FORMATS, TextSource, detect, read_workload, source
from kvsim.importers.json_list import entries
from kvsim.importers.sharegpt import read as read_sharegpt

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.workload import Workload

    Put = Callable[..., Path]

AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:46.6805901,10,1
"""
MOONCAKE = """\
{"timestamp": 0, "input_length": 1030, "output_length": 5, "hash_ids": [7, 8, 9]}
{"timestamp": 27482, "input_length": 1024, "output_length": 6, "hash_ids": [7, 10]}

"""
BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,GPT-4,0,0,0,Conversation log
118.5,GPT-4,417,276,693,API log
"""
PLAIN = """\
output_tokens,arrival_s,prompt_tokens,max_tokens,priority,prefix_group,prefix_tokens,mood
5,1.5,100,8,-1,chat,64,good
6,0.5,100,,,,,
"""
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.158148882,395,112\n0.162075834,1030,403\n"
VLLM = {
    "total_input_tokens": 30,
    "input_lens": [10, 20, 30],
    "output_lens": [3, 0, 5],
    "start_times": [100.5, 100.25, 101.0],
    "request_rate": 4.0,
}
SHAREGPT = [
    {
        "id": "a",
        "conversations": [
            {"from": "system", "value": "x"},
            {"from": "human", "value": "12345678"},
            {"from": "gpt", "value": "123"},
        ],
    },
    {
        "id": "b",
        "conversations": [{"from": "human", "value": "?", "tokens": 7}, {"from": "gpt", "value": "!", "tokens": 9}],
    },
    {"id": "c", "conversations": [{"from": "gpt", "value": "only an answer"}]},
]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write a file of text, or of a JSON document."""

    def write(content: Any, name: str = "trace.txt") -> Path:
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return write


def lengths(workload: Workload) -> list[tuple[float, int, int]]:
    return [(request.arrival_s, request.prompt_tokens, request.output_tokens) for request in workload]


def test_azure_times_have_seven_digits_and_need_not_be_in_order(put: Put) -> None:
    workload = read_workload(put(AZURE))
    assert [row[1:] for row in lengths(workload)] == [(374, 44), (10, 1), (396, 109)]
    assert workload.arrival_s.tolist() == pytest.approx([0.0, 1e-7, 4.314579], abs=1e-12)
    assert workload.name == "trace"
    assert workload.description == "the 3 requests of trace.txt (Azure LLM inference trace)"


def test_azure_lengths_without_times_arrive_at_once(put: Put) -> None:
    workload = read_workload(put("TIMESTAMP,ContextTokens,GeneratedTokens\nXXX,42,285\nXXX,241402,19\n"))
    assert lengths(workload) == [(0.0, 42, 285), (0.0, 241402, 19)]
    assert workload.description.endswith("; it has no arrival times")


def test_later_azure_traces_name_their_zone(put: Put) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.5+00:00,1,2\n2024-05-10 00:00:02+00:00,3,4\n"
    assert read_workload(put(text)).arrival_s.tolist() == [0.0, 1.5]


def test_mooncake_hashes_stand_for_full_units_of_512(put: Put) -> None:
    workload = read_workload(put(MOONCAKE))
    assert lengths(workload) == [(0.0, 1030, 5), (27.482, 1024, 6)]
    assert workload.hash_unit_tokens == 512
    assert [workload.prompt_hashes[row].tolist() for row in range(2)] == [[7, 8], [7, 10]]


def test_burstgpt_leaves_out_failed_requests_and_counts_them(put: Put) -> None:
    workload = read_workload(put(BURSTGPT))
    assert lengths(workload) == [(0.0, 472, 18), (113.5, 417, 276)]
    assert workload.description.endswith("(BurstGPT), without 1 that have no prompt or no answer")


def test_later_burstgpt_files_have_more_columns_and_begin_later(put: Put) -> None:
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5270401,,0.7,ChatGPT,472.0,18,490,API log\n5270403.5,3f,9.1,GPT-4,417,276.0,693,Conversation log\n"
    )
    assert lengths(read_workload(put(text))) == [(0.0, 472, 18), (2.5, 417, 276)]


def test_plain_columns_in_any_order_with_gaps(put: Put) -> None:
    first, second = read_workload(put(PLAIN))
    assert (first.arrival_s, first.max_tokens, first.priority, first.prefix) == (0.5, 6, 0, None)
    assert (second.arrival_s, second.max_tokens, second.priority) == (1.5, 8, -1)
    assert second.prefix is not None
    assert (second.prefix.group, second.prefix.tokens) == ("chat", 64)


@pytest.mark.skipif(not Path("/proc/self/mem").is_file(), reason="a file of Linux that opens and cannot be read")
def test_a_file_that_cannot_be_read_is_named_in_a_sentence() -> None:
    with pytest.raises(WorkloadError, match=r"^/proc/self/mem cannot be read: .*\w\.$"):
        read_workload("/proc/self/mem")


@pytest.mark.parametrize("answer", ["output_tokens", "answer_tokens"])
def test_plain_lengths_arrive_at_once(put: Put, answer: str) -> None:
    workload = read_workload(put(f"prompt_tokens,{answer}\n43,158\n80,7\n"))
    assert lengths(workload) == [(0.0, 43, 158), (0.0, 80, 7)]
    assert workload.description == "the 2 requests of trace.txt (lengths); it has no arrival times"


ODD = {
    "a number as pandas writes it": ("5,472.0,1", (5.0, 472, 1)),
    "a comma in a time": ('"5,5",4,1', (5.5, 4, 1)),
    "no answer": ("5,4,0", None),
    "spaces": (" 5 , 4 ,1", (5.0, 4, 1)),
    "leading zeros and many digits": ("5.0e0,00000000000000000004,1", (5.0, 4, 1)),
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", range(5))
def test_rows_that_are_read_together_are_those_that_are_read_one_by_one(
    put: Put, monkeypatch: pytest.MonkeyPatch, odd: str, place: int
) -> None:
    monkeypatch.setattr(source, "_ROWS_AT_ONCE", 2)
    text, request = ODD[odd]
    rows = ["0,1,2", "1,3,4", "2,5,6", "3,7,8"]
    rows.insert(place, text)
    expected = [(float(n), 2 * n + 1, 2 * n + 2) for n in range(4)]
    expected[place:place] = [] if request is None else [request]
    workload = read_workload(put("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n"))
    assert lengths(workload) == sorted(expected)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ("4,-1,2", "prompt_tokens should be a whole number"),
        ("4,2147483648,2", "prompt_tokens should be a whole number from 0 to 2147483647, not '2147483648'"),
        ("4,\u0662,2", "prompt_tokens should be a whole number"),
        ("4,,2", "prompt_tokens should be a whole number"),
        ("nan,1,2", "arrival_s should be a finite number of at least 0, not 'nan'"),
        ("inf,1,2", "arrival_s should be a finite number"),
        ("-1,1,2", "arrival_s should be a finite number"),
        ("4,1", "there are 2 fields, not 3"),
        ('4,"1,2', "this is no CSV"),
    ],
)
@pytest.mark.parametrize("place", range(5))
def test_what_is_wrong_among_rows_that_are_read_together_is_named_with_its_line(
    put: Put, monkeypatch: pytest.MonkeyPatch, wrong: str, sentence: str, place: int
) -> None:
    monkeypatch.setattr(source, "_ROWS_AT_ONCE", 2)
    rows = ["0,1,2", "1,3,4", "2,5,6", "3,7,8"]
    rows.insert(place, wrong)
    line = 6 if "CSV" in sentence else place + 2  # a quotation mark that is not closed is noticed at the end
    with pytest.raises(WorkloadError, match=f"line {line}: {re.escape(sentence)}"):
        read_workload(put("\n".join(["arrival_s,prompt_tokens,output_tokens", *rows]) + "\n"))


def test_vidur_columns_with_and_without_arrivals(put: Put) -> None:
    assert lengths(read_workload(put(VIDUR))) == [(0.158148882, 395, 112), (0.162075834, 1030, 403)]
    only = read_workload(put("num_prefill_tokens,num_decode_tokens,num_total_tokens\n3772,54,3826\n"))
    assert lengths(only) == [(0.0, 3772, 54)]
    assert only.description == "the 1 requests of trace.txt (Vidur's columns); it has no arrival times"
    shares = read_workload(put("num_prefill_tokens,num_decode_tokens,pd_ratio\n3772,54,69.8\n"))
    assert lengths(shares) == [(0.0, 3772, 54)]
    assert shares.description.endswith("; it has no arrival times; not read: pd_ratio")
    minutes = read_workload(put("time_min,num_prefill_tokens,num_decode_tokens\n1,10,5\n2,20,5\n"))
    assert minutes.arrival_s.tolist() == [0.0, 60.0]
    assert minutes.description.endswith("(Vidur's columns); arrival times read as minutes")


def test_a_vllm_benchmark_is_served_again_as_it_was_sent(put: Put) -> None:
    workload = read_workload(put(VLLM))
    assert lengths(workload) == [(0.0, 10, 3), (0.5, 30, 5)]
    assert "without 1 that have no prompt or no answer" in workload.description


@pytest.mark.parametrize(("rate", "arrivals"), [(4.0, [0.0, 0.5]), ("inf", [0.0, 0.0])])
def test_an_old_vllm_benchmark_is_spaced_at_its_rate(put: Put, rate: object, arrivals: list[float]) -> None:
    document = {key: value for key, value in VLLM.items() if key != "start_times"} | {"request_rate": rate}
    workload = read_workload(put(document))
    assert workload.arrival_s.tolist() == arrivals
    assert "no start_times" in workload.description


def test_sharegpt_counts_tokens_where_it_can_and_says_where_it_guesses(put: Put) -> None:
    workload = read_workload(put(SHAREGPT))
    assert lengths(workload) == [(0.0, 2, 1), (0.0, 7, 9)]
    assert (
        "without 1 that have no prompt or no answer; lengths of 1 guessed at 4 characters per token"
        in workload.description
    )
    half = read_sharegpt(TextSource.open(put(SHAREGPT)), chars_per_token=2.0)
    assert lengths(half)[0] == (0.0, 4, 2)
    with pytest.raises(UsageError, match=r"0\.0 characters to a token"):
        read_sharegpt(TextSource.open(put(SHAREGPT)), chars_per_token=0.0)


@pytest.mark.parametrize("indent", [None, 2])
def test_conversations_come_one_at_a_time_from_a_file_of_any_length(
    put: Put, indent: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvsim.importers.json_list._AT_ONCE", 40)  # entries go on beyond the lines at hand
    path = put(json.dumps(SHAREGPT, indent=indent))
    lines = [row.line for row in entries(TextSource.open(path))]
    assert lines == ([1, 1, 1] if indent is None else [2, 19, 34])
    assert lengths(read_workload(path)) == [(0.0, 2, 1), (0.0, 7, 9)]
    assert lengths(read_workload(put("\n".join(map(json.dumps, SHAREGPT))))) == [(0.0, 2, 1), (0.0, 7, 9)]


def test_a_broken_entry_is_named_with_its_line(put: Put) -> None:
    broken = json.dumps(SHAREGPT, indent=2).replace('"tokens": 9', '"tokens":')
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads(broken)
    with pytest.raises(WorkloadError, match=f"line {caught.value.lineno}: this is no JSON: Expecting value"):
        read_workload(put(broken))


@pytest.mark.parametrize("whole", [True, False])
def test_the_limit_for_an_object_is_exact(put: Put, monkeypatch: pytest.MonkeyPatch, *, whole: bool) -> None:
    monkeypatch.setattr("kvsim.importers.json_list._AT_ONCE", 40)
    longest, longer = ('{"a": "%s"}' % ("x" * (length - 9)) for length in (200, 201))
    monkeypatch.setattr("kvsim.importers.json_list._MOST", 200)
    assert len(list(entries(TextSource.open(put(f"[{longest}, {longest}]"))))) == 2
    cut = longer if whole else longer[:-1] + "x" * 400
    with pytest.raises(WorkloadError, match="line 1: an object is longer than 200 letters"):
        list(entries(TextSource.open(put(f"[{longest}, {cut}]"))))


@pytest.mark.parametrize("text", ["[]", " [\n ] \n"])
def test_an_empty_list_has_no_entries(put: Put, text: str) -> None:
    assert not list(entries(TextSource.open(put(text))))


@pytest.fixture
def ragpulse(put: Put) -> Path:
    """Three prompts: the first two share two chunks of 24 and 20 tokens, and part in the third."""
    for stem in ("1_sys_prompt", "3_history", "5_web_search"):
        put('{"sys_prompt_id": 1, "token_length": 24}\n' if stem == "1_sys_prompt" else "", f"{stem}.jsonl")
    put('{"passage_id": 2, "token_length": 20}\n{"passage_id": 3, "token_length": 40}\n', "2_passages.jsonl")
    put('{"user_input_id": 4, "token_length": 9}\n', "4_user_input.jsonl")
    for stem in ("3_history", "5_web_search"):
        put(f'{{"{stem[2:]}_id": 9{stem[0]}, "token_length": 1}}\n', f"{stem}.jsonl")
    rows = [("93", [2], 60), ("82", [2, 3], 100), ("95", [3], 70)]
    lines = [
        json.dumps({
            "timestamp": time, "input_length": tokens, "output_length": 5,
            "hash_ids": {
                "sys_prompt": [1], "passages_ids": passages, "history": [], "web_search": [], "user_input": [4],
            },
        })
        for time, passages, tokens in rows
    ]  # fmt: skip
    return put("\n".join([*lines, "", ""]), "0_trace.jsonl")


def test_ragpulse_prompts_share_the_chunks_they_begin_with(ragpulse: Path) -> None:
    workload = read_workload(ragpulse)
    assert workload.arrival_s.tolist() == [82.0, 93.0, 95.0]
    both, short, other = (workload.prompt_hashes[row].tolist() for row in range(3))
    # 44 shared tokens are 2 units of 16 and a part of a third, in which another chunk begins.
    assert both[:2] == short[:2]
    assert not set(both[2:]) & set(short[2:])
    assert other[0] == both[0], "the first unit lies in the system prompt"
    assert other[1] != both[1], "the second unit ends in different passages"
    assert [len(both), len(short), len(other)] == [5, 3, 4]


def test_ragpulse_needs_the_lengths_beside_it(ragpulse: Path) -> None:
    (ragpulse.parent / "2_passages.jsonl").unlink()
    with pytest.raises(WorkloadError, match=r"2_passages\.jsonl is missing; a RAGPulse trace is read with"):
        read_workload(ragpulse)


@pytest.mark.parametrize(
    ("form", "content"),
    [("azure", AZURE), ("mooncake", MOONCAKE), ("burstgpt", BURSTGPT), ("csv", PLAIN), ("vidur", VIDUR),
     ("vllm-bench", VLLM), ("sharegpt", SHAREGPT)],
)  # fmt: skip
def test_a_format_is_found_from_the_content_compressed_or_not(put: Put, form: str, content: Any) -> None:
    path = put(content)
    assert detect(TextSource.open(path)) == form
    squeezed = path.with_suffix(".gz")
    squeezed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")))
    assert lengths(read_workload(squeezed)) == lengths(read_workload(path, form=form))


def test_ragpulse_is_found_too(ragpulse: Path) -> None:
    assert detect(TextSource.open(ragpulse)) == "ragpulse"
    assert set(FORMATS) == {
        "azure", "burstgpt", "conversations", "csv", "mooncake", "ragpulse", "sharegpt", "sharegpt-turns", "vidur",
        "vllm-bench",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "trace.txt is empty"),
        ("\n\n", "trace.txt is empty"),
        ("a,b\n1,2\n", "line 1: 'a,b' begins no known format; a CSV file has the columns arrival_s"),
        (AZURE.replace("374", "3.5"), "line 2: ContextTokens should be a whole number from 0 to 2147483647, not"),
        (AZURE.replace("374", "1_0"), "line 2: ContextTokens should be a whole number"),
        (AZURE.replace("374", "-1"), "line 2: ContextTokens should be a whole number"),
        (AZURE.replace("374", "99999999999"), "line 2: ContextTokens should be a whole number"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "noon"), "not 'noon', or a time such as"),
        (AZURE.replace("2023-11-16 18:15:50", "2023-13-16 18:15:50"), "line 3: TIMESTAMP should be a finite number"),
        (AZURE.replace("2023-11-16 18:15:50.9951690", "XXX"), "line 3: TIMESTAMP is 'XXX', one of XXX, no times"),
        (AZURE.replace(",109", ""), "line 3: there are 2 fields, not 3, one per column"),
        (AZURE.replace("\n2023-11-16 18:15:50", "\n\n2023-11-16 18:15:50"), "line 3: there are 0 fields"),
        (AZURE.replace('50.9951690,396', '50.9951690,"396'), "line 4: this is no CSV"),
        (MOONCAKE.replace("[7, 10]", "[7]"), "line 2: there are 1 hash_ids for an input_length of 1024"),
        (MOONCAKE.replace("[7, 10]", '[7, "x"]'), "line 2: hash_ids should be a list of whole numbers"),
        (MOONCAKE.replace("1024,", "true,"), "line 2: input_length should be a whole number"),
        (MOONCAKE.replace('"output_length": 6, ', ""), "line 2: output_length is missing"),
        (MOONCAKE.replace("27482", "-1"), "line 2: timestamp should be a finite number of at least 0, not -1"),
        (MOONCAKE.replace("27482", "NaN"), "line 2: timestamp should be a finite number"),
        (MOONCAKE + "{", "line 3: this is no JSON object"),
        (MOONCAKE.rstrip() + "\n[1]", "line 3: there should be a JSON object, not '[1]'"),
        (BURSTGPT.replace("118.5", "soon"), "line 4: Timestamp should be a finite number of at least 0, not 'soon'"),
        ("arrival_s,prompt_tokens,output_tokens,prompt_tokens\n", "line 1: the column prompt_tokens is there more"),
        ("arrival_s,prompt_tokens,output_tokens\n0,0,5\n", "has 1 requests, none with both a prompt and an answer"),
        ("sent,prompt_tokens,output_tokens\n0,5,5\n", "--columns arrival_s=...."),
        ("time_of_arrival,prompt_tokens,output_tokens\n0,5,5\n", "--columns arrival_s=...."),
        (PLAIN.replace("100,8", "100,4"), "line 2: max_tokens should be a whole number from 5 to"),
        (PLAIN.replace("chat,64", "chat,101"), "line 2: prefix_tokens should be a whole number from 1 to 100"),
        (PLAIN.replace("chat,64", "chat,"), "line 2: prefix_group and prefix_tokens go together"),
        ("id,arrival_s,prompt_tokens,output_tokens\na,0,1,1\na,0,1,1\n", "line 3: line 2 has the id 'a' already"),
        ({**VLLM, "input_lens": [1]}, "has 1 input_lens and 3 output_lens"),
        ({**VLLM, "output_lens": None}, "has no list of output_lens; write it with --save-detailed"),
        ({**VLLM, "output_lens": [1, 2, -3]}, "output_lens should be whole numbers of tokens, not -3"),
        ({**VLLM, "start_times": [1.0]}, "start_times should be a number for each of the 3 requests"),
        ({**VLLM, "start_times": None, "request_rate": 0}, "request_rate should be a number above 0 or inf, not 0"),
        ([{"conversations": "hello"}], "line 1: there should be an object with a list of conversations"),
        ([{"conversations": [{"from": "human", "value": 1}, {"from": "gpt"}]}], "line 1: a turn should have a text"),
        ('[{"conversations": [}]', "line 1: this is no JSON: Expecting value"),
        ('[{"conversations": []},\n\n7]', "line 3: there should be a JSON object, not 7"),
        ('[{"conversations": []}\n{}]', "line 2: this is no JSON list of objects: there should be ']', not '{'"),
        ('[{"conversations": []},\n', "line 1: the file ends in the middle of a list"),
        ('[{"conversations": []}\n]\n[]', "line 3: the list has ended, and something follows"),
        ('{"conversations": []}\n{"id": 1}', "line 2: there should be an object with a list of conversations"),
        (f"{json.dumps(VLLM)}\n{json.dumps(VLLM)}", "has several results, as --append-result writes them"),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_named_with_its_line(put: Put, content: Any, sentence: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        read_workload(put(content))
    assert sentence in str(caught.value)
    assert "trace.txt" in str(caught.value)
    assert str(caught.value).endswith(".")


def test_a_format_that_is_named_is_not_guessed(put: Put) -> None:
    with pytest.raises(WorkloadError, match="line 1: there is no column 'Timestamp'; there are TIMESTAMP"):
        read_workload(put(AZURE), form="burstgpt")
    with pytest.raises(UnknownNameError, match="there is no format 'azur'; did you mean azure"):
        read_workload(put(AZURE), form="azur")


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"a\xff\x00")
    with pytest.raises(WorkloadError, match="is no text: line 1 is not UTF-8"):
        read_workload(file)
    file.write_bytes(gzip.compress(AZURE.encode())[:-9])
    with pytest.raises(WorkloadError, match="damaged or truncated gzip file"):
        read_workload(file)
    with pytest.raises(WorkloadError, match="cannot be read: No such file"):
        read_workload(tmp_path / "nowhere")


def test_lines_without_end_are_not_unpacked(tmp_path: Path) -> None:
    """A file of some kilobytes that would take gigabytes."""
    file = tmp_path / "bomb.csv.gz"
    file.write_bytes(gzip.compress(b"arrival_s,prompt_tokens,output_tokens\n" + b"\n" * (1 << 23), 1))
    with pytest.raises(WorkloadError, match="unpacks to more than 8,388,608 lines; unpack it first"):
        read_workload(file)


def test_a_file_of_the_system_that_has_nothing_to_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "w.csv"
    file.write_text("")
    monkeypatch.setattr("kvsim.files.contents.open_file", lambda _: Silent(file.open("rb")))
    with pytest.raises(WorkloadError, match="has nothing to say now"):
        read_workload(file)


class Silent:
    """A file that answers a read, which may not wait, with nothing at all."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def fileno(self) -> int:
        return int(self.file.fileno())

    def read(self, size: int) -> None:  # noqa: ARG002
        return None
