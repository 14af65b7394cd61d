"""Put vLLM's Python files beside the tests' environment, for processes that run vLLM's own scheduler on a CPU.

    .venv/bin/python tests/vllm_engine/install.py

They go into a folder of their own, `vllm` in the environment's, that only those processes have on their path: 80 MB and
about half a minute. vLLM's source distribution is installed for no device, so that nothing is compiled; PyTorch and
what else vLLM shares with the tests is theirs. Where that fails, the folder keeps the reason, and the tests say it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "0.25.1"
FOLDER = Path(sys.prefix) / "vllm"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_BUILD = ("setuptools>=77.0.3,<81", "setuptools-rust==1.13.0", "setuptools-scm==10.3.4", "wheel")
"""What vLLM's setup imports, whatever it builds."""
_STAMP, _REASON = "installed.txt", "reason.txt"


def missing() -> str:
    """Why vLLM's files cannot be used; empty if they can."""
    if (FOLDER / _STAMP).exists():
        return ""
    reason = FOLDER / _REASON
    if reason.exists():
        return f"vLLM's Python files could not be installed: {reason.read_text(encoding='utf-8').strip()}"
    return "vLLM's Python files are not installed: run tests/vllm_engine/install.py"


def install() -> None:
    """Install into an empty folder, and put that in the place of what is there.

    Raises:
        subprocess.CalledProcessError: pip cannot.
    """
    with tempfile.TemporaryDirectory(dir=FOLDER.parent, prefix="vllm-") as scratch:
        build, files = Path(scratch, "build"), Path(scratch, "files")
        _pip(build, *_BUILD)
        _pip(files, "--no-deps", "--requirement", str(REQUIREMENTS))
        _pip(
            files,
            *("--no-deps", "--no-build-isolation", "--no-binary", "vllm", f"vllm=={VERSION}"),
            PYTHONPATH=str(build),
            VLLM_TARGET_DEVICE="empty",
            VLLM_VERSION_OVERRIDE=VERSION,
        )
        (files / _STAMP).write_text(_wanted(), encoding="utf-8")
        shutil.rmtree(FOLDER, ignore_errors=True)
        files.rename(FOLDER)


def main() -> None:
    """Install what is not there yet; a failure is a warning, since every other test can run."""
    stamp = FOLDER / _STAMP
    if stamp.exists() and stamp.read_text(encoding="utf-8") == _wanted():
        return
    try:
        install()
    except subprocess.CalledProcessError as error:
        lines = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
        shutil.rmtree(FOLDER, ignore_errors=True)
        FOLDER.mkdir()
        (FOLDER / _REASON).write_text(lines[0], encoding="utf-8")
        sys.stderr.write(f"Tests inside vLLM's own scheduler are skipped: {missing()}\n")


def _wanted() -> str:
    return f"vllm=={VERSION}\n" + REQUIREMENTS.read_text(encoding="utf-8")


def _pip(folder: Path, *arguments: str, **environment: str) -> None:
    """Install into `folder`; bytecode is made where a module is imported."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(folder), *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, env=inherited | environment, check=True, text=True, capture_output=True)


if __name__ == "__main__":
    main()
