"""Runs that are cut off, and runs that meet: what they leave behind, and what they say."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flashrt_core.errors import OptionError
from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.output import results_folder

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]


@contextmanager
def started(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The command in a process of its own, which takes SIGINT as one on a terminal does."""
    command = [sys.executable, "-m", "flashrt_ros.cli", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        try:
            yield process
        except BaseException:
            process.kill()
            print(*process.communicate(), sep="\n")  # pytest shows it with the failure
            raise
        finally:
            process.kill()


def wait_until(holds: Callable[[], object], seconds: float = 60.0) -> bool:
    """Whether it holds within that time."""
    limit = time.monotonic() + seconds
    while not (held := bool(holds())) and time.monotonic() < limit:
        time.sleep(0.05)
    return held  # not asked again: a process that is being replaced by exec has no name


NODE_FILE = "replay_node.yaml"  # what a replay hands to its node


def nodes_of(parameters: Path) -> list[int]:
    """Ids of the node processes of a parameter file."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue  # it ended while we looked
        if b"flashrt_ros.start" in words and str(parameters).encode() in words:
            found.append(int(entry.parent.name))
    return found


@pytest.fixture
def long_replay(recording: Path, parameter_path: Path, tmp_path: Path) -> list[object]:
    """Arguments of a replay that takes 100 seconds: two further processes start meanwhile."""
    return ["replay", recording, "--params", parameter_path, "--out", tmp_path, "--rate", 0.01]


def runs(folder: Path) -> bool:
    """Whether the node of a replay into ``folder`` is configured."""
    log = folder / "replay_node.log"
    return log.is_file() and "plan" in log.read_text()


@pytest.mark.parametrize(
    ("number", "says"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")]
)
def test_an_interrupted_replay_takes_its_node_along(
    long_replay: list[object], tmp_path: Path, number: signal.Signals, says: str
) -> None:
    with started(*long_replay) as process:
        assert wait_until(lambda: runs(tmp_path))
        assert nodes_of(tmp_path / NODE_FILE), "the node runs"
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number
    assert err == f"flashrt: {says}\n"
    assert not nodes_of(tmp_path / NODE_FILE)


@pytest.mark.parametrize("early", [True, False])
def test_a_killed_replay_takes_its_node_along(
    long_replay: list[object], tmp_path: Path, early: bool
) -> None:
    with started(*long_replay) as process:
        assert wait_until(lambda: nodes_of(tmp_path / NODE_FILE))
        if not early:
            assert wait_until(lambda: runs(tmp_path))
        process.kill()
        process.wait(10)
        assert wait_until(lambda: not nodes_of(tmp_path / NODE_FILE), 15.0)
    with results_folder(tmp_path, []):
        pass  # the lock went with its process


def recording_now(folder: Path) -> bool:
    """Whether some bytes of a demo's recording are on the disk."""
    return any(f.stat().st_size for f in folder.rglob("*.mcap") if "unfinished" in str(f))


def test_an_interrupted_recording_leaves_nothing_and_the_next_demo_runs(tmp_path: Path) -> None:
    with started("demo", "--seconds", 60, "--out", tmp_path) as process:
        assert wait_until(lambda: recording_now(tmp_path))
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == "flashrt: interrupted\n"
    assert [p.name for p in tmp_path.iterdir()] == [".flashrt.lock"]


def test_a_killed_recording_leaves_the_earlier_one_and_its_remains_go(tmp_path: Path) -> None:
    def done(seconds: float) -> int:
        with started("demo", "--seconds", seconds, "--out", tmp_path) as process:
            assert wait_until(lambda: (tmp_path / "demo_node.log").is_file())
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
        with Bag(tmp_path / "demo_bag") as bag:
            return bag.message_count

    assert done(2) == 2 * (30 + 30 + 100)
    (tmp_path / "demo_node.log").unlink()
    with started("demo", "--seconds", 60, "--out", tmp_path) as process:
        assert wait_until(lambda: recording_now(tmp_path))
        process.kill()
        process.wait(10)
    assert (tmp_path / ".demo_bag.unfinished").is_dir()
    with Bag(tmp_path / "demo_bag") as bag:
        assert bag.message_count == 320, "the earlier recording is whole"
    assert done(3) == 480
    assert not (tmp_path / ".demo_bag.unfinished").exists()


def test_a_second_run_into_one_folder_is_refused(long_replay: list[object], tmp_path: Path) -> None:
    with started(*long_replay) as first:
        assert wait_until(lambda: runs(tmp_path))
        before = {p: p.stat().st_mtime_ns for p in tmp_path.iterdir() if "log" not in p.name}
        for arguments in (long_replay, ["demo", "--out", tmp_path]):
            with started(*arguments) as second:
                out, err = second.communicate(timeout=60)
            assert second.returncode == 2
            assert err.startswith(f"flashrt: error: another run is using '{tmp_path}'")
            assert err.count("\n") == 1
            assert "recording" not in out
        assert first.poll() is None
        assert before == {p: p.stat().st_mtime_ns for p in tmp_path.iterdir() if p in before}
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=30)


def test_a_folder_is_held_by_one_and_free_afterwards(tmp_path: Path) -> None:
    other = tmp_path / "link"
    folder = tmp_path / "a" / "b"
    with results_folder(folder, ["x.json"]) as held:
        assert held.is_dir()
        other.symlink_to(folder)
        with pytest.raises(OptionError, match="another run"), results_folder(other, []):
            pass
    with results_folder(other, []):
        pass


def test_folders_that_cannot_hold_results_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken" / "demo.json").mkdir(parents=True)
    paths = ["/dev/null/x", "/proc/x", "/proc", tmp_path / "file", tmp_path / "file" / "x"]
    paths += [tmp_path / ("x" * 300), tmp_path / "taken"]
    for path in paths:
        with pytest.raises(OptionError) as error, results_folder(Path(path), ["demo.json"]):
            pass
        text = str(error.value)
        # Messages shorten what is very long; the beginning tells which folder it is.
        assert str(path)[:150] in text and "\n" not in text and "--out" in text
    assert (tmp_path / "file").read_text() == "mine"


def test_a_result_that_may_not_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "demo.json").write_text("{}")
    # root may write anything, so the answer of the system is given here.
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "demo.json")
    with (
        pytest.raises(OptionError, match=r"demo\.json.*cannot"),
        results_folder(tmp_path, ["demo.json"]),
    ):
        pass
