"""What a new user may get wrong: a sentence says what, and nothing is taken for something else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kvsim
from kvsim.engine.coefficients import no_times
from kvsim.errors import KvsimError, UnknownNameError, UsageError

public: Any = kvsim


@pytest.fixture(scope="module")
def few() -> kvsim.Workload:
    return kvsim.generate(5, prompt=100, output=10)


def test_lengths_may_be_numbers_and_arrivals_left_out(few: kvsim.Workload) -> None:
    in_full = kvsim.generate(5, arrivals=kvsim.AllAtOnce(), prompt=kvsim.Fixed(100), output=kvsim.Fixed(10), seed=0)
    assert few.description == in_full.description
    assert few.prompt_tokens.tolist() == in_full.prompt_tokens.tolist() == [100] * 5
    assert few.arrival_s.tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        ([[1, 2, 3]], {}, r"requests are a Workload, .* not \[1, 2, 3\], which is of the type list"),
        (["nothere.csv"], {}, "no recording, and no file of requests, 'nothere.csv'"),
        ([None], {}, "requests are a Workload"),
        (["few", kvsim.Paged], {}, "Paged is a class; give one of its objects, such as Paged()"),
        (["few", 3], {}, "a policy is a name or an object such as Paged()"),
        (["few", "page"], {}, "there is no policy 'page'; did you mean paged"),
        (["few", "paged", 3], {}, "a machine is a Machine, a recording of one, or a text"),
        (["few", "paged", "H200"], {}, "name the model as well"),
        (["few"], {"enginee": "compiled"}, "no option of a simulation 'enginee'; did you mean engine"),
    ],
)
def test_what_simulate_cannot_take(
    few: kvsim.Workload, arguments: list[Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError, match=sentence):
        public.simulate(*(few if given == "few" else given for given in arguments), **options)


def test_what_the_others_cannot_take(few: kvsim.Workload) -> None:
    with pytest.raises(UsageError, match="a policy is a name"):
        public.compare(few, {"mine": 3})
    with pytest.raises(UsageError, match="is a class"):
        public.compare(few, [kvsim.Static])
    with pytest.raises(UnknownNameError, match="no policy 'page'"):
        public.sweep(few, vary={"policy": ["page"]})
    for verb in (kvsim.read, kvsim.verify, kvsim.validate, kvsim.diagnose):
        with pytest.raises(UsageError, match="a recording is one that was read, its folder or its name, not 3"):
            public.__getattr__(verb.__name__)(3)


def test_answers_are_shown_in_a_line() -> None:
    recording = kvsim.read("vllm-h200-llama-3-8b-sharegpt-5")
    shown = [
        kvsim.find_gpu("H200"), kvsim.find_model("gpt-oss-20b"), kvsim.server("2xH100/Llama-3-8B"),
        kvsim.plan_budget(kvsim.find_gpu("H200"), kvsim.find_model("Llama-3-8B")), kvsim.verify(recording),
        kvsim.validate(recording), kvsim.fit(recording, "H200/Llama-3-8B", users=4, most=0, num_jobs=1),
    ]  # fmt: skip
    for each in shown:
        assert len(repr(each)) < 250, type(each)
    assert repr(shown[2]) == "<Server: 2xH100 SXM/Llama-3-8B, max_num_seqs 1,024, max_model_len 8,192>"
    assert repr(shown[4]) == "<Verdict: all 3,710 steps equal (2,353 allocations, 0 preemptions)>"
    assert "<td>throughput</td>" in public.validate(recording)._repr_html_()
    assert "weights" in public.plan_budget(kvsim.find_gpu("H200"), kvsim.find_model("Llama-3-8B"))._repr_html_()


WRONG = (
    5,
    -1,
    0,
    None,
    True,
    math.nan,
    -math.inf,
    10**400,
    "",
    "no\0name",
    b"ab",
    [1, "x"],
    {"a": 1},
    (),
    object(),
    int,
)
GPU, MODEL = kvsim.find_gpu("H200"), kvsim.find_model("Meta-Llama-3-8B")
VLLM_SERVER = kvsim.server("H200/Llama-3-8B", max_model_len=512)
SGLANG_SERVER = kvsim.server("H200/Llama-3-8B", policy="radix")
WINDOWED = kvsim.find_model("gpt-oss-20b")
ROWS: dict[str, Any] = {"arrival_s": [0.0, 1.0], "prompt_tokens": [4, 5], "output_tokens": [2, 2]}
LENGTHS: dict[str, Any] = {"prompt": 16, "output": 4, "max_tokens": 8, "prefixes": None, "seed": 0, "arrivals": None}


def fields_of(whole: Any) -> dict[str, Any]:
    return {each.name: getattr(whole, each.name) for each in fields(whole) if each.init}


def used_model(**given: Any) -> None:
    """Make a model and ask it for what sizing needs: a value that it took must not fail there."""
    model = kvsim.Model(**given)
    assert repr(model)
    assert model.kv_bytes_per_token > 0
    assert model.weight_bytes > 0


def used_vllm_server(**given: Any) -> None:
    server = kvsim.Server(**given)
    assert repr(server)
    assert server.budget().num_blocks > 0
    assert server.command()


def used_sglang_server(**given: Any) -> None:
    server = kvsim.SGLangServer(**given)
    assert repr(server)
    assert server.budget().num_slots > 0
    assert server.command()


CALLS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (public.find_model, {"name": "Llama-3-8B", "longest": None}),
    (public.find_gpu, {"name": "H200"}),
    (public.machine, {"gpu": "H200", "model": "Llama-3-8B", "engine": "vllm", "max_num_seqs": 8, "vllm": "0.33.0",
                      "max_num_batched_tokens": 512, "max_model_len": 512, "num_blocks": 100, "times": "none",
                      "tensor_parallel_size": 1, "data_parallel_size": 1, "quantization": "fp8", "oversize": False}),
    (public.machine, {"gpu": "H200/Llama-3-8B", "kv_gib": 1.0, "kv_cache_dtype": "fp8"}),
    (public.machine, {"gpu": "H200/Llama-3-8B", "gpu_memory_utilization": 0.9}),
    (public.server, {"named": "H200/Llama-3-8B", "policy": "paged", "max_model_len": 512, "block_size": 16,
                     "vllm": "0.33.0", "replicas": 1, "num_blocks": 100, "speculative_config": ""}),
    (public.server, {"named": "H200/Llama-3-8B", "policy": "radix", "mem_fraction_static": 0.8, "page_size": 1}),
    (used_vllm_server, fields_of(VLLM_SERVER)),
    (used_sglang_server, fields_of(SGLANG_SERVER)),
    (used_model, fields_of(MODEL)),
    (public.plan_budget, {"gpu": GPU, "model": MODEL, "settings": None}),
    (public.PoolSettings, {"gpu_memory_utilization": 0.9, "max_num_seqs": 4, "max_num_batched_tokens": 64,
                           "block_size": 16, "oversize": False, "enable_prefix_caching": True, "num_drafts": 0,
                           "max_model_len": 64, "kv_memory_bytes": 1 << 30, "max_lora_rank": 16, "drafter": None}),
    (public.PagedSettings, {"block_size": 16, "watermark": 0.0, "kv_offloading_block_size": 16, "swap_gib": 0.0}),
    (public.ContinuousSettings, {"max_num_seqs": 4, "vllm": "0.33.0", "max_loras": 1, "order": "fcfs"}),
    (public.StaticSettings, {"batch_size": 4, "timeout_s": 0.0}),
    (public.generate, {"num_requests": 3, **LENGTHS}),
    (public.converse, {"num_sessions": 2, "turns": 2, "pauses": 0.0, **LENGTHS}),
    (public.Fixed, {"tokens": 5}),
    (public.Uniform, {"low": 1, "high": 5}),
    (public.LogNormal, {"mean_tokens": 10.0, "sigma": 1.0, "minimum": 1, "maximum": 99}),
    (public.Empirical, {"values": [1, 2]}),
    (public.Constant, {"rate_per_s": 1.0}),
    (public.Poisson, {"rate_per_s": 1.0}),
    (public.Gamma, {"rate_per_s": 1.0, "cv": 1.0}),
    (public.Pauses, {"mean_s": 1.0, "sigma": 0.0}),
    (public.SharedPrefixes, {"num_groups": 2, "tokens": 8, "skew": 0.0}),
    (public.Turns, {"after": [-1, 0], "pause_s": None, "history_tokens": None, "also_after": None}),
    (public.Workload, {**ROWS, "max_tokens": None, "priority": None, "prefix_group": None, "prefix_names": (),
                       "prompt_hashes": None, "hash_unit_tokens": 16, "hash_ahead_tokens": 0, "ids": ["a", "b"],
                       "prompt_token_ids": None, "images": None, "turns": None}),
    (public.Gpu, fields_of(GPU)),
    (public.Paged, {"scheduler": kvsim.ContinuousSettings(), "cache": kvsim.PagedSettings()}),
    (public.Contiguous, {"scheduler": kvsim.ContinuousSettings(), "cache": kvsim.ContiguousSettings()}),
    (public.Static, {"scheduler": kvsim.StaticSettings()}),
    (public.Workload.from_requests, {"requests": list(kvsim.generate(2, prompt=9, output=5)), "hash_unit_tokens": 16}),
    (public.Rows, {"rows": [{"a": 1}], "first": ()}),
    (public.Comparison, {"runs": {}}),
    (public.read_workload, {"path": "few.csv", "form": None, "columns": None}),
]  # fmt: skip


def refuses_or_takes(call: Callable[..., Any], right: dict[str, Any]) -> None:
    """Each argument in turn has each wrong value: the call takes it, or refuses it in one typed sentence."""
    call(**right)
    for name in right:
        for wrong in WRONG:
            if isinstance(wrong, type) and name in ("progress", "route"):
                continue  # a class is a function
            try:
                call(**right | {name: wrong})
            except KvsimError as error:
                said = str(error)
                assert said.endswith((".", "?")), (name, wrong, said)
                assert "\n" not in said, (name, wrong, said)
                assert "Error" not in said, (name, wrong, said)


@pytest.mark.parametrize(("call", "right"), CALLS, ids=[call.__name__ for call, _ in CALLS])
def test_no_argument_of_a_wrong_type_is_a_bare_error(
    call: Callable[..., Any], right: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,9,5\n", encoding="utf-8")
    refuses_or_takes(call, right)


def test_no_argument_of_a_wrong_type_fails_a_run(
    few: kvsim.Workload, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    machine = kvsim.machine("H200/Llama-3-8B", num_blocks=100, max_model_len=512)
    simulate = partial(public.simulate, few, "paged", machine, engine="interpreted")
    run = simulate()
    refuses_or_takes(
        partial(public.simulate, engine="interpreted"), {"workload": few, "policy": "paged", "machine": machine}
    )
    refuses_or_takes(simulate, {"users": 2, "think_s": 0.1, "users_per_s": 1.0, "progress": print})
    refuses_or_takes(simulate, {"replicas": 2, "route": "shortest", "route_lag_s": 0.0, "prefix_store": None})
    refuses_or_takes(simulate, {"prefill": 1, "decode": 1, "kv_link": None})
    parts = {"gpu": GPU, "model": MODEL, "kv_bytes": machine.kv_bytes, "step_time": machine.step_time}
    refuses_or_takes(public.Machine, {**parts, "max_model_len": 512})
    refuses_or_takes(public.compare, {"workload": few, "policies": ["paged"], "machine": machine})
    refuses_or_takes(public.compare_releases, {"workload": few, "old": "0.32.0", "new": "0.33.0", "policy": None})
    refuses_or_takes(public.hits_in_order, {"workload": few, "num_blocks": 99, "block_size": 16, "eviction": "lru"})
    refuses_or_takes(public.write, {"recording": run, "path": "run"})
    for call in (public.summarize, public.Replay, public.Run.of, public.workload_of, public.verify):
        refuses_or_takes(call, {"recording": run})
    refuses_or_takes(run.plot, {"kind": "occupancy", "file": None, "purpose": "web", "theme": "light"})
    refuses_or_takes(run.picture, {"at_s": 0.0, "width": 84, "height": 10})
    refuses_or_takes(few.head, {"n": 1})
    refuses_or_takes(few.scaled_rate, {"factor": 2.0})
    refuses_or_takes(kvsim.Replay(run).seek, {"frame": 1})
    refuses_or_takes(kvsim.Replay(run).frame_at, {"time_s": 0.0})


def test_caches_of_a_model_that_contradict_its_layers_are_refused() -> None:
    with pytest.raises(UsageError, match="for each of the 24 layers"):
        replace(WINDOWED, layer_caches=((0,),))
    with pytest.raises(UsageError, match="for each of the 24 layers"):
        replace(WINDOWED, layer_caches=((7,),) * 24)
    with pytest.raises(UsageError, match="num_kv_heads of a SlidingWindow should be a whole number of at least 1"):
        replace(WINDOWED, layer_kinds=tuple(replace(kind, num_kv_heads=0) for kind in WINDOWED.layer_kinds))  # type: ignore[call-arg]


def test_a_model_takes_numbers_of_numpy_and_lists_of_caches() -> None:
    made = replace(WINDOWED, num_layers=np.int64(24), layer_caches=[list(caches) for caches in WINDOWED.layer_caches])  # type: ignore[arg-type]
    assert made == WINDOWED
    assert hash(made) == hash(WINDOWED)


@pytest.mark.parametrize("wrong", [None, "x", True, (), math.nan, math.inf])
@pytest.mark.parametrize("name", ["request_s", "token_s", "full_seqs", "max_captured_tokens"])
def test_step_times_are_finite_numbers(name: str, wrong: object) -> None:
    times = no_times()
    with pytest.raises(UsageError, match=f"{name} of the step times should be a finite number, not "):
        kvsim.Machine(gpu=GPU, model=MODEL, kv_bytes=1 << 30, step_time=replace(times, **{name: wrong}))  # type: ignore[arg-type]


def test_no_argument_of_a_wrong_type_fails_a_question(few: kvsim.Workload) -> None:
    server = kvsim.server("H200/Llama-3-8B", num_blocks=100, max_model_len=512)
    fit = partial(public.fit, few.head(2), engine="interpreted")
    right = {"on": server, "users": 2, "think_s": 0.0, "ttft_p99_s": 1.0, "tpot_p99_s": 1.0, "most": 0, "num_jobs": 1}
    refuses_or_takes(fit, {**right, "progress": None})
    sweep = partial(public.sweep, few, "paged", "H200/Llama-3-8B", num_jobs=1)
    for wrong in (5, None, "ab", [5], {5: [1]}, {"x": 3}, {"num_blocks": 3}, {"num_blocks": ["x"]}, {"kv_gib": [None]}):
        with pytest.raises(UsageError):
            sweep(vary=wrong)
    for name, wrong in (("table", 5), ("num_jobs", 0), ("num_jobs", "x"), ("progress", 5)):
        with pytest.raises(UsageError, match=f"{name} should be"):
            sweep(**{"vary": {"num_blocks": [50]}, name: wrong})


def test_a_model_without_a_name_is_not_the_config_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    for name in ("", " "):
        with pytest.raises(UnknownNameError, match=r"there is no model ' ?';"):
            kvsim.find_model(name)
