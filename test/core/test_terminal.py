"""How commands end."""

from __future__ import annotations

import signal
import time

import pytest

from flashrt_core.terminal import run_command


class Dying:
    """A signal comes while its destructor runs, whose exceptions Python only prints."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)
        sum(range(100))


def test_a_signal_inside_a_destructor_still_ends_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def application() -> int:
        dying = [Dying()]
        dying.clear()
        end = time.monotonic() + 5.0
        while time.monotonic() < end:
            time.sleep(0.01)
        return 0

    assert run_command(application) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "flashrt: interrupted\n"


def test_other_exceptions_of_destructors_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = []

    class Broken:
        def __del__(self) -> None:
            raise ValueError("mine")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.unraisablehook", lambda found: told.append(found.exc_value))
        assert run_command(lambda: [Broken()] and 3) == 3
    assert [str(error) for error in told] == ["mine"]
