"""Run commands in forks of a server process that has imported their modules.

Imports take one second for kvsim and ten for vLLM. The first worker of the tests that needs the server starts it, in a
folder that all workers know. The server ends when no worker needs it any more.

Run as a program, this file is the server. Its argument is the name of a module with a function `load`, which imports
all that the forks need. A request has the arguments of an interpreter: `-m`, a module and its arguments, or a file and
its arguments. Settings that an interpreter reads only at its start (`PYTHONHASHSEED`, `-X`) have no effect in a fork.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self

from . import ask_for_a_fork
from .ask_for_a_fork import ask

ROOT = Path(__file__).resolve().parent.parent


class Forks:
    """Client of a server process. The constructor starts the server if no other worker has."""

    def __init__(self, folder: Path, module: str, **environment: str) -> None:
        """Args:
        folder: folder with the socket of the server.
        module: name of the module whose `load` the server calls.
        environment: additional environment variables of the server.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._place = folder / "forks"
        self._process = 0
        self._ended = socket.socket(socket.AF_UNIX)
        with (folder / "starting").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                self._ended.connect(str(self._place))
            except OSError:
                self._process = self._start(module, os.environ | environment)
                self._ended.connect(str(self._place))

    def _start(self, module: str, environment: dict[str, str]) -> int:
        self._place.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener, self._place.with_name("log").open("wb") as log:
            listener.bind(str(self._place))
            listener.listen(64)
            streams = listener.fileno(), log.fileno(), log.fileno()
            path = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), str(ROOT))))
            return os.posix_spawn(
                sys.executable,
                [sys.executable, "-m", "tests.forks", module],
                environment | {"PYTHONPATH": path},
                file_actions=[(os.POSIX_SPAWN_DUP2, each, number) for number, each in enumerate(streams)],
            )

    def command(self) -> tuple[str, ...]:
        """Return the beginning of a command line. The arguments after it run in a fork, as after `python`."""
        return sys.executable, "-I", "-S", ask_for_a_fork.__file__, str(self._place)

    def run(self, *arguments: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run an interpreter with `arguments` in a fork. Return its exit code and output, like `subprocess.run`."""
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
            with Path(os.devnull).open() as nothing:
                streams = [each.fileno() for each in (nothing, said, complained)]
                code = ask(str(self._place), arguments, str(folder), environment, streams)
            for stream in (said, complained):
                stream.seek(0)
            return subprocess.CompletedProcess(arguments, code, said.read(), complained.read())

    def close(self) -> None:
        """Disconnect from the server. The worker that started it waits until all others have disconnected."""
        self._ended.close()
        if self._process:
            os.waitpid(self._process, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Request(NamedTuple):
    asker: socket.socket
    text: bytes
    streams: list[int]

    def adopt(self, added: dict[str, str]) -> list[str]:
        """Change to the folder, environment and streams of the request; return its arguments.

        `added` has variables that `load` has set.
        """
        text = self.text
        while more := self.asker.recv(1 << 16):
            text += more
        self.asker.close()
        request: dict[str, Any] = json.loads(text)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"] | added)
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
            os.close(stream)
        return list(request["arguments"])


class _Server:
    """Accept connections and requests, and fork for each request, until no client is connected."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener, self._is_found = listener, True
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        self._asking = {listener.accept()[0]}
        self._forks: dict[int, socket.socket] = {}
        """Connection that waits for the exit code, by process id of the fork."""

    def serve(self) -> _Request:
        """Answer each request with the exit code of its fork. Return only in a fork, with its request."""
        while self._is_needed():
            for ready in select.select([self._listener, self._woken, *self._asking], [], [])[0]:
                if ready is self._listener:
                    self._asking.add(self._listener.accept()[0])
                elif ready == self._woken:
                    self._send_exit_codes()
                elif request := self._fork(ready):
                    return request
        os._exit(0)  # a normal exit would take seconds to remove all modules

    def _is_needed(self) -> bool:
        if self._asking or self._forks:
            return True
        if self._is_found:  # no new client finds the socket; one that has connected before is still accepted
            self._is_found = False
            Path(self._listener.getsockname()).unlink(missing_ok=True)
        return bool(select.select([self._listener], [], [], 0)[0])

    def _send_exit_codes(self) -> None:
        os.read(self._woken, 1 << 10)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with self._forks.pop(ended[0]) as asker, suppress(OSError):  # the client may have been killed
                    asker.sendall(b"%d" % os.waitstatus_to_exitcode(ended[1]))

    def _fork(self, asker: socket.socket) -> _Request | None:
        """Fork if the client is still connected. Return the request in the fork, and None in the server."""
        self._asking.remove(asker)
        text, streams, *_ = socket.recv_fds(asker, 1 << 16, 3)
        if not text:
            asker.close()
        elif process := os.fork():
            self._forks[process] = asker
            for stream in streams:
                os.close(stream)
        else:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for other in (self._listener, *self._asking, *self._forks.values()):
                other.close()
            os.close(self._woken)
            os.close(self._wake)
            return _Request(asker, text, streams)
        return None


def _run(what: str, *arguments: str) -> int:
    """Run a module or a file as an interpreter with these arguments would; return its exit code."""
    is_module = what == "-m"
    name, sys.argv = (arguments[0], [*arguments]) if is_module else (what, [what, *arguments])
    try:
        if is_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, int | None):
            return end.code or 0
        sys.stderr.write(f"{end.code}\n")
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _finish(code: int) -> None:
    """End the process without removing its modules.

    Removing them takes ten times as long as a command, because a fork copies each page of memory that it changes.
    """
    if threading.active_count() == 1:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    raise SystemExit(code)


def main() -> None:
    before = os.environ.copy()
    with socket.socket(fileno=os.dup(0)) as listener:
        gc.disable()  # vLLM makes a million objects when it is imported
        import_module(sys.argv[1]).load()
        gc.enable()
        gc.freeze()  # a fork that collects garbage would copy all of this
        added = {name: value for name, value in os.environ.items() if before.get(name) != value}
        request = _Server(listener).serve()
    _finish(_run(*request.adopt(added)))


if __name__ == "__main__":
    main()
