"""The small deployment under the real launch system, where it is installed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

pytest.importorskip("launch_ros", reason="launch and launch_ros are not installed")
rclpy = pytest.importorskip("rclpy")

from ament_index_python.packages import get_package_prefix  # noqa: E402
from launch import LaunchDescription, LaunchService  # noqa: E402
from launch.actions import IncludeLaunchDescription  # noqa: E402
from launch.launch_description_sources import PythonLaunchDescriptionSource  # noqa: E402
from lifecycle_msgs.srv import GetState  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.ros, pytest.mark.slow]


def installed_executable() -> str | None:
    """Path of the node's executable as launch will look it up."""
    try:
        path = f"{get_package_prefix('flashrt_ros')}/lib/flashrt_ros/policy_node"
    except (LookupError, OSError):
        return None
    return path if os.access(path, os.X_OK) else None


@pytest.mark.skipif(installed_executable() is None, reason="the package is not installed")
def test_tiny_deployment_becomes_active_and_ends_cleanly() -> None:
    import asyncio

    source = PythonLaunchDescriptionSource(str(ROOT / "launch" / "pi05_tiny.launch.py"))
    arguments = {"namespace": "launched"}.items()
    service = LaunchService(argv=[])
    service.include_launch_description(
        LaunchDescription([IncludeLaunchDescription(source, launch_arguments=arguments)])
    )

    async def run() -> tuple[str, int]:
        running = asyncio.ensure_future(service.run_async())
        try:
            state = await asyncio.get_running_loop().run_in_executor(None, wait_for_active)
        finally:
            await asyncio.ensure_future(service.shutdown())
        return state, await running

    state, returned = asyncio.new_event_loop().run_until_complete(run())
    assert state == "active"
    assert returned == 0


def wait_for_active(limit_s: float = 60.0) -> str:
    """Label of the node's state: `active` as soon as it is, else the last seen at the limit."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("launch_test_client", context=context)
    executor = rclpy.executors.SingleThreadedExecutor(context=context)
    executor.add_node(node)
    client = node.create_client(GetState, "/launched/policy/get_state")
    label = "no answer"
    end = time.monotonic() + limit_s
    try:
        while label != "active" and time.monotonic() < end:
            if client.wait_for_service(timeout_sec=1.0):
                future = client.call_async(GetState.Request())
                executor.spin_until_future_complete(future, timeout_sec=2.0)
                result = future.result() if future.done() else None
                label = result.current_state.label if result else "no answer"
            time.sleep(0.1)
        return label
    finally:
        executor.shutdown()
        node.destroy_node()
        rclpy.shutdown(context=context)
