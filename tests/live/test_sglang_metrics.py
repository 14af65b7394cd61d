"""SGLang's metrics, read as vLLM's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.diagnosis import diagnose_metrics
from kvsim.errors import RecordingError
from kvsim.live.metrics import parse_metrics

PAGE = """\
# HELP sglang:token_usage The token usage
# TYPE sglang:token_usage gauge
sglang:token_usage{{model_name="m",tp_rank="0"}} {usage}
sglang:token_usage{{model_name="m",tp_rank="1"}} 0.99
sglang:num_running_reqs{{model_name="m",tp_rank="0"}} 8.0
sglang:num_queue_reqs{{model_name="m",tp_rank="0"}} {waiting}
sglang:num_retracted_requests_total{{model_name="m",tp_rank="0"}} {retracted}
sglang:max_total_num_tokens{{model_name="m",tp_rank="0"}} 64000.0
sglang:page_size{{model_name="m",tp_rank="0"}} 16.0
sglang:prompt_tokens_total{{model_name="m"}} 8.128902e+06
sglang:generation_tokens_total{{model_name="m"}} 7.557572e+06
sglang:cached_tokens_total{{model_name="m",cache_source="device"}} 100000.0
sglang:cached_tokens_total{{model_name="m",cache_source="host"}} 20000.0
sglang:num_requests_total{{model_name="m"}} 9000.0
# TYPE sglang:time_to_first_token_seconds histogram
sglang:time_to_first_token_seconds_bucket{{le="0.1",model_name="m"}} 1.0
sglang:time_to_first_token_seconds_bucket{{le="+Inf",model_name="m"}} 2.0
sglang:time_to_first_token_seconds_sum{{model_name="m"}} 0.5
sglang:time_to_first_token_seconds_count{{model_name="m"}} 2.0
"""


def test_every_figure_by_hand() -> None:
    seen = parse_metrics(PAGE.format(usage=0.28, waiting=3, retracted=7))
    assert (seen.server, seen.model, seen.usage) == ("SGLang", "m", 0.28)
    assert (seen.num_blocks, seen.block_size) == (4000, 16)
    assert (seen.running, seen.waiting, seen.preemptions, seen.finished) == (8, 3, 7, 9000)
    assert (seen.prompt_tokens, seen.generation_tokens) == (8_128_902, 7_557_572)
    assert (seen.queried_tokens, seen.hit_tokens) == (8_128_902, 120_000)
    assert seen.histograms["ttft"].counts == (1.0, 2.0)


def test_who_waits_beside_free_memory_is_told_of_sglangs_limits() -> None:
    looks = [replace(parse_metrics(PAGE.format(usage=0.3, waiting=5, retracted=0)), time_s=at) for at in (0.0, 1.0)]
    seen = diagnose_metrics(looks)
    assert seen.verdict.startswith("5 requests wait although 70 % of the pool is free: a limit of the scheduler")
    assert "max_running_requests or schedule_conservativeness" in seen.verdict
    assert "vllm" not in seen.to_record


def test_ranks_of_data_parallelism_are_engines() -> None:
    page = "".join(
        f'sglang:{name}{{dp_rank="{rank}",model_name="m"}} {value}\n'
        for rank in (0, 1)
        for name, value in (("token_usage", 0.2 + 0.4 * rank), ("num_running_reqs", 4), ("num_queue_reqs", 0))
    )
    seen = parse_metrics(f'{page}sglang:prompt_tokens_total{{model_name="m"}} 50\n')
    assert (seen.num_engines, seen.running, seen.prompt_tokens) == (2, 8, 50)
    assert (seen.usage, seen.fullest_usage) == pytest.approx((0.4, 0.6))


def test_hits_that_exceed_the_prompts_are_left_out() -> None:
    page = PAGE.format(usage=0.3, waiting=0, retracted=0).replace("100000.0", "9e6")
    assert (parse_metrics(page).queried_tokens, parse_metrics(page).hit_tokens) == (0, 0)


@pytest.mark.parametrize("line", ["sglang:token_usage 7", "sglang:token_usage NaN", "sglang:num_running_reqs 1"])
def test_a_page_that_cannot_be_is_refused(line: str) -> None:
    with pytest.raises(RecordingError):
        parse_metrics(f"{line}\n")


def test_a_configuration_of_many_characters_is_passed_over() -> None:
    page = 'vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:vllm_config_info{a="' + "x" * 200_000 + '"} 1.0\n'
    assert parse_metrics(page).usage == 0.5
