"""Where the logs of ROS go, and what is said where they cannot go anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("rclpy")

from flashrt_core.errors import OptionError
from flashrt_ros import log_folder
from flashrt_ros.log_folder import ensure_log_folder
from flashrt_ros.replay.transport import Graph

pytestmark = pytest.mark.ros
NOWHERE = "/proc/none"  # where root, too, can write nothing


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, of this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"HOME": "{home}"}, ".ros/log"),
        ({"HOME": NOWHERE, "ROS_HOME": "{home}"}, "log"),
        ({"HOME": NOWHERE, "ROS_HOME": NOWHERE, "ROS_LOG_DIR": "{home}/mine"}, "mine"),
        ({"HOME": "{home}", "ROS_LOG_DIR": "~/mine"}, "mine"),
    ],
)
def test_the_folder_that_ros_takes_stays(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    folder: str,
) -> None:
    given = {name: value.format(home=tmp_path) for name, value in environment.items()}
    before = dict(given)
    ensure_log_folder(given)
    assert given == before and list((tmp_path / folder).iterdir()) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("environment", [{"HOME": NOWHERE}, {}, {"HOME": "/", "ROS_HOME": NOWHERE}])
def test_another_is_chosen_and_said_once(
    temporary: Path, capsys: pytest.CaptureFixture[str], environment: dict[str, str]
) -> None:
    given = dict(environment)
    Graph(7, private=True).enter(given)
    chosen = Path(given["ROS_LOG_DIR"])
    assert chosen.parent == temporary and chosen.stat().st_mode & 0o077 == 0
    err = capsys.readouterr().err
    assert err.startswith(f"flashrt: the logs of ROS go to '{chosen}', as '") and "set ROS_" in err
    assert err.count("\n") == 1
    Graph(8, private=True).enter(given)
    assert capsys.readouterr().err == "" and given["ROS_LOG_DIR"] == str(chosen)


def test_a_folder_that_was_named_is_not_replaced() -> None:
    with pytest.raises(OptionError, match=f"ROS_LOG_DIR'.*got '{NOWHERE}': .*; set ROS_LOG_DIR"):
        ensure_log_folder({"ROS_LOG_DIR": NOWHERE})


def test_a_folder_of_somebody_else_is_not_taken(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary / f"flashrt-{os.geteuid()}-ros-log").symlink_to(temporary)
    with pytest.raises(OptionError, match="belongs to somebody else; set ROS_LOG_DIR"):
        ensure_log_folder({"HOME": NOWHERE})
    monkeypatch.setattr(log_folder.tempfile, "tempdir", NOWHERE)
    with pytest.raises(OptionError, match="got none, .*; set ROS_LOG_DIR"):
        ensure_log_folder({"HOME": NOWHERE})


def node(*arguments: str, **environment: str) -> tuple[int, list[str]]:
    """The node's exit status and the lines that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "flashrt_ros.start", "--ros-args", *arguments],
        env={k: v for k, v in os.environ.items() if k != "ROS_LOG_DIR"} | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_the_node_starts_without_a_home_to_write_to(temporary: Path) -> None:
    # A parameter of an impossible type ends it as soon as ROS has let it begin.
    status, lines = node("-p", "use_sim_time:=3", HOME=NOWHERE, TMPDIR=str(temporary))
    assert lines[0].startswith(f"policy_node: the logs of ROS go to '{temporary}/")
    assert status == 1 and lines[-1].startswith("policy_node: ")
    assert "use_sim_time" in lines[-1] and not any("Traceback" in line for line in lines)


def test_a_parameter_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    place = tmp_path / "none.yaml"
    status, lines = node("--params-file", str(place))
    assert status == 1 and len(lines) == 1
    assert lines[0].startswith("policy_node: argument '--params-file': expected a parameter file")
    assert f"got '{place}': No such file or directory;" in lines[0]
