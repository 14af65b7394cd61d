"""What a new user may get wrong: a sentence says what, and nothing is taken for something else."""

from __future__ import annotations

from typing import Any

import pytest

import kvsim
from kvsim.errors import UnknownNameError, UsageError

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
