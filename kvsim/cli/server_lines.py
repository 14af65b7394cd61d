"""Translation of the command line of a vLLM or SGLang server to the flags of a kvsim command.

The server's line ends the command (`kvsim run vllm serve …`), or `--from` gives it: as a quoted line, a shell script, a
Dockerfile, the YAML of Compose or Kubernetes, or a configuration file of vLLM. Flags with the same name in kvsim are
copied. `server_lines.toml` lists flags that have another name in kvsim, and flags without a counterpart that change
memory or time.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import click

from kvsim.cli.flag import SectionedCommand
from kvsim.cli.show import echo
from kvsim.errors import UsageError, reason_of, shortened

_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
}
_PROGRAMS: Mapping[tuple[str, ...], str] = {("vllm", "serve"): "vllm", ("sglang", "serve"): "sglang"}
_IMAGES = {"vllm-openai": "vllm"}
"""Docker images that start a server, and the server; arguments of `docker run` are flags of the server."""
_RELEASE = re.compile(r"v?(\d+\.\d+\.\d+)")
_SWITCH = re.compile(
    r"--(no-|enable-|disable-|skip-|use-|trust-remote-code|enforce-eager|async-scheduling|language-model-only|headless"
    r"|calculate-kv-scales|fully-sharded-loras|log-requests|show-time-cost|is-embedding|numa-bind$).*"
)
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])")
_NUMBERS = ("--max-model-len", "--max-num-batched-tokens", "--kv-cache-memory-bytes")
"""Flags for which vLLM accepts 32k (32,000) and 32K (32,768)."""
_END = re.compile(r"[;&|]+|\d*>.*")
"""Word that ends a command: a separator of commands, or a redirection of the output."""
_PROMPT = re.compile(r"^\s*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+:[^\s#$]*[#$]|[$])\s+", re.MULTILINE)
"""Shell prompt that was copied together with the command."""
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"\n]*\"|'[^'\n]*'|\S*)\s*;?\s*$", re.MULTILINE)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\(([A-Za-z_]\w*)\)|\{([A-Za-z_]\w*)(?::-([^}]*))?\})")
_DOCKERFILE = re.compile(r"^\s*(FROM|ENTRYPOINT|CMD)\s+(.*)$", re.MULTILINE)
_MOST_BYTES = 1 << 20
_OTHER_MEANING = frozenset(("--config", "--host", "--load-format", "--port", "--seed", "--size"))
"""Flags of servers that have another meaning in kvsim."""
_STATED_IN_CHECKPOINT = frozenset(("auto-round", "compressed-tensors", "gguf", "quark", "torchao"))
"""Quantizations whose number of bits only the checkpoint states."""


@dataclass(slots=True)
class ServerLine:
    """Server program, its arguments, and its release if a Docker image states it."""

    server: str
    words: Sequence[str]
    release: str = ""


@dataclass(slots=True)
class Translation:
    """Arguments of a kvsim command, and the flags of the server that have no counterpart."""

    arguments: list[str] = field(default_factory=list)
    irrelevant: list[str] = field(default_factory=list)
    """Flags without an effect on memory or time in this command."""
    unmodelled: dict[str, str] = field(default_factory=dict)
    """Flags whose effect on memory or time kvsim does not model, and the reason."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Flags that vLLM no longer has, and the release that dropped each (empty if unknown)."""


class ServedCommand(SectionedCommand):
    """Command that accepts the command line of a server: after `--from`, or as its last arguments."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params.append(
            click.Option(
                ["--from", "_from"],
                metavar="LINE|FILE",
                expose_value=False,
                help="Take the flags of a server: a quoted vllm serve or sglang.launch_server line, a script, or the "
                "YAML of Compose or Kubernetes. The line may also end this command, without quotes.",
            )
        )

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the flags of a server before those of kvsim, so that the latter win."""
        given, line = _split(args)
        given = self.kvsim_arguments(ctx, given)
        if line is not None:
            translation = translate(line, {name: option for option in self.params for name in _spellings(option)})
            _report(line, translation)
            given = [*translation.arguments, *given]
        return super().parse_args(ctx, given)

    def kvsim_arguments(self, ctx: click.Context, args: list[str]) -> list[str]:  # noqa: ARG002  for subclasses
        """Return the arguments beside a server's line; subclasses change them before click parses them."""
        return args


def _split(args: Sequence[str]) -> tuple[list[str], ServerLine | None]:
    """Return the arguments of kvsim, and the server's line that follows them or that `--from` gives."""
    given = list(args)
    for index, word in enumerate(given):
        if word == "--from" or word.startswith("--from="):
            _, is_joined, value = word.partition("=")
            if not is_joined and index + 1 == len(given):
                raise UsageError("--from requires a server's command line in quotes, or a file with one.")
            rest = given[index + 1 :] if is_joined else given[index + 2 :]
            return given[:index] + rest, line_of(value if is_joined else given[index + 1])
        if (found := _begin(given, index)) is not None:
            return given[:index], found
    return given, None


def line_of(text: str) -> ServerLine:
    """Return the server's line in `text`, which is the line itself or the name of a file that contains one."""
    file = Path(text).expanduser()
    is_file = len(text) < 1000 and "\n" not in text and file.is_file()
    where = shortened(text)
    if is_file:
        if file.stat().st_size > _MOST_BYTES:
            raise UsageError(f"--from {where} has more than a mebibyte; give the command line alone.")
        text = file.read_text(encoding="utf-8", errors="replace")
    if is_file and file.suffix in (".yaml", ".yml"):
        lines = list(_lines_in_yaml(text, where))
    elif is_file and re.search(r"^\s*FROM\s", text, re.MULTILINE):
        lines = list(_lines_in_dockerfile(text, where))
    else:
        lines = list(_lines_in_words(_words(_expanded(text), where)))
    if len(lines) != 1:
        count = f"{len(lines)} command lines of servers" if lines else "no command line of a server"
        raise UsageError(
            f"--from {where} has {count}; it should be one that begins with vllm serve or python -m "
            "sglang.launch_server."
        )
    return lines[0]


def _expanded(text: str) -> str:
    """Remove shell prompts, and replace each variable that the script sets by its value."""
    text = _PROMPT.sub("", text)
    return _with_values(text, {name: value.strip("\"'") for name, value in _ASSIGNMENT.findall(text)})


def _with_values(text: str, values: Mapping[str, str]) -> str:

    def value_of(found: re.Match[str]) -> str:
        *names, default = found.groups()
        return values.get(next(filter(None, names)), found[0] if default is None else default)

    return _VARIABLE.sub(value_of, text)


def _environment(tree: Mapping[Any, Any]) -> dict[str, str]:
    """Return the variables of a container: a list in Kubernetes, a map or a list in Compose."""
    given = tree.get("env") or tree.get("environment") or []
    if isinstance(given, dict):
        return {str(name): str(value) for name, value in given.items()}
    pairs = [str(each).partition("=")[::2] for each in given if isinstance(each, str)]
    named = [(each["name"], each["value"]) for each in given if isinstance(each, dict) and {"name", "value"} <= {*each}]
    return {str(name): str(value) for name, value in [*pairs, *named]}


def _lines_in_dockerfile(text: str, where: str) -> Iterator[ServerLine]:
    """Yield the line of the last ENTRYPOINT and CMD, for the image of the last FROM."""
    parts = dict(_DOCKERFILE.findall(text.replace("\\\n", " ")))
    tree: dict[str, Any] = {"image": parts.get("FROM", "").partition(" ")[0]}
    for word, key in (("ENTRYPOINT", "entrypoint"), ("CMD", "command")):
        value = parts.get(word, "").strip()
        try:
            tree[key] = json.loads(value) if value.startswith("[") else value
        except ValueError:
            raise UsageError(f"--from {where} has {word} {shortened(value)}, which is no list of words.") from None
    return _lines_in_tree(tree, where, set())


def _words(text: str, where: str) -> list[str]:
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        raise UsageError(f"--from {where} has a quotation mark without its end; close it.") from None


def _lines_in_words(words: Sequence[str]) -> Iterator[ServerLine]:
    index = 0
    while index < len(words):
        line = _begin(words, index)
        if line is not None:
            yield line
            index += len(line.words)
        elif words[index - 1] in ("-c", "-lc") and index and " " in words[index]:
            yield from _lines_in_words(_words(words[index], shortened(words[index])))
        index += 1


def _begin(words: Sequence[str], index: int) -> ServerLine | None:
    """Return the server's line that begins at the word `index`, or None."""
    server, release, begin = _PROGRAMS.get(tuple(words[index : index + 2])), "", index + 2
    if server is None and words[index] == "-m" and index + 1 < len(words):
        server = _MODULES.get(words[index + 1])
    image, _, tag = words[index].rpartition("/")[2].partition(":")
    if server is None and image in _IMAGES:
        server, begin = _IMAGES[image], index + 1
        release = found[1] if (found := _RELEASE.fullmatch(tag)) else ""
    if server is None and words[index].startswith("python") and tuple(words[index + 1 : index + 2]) == ("-m",):
        return _begin(words, index + 1)
    if server is None:
        return None
    end = next((at for at in range(begin, len(words)) if _END.fullmatch(words[at])), len(words))
    return ServerLine(server, words[begin:end], release)


def _lines_in_yaml(text: str, where: str) -> Iterator[ServerLine]:
    import yaml

    try:
        documents = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise UsageError(f"--from {where} is no YAML: {reason_of(error)}.") from None
    seen: set[int] = set()
    for document in documents:
        if isinstance(document, dict) and ("model" in document or "model_tag" in document):
            yield ServerLine("vllm", list(_flat(document)))
        else:
            yield from _lines_in_tree(document, where, seen)


def _flat(settings: Mapping[Any, Any]) -> Iterator[str]:
    for key, value in settings.items():
        flag = f"--{str(key).replace('_', '-')}"
        if key == "model_tag":
            flag = "--model"
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-", 1)
        elif not isinstance(value, dict | list) and value is not None:
            yield from (flag, str(value))
        else:
            yield flag


def _lines_in_tree(tree: Any, where: str, seen: set[int]) -> Iterator[ServerLine]:
    """Yield the servers' lines of all containers in a YAML value; `seen` has the ids of values that were read."""
    if id(tree) in seen or not isinstance(tree, dict | list):
        return
    seen.add(id(tree))
    if isinstance(tree, dict) and ("image" in tree or "command" in tree or "args" in tree):
        words = [str(tree.get("image") or "")]
        for key in ("entrypoint", "command", "args"):
            part = tree.get(key) or []
            is_list = isinstance(part, list) and not (len(part) == 1 and " -" in str(part[0]))
            words += [str(word) for word in part] if is_list else _words(" ".join(map(str, _as_list(part))), where)
        values = _environment(tree)
        words = [_with_values(word, values) for word in words]
        lines = list(_lines_in_words(words))
        if len(lines) == 1 and (nested := list(_lines_in_words(lines[0].words))):
            lines = [ServerLine(nested[0].server, nested[0].words, lines[0].release)]
        yield from lines
    for value in tree.values() if isinstance(tree, dict) else tree:
        yield from _lines_in_tree(value, where, seen)


def _as_list(part: Any) -> list[Any]:
    return part if isinstance(part, list) else [part]


@cache
def _tables() -> dict[str, dict[str, dict[str, str]]]:
    return tomllib.loads(Path(__file__).with_name("server_lines.toml").read_text(encoding="utf-8"))


def translate(line: ServerLine, known: Mapping[str, click.Parameter]) -> Translation:
    """Translate a server's line for a command with the flags `known`."""
    translation, table = Translation(), _tables()[line.server]
    if line.server == "vllm" and "--defaults" in known:
        translation.arguments += ["--defaults", "server"]
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
    words: Sequence[str], known: Mapping[str, click.Parameter], same: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag with its values; a positional argument, the model, is yielded as `--model`."""
    index = 0
    while index < len(words):
        word, index = words[index], index + 1
        if not is_flag_word(word):
            yield "--model", [word]
            continue
        flag, is_joined, value = word.partition("=")
        flag = flag.replace("_", "-").partition(".")[0]
        option = known.get(same.get(flag, flag))
        is_switch = _SWITCH.fullmatch(flag) is not None if option is None else getattr(option, "is_flag", False)
        values = [value] if is_joined else []
        while not is_joined and index < len(words) and not is_flag_word(words[index]):
            if is_switch and words[index].casefold() not in ("true", "false"):
                break
            values.append(words[index])
            index += 1
        yield flag, values


def _whole_flag(flag: str, spellings: Collection[str]) -> str:
    """Return the full name of an abbreviated flag, as SGLang does, if exactly one of `spellings` begins with it."""
    begun = [spelling for spelling in spellings if spelling.startswith(flag)]
    return begun[0] if len(begun) == 1 and flag not in spellings and len(flag) > len("--tp") else flag


def is_flag_word(word: str) -> bool:
    """Tell whether a word begins with a dash and is no negative number."""
    return word.startswith("-") and not re.fullmatch(r"-\d+(?:\.\d+)?", word)


def _arguments(flag: str, name: str, values: Sequence[str], option: click.Parameter) -> list[str]:
    if getattr(option, "is_flag", False):
        if values and values[0].casefold() == "false":
            off = name.replace("--", "--no-", 1)
            return [off] if off in option.secondary_opts else []
        return [name]
    if not values:
        raise UsageError(f"{flag} in the server's command line has no value; give one.")
    value = str(_whole_number(flag, values[0])) if name in _NUMBERS and _NUMBER.fullmatch(values[0]) else values[0]
    return [name, value]


def _whole_number(flag: str, text: str) -> int:
    """Parse a number as vLLM does: 32k is 32,000, and 32K is 32,768."""
    match = _NUMBER.fullmatch(text)
    if match is None and text.isdecimal():
        return int(text)
    if match is None:
        raise UsageError(f"{flag} in the server's command line should be a whole number, not {shortened(text)}.")
    power = "kmgt".index(match[2].casefold()) + 1
    return int(float(match[1]) * (1000 if match[2].islower() else 1024) ** power)


def _spellings(option: click.Parameter) -> Collection[str]:
    return [*option.opts, *option.secondary_opts] if isinstance(option, click.Option) else ()


def _report(line: ServerLine, translation: Translation) -> None:
    taken = shlex.join(translation.arguments)
    echo(f"Taken from the server's command line: {taken or 'nothing'}.", err=True)
    for flag, why in translation.unmodelled.items():
        echo(f"Not followed: {flag}; {why}.", err=True)
    for flag, release in translation.dropped.items():
        when = f"since {release}" if release else "in the releases that kvsim follows"
        echo(f"Passed over: {flag}, which vLLM does not have {when}.", err=True)
    if translation.irrelevant:
        where = "for memory or time" if line.server else ""
        flags = " ".join(dict.fromkeys(translation.irrelevant))
        echo(f"Passed over, without a meaning here {where}: {flags}.", err=True)
