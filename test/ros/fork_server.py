"""Nodes without most of their imports: a process that has imported torch forks one for each node.

That import takes more than a second of a core, which is more than most tests ask of a node. Nothing
of ROS is imported before the fork: its libraries start threads. A forked node runs its program from
the first line to the end of the interpreter, in a process of its own. Programs that are started as
a user does are those of the replay, of the demo, of ``flashrt bench node`` and of the launch files,
and those of the tests of what happens while a node starts.

A forked node publishes its diagnostics more often, as tests wait for them everywhere.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_DIAGNOSTICS_S = 0.25


class ForkedProcess:
    """What tests do with a ``subprocess.Popen``, with a child of the server's."""

    def __init__(self, server: _Server, pid: int) -> None:
        self.pid = pid
        self._server = server

    def poll(self) -> int | None:
        """The exit status, or minus the signal that ended it; None while it runs."""
        status: int | None = self._server.ask({"poll": self.pid})
        return status

    def wait(self, timeout_s: float = 60.0) -> int:
        """The exit status; subprocess.TimeoutExpired where it does not end in time."""
        limit = time.monotonic() + timeout_s
        while (status := self.poll()) is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout_s)
            time.sleep(0.005)
        return status

    def send_signal(self, number: int) -> None:
        """Nothing where it has ended; until that is asked for, no other process has its number."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _Server:
    """The server of this test process; it ends with it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            # Of numpy's BLAS: a fork takes one thread along.
            variables = os.environ | {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"}
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=variables)
        self._socket, self._lines = ours, ours.makefile("rw")
        self._lock = threading.Lock()
        atexit.register(self._close)

    def ask(self, question: dict[str, Any]) -> Any:
        with self._lock:
            self._lines.write(json.dumps(question) + "\n")
            self._lines.flush()
            return json.loads(self._lines.readline())

    def _close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._process.wait()


@cache
def _server() -> _Server:
    return _Server()


def fork(command: Sequence[str], environment: Mapping[str, str], log: Path) -> ForkedProcess:
    """Run what ``python *command`` would.

    Args:
        command: a script, or ``-m`` and a module; then its arguments.
        environment: all of it.
        log: file of what it prints.
    """
    asked = {"command": [*command], "environment": {**environment}, "log": str(log)}
    server = _server()
    return ForkedProcess(server, server.ask(asked))


def _serve(lines: Any) -> dict[str, Any] | None:
    """Answer questions. Returns twice: in a new process what it shall do, here None at the end."""
    ended: dict[int, int] = {}
    for line in lines:
        question = json.loads(line)
        if (pid := question.get("poll")) is None:
            answer: int | None = os.fork()
            if answer == 0:
                return dict(question)
            ended.pop(answer, None)  # numbers come again
        else:
            if pid not in ended and (found := os.waitpid(pid, os.WNOHANG))[0]:
                ended[pid] = os.waitstatus_to_exitcode(found[1])
            answer = ended.get(pid)
        lines.write(json.dumps(answer) + "\n")
        lines.flush()
    return None


def _main(descriptor: int) -> None:
    import flashrt_core.load
    import flashrt_core.policies.pi05  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who asks ends nodes in their order
    with socket.socket(fileno=descriptor) as ours, ours.makefile("rw") as lines:
        asked = _serve(lines)
    if asked is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(asked["log"], "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.clear()
    os.environ.update(asked["environment"])
    from flashrt_ros import diagnostics

    diagnostics.PERIOD_S = _DIAGNOSTICS_S
    program, *arguments = asked["command"]
    if program == "-m":
        sys.path[0] = str(Path.cwd())
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(program).parent)
        sys.argv = [program, *arguments]
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    _main(int(sys.argv[1]))
