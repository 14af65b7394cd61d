"""Every promise of `docs/promises.md` has tests, and no more is promised."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import kvsim
import kvsim_tui
from kvsim.recording.tables import Copies, Memory, Requests, Schedule, Steps

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"


def test_every_promise_names_tests_that_there_are() -> None:
    blocks = [block for block in PAGE.read_text(encoding="utf-8").split("\n\n") if not block.startswith("#")]
    assert len(blocks) > 30
    for block in blocks:
        named = re.findall(r"<!-- (\S+?)(?:::(\w+))? -->", block)
        assert named, f"no test stands behind: {block}"
        for file, test in named:
            text = (ROOT / file).read_text(encoding="utf-8")
            assert f"def {test}(" in text if test else "def test_" in text, (file, test)


def test_nothing_in_a_file_is_run() -> None:
    """The one exception is a policy of a user's own, which is a module that the user names."""
    unpickling = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    running = {"eval", "exec"}
    for file in (file for package in (kvsim, kvsim_tui) for file in Path(str(package.__file__)).parent.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not any(word in text for word in (*unpickling, *running)):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not unpickling & {name.partition(".")[0] for name in names}, file
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in running, file


def test_no_table_of_a_recording_has_room_for_what_was_said() -> None:
    tables = (Requests, Steps, Schedule, Memory, Copies)
    roomy = {name for table in tables for name, spec in table.columns() if spec.dtype == "str" or "list" in spec.dtype}
    assert roomy == {"id", "prompt_hashes"}
