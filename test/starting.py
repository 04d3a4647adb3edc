"""Signals sent to a program at many points of its start."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: Seconds after the program answers signals; imports take two on an idle machine.
DELAYS = (0.0, 0.15, 0.4, 0.8, 1.3, 2.2)
_AT_ONCE = 3  # that run side by side: most of what they do is to wait for the disk

Outcome = tuple[signal.Signals, int, str, str]


def interrupted_starts(
    arguments: Sequence[str], folder: Path, delays: Sequence[float] = DELAYS
) -> list[Outcome]:
    """Start Python with ``arguments``, once a delay, and end it by a signal behind that delay.

    SIGINT, and each third time SIGTERM.

    Returns:
        Of each: the signal, the exit status, and what it printed on stdout and stderr.
    """
    signals = [signal.SIGTERM if at % 3 == 2 else signal.SIGINT for at in range(len(delays))]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda *each: _start(arguments, folder, *each), delays, signals))


def _start(
    arguments: Sequence[str], folder: Path, delay_s: float, number: signal.Signals
) -> Outcome:
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        try:
            while process.poll() is None and not _answers(process.pid):
                time.sleep(0.005)
            time.sleep(delay_s)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    return number, process.returncode, out, err


def _answers(pid: int) -> bool:
    """Whether a process handles SIGTERM. Before that it is Python that starts, not our code."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt")), "0")
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
