"""The robot's names and times, apart from the scene: known without loading it."""

from __future__ import annotations

JOINTS = (
    "shoulder_pan",
    "shoulder_lift",
    "elbow",
    "wrist_1",
    "wrist_2",
    "wrist_3",
    "gripper",
)
ARM = len(JOINTS) - 1  # joints without the gripper
VIEWS = {"base_0_rgb": "front", "left_wrist_0_rgb": "wrist"}  # view slot -> camera
PIXELS = 96  # of both sides of a camera's picture
DT_S, HORIZON = 0.1, 10  # from one row of a chunk to the next, and rows
