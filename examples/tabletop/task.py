"""The task: what an evaluation needs to know before a scene is loaded, and its episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .layout import INSTRUCTIONS, make_layout
from .robot import DT_S, JOINTS, VIEWS

if TYPE_CHECKING:
    from .episode import TabletopEpisode


class Tabletop:
    """Push the named block to the named side.

    Attributes:
        name: of the task.
        dt_s: time from one row of a chunk to the next, seconds.
        views: view slot of the policy -> key of the camera.
        joint_names: of the state and of the targets, in order.
        instructions: all that an episode may have.
    """

    name = "tabletop"
    dt_s = DT_S
    views: Mapping[str, str] = VIEWS
    joint_names = JOINTS
    instructions = INSTRUCTIONS

    def check(self) -> None:
        """What episodes need of the machine, looked at before anything starts.

        Raises:
            OptionError: MuJoCo is not installed.
            RenderingError: no OpenGL here.
        """
        from .backend import check_opengl

        check_opengl()

    def start(self, seed: int) -> TabletopEpisode:
        """The episode of a seed, which chooses scene and instruction.

        Raises:
            OptionError: MuJoCo is not installed.
        """
        from .episode import TabletopEpisode
        from .scene import shared_scene

        return TabletopEpisode(shared_scene(), make_layout(seed))


TASK = Tabletop()
