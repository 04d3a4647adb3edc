"""The policy node as its own process: started from a parameter file, driven, stopped."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from flashrt_core.errors import FlashRTError
from flashrt_ros.autostart import AUTOSTART

from .client import PolicyClient
from .output import writing
from .transport import child_environment

_PROBLEM = re.compile(r"\[(ERROR|FATAL)\]|Error\b|Traceback")
_PREFIX = re.compile(r"^\[\w+\] \[[\d.]+\] \[[\w./]+\]: ")


_NODE = ("flashrt_ros.start",)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBRARY = ctypes.CDLL(None, use_errno=True)


def _end_with(parent: int) -> None:
    """In the child: have the kernel send SIGTERM when the parent ends, however it ends.

    The kernel watches the thread that started the child, so that has to be one that stays: the main
    thread.
    """
    if sys.platform == "linux":
        _LIBRARY.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))
    if os.getppid() != parent:  # it was gone before the kernel knew
        os._exit(1)


class NodeStartError(FlashRTError):
    """The node process ended, never answered, or refused a transition."""

    code = 91


def refuse_running(domain: int | None, name: str = "/policy", look_s: float = 3.0) -> None:
    """Look for a node ``name`` on ``domain``, which this process has entered; None: a private one.

    Its services would answer in place of those of the node that is about to be started.

    Raises:
        NodeStartError: there is one.
    """
    if domain is None:
        return
    with PolicyClient(name) as client:
        if client.wait_for_services(look_s):
            raise NodeStartError(
                f"node '{name}'",
                expected=f"none on domain {domain}",
                got="one that runs",
                remedy="stop it or use another --domain",
            )


class NodeProcess:
    """One policy node; use as a context manager, which stops it in any case.

    The node also ends when this process does, or the thread that entered the context.

    Args:
        parameters: the parameter file.
        log: file for what the node prints; its end is shown when something fails.
        overrides: parameters that count more than the file.
        name: node name.
        program: module that runs the node, with its arguments; none: the node's own.
    """

    def __init__(
        self,
        parameters: Path,
        log: Path,
        overrides: Mapping[str, object] | None = None,
        name: str = "policy",
        program: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.log = log
        self._command = [sys.executable, "-m", *(program or _NODE), "--ros-args"]
        self._command += ["-r", f"__node:={name}", "--params-file", str(parameters)]
        # Who runs this process brings it to its states, whatever the file says.
        for key, value in ({AUTOSTART: False} | dict(overrides or {})).items():
            self._command += ["-p", f"{key}:={json.dumps(value)}"]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        if self._process is None:
            raise self.failure("was not started")
        return self._process.pid

    def __enter__(self) -> Self:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = child_environment()
        # The log is read back: no colours, and every line at once.
        environment |= {"RCUTILS_COLORIZED_OUTPUT": "0", "PYTHONUNBUFFERED": "1"}
        parent = os.getpid()
        with writing("log", self.log), self.log.open("wb") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                # Between fork and exec it only calls into libraries that are loaded already.
                preexec_fn=lambda: _end_with(parent),
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def wait_ready(self, client: PolicyClient, timeout_s: float = 60.0) -> None:
        """Until the node's lifecycle services answer.

        Raises:
            NodeStartError: the process ended, or is not there in time.
        """
        limit = time.monotonic() + timeout_s
        while not client.wait_for_services(0.25):
            self.check()
            if time.monotonic() > limit:
                raise self.failure(f"did not offer its services within {timeout_s:g} s")

    def check(self) -> None:
        """Raise NodeStartError when the process has ended."""
        code = self._process.poll() if self._process else None
        if code is not None:
            raise self.failure(f"ended with exit status {code}")

    def configure(self, client: PolicyClient) -> None:
        """Configure; NodeStartError with the node's own reason when it fails."""
        if not client.configure():
            self.check()
            raise self.failure("could not be configured")

    def activate(self, client: PolicyClient) -> None:
        """Activate; NodeStartError with the node's own reason when it fails."""
        if not client.activate():
            self.check()
            raise self.failure("could not be activated")

    def failure(self, what: str) -> NodeStartError:
        """The error that says ``what`` happened to the node, with the reason from its log."""
        return NodeStartError(
            f"node '{self.name}' {what}: {self.reason()}", remedy=f"see {self.log}"
        )

    def reason(self) -> str:
        """The last problem that the node logged, or its last line, without the log prefix."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []
        lines = [line for line in lines if line.strip()]
        logged = [line for line in lines if _PREFIX.match(line) and _PROBLEM.search(line)]
        loose = [line for line in lines if _PROBLEM.search(line)]
        chosen = (logged or loose or lines or ["it printed nothing"])[-1]
        return _PREFIX.sub("", chosen).strip()

    def stop(self, grace_s: float = 10.0) -> int | None:
        """SIGTERM, and after ``grace_s`` SIGKILL; the exit status."""
        process = self._process
        if process is None:
            return None
        if process.poll() is None:
            # Not SIGINT: as an exception it may get lost in the imports of a node that just starts.
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return process.returncode
