"""The ROS 2 that an environment of this checkout holds is the one it is named after, and works."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import environment  # noqa: E402  (tools/ is no package)

HERE = [e for e in environment.ENVIRONMENTS.values() if e.venv == Path(sys.prefix)]


@pytest.mark.ros
@pytest.mark.jazzy
@pytest.mark.skipif(not HERE, reason="a Python that `make` did not set up")
def test_rclpy_is_that_of_the_environment() -> None:
    """Other tests would be skipped where rclpy is missing, so this one asks no leave."""
    import rclpy
    from flashrt_ros.msg import ActionChunk

    (target,) = HERE
    installed = {name for d in metadata.distributions() if (name := d.name).endswith("-rclpy")}
    assert installed == {"ros-rclpy", f"ros-{target.ros}-rclpy"}
    for module in (rclpy, sys.modules[ActionChunk.__module__]):
        assert Path(str(module.__file__)).is_relative_to(target.venv)
