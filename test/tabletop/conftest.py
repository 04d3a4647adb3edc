"""What the tests of the simulated task need of the machine; where it is missing, they say what."""

from __future__ import annotations

import importlib.util

import pytest

_MUJOCO = importlib.util.find_spec("mujoco") is not None
collect_ignore_glob = [] if _MUJOCO else ["test_*.py"]


def pytest_report_header() -> str | None:
    """Say that nothing here runs without MuJoCo."""
    return None if _MUJOCO else "test/tabletop: left out, no mujoco; install the extra 'sim'"


@pytest.fixture(scope="session")
def opengl() -> None:
    """Skip, with the remedy, where no picture can be drawn."""
    from tabletop.backend import RenderingError, check_opengl

    try:
        check_opengl()
    except RenderingError as error:
        pytest.skip(str(error))
