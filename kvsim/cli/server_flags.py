"""Translation of the flags of a vLLM or SGLang server to those of a kvsim command.

Flags with the same name in kvsim are copied. `server_flags.toml` lists flags that have another name in kvsim, and flags
without a counterpart that change memory or time.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import click

from kvsim.cli.server_lines import ServerLine
from kvsim.errors import UsageError, shortened

_TABLES = Path(__file__).with_name("server_flags.toml")
_SWITCH = re.compile(
    r"--(no-|enable-|disable-|skip-|use-|trust-remote-code|enforce-eager|async-scheduling|language-model-only|headless"
    r"|calculate-kv-scales|fully-sharded-loras|log-requests|show-time-cost|is-embedding|numa-bind$).*"
)
"""Pattern of the server's flags that take no value. It is used for flags that kvsim does not have."""
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])")
"""Number with a suffix: 32k is 32,000, and 32K is 32,768."""
_NUMBERS = ("--max-model-len", "--max-num-batched-tokens", "--kv-cache-memory-bytes")
"""Flags for which vLLM accepts a suffix."""
_OTHER_MEANING = frozenset(("--config", "--host", "--load-format", "--port", "--seed", "--size"))
"""Flags of servers that kvsim also has, with another meaning."""
_STATED_IN_CHECKPOINT = frozenset(("auto-round", "compressed-tensors", "gguf", "quark", "torchao"))
"""Quantization methods whose name does not tell the number of bits of a weight; the checkpoint states it."""


@dataclass(slots=True)
class Translation:
    """Translation of a server's command line: kvsim's flags, and the server's flags without a counterpart."""

    arguments: list[str] = field(default_factory=list)
    """Translated flags with their values, as on a command line."""
    defaults: dict[str, str] = field(default_factory=dict)
    """Values that the server has by default and kvsim does not, by the name of kvsim's flag, without dashes."""
    irrelevant: list[str] = field(default_factory=list)
    """Flags of the server that change neither memory nor time."""
    unmodelled: dict[str, str] = field(default_factory=dict)
    """Flags of the server whose effect on memory or time kvsim does not model, each with the reason."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Flags that vLLM no longer has, each with the release that dropped it (empty if unknown)."""

    def words(self) -> str:
        """Return the translated flags as they would be typed."""
        defaults = [word for name, value in self.defaults.items() for word in (f"--{name}", value)]
        return shlex.join([*defaults, *self.arguments])


@cache
def _tables() -> dict[str, dict[str, dict[str, str]]]:
    return tomllib.loads(_TABLES.read_text(encoding="utf-8"))


def translate(line: ServerLine, known: Mapping[str, click.Parameter]) -> Translation:
    """Translate the server's command line for a kvsim command. `known` has the command's flags, by their spellings."""
    translation, table = Translation(), _tables()[line.server]
    if line.server == "vllm" and "--defaults" in known:
        translation.defaults["defaults"] = "server"
    if line.release and "--vllm" in known:
        translation.arguments += ["--vllm", line.release]
    if line.server == "sglang" and "radix" in getattr(getattr(known.get("--policy"), "type", None), "choices", ()):
        translation.arguments += ["--policy", "radix"]
    for written, given in _flags(line.words, known, table["same"]):
        flag = _whole_flag(written, {*table["same"], *table["matters"]}) if line.server == "sglang" else written
        name = table["same"].get(flag, flag)
        values = [table.get("values", {}).get(f"{flag} {value}", value) for value in given]
        if flag in table["dropped"]:
            translation.dropped[flag] = table["dropped"][flag]
        elif name == "--kv-cache-memory-bytes" and values and "--kv-gib" in known:
            translation.arguments += ["--kv-gib", f"{_whole_number(flag, values[0]) / (1 << 30):.9g}"]
        elif flag == "--dtype" and values and values[0] in ("float32", "float"):
            translation.unmodelled[flag] = "weights of four bytes are not modelled"
        elif name == "--quantization" and values and values[0] in _STATED_IN_CHECKPOINT:
            translation.unmodelled[flag] = (
                f"the bits of {values[0]} are those of the checkpoint: its name or config.json"
            )
        elif name in known and flag not in _OTHER_MEANING:
            translation.arguments += _arguments(flag, name, values, known[name])
        elif flag in table["matters"]:
            translation.unmodelled[flag] = table["matters"][flag]
        else:
            translation.irrelevant.append(flag)
    return translation


def _flags(
    words: Sequence[str], known: Mapping[str, click.Parameter], renamed: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag in `words` with its values. A positional argument is the model, and is yielded as `--model`.

    `known` has kvsim's options by flag. `renamed` maps a server's flag to kvsim's flag with the same meaning, if the
    two differ.
    """
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        if not is_flag_word(word):
            yield "--model", [word]
            continue
        flag, is_joined, value = word.partition("=")
        flag = flag.replace("_", "-").partition(".")[0]
        option = known.get(renamed.get(flag, flag))
        is_switch = _SWITCH.fullmatch(flag) is not None if option is None else getattr(option, "is_flag", False)
        values = [value] if is_joined else []
        while not is_joined and index < len(words) and not is_flag_word(words[index]):
            if is_switch and words[index].casefold() not in ("true", "false"):
                break
            values.append(words[index])
            index += 1
        yield flag, values


def _whole_flag(flag: str, spellings: Collection[str]) -> str:
    """Return the flag that `flag` abbreviates: the only one in `spellings` that begins with it. SGLang accepts these.

    If several or none begin with `flag`, return `flag` itself.
    """
    begun = [spelling for spelling in spellings if spelling.startswith(flag)]
    return begun[0] if len(begun) == 1 and flag not in spellings and len(flag) > len("--tp") else flag


def is_flag_word(word: str) -> bool:
    """Tell whether a word begins with a dash and is no negative number."""
    return word.startswith("-") and not re.fullmatch(r"-\d+(?:\.\d+)?", word)


def _arguments(flag: str, name: str, values: Sequence[str], option: click.Parameter) -> list[str]:
    """Return the arguments that give kvsim's flag `name` the value that the server's `flag` has in `values`."""
    if getattr(option, "is_flag", False):
        if values and values[0].casefold() == "false":
            off = name.replace("--", "--no-", 1)
            return [off] if off in option.secondary_opts else []
        return [name]
    if not values:
        raise UsageError(f"{flag} in the server's command line has no value; give one.")
    has_suffix = name in _NUMBERS and _NUMBER.fullmatch(values[0])
    return [name, str(_whole_number(flag, values[0])) if has_suffix else values[0]]


def _whole_number(flag: str, text: str) -> int:
    """Return the number that `text` states. It may have a suffix, as in vLLM: 32k is 32,000, and 32K is 32,768."""
    match = _NUMBER.fullmatch(text)
    if match is None and text.isdecimal():
        return int(text)
    if match is None:
        raise UsageError(f"{flag} in the server's command line should be a whole number, not {shortened(text)}.")
    power = "kmgt".index(match[2].casefold()) + 1
    return int(float(match[1]) * (1000 if match[2].islower() else 1024) ** power)
