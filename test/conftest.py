"""What every test may take for granted of its process, and which tests share one."""

from __future__ import annotations

import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """A shell has what it starts with ``&`` ignore Ctrl-C, and whom we start would inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadscope`` a process takes one test after the other from all files.

    Only files whose tests share what a fixture of their module starts are taken as a whole, the
    largest first.
    """
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return file if _shares(config.rootpath / file) else nodeid

    return Scheduling(config, log)


@cache
def _shares(file: Path) -> bool:
    """Whether a test file has fixtures of its module, or takes those of the module from others."""
    text = file.read_text(encoding="utf-8")
    return 'scope="module"' in text or "start_for_all" in text
