"""The loaded model: where its joints, blocks and cameras lie in MuJoCo's arrays.

One model serves all episodes of a process. What differs between episodes is state, but for the
light, which is set for each picture.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from .backend import mujoco
from .layout import BLOCK, COLOURS, Array, Layout
from .robot import ARM, JOINTS

TOP_Z = BLOCK / 2  # of the centre of a block on the table, metres
_SHELF = (-4.0, 0.0)  # of blocks that are absent
_SEED_POSE = np.array([0.0, -0.35, 0.85, -0.5, 0.0, 0.0])  # where the search for a start begins


class Scene:
    """MuJoCo's model with its addresses.

    Attributes:
        model: the compiled MJCF.
        step_s: length of a physics step, seconds.
        low, high: [7] limits of the joints, radians and metres.
    """

    def __init__(self) -> None:
        path = Path(__file__).with_name("scene.xml")
        self.model: Any = mujoco.MjModel.from_xml_path(str(path))
        self.step_s = float(self.model.opt.timestep)
        joints = [self.model.joint(name) for name in JOINTS]
        self.qpos = np.array([int(joint.qposadr[0]) for joint in joints])
        self.dofs = np.array([int(joint.dofadr[0]) for joint in joints])
        self._mirror = int(self.model.joint("gripper_mirror").qposadr[0])
        self.low, self.high = np.array([joint.range for joint in joints]).T
        self.blocks = {name: int(self.model.joint(name).qposadr[0]) for name in COLOURS}
        self.tool = int(self.model.site("tool").id)
        self._lamp = int(self.model.light("lamp").id)
        self._diffuse = np.array(self.model.light_diffuse[self._lamp])

    def place(self, data: Any, layout: Layout, arm: Array) -> None:
        """Bring ``data`` to the start of a layout, at rest, the arm's joints [6] at ``arm``."""
        mujoco.mj_resetData(self.model, data)
        joints = np.append(arm, layout.gripper)
        data.qpos[self.qpos] = joints
        data.qpos[self._mirror] = layout.gripper
        self.command(data, joints)
        for index, (name, start) in enumerate(self.blocks.items()):
            away = (_SHELF[0], _SHELF[1] + 0.1 * (index - 1.5), 0.0)
            x, y, yaw = layout.blocks.get(name, away)
            pose = (x, y, TOP_Z, np.cos(yaw / 2), 0.0, 0.0, np.sin(yaw / 2))
            data.qpos[start : start + 7] = pose
        mujoco.mj_forward(self.model, data)

    def command(self, data: Any, target: Array) -> None:
        """Set joint position targets [7]; beyond the joints' limits they are cut."""
        target = np.clip(target, self.low, self.high)
        data.ctrl[: ARM + 1] = target
        data.ctrl[ARM + 1] = target[ARM]

    def joints(self, data: Any) -> Array:
        """Positions of the joints: [7], radians and metres."""
        return np.array(data.qpos[self.qpos])

    def block(self, data: Any, name: str) -> Array:
        """Centre [3] of a block, metres."""
        start = self.blocks[name]
        return np.array(data.qpos[start : start + 3])

    def light(self, direction: Array, brightness: float) -> None:
        """Turn and dim the lamp for the next picture."""
        self.model.light_dir[self._lamp] = direction / np.linalg.norm(direction)
        self.model.light_diffuse[self._lamp] = self._diffuse * brightness


class Kinematics:
    """The arm alone, moved without physics: where its tool is, and how to move it.

    The tool is to point down with the frame of the world, so only its place is free.
    """

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._data = mujoco.MjData(scene.model)
        self._jacobian = np.zeros((6, scene.model.nv))
        self._dofs = scene.dofs[:ARM]

    def tool(self, arm: Array) -> tuple[Array, Array]:
        """Place [3] in metres and rotation vector [3] off pointing down, of joints [6]."""
        model, data = self._scene.model, self._data
        data.qpos[self._scene.qpos[:ARM]] = arm
        mujoco.mj_kinematics(model, data)
        quaternion, off = np.zeros(4), np.zeros(3)
        mujoco.mju_mat2Quat(quaternion, data.site_xmat[self._scene.tool])
        mujoco.mju_quat2Vel(off, quaternion, 1.0)
        return np.array(data.site_xpos[self._scene.tool]), off

    def step(self, arm: Array, move: Array, turn: Array) -> Array:
        """Joints [6] with the tool moved by ``move`` [3] metres and turned by ``turn`` [3] radians.

        Damped least squares at ``arm``, for which :meth:`tool` was asked last.
        """
        model, data = self._scene.model, self._data
        mujoco.mj_comPos(model, data)
        mujoco.mj_jacSite(model, data, self._jacobian[:3], self._jacobian[3:], self._scene.tool)
        jacobian = self._jacobian[:, self._dofs]
        damped = jacobian @ jacobian.T + 1e-5 * np.eye(6)
        change = jacobian.T @ np.linalg.solve(damped, np.concatenate([move, turn]))
        low, high = self._scene.low[:ARM], self._scene.high[:ARM]
        return np.asarray(np.clip(arm + change, low, high))

    def reach(self, place: Array) -> Array:
        """Joints [6] that bring the tool to ``place`` [3], pointing down."""
        arm = _SEED_POSE.copy()
        for _ in range(60):
            now, off = self.tool(arm)
            move = np.clip(place - now, -0.05, 0.05)
            arm = self.step(arm, move, np.clip(-off, -0.2, 0.2))
        return arm


@cache
def shared_scene() -> Scene:
    """The scene of this process."""
    return Scene()
