"""The tree of errors: as its picture shows it, with the exit codes that the command line promises."""

from __future__ import annotations

import re

import pytest

from kvsim import errors
from kvsim.errors import KvsimError, MissingExtraError, UnknownNameError, UsageError, reason_of

CLASSES = {
    name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, KvsimError)
}


def test_the_picture_shows_the_tree() -> None:
    assert errors.__doc__
    lines = [re.match(r"^    ([│├└─ ]*)(\w+) ", line) for line in errors.__doc__.splitlines()]
    drawn = [(len(match[1]) // 4, match[2]) for match in lines if match]
    assert {name for _, name in drawn} == set(CLASSES)
    parents: list[str] = []
    for depth, name in drawn:
        parents[depth:] = [name]
        assert CLASSES[name].__base__ is (CLASSES[parents[depth - 1]] if depth else Exception), name


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_misuse_exits_with_2_and_everything_else_with_1(name: str) -> None:
    kind = CLASSES[name]
    assert kind.__doc__
    assert kind.exit_code == (2 if issubclass(kind, UsageError) else 1)


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("llama-3-8b", "meta-llama/Llama-3-8B"),
        ("LLAMA-3-8B", "meta-llama/Llama-3-8B"),
        ("meta-lama/Llama-3-8B", "meta-llama/Llama-3-8B"),
        ("mistral", "mistralai/Mistral-7B"),
    ],
)
def test_the_nearest_names_come_first(name: str, suggestion: str) -> None:
    error = UnknownNameError("model", name, ["mistralai/Mistral-7B", "meta-llama/Llama-3-8B", "Qwen/Qwen2"])
    assert str(error).startswith(f"there is no model {name!r}; did you mean {suggestion}")
    assert str(error).endswith("?")
    assert (error.kind, error.name) == ("model", name)


def test_a_name_like_none_lists_a_few_and_says_where_the_others_are() -> None:
    known = [f"gpu-{number:02}" for number in range(20)]
    beginning = "there is no GPU '!'; there are gpu-00, gpu-01, gpu-02, gpu-03 and 16 more"
    assert str(UnknownNameError("GPU", "!", known)) == f"{beginning}."
    assert str(UnknownNameError("GPU", "!", known, listed_by="kvsim size --list")) == (
        f"{beginning}, which kvsim size --list lists."
    )


def test_a_name_like_none_of_a_few_lists_all_of_them() -> None:
    assert str(UnknownNameError("fit", "!", ["worst", "best", "first"])) == (
        "there is no fit '!'; there are best, first, worst."
    )


def test_a_missing_extra_says_what_to_type() -> None:
    assert str(MissingExtraError("recording vLLM", "vllm")) == (
        "recording vLLM needs an optional part that is not installed: pip install 'kvsim[vllm]'."
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no number.\nIn line 3."), "no number"),
        (ValueError("\n of another kind"), "of another kind"),
        (OSError(28, "No space left on device", "/a/b"), "No space left on device"),
        (OSError(), "OSError"),
        (MemoryError(), "MemoryError"),
        (ValueError(" "), "ValueError"),
    ],
)
def test_a_reason_is_one_line_even_of_an_error_without_a_message(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason
    if reason == type(error).__name__:
        assert reason_of(error, "a field is missing") == "a field is missing"
