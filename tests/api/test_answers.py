"""Does a load fit, and what happened: the questions of the commands `fit` and `diagnose`, from Python."""

from __future__ import annotations

import pytest

import kvsim
from kvsim.errors import UsageError


@pytest.fixture(scope="module")
def requests() -> kvsim.Workload:
    return kvsim.workload_of(kvsim.read("vllm-h200-llama-3-8b-sharegpt-5")).head(30)


def test_a_load_fits_a_server_or_not(requests: kvsim.Workload) -> None:
    easy = kvsim.fit(requests, "H200/Llama-3-8B", most=0, num_jobs=1)
    assert easy.fits
    assert "vllm serve" in easy.server.command()
    hard = kvsim.fit(requests, "H200/Llama-3-8B", tpot_p99_s=1e-4, most=1, num_jobs=1)
    assert not hard.fits
    assert len(hard.tried) == 1
    assert kvsim.fit is kvsim.api.questions.fit, "using it does not put a module in its place"
    with pytest.raises(UsageError, match="give users as well"):
        kvsim.fit(requests, "H200/Llama-3-8B", think_s=1.0)


def test_a_server_by_name() -> None:
    server = kvsim.server("4xH100/Llama-3.1-70B-Instruct", kv_cache_dtype="fp8", max_num_seqs=64)
    assert (server.model.tensor_parallel_size, server.max_num_seqs) == (4, 64)
    assert "--kv-cache-dtype fp8" in server.command()
    with pytest.raises(UsageError, match="max_seqs is no setting"):
        kvsim.server("H200/Llama-3-8B", max_seqs=1)
    with pytest.raises(UsageError, match="a GPU and a model"):
        kvsim.server("H200")


def test_a_recording_is_diagnosed() -> None:
    found = kvsim.diagnose("vllm-h100-llama-3-8b-pressure", most=0, num_jobs=1, engine="interpreted")
    assert "preempt" in found.verdict
    assert found.spells
