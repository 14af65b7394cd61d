"""Put vLLM's Python files beside the tests' environment, for processes that run vLLM's own scheduler on a CPU.

    .venv/bin/python tests/vllm_engine/install.py
    KVSIM_VLLM="0.20.2 0.30.0" .venv/bin/python tests/vllm_engine/install.py

Each release goes into a folder of its own, `vllm-RELEASE` in the environment's, that only those processes have on their
path: 60 MB and a minute. vLLM's source distribution is installed for no device, so that nothing is compiled; PyTorch
and what else vLLM shares with the tests is theirs. Where that fails, the folder keeps the reason, and the tests say it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MAIN = "0.25.1"
"""The release that kvsim's models of offload, sizing and command lines follow."""
NEWEST = "0.33.0"
RELEASES = tuple(os.environ.get("KVSIM_VLLM", f"{MAIN} {NEWEST}").split())
"""Releases whose own engine runs in the tests."""
_ENVIRONMENT = Path(sys.prefix)
_REQUIREMENTS = Path(__file__).with_name("requirements.txt")
_NEEDS = _ENVIRONMENT / "vllm-needs"
_BUILD = ("setuptools>=77.0.3,<81", "setuptools-rust==1.13.0", "setuptools-scm==10.3.4", "wheel")
"""What vLLM's setup imports, whatever it builds."""
_STAMP, _REASON = "installed.txt", "reason.txt"


def python_path(release: str, root: Path) -> str:
    """The path on which a process finds the files of a release, and the package and tests in `root`."""
    return os.pathsep.join(map(str, (_folder(release), _NEEDS, root)))


def missing(release: str) -> str:
    """Why the files of a release cannot be used; empty if they can."""
    folder = _folder(release)
    if (folder / _STAMP).exists():
        return ""
    reason = folder / _REASON
    if reason.exists():
        return f"the files of vLLM {release} could not be installed: {reason.read_text(encoding='utf-8').strip()}"
    return f"the files of vLLM {release} are not installed: run tests/vllm_engine/install.py"


def main() -> None:
    """Install what is not there yet; a failure is a warning, since every other test can run."""
    needs = _REQUIREMENTS.read_text(encoding="utf-8")
    for release in (release for release in RELEASES if not _is_there(_folder(release), release)):
        try:
            if not _is_there(_NEEDS, needs):
                _install(_NEEDS, needs, ["--requirement", str(_REQUIREMENTS)])
            with tempfile.TemporaryDirectory(prefix="vllm-build-") as build:
                _pip(Path(build), *_BUILD)
                _install(
                    _folder(release),
                    release,
                    ["--no-build-isolation", "--no-binary", "vllm", f"vllm=={release}"],
                    PYTHONPATH=build,
                    VLLM_TARGET_DEVICE="empty",
                    VLLM_VERSION_OVERRIDE=release,
                )
        except subprocess.CalledProcessError as error:
            lines = [line for line in error.stderr.splitlines() if line.startswith("ERROR")] or ["pip failed"]
            folder = _folder(release)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / _REASON).write_text(lines[0], encoding="utf-8")
            sys.stderr.write(f"Tests inside vLLM's own scheduler are skipped: {missing(release)}\n")


def _folder(release: str) -> Path:
    return _ENVIRONMENT / f"vllm-{release}"


def _is_there(folder: Path, wanted: str) -> bool:
    stamp = folder / _STAMP
    return stamp.exists() and stamp.read_text(encoding="utf-8") == wanted


def _install(folder: Path, stamp: str, arguments: list[str], **environment: str) -> None:
    """Install into an empty folder, and put that in the place of what is there.

    Raises:
        subprocess.CalledProcessError: pip cannot.
    """
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="vllm-") as scratch:
        files = Path(scratch, "files")
        _pip(files, "--no-deps", *arguments, **environment)
        (files / _STAMP).write_text(stamp, encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        files.rename(folder)


def _pip(folder: Path, *arguments: str, **environment: str) -> None:
    """Install into `folder`; bytecode is made where a module is imported."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(folder), *arguments]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(command, env=inherited | environment, check=True, text=True, capture_output=True)


if __name__ == "__main__":
    main()
