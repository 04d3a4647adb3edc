"""How commands end."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from flashrt_core.errors import WeightsError
from flashrt_core.terminal import run_command
from test.starting import interrupted_starts


class Dying:
    """A signal comes while its destructor runs, whose exceptions Python only prints."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)
        sum(range(100))


def wait(seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.01)


def test_a_signal_inside_a_destructor_still_ends_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def application() -> int:
        dying = [Dying()]
        dying.clear()
        wait()
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


def dropped() -> None:
    with suppress(BaseException):
        signal.raise_signal(signal.SIGINT)


def replaced() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException:
        raise AttributeError("module 'numpy' has no attribute 'matrix'") from None


def blamed() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except BaseException as error:
        raise WeightsError("checkpoint 'x'", got=str(error)) from error


@pytest.mark.parametrize("handle", [dropped, replaced, blamed])
def test_a_signal_that_was_taken_for_something_else_still_ends_the_command(
    capsys: pytest.CaptureFixture[str], handle: Callable[[], None]
) -> None:
    def application() -> None:
        handle()
        wait()

    begin = time.monotonic()
    assert run_command(application) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "flashrt: interrupted\n"
    assert time.monotonic() - begin < 2.0
    time.sleep(0.05)  # and nothing comes after it


# What libraries do in their imports: they turn what they catch into an error of theirs.
_MODULE = """
import signal
done = False
try:
    signal.raise_signal(signal.{number})
    done = True
except BaseException:
    raise AttributeError("half imported") from None
"""


def test_a_signal_waits_for_the_import_that_it_came_in(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "slow_to_import.py").write_text(_MODULE.format(number="SIGTERM"))
    monkeypatch.syspath_prepend(tmp_path)
    reached = []

    def application() -> None:
        reached.append(import_module("slow_to_import").done)
        wait()

    assert run_command(application) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "flashrt: ended by SIGTERM\n"
    assert reached == [True], "the import came to its end, and was not cut off in the middle"


def test_before_the_command_a_signal_ends_the_process_on_the_spot(tmp_path: Path) -> None:
    (tmp_path / "cut.py").write_text(_MODULE.format(number="SIGINT"))
    program = (
        "import sys; from flashrt_core.signals import leave_at_once;"
        f" leave_at_once('flashrt'); sys.path.insert(0, {str(tmp_path)!r}); import cut"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "flashrt: interrupted\n")


def test_the_way_into_a_process_imports_nothing_heavy_before_it_answers_signals() -> None:
    program = "import flashrt_ros.start, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    heavy = {"numpy", "torch", "rich", "typer", "yaml", "rclpy", "matplotlib"}
    assert not heavy & set(done.stdout.split()) and "flashrt_core.signals" in done.stdout.split()


#: What ``flashrt eval`` says of its progress: a fast machine is there before a late signal.
_HOW_FAR = re.compile(r"\w+: \d+ episodes( \.\.\.|.* in \d+ s)")
TASK = Path(__file__).resolve().parents[1] / "evaluation" / "point_arm"


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "flashrt_core", "inspect"),
        ("-m", "flashrt_core", "calibrate", "--made-up", "40", "--output", "{out}"),
        ("-c", "import sys; from flashrt_ros.start import command; sys.exit(command())",
         "eval", str(TASK), "--episodes", "40"),
    ],
    ids=["inspect", "calibrate", "eval"],
)  # fmt: skip
def test_ctrl_c_anywhere_in_the_start_of_a_command_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    words = [word.format(out=tmp_path / "scales.json") for word in arguments]
    outcomes = interrupted_starts(words, tmp_path)
    for number, status, _, err in outcomes:
        said = [line for line in err.splitlines() if not _HOW_FAR.fullmatch(line)]
        how = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
        assert (status, said) in [(0, []), (128 + number, [f"flashrt: {how}"])], err
    assert [status for _, status, _, _ in outcomes].count(0) < len(outcomes) - 1, "some came in it"
