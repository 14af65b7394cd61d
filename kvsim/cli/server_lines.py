"""Command lines of vLLM and SGLang servers in a text.

The text is a quoted line, a shell script, a Dockerfile, the YAML of Compose or Kubernetes, or a configuration file of
vLLM.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvsim.errors import UsageError, reason_of, shortened

_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "sglang.launch_server": "sglang",
}
"""Server that a Python module starts, by the name of the module."""
_PROGRAMS: Mapping[tuple[str, ...], str] = {("vllm", "serve"): "vllm", ("sglang", "serve"): "sglang"}
"""Server that a program starts, by the name of the program and its first argument."""
_IMAGES = {"vllm-openai": "vllm"}
"""Server that a Docker image starts, by the name of the image. Arguments after the image are flags of the server."""
_RELEASE = re.compile(r"v?(\d+\.\d+\.\d+)")
"""Tag of a Docker image that states a release."""
_END = re.compile(r"[;&|]+|\d*>.*")
"""Word that ends a command: a separator of commands, or a redirection of the output."""
_PROMPT = re.compile(r"^\s*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+:[^\s#$]*[#$]|[$])\s+", re.MULTILINE)
"""Shell prompt that was copied together with the command."""
_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\"[^\"\n]*\"|'[^'\n]*'|\S*)\s*;?\s*$", re.MULTILINE)
"""Line of a script that sets a variable."""
_VARIABLE = re.compile(r"\$(?:([A-Za-z_]\w*)|\(([A-Za-z_]\w*)\)|\{([A-Za-z_]\w*)(?::-([^}]*))?\})")
"""Use of a variable: $X, $(X), ${X}, or ${X:-default}."""
_DOCKERFILE = re.compile(r"^\s*(FROM|ENTRYPOINT|CMD)\s+(.*)$", re.MULTILINE)
_MAX_BYTES = 1 << 20
"""Size of the largest file that is read."""


@dataclass(slots=True)
class ServerLine:
    """Command line of a server."""

    server: str
    """Engine: "vllm" or "sglang"."""
    words: Sequence[str]
    """Arguments of the server, without the program."""
    release: str = ""
    """Release that the tag of a Docker image states; empty if unknown."""


def line_of(text: str) -> ServerLine:
    """Return the only server's command line in `text`, which is the line itself or the name of a file that contains it.

    Raises:
        UsageError: there is no such line, or there are several.
    """
    file = Path(text).expanduser()
    is_file = len(text) < 1000 and "\n" not in text and file.is_file()
    where = shortened(text)
    if not is_file and not re.search(r"\s", text):  # a name, because no line is a single word
        raise UsageError(f"--from {where} is no file; give one, or the quoted command line of a server.")
    if is_file:
        if file.stat().st_size > _MAX_BYTES:
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
    """Replace variables in `text` by their `values`, or else by the defaults that `text` states."""

    def value_of(found: re.Match[str]) -> str:
        *names, default = found.groups()
        return values.get(next(filter(None, names)), found[0] if default is None else default)

    return _VARIABLE.sub(value_of, text)


def _environment(tree: Mapping[Any, Any]) -> dict[str, str]:
    """Return the environment variables of a container, by name. Kubernetes lists them; Compose lists or maps them."""
    given = tree.get("env") or tree.get("environment") or []
    if isinstance(given, dict):
        return {str(name): str(value) for name, value in given.items()}
    pairs = [str(each).partition("=")[::2] for each in given if isinstance(each, str)]
    named = [(each["name"], each["value"]) for each in given if isinstance(each, dict) and {"name", "value"} <= {*each}]
    return {str(name): str(value) for name, value in [*pairs, *named]}


def _lines_in_dockerfile(text: str, where: str) -> Iterator[ServerLine]:
    """Yield the server's command line that the last FROM, ENTRYPOINT and CMD of a Dockerfile make up, if any."""
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
    """Divide `text` into words as a shell does. An error message calls the text `where`."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        raise UsageError(f"--from {where} has a quotation mark without its end; close it.") from None


def _lines_in_words(words: Sequence[str]) -> Iterator[ServerLine]:
    """Yield the servers' lines in the words of a shell command, and in commands that it gives to a shell with -c."""
    index = 0
    while index < len(words):
        line = line_at(words, index)
        if line is not None:
            yield line
            index += len(line.words)
        elif words[index - 1] in ("-c", "-lc") and index and " " in words[index]:
            yield from _lines_in_words(_words(words[index], shortened(words[index])))
        index += 1


def line_at(words: Sequence[str], index: int) -> ServerLine | None:
    """Return the server's command line that begins at `words[index]`; None if none begins there.

    It begins with a program (`vllm serve`), a module of Python (`python -m MODULE` or `-m MODULE`), or a Docker image.
    """
    word, following = words[index], words[index + 1] if index + 1 < len(words) else ""
    image, _, tag = word.rpartition("/")[2].partition(":")
    release, begin = "", index + 2
    if (word, following) in _PROGRAMS:
        server = _PROGRAMS[word, following]
    elif word == "-m" and following in _MODULES:
        server = _MODULES[following]
    elif image in _IMAGES:
        server, begin = _IMAGES[image], index + 1
        release = found[1] if (found := _RELEASE.fullmatch(tag)) else ""
    elif word.startswith("python") and following == "-m":
        return line_at(words, index + 1)
    else:
        return None
    end = next((at for at in range(begin, len(words)) if _END.fullmatch(words[at])), len(words))
    return ServerLine(server, words[begin:end], release)


def _lines_in_yaml(text: str, where: str) -> Iterator[ServerLine]:
    """Yield the servers' lines in the documents of a YAML file: containers, or a configuration of vLLM."""
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
    """Yield the settings of a configuration file of vLLM as the words of a command line."""
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
    """Yield the servers' command lines of all containers in a YAML value.

    `seen` has the ids of values that were read already. An alias in YAML may repeat a value, or contain itself.
    """
    if id(tree) in seen or not isinstance(tree, dict | list):
        return
    seen.add(id(tree))
    if isinstance(tree, dict) and ("image" in tree or "command" in tree or "args" in tree):
        words = [str(tree.get("image") or "")]
        for key in ("entrypoint", "command", "args"):
            part = tree.get(key) or []
            parts = [str(each) for each in (part if isinstance(part, list) else [part])]
            # A text is divided as a shell does, and so is a list whose only entry is a whole line with flags.
            is_line = not isinstance(part, list) or (len(parts) == 1 and " -" in parts[0])
            words += _words(" ".join(parts), where) if is_line else parts
        values = _environment(tree)
        words = [_with_values(word, values) for word in words]
        lines = list(_lines_in_words(words))
        # The arguments of an image may name a program again (`vllm serve …`): its words are the server's flags.
        if len(lines) == 1 and (nested := list(_lines_in_words(lines[0].words))):
            lines = [ServerLine(nested[0].server, nested[0].words, lines[0].release)]
        yield from lines
    for value in tree.values() if isinstance(tree, dict) else tree:
        yield from _lines_in_tree(value, where, seen)
