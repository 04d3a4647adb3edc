"""One start of the task in MuJoCo, and whether what became of it is a success.

Success: the named block moved at least 8 cm to its side and less than 5 cm across, while no other
block moved by more than 4 cm. It counts from the moment at which all of that was so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flashrt_core.errors import InputError
from flashrt_core.policies.base import Observation

from .backend import mujoco
from .layout import SIDES, Array, Layout
from .rendering import draw
from .robot import ARM, JOINTS, PIXELS, VIEWS
from .scene import Kinematics, Scene

SECONDS = 8.0
FAR, ACROSS, OTHERS = 0.08, 0.05, 0.04  # metres
_NEAR = 0.25  # of the tool to the block, metres: from here on coming closer counts
_PHYSICS = mujoco.mjtState.mjSTATE_INTEGRATION


class TabletopEpisode:
    """An episode: observe, move, ask whether it is done.

    Attributes:
        layout: what the seed chose.
        instruction: what the robot is asked to do.
        data: MuJoCo's state.
    """

    def __init__(self, scene: Scene, layout: Layout) -> None:
        self.scene, self.layout = scene, layout
        self.instruction = layout.instruction
        self.data: Any = mujoco.MjData(scene.model)
        scene.place(self.data, layout, Kinematics(scene).reach(layout.tool))
        self._starts = {name: scene.block(self.data, name)[:2] for name in layout.blocks}
        self._steps = 0
        self._success = False
        self._size = mujoco.mj_stateSize(scene.model, _PHYSICS)

    @property
    def time_s(self) -> float:
        """Simulated time since the start, seconds."""
        return self._steps * self.scene.step_s

    @property
    def success(self) -> bool:
        """Whether the block was pushed as asked."""
        return self._success

    @property
    def done(self) -> bool:
        """Success, or its time is over."""
        return self._success or self.time_s >= SECONDS - 1e-9

    @property
    def score(self) -> float:
        """How well it goes: the part of the way that the block has come (0 to 1), less what it and
        the others moved in other directions, plus half of the tool's way to the block. A success
        adds 1 and what is left of the time, as a part of it.
        """
        along, across, others = self._moved()
        progress = np.clip(along / FAR, -1.0, 1.0)
        harm = across / ACROSS + others / OTHERS
        tool = self.data.site_xpos[self.scene.tool]
        distance = float(np.linalg.norm(tool - self.scene.block(self.data, self.layout.colour)))
        near = 1.0 - min(distance / _NEAR, 1.0)
        bonus = 2.0 - self.time_s / SECONDS if self._success else 0.0
        return float(progress - 0.5 * harm + 0.5 * near + bonus)

    def observation(self) -> Observation:
        """Images by view slot, [96, 96, 3] uint8 RGB, and joints, [7] float32 in radians and metres
        (of the gripper), of this moment. Its stamp is the simulated time.

        Raises:
            RenderingError: no OpenGL here.
        """
        images = {slot: self._draw(camera, PIXELS, PIXELS) for slot, camera in VIEWS.items()}
        state = self.scene.joints(self.data).astype(np.float32)
        return Observation(images, state, round(self.time_s * 1e9))

    def advance(self, target: Array, seconds: float) -> None:
        """Hold joint position targets [7], radians and metres; limits of the joints cut them.

        Args:
            target: in the order of the joint names.
            seconds: a multiple of the physics step, 4 ms.

        Raises:
            InputError: a target that is not seven finite numbers, or another length of time.
        """
        target = np.asarray(target, np.float64)
        if target.shape != (len(JOINTS),) or not np.isfinite(target).all():
            raise InputError(
                "joint targets",
                expected=f"{len(JOINTS)} finite numbers",
                got=target.tolist(),
            )
        steps = round(seconds / self.scene.step_s)
        if steps < 1 or abs(steps * self.scene.step_s - seconds) > 1e-9:
            raise InputError(
                "seconds to simulate",
                expected=f"a multiple of {self.scene.step_s:g}",
                got=seconds,
            )
        self.scene.command(self.data, target)
        mujoco.mj_step(self.scene.model, self.data, steps)
        self._steps += steps
        self._refresh()
        self._success = self._success or self._reached()

    def save(self) -> Array:
        """The whole state, [N] float64; from it an episode of this seed goes on bit for bit."""
        state = np.zeros(self._size)
        mujoco.mj_getState(self.scene.model, self.data, state, _PHYSICS)
        return np.concatenate([[self._steps, self._success], state])

    def restore(self, state: Array) -> None:
        """Go on from what :meth:`save` gave.

        Raises:
            InputError: it is of another scene.
        """
        state = np.asarray(state, np.float64)
        if state.shape != (self._size + 2,):
            raise InputError("saved episode", expected=(self._size + 2,), got=state.shape)
        self._steps, self._success = int(state[0]), bool(state[1])
        mujoco.mj_setState(self.scene.model, self.data, state[2:], _PHYSICS)
        self._refresh()

    def picture(self, width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """The scene for people, from beside the table: [height, width, 3] uint8 RGB.

        Raises:
            RenderingError: no OpenGL here.
        """
        return self._draw("room", width, height)

    def close(self) -> None:
        """Nothing: the renderer and the model are shared."""

    def arm(self) -> Array:
        """Positions [6] of the arm's joints, radians."""
        return self.scene.joints(self.data)[:ARM]

    def _draw(self, camera: str, width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        # The model is shared: the lamp stands as the episode drawn last had it.
        self.scene.light(*self.layout.light)
        mujoco.mj_camlight(self.scene.model, self.data)
        return draw(self.data, camera, width, height)

    def _refresh(self) -> None:
        """Places of what is drawn, for the joints' present positions; a step gives earlier ones."""
        mujoco.mj_kinematics(self.scene.model, self.data)

    def _moved(self) -> tuple[float, float, float]:
        """How far the named block came along and across its way, and the others at most; metres."""
        way = {
            name: self.scene.block(self.data, name)[:2] - start
            for name, start in self._starts.items()
        }
        x, y = way.pop(self.layout.colour)
        others = max((float(np.linalg.norm(each)) for each in way.values()), default=0.0)
        return float(y * SIDES[self.layout.side]), abs(float(x)), others

    def _reached(self) -> bool:
        along, across, others = self._moved()
        return along >= FAR and across < ACROSS and others <= OTHERS
