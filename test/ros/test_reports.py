"""What users of such nodes have reported in public, kind by kind, and the tests that hold us to it.

Each kind has gone wrong in a camera driver, a bridge, a policy runner, a controller or in ROS
itself. The table names the tests; one test here checks that every name in it is a test, the others
are those that had no better place.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")

from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_ros import diagnostics
from flashrt_ros.loading import load_options
from flashrt_ros.parameters import build_config
from flashrt_ros.replay.parameter_file import read_parameters
from flashrt_ros.replay.recording import Recorder, write_recording

from .harness import Robot, joint_state, wait_until
from .test_inputs import MS, T0, camera, fill, image, make_ingest, pixel

pytestmark = pytest.mark.ros
ROOT = Path(__file__).resolve().parents[2]

REPORTS: dict[str, tuple[str, ...]] = {
    "rows with padding are sheared, or kill the node": (
        "core/test_images.py::test_packed_encodings_with_every_row_padding",
        "core/test_images.py::test_mono16_scales_and_honours_byte_order_and_odd_steps",
        "ros/test_services.py::test_padding_and_channel_order_do_not_change_a_bit",
        "ros/test_bad_input.py::test_refused_with_a_reason",
    ),
    "red and blue change places without a word": (
        "core/test_images.py::test_a_required_encoding_refuses_others_and_orders_unnamed_channels",
        "ros/test_services.py::test_padding_and_channel_order_do_not_change_a_bit",
        "ros/test_bad_input.py::test_supported_encodings_are_taken",
    ),
    "cameras are told apart by position": (
        "policies/pi05/test_preprocess.py::test_views_go_by_name",
        "ros/test_inputs.py::test_an_observation_is_put_together_by_view_with_its_stamps",
        "ros/test_reports.py::test_the_order_in_which_cameras_are_listed_changes_no_bit",
    ),
    "one way into the policy resizes in another manner": (
        "policies/pi05/test_preprocess.py::test_resize_keeps_aspect_and_centres_on_black",
        "parity/test_host_side.py::test_resize_equals_openpi",
        "ros/test_services.py::test_images_that_the_device_decodes_give_equal_bits",
        "ros/test_services.py::test_compressed_images_of_any_size_beside_raw_ones",
    ),
    "compressed images do not come in, or slow everything down": (
        "ros/test_decoding.py::test_names_of_image_transport",
        "ros/test_decoding.py::test_a_slow_picture_delays_neither_joints_nor_decisions",
        "ros/test_decoding.py::test_large_pictures_over_dds_do_not_slow_decisions_down",
        "ros/test_bad_input.py::test_refused_with_a_reason",
    ),
    "QoS does not match, and nothing says so": (
        "ros/test_bad_input.py::test_a_publisher_whose_qos_does_not_fit_is_reported",
        "ros/test_parameters.py::test_qos_overrides_of_topics_that_are_no_input_are_unknown",
        "ros/test_prompt_topic.py::test_a_publisher_that_does_not_latch_is_reported",
    ),
    "large images are lost on one host": (
        "replay/test_transport.py::test_the_profile_is_well_formed_and_taken",
        "replay/test_transport.py::test_too_little_shared_memory_is_said",
        "ros/test_reports.py::test_large_images_arrive_with_the_profile_that_ships",
    ),
    "a recording is stale without simulated time, or when it loops": (
        "ros/test_time.py::test_recorded_stamps_without_simulated_time_are_explained_once",
        "ros/test_time.py::test_simulated_time_paces_decisions_and_may_jump_back",
        "ros/test_time.py::test_a_clock_that_does_not_run_is_named",
        "ros/test_inputs.py::test_a_clock_that_went_back_starts_history_anew",
    ),
    "lifecycle: lost, early, fatal or silent transitions": (
        "ros/test_lifecycle.py::test_every_transition_and_what_each_state_does",
        "ros/test_lifecycle.py::test_every_reason_not_to_configure_leaves_a_node_that_can",
        "ros/test_lifecycle.py::test_a_failed_configure_is_explained_and_can_be_repaired",
        "launch/test_launch_files.py::test_the_node_starts_itself",
    ),
    "an observation is older than anybody thinks": (
        "ros/test_inputs.py::test_the_newest_sample_within_its_age_is_chosen",
        "ros/test_alignment.py::test_joints_of_the_moment_of_the_images_are_used",
        "ros/test_services.py::test_a_chunk_says_what_it_is",
        "ros/test_reports.py::test_the_last_frame_repeated_by_a_dead_camera_grows_old",
    ),
    "callbacks starve each other": (
        "ros/test_services.py::test_a_flood_of_requests_is_answered_or_refused_never_dropped",
        "ros/test_worker.py::test_a_failing_job_is_reported_and_the_thread_lives",
        "ros/test_reports.py::test_no_joint_state_is_lost_beside_decisions_and_services",
    ),
    "a parameter has another type than the file": (
        "ros/test_parameters.py::test_whole_numbers_pass_for_floats_and_unset_arrays_are_empty",
        "ros/test_parameters.py::test_bad_values_are_refused_in_one_line",
        "ros/test_parameters.py::test_unknown_names_come_with_the_nearest_known_one",
        "ros/test_command_line.py::test_the_last_source_counts",
    ),
    "stamps of a chunk mean something else to the controller": (
        "ros/test_services.py::test_a_chunk_says_what_it_is",
        "ros/test_time.py::test_simulated_time_paces_decisions_and_may_jump_back",
        "replay/test_report.py::test_jump_between_chunks_is_measured_at_the_same_moment",
        "execution/test_schedule.py::test_a_late_chunk_is_entered_at_the_right_row_for_any_delay",
        "ros/test_outputs.py::test_a_trajectory_is_the_part_of_a_chunk_that_is_still_to_come",
    ),
    "the robot jumps where a chunk follows another": (
        "replay/test_report.py::test_jump_between_chunks_is_measured_at_the_same_moment",
        "replay/test_compare.py::test_differences_are_those_of_the_numbers",
        "ros/test_reports.py::test_an_observation_like_the_one_before_is_decided_on",
        "execution/test_limits.py::test_a_measured_delay_is_a_quantile_and_the_warm_up_until_there_is_one",
        "ros/test_arm.py::test_an_arm_follows_chunks_while_the_next_is_decided",
    ),
    "joints come in another order": (
        "ros/test_inputs.py::TestJoints::test_positions_are_ordered_by_name_and_extras_ignored",
        "ros/test_inputs.py::TestJoints::test_refusals",
        "ros/test_bad_input.py::test_extra_and_reordered_joints_are_taken_by_name",
        "ros/test_safe_action.py::test_measured_positions_are_sent_in_the_order_of_the_actions",
    ),
    "a camera drops out": (
        "ros/test_bad_input.py::test_a_camera_that_stops_silences_the_chunks_until_it_returns",
        "ros/test_missing_inputs.py::test_a_held_camera_is_masked_and_comes_back",
        "ros/test_missing_inputs.py::test_an_input_that_stops_the_node",
    ),
    "Ctrl-C leaves something behind": (
        "ros/test_lifecycle.py::test_a_signal_while_active_ends_the_process_in_order",
        "replay/test_endings.py::test_an_interrupted_replay_takes_its_node_along",
        "replay/test_endings.py::test_a_killed_replay_takes_its_node_along",
        "ros/test_safe_action.py::test_a_process_that_is_told_to_end_stops_the_robot_first",
    ),
    "the wrong Python, or a library built for another NumPy": (
        "replay/test_transport.py::test_environment_of_a_node",
        "ros/test_reports.py::test_the_executable_takes_the_python_of_the_environment",
        "ros/test_reports.py::test_nothing_here_needs_cv_bridge",
    ),
    "pytest plugins of ROS break the tests": (
        "ros/test_reports.py::test_plugins_of_launch_are_kept_out",
    ),
    "a package of the same name shadows the generated interfaces": (
        "test_interfaces.py::test_generated_modules_do_not_shadow_the_checkout",
        "test_interfaces.py::test_installed_interfaces_are_those_of_this_source",
    ),
    "nobody knows whether an action is absolute, relative or a velocity": (
        "ros/test_services.py::test_a_chunk_says_what_it_is",
        "ros/test_parameters.py::test_actions_that_the_state_is_added_to_are_no_changes_of_it",
        "ros/test_parameters.py::test_relative_actions_are_the_checkpoints_unless_said",
    ),
}


def test_every_kind_has_tests_that_exist() -> None:
    assert len(REPORTS) == 21
    for kind, names in REPORTS.items():
        assert names, kind
        for name in names:
            file, _, test = name.partition("::")
            assert test in names_in(ROOT / "test" / file), f"{kind}: {name}"


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names of the tests in a file, those of a class behind its name."""

    def found(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
                yield from found(node.body, f"{node.name}::")
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield prefix + node.name

    return frozenset(found(ast.parse(path.read_text()).body, ""))


def test_the_order_in_which_cameras_are_listed_changes_no_bit() -> None:
    chunks = []
    for keys in (("left", "right"), ("right", "left")):
        changes = {
            "cameras": list(keys), "preset": "tiny", "prompt": "wave", "steps": 1, "threads": 1,
            "camera.left.slot": "base_0_rgb", "camera.right.slot": "left_wrist_0_rgb",
        }  # fmt: skip
        ingest, _ = make_ingest(**changes)
        for key, value in (("left", 20), ("right", 200)):
            assert ingest.offer(ingest.inputs[key], image(T0, value), T0)
        fill(ingest, {"joints": T0})
        values = {"camera.left.topic": "l", "camera.right.topic": "r", "joints.names": ["a"]}
        session = load(load_options(build_config(values | changes)))
        chunks.append(session.decide(ingest.gather(T0).observation).actions.tobytes())
        session.engine.close()
    assert chunks[0] == chunks[1]


def test_the_last_frame_repeated_by_a_dead_camera_grows_old() -> None:
    """Some drivers repeat it for ever. Its stamp says how old it is; that it comes says nothing."""
    item = camera()
    for now in range(T0, T0 + 300 * MS, 10 * MS):
        assert item.offer(image(T0, 1), now) is None
        assert (pixel(item, now) is None) == (now - T0 > 100 * MS)
    assert item.counters.accepted == 30


def test_an_observation_like_the_one_before_is_decided_on() -> None:
    """A robot at rest must still get chunks: nothing is left out for being similar."""
    session = load(LoadOptions(prompt="wave", steps=1, threads=1, views=("base_0_rgb",)))
    picture = np.full((8, 8, 3), 40, np.uint8)
    seen = Observation({"base_0_rgb": picture}, np.zeros(7, np.float32))
    decisions = [session.decide(seen) for _ in range(3)]
    session.engine.close()
    assert [decision.index for decision in decisions] == [0, 1, 2]
    assert len({decision.raw.tobytes() for decision in decisions}) == 3, "each with its own noise"


def test_diagnostics_come_as_often_as_the_documents_say() -> None:
    """Where tests talk to a node it is more often."""
    said = f"| out, {1 / diagnostics.PERIOD_S:g} Hz, in every state |"
    assert said in (ROOT / "docs" / "node.md").read_text()


@pytest.mark.timed
def test_no_joint_state_is_lost_beside_decisions_and_services(start: Callable[..., Robot]) -> None:
    robot = start(rate_hz=20.0, steps=10)
    robot.bring_up()
    robot.feed("front")
    robot.publish("joints", joint_state())
    robot.wait_value("input joints", "received", 1)
    sent, stop = 1, threading.Event()

    def at_100_hz() -> None:
        nonlocal sent
        due = time.monotonic()
        while not stop.is_set():
            robot.publish("joints", joint_state())
            sent += 1
            due += 0.01
            time.sleep(max(0.0, due - time.monotonic()))

    thread = threading.Thread(target=at_100_hz)
    thread.start()
    try:
        robot.wait_chunks(20, 30.0)
        for _ in range(10):
            assert robot.decide().error_code == 0
        robot.wait_chunks(20, 30.0)
    finally:
        stop.set()
        thread.join()
    assert sent > 200
    wait_until(
        lambda: int(robot.fresh_part("input joints")["received"]) == sent, 5.0, f"{sent} states"
    )
    joints = robot.part("input joints")
    assert (joints["lost"], joints["refused"], joints["accepted"]) == ("0", "0", str(sent))


@pytest.mark.timed
@pytest.mark.timeout(240)
def test_large_images_arrive_with_the_profile_that_ships(tmp_path: Path) -> None:
    """Without a segment that holds a frame, most of these are lost on the way."""
    file = read_parameters(ROOT / "config" / "pi05_tiny.yaml")
    recorder = Recorder(seconds=2.0, width=640, height=480)
    write_recording(tmp_path / "bag", file.inputs, file.config.joints_names, recorder)
    command = [sys.executable, "-m", "flashrt_ros.cli", "replay", str(tmp_path / "bag")]
    command += ["--params", str(file.path), "--rate", "0.5", "--out", str(tmp_path)]
    # A process of its own: Fast DDS reads its profiles once.
    profiles = ("FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE")
    environment = {k: v for k, v in os.environ.items() if k not in profiles}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, timeout=220
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "large images may be lost" in done.stdout:
        pytest.skip("this machine has too little shared memory for the profile")
    report = json.loads((tmp_path / "replay.json").read_text())
    assert report["player"]["sent"]["front"] == 60
    assert report["dropped_by_input"].get("front", 0) <= 6
    assert report["dropped_by_input"].get("wrist", 0) <= 6


def test_the_executable_takes_the_python_of_the_environment() -> None:
    """A path in its first line would be that of the machine that built it, or of another venv."""
    for script in (ROOT / "scripts").iterdir():
        assert script.read_text().startswith("#!/usr/bin/env python3\n"), script.name


def test_nothing_here_needs_cv_bridge() -> None:
    """Its builds for NumPy 1 do not load beside NumPy 2, which a policy brings."""
    sources = [p for room in ("flashrt_ros", "flashrt_core") for p in (ROOT / room).rglob("*.py")]
    assert len(sources) > 100
    for path in sources:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(name.split(".")[0] == "cv_bridge" for name in names), path


def test_plugins_of_launch_are_kept_out() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    options = settings["tool"]["pytest"]["ini_options"]["addopts"]
    for plugin in ("launch_testing", "launch_pytest", "launch_ros"):
        assert f"-p no:{plugin} " in options
