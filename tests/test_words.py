"""Docstrings, help texts, messages and lessons are read alone and by many whose first language is not English."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import pytest

from .conftest import REPOSITORY

FILES = sorted((*REPOSITORY.glob("kvsim/**/*.py"), *REPOSITORY.glob("tui/**/*.py"), *REPOSITORY.glob("tui/**/*.toml")))

PREPOSITIONS = "Above After As At Before Behind Below Beside Beyond By For From In Of On Since To Until Up With Without"
QUESTIONS = "How What When Where Whether Which Who Whom Whose Why"
POINTERS = "Also And Have Is It Likewise None Not Only That These They Those"
UNPLAIN = frozenset(f"{PREPOSITIONS} {QUESTIONS} {POINTERS}".split()) - {"Whether"}
"""First words of a text about a thing (an attribute, a property) that do not name the thing."""

VERBS = """
Abort Accept Adapt Add Admit Advance Allocate Answer Append Apply Ask Assign Attach Await
Begin Bind Bound Break Build
Cache Calculate Call Cancel Change Charge Check Choose Clear Close Collect Color Combine Compare Compile Compose
Compute Concatenate Connect Consume Continue Convert Copy Count Create Cut
Decide Declare Decode Decrease Delete Deliver Describe Detach Diagnose Digest Discard Display Divide Download
Drain Draw Drive Drop
Embed Emit Empty Encode End Ensure Enter Escape Estimate Evaluate Evict Exclude Execute Exit Expand Expire Explain
Export Extend Extract Extrapolate
Feed Fetch Fill Film Filter Find Finish Fit Focus Fold Follow Forget Form Format Forward Free Freeze
Generate Get Give Group
Handle Hash Hide Highlight Hold
Ignore Import Include Increase Indent Index Infer Initialize Insert Install Intern Interpolate Invert Iterate
Join Jump
Keep
Label Launch Lay Leave Lengthen Let Light Limit Link List Listen Load Locate Lock Look Lower
Make Map Mark Match Measure Merge Mix Move
Name Normalize Note Number
Observe Open Order
Pack Paint Parse Partition Pass Pause Pin Place Play Plot Poll Pop Predict Preempt Prepare Press Print Process
Protect Publish Pull Push Put
Query Queue Quote
Raise Rank Read Rebuild Receive Record Redraw Reduce Refer Refresh Refuse Register Reject Release Remember
Remove Rename Render Renumber Repeat Replace Replay Report Request Require Reserve Reset Resize Resolve Restore
Restrict Resume Retract Retry Return Reuse Rewind Round Run
Sample Save Scale Scan Schedule Scroll Search Seek Select Send Serialize Serve Set Shift Shorten Show Shrink
Shuffle Signal Simplify Simulate Skip Sleep Slide Solve Sort Split Stack Start Step Stop Store Strip Submit
Subscribe Subtract Sum Summarize Swap Switch
Take Tell Test Time Touch Trace Track Translate Trim Truncate Turn
Undo Unfold Unpack Update Use
Validate Verify Visit
Wait Wake Walk Warn Watch Weigh Widen Wrap Write
Yield
Zip
"""
"""First words of the docstring of a function. A verb that is missing here may be added."""

PHRASES = (
    "so many",
    "so much",
    "stands?(?! (?:for|in|out) )",
    "stood",
    "(?:is|are|was|were|be|been) told(?! apart)",
    "sa(?:y|ys|id) nothing",
    "dealt out",
    "whom",
    "in whose",
    "likewise",
    "whoever",
    "(?:no|some|any|every)body",
    "of them",
    "what it takes",
    "see to it",
    "be it that",
    "over and over",
)
"""Regular expressions of words that take a second reading."""
UNPLAIN_PHRASE = re.compile(rf"\b(?:{'|'.join(PHRASES)})\b".replace(" ", r'[\s"#]+'), re.IGNORECASE)

Found = list[tuple[int, str]]
LEAVES = (ast.Constant, ast.Name, ast.expr_context, ast.operator)
"""Nodes without a body, a keyword or a node that has one."""


def first_word(text: str) -> str:
    """Return the first word of `text`, or an empty string if it begins with something else."""
    return match[0] if (match := re.match(r"[\w-]+", text)) else ""


def unplain_phrases(source: str) -> Found:
    """Return line and text of all refused words of `source`: code, comments and strings alike."""
    return [
        (source.count("\n", 0, match.start()) + 1, " ".join(re.split(r'[\s"#]+', match[0])))
        for match in UNPLAIN_PHRASE.finditer(source)
    ]


def string(node: ast.AST | None) -> str | None:
    """Return the string that `node` states, on one line."""
    if isinstance(node, ast.Expr):
        node = node.value
    return " ".join(node.value.split()) if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


@lru_cache(maxsize=1)
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of `tree` that may have texts: those with a body, and keywords."""
    nodes = [tree]  # `ast.walk` would take twice as long
    for node in nodes:
        for name in node._fields:
            value = getattr(node, name)
            if isinstance(value, list):
                nodes += [each for each in value if isinstance(each, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, LEAVES):
                nodes.append(value)
    return [node for node in nodes if "body" in node._fields or isinstance(node, ast.keyword)]


@lru_cache(maxsize=1)
def attribute_docstrings(tree: ast.AST) -> Found:
    """Return line and text of the docstrings of attributes and constants: strings that follow an assignment."""
    found = []
    for node in nodes_of(tree):
        body = getattr(node, "body", None)
        for before, here in pairwise(body if isinstance(body, list) else ()):
            if isinstance(before, ast.Assign | ast.AnnAssign) and (text := string(here)) is not None:
                found.append((here.lineno, text))
    return found


def has_plain_beginning(function: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> bool:
    """Tell whether a docstring begins with a verb; with the name of the thing for a property."""
    if any("property" in ast.unparse(decorator) for decorator in function.decorator_list):
        return first_word(text) not in UNPLAIN
    return first_word(text) in VERBS.split() or (function.name == "__init__" and text.startswith(("Args:", "`")))


def unplain_docstrings(tree: ast.AST) -> Found:
    """Return line and text of docstrings that begin badly: functions with no verb, other things with no name."""
    found = [(line, text) for line, text in attribute_docstrings(tree) if first_word(text) in UNPLAIN]
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = string(node.body[0])
            if text is not None and not has_plain_beginning(node, text):
                found.append((node.lineno, f"{node.name}: {text}"))
        elif isinstance(node, ast.ClassDef | ast.Module) and node.body:
            if (text := string(node.body[0])) is not None and first_word(text) in UNPLAIN:
                found.append((node.body[0].lineno, text))
        elif isinstance(node, ast.keyword) and node.arg == "help":
            text = string(node.value) or ""
            if first_word(text) in UNPLAIN or text.startswith(("The same", "Whether")):
                found.append((node.value.lineno, text))
    return found


def unended_docstrings(tree: ast.AST) -> Found:
    """Return line and text of the docstrings of attributes that end as no sentence does."""
    return [(line, text) for line, text in attribute_docstrings(tree) if text[-1] not in ".:?!`)"]


def misplaced_docstrings(tree: ast.AST) -> Found:
    """Return line and text of strings that document nothing: they follow neither an assignment nor a definition."""
    documents = [line for line, _ in attribute_docstrings(tree)]
    found = []
    for node in nodes_of(tree):
        body = getattr(node, "body", None)
        for here in body if isinstance(body, list) else ():
            is_first = here is body[0] and isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            )
            is_string = isinstance(here, ast.Expr) and string(here) is not None
            if is_string and not is_first and here.lineno not in documents:
                found.append((here.lineno, string(here) or ""))
    return found


def unplain_texts(file: Path) -> list[str]:
    """Return place and text of all that is refused in `file`."""
    source = file.read_text()
    found = unplain_phrases(source)
    if file.suffix == ".py":
        tree = ast.parse(source)
        found += unplain_docstrings(tree) + unended_docstrings(tree) + misplaced_docstrings(tree)
    return [f"{file.relative_to(REPOSITORY)}:{line}: {text}" for line, text in sorted(found)]


def test_docstrings_of_attributes_are_found() -> None:
    source = 'SIZE_BYTES = 1\n"""Bytes of\n\na page."""\nclass A:\n    b: int\n    """A number."""'
    assert attribute_docstrings(ast.parse(source)) == [(2, "Bytes of a page."), (7, "A number.")]


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """What is free."""',
        'def f():\n    """The free blocks."""',
        'async def f():\n    """`n` blocks."""',
        '@property\ndef f(self):\n    """How many blocks are free."""',
        'A = 1\n"""How many blocks are free."""',
        'class A:\n    """What is free."""',
        '"""How blocks are freed."""',
        'option("--blocks", help="How many blocks.")',
        'option("--blocks", help="The same, in blocks.")',
    ],
)
def test_a_docstring_begins_with_a_verb_or_with_what_it_names(source: str) -> None:
    assert len(unplain_docstrings(ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        'def f():\n    """Return the free blocks."""',
        'def __init__(self, n):\n    """Args:\n        n: Blocks."""',
        '@property\ndef f(self):\n    """Free blocks."""',
        'A = 1\n"""Free blocks."""',
        'option("--blocks", help="Number of blocks.")',
    ],
)
def test_plain_docstrings_are_let_through(source: str) -> None:
    assert unplain_docstrings(ast.parse(source)) == []


def test_refused_words_are_found_in_comments_strings_and_across_lines() -> None:
    source = 'a = "so "\\\n"many"\n# A block, of\n# them all.\nb = "Nobody"\nc = "MHA stands for heads"'
    assert unplain_phrases(source.replace("\\\n", "\n")) == [(1, "so many"), (3, "of them"), (5, "Nobody")]


def test_a_docstring_that_documents_nothing_is_found() -> None:
    source = '"""Sizes."""\nA = 1\n"""Bytes of a page."""\n"""Bytes of a block."""\nA |= 2\n"""Bytes of a row."""'
    assert misplaced_docstrings(ast.parse(source)) == [(4, "Bytes of a block."), (6, "Bytes of a row.")]


def test_texts_are_plain() -> None:
    assert [text for file in FILES for text in unplain_texts(file)] == []
