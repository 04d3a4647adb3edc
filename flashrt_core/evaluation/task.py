"""What a simulated task is to the evaluation, and where one is found.

A task is a Python package folder whose ``TASK`` fulfils :class:`Task`. It needs nothing of this
package but :class:`~flashrt_core.policies.base.Observation`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import OptionError
from ..files import local_path
from ..policies.base import Observation
from .own_code import CheckedTask, TaskError, own_code

__all__ = [
    "CALIBRATION_SEED",
    "EVALUATION_SEED",
    "TRAINING_SEED",
    "Episode",
    "FoundTask",
    "Task",
    "TaskError",
    "find_task",
    "task_folders",
]

Array = np.ndarray[Any, Any]

#: First seeds by use, so that nothing is evaluated that was trained or calibrated on.
TRAINING_SEED, CALIBRATION_SEED, EVALUATION_SEED = 0, 100_000, 200_000


@runtime_checkable
class Episode(Protocol):
    """One start of a task and what becomes of it. Deterministic for its seed and its targets.

    Attributes:
        instruction: what the robot is asked to do.
        time_s: simulated time since the start.
        success: the task is done.
        score: how well; higher is better, comparable within a start only.
        done: success, or its time is over.
    """

    instruction: str

    @property
    def time_s(self) -> float: ...

    @property
    def success(self) -> bool: ...

    @property
    def score(self) -> float: ...

    @property
    def done(self) -> bool: ...

    def observation(self) -> Observation:
        """Images by view slot, [H, W, 3] uint8, and the joints' state, float32, of this moment;
        its stamp is the simulated time.
        """

    def advance(self, target: Array, seconds: float) -> None:
        """Simulate while joint targets [action_dim] float64, robot units, are held.

        ``seconds`` is a multiple of the simulator's own step; 20 ms is one.
        """

    def save(self) -> Array:
        """The whole state of the simulator; ``restore`` of it continues bit for bit."""

    def restore(self, state: Array) -> None:
        """Go on from what :meth:`save` gave, in an episode of the same seed."""

    def picture(self, width: int, height: int) -> Array:
        """The scene for people, [height, width, 3] uint8 RGB."""

    def close(self) -> None:
        """Release it."""


@runtime_checkable
class Task(Protocol):
    """Starts of one kind. Making a task opens no renderer and loads no model.

    It may have two things more: ``check()``, called before anything starts, which raises where the
    machine lacks what episodes need; and ``longest_s``, simulated seconds after which an episode
    counts as one without an end, 600 where it says nothing.

    Attributes:
        name: short, as it stands in results.
        dt_s: time from one row of a chunk to the next, seconds.
        views: view slot of the policy -> key of the camera.
        joint_names: of the state and of the targets, in order.
        instructions: all that an episode may have.
    """

    name: str
    dt_s: float
    views: Mapping[str, str]
    joint_names: tuple[str, ...]
    instructions: tuple[str, ...]

    def start(self, seed: int) -> Episode:
        """The episode of a seed, which chooses scene and instruction."""


@dataclass(frozen=True)
class FoundTask:
    """A task, and what lies beside it.

    Attributes:
        task: the task.
        folder: of its package.
        plan: options of the policy that the package recommends, its ``PLAN``: fields of
            :class:`~flashrt_core.load_options.LoadOptions`. Options of a command count more.
        place: as it was asked for.
    """

    task: CheckedTask
    folder: Path
    plan: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""


def _checkout() -> Path:
    return Path(__file__).resolve().parents[2] / "examples"


#: Folders of the tasks that ship. Whoever knows where this package is installed puts it in front.
task_folders: list[Callable[[], Path]] = [_checkout]


def find_task(place: str) -> FoundTask:
    """The task of a shipped package by name, or of any package folder by path.

    Args:
        place: a name without slash, or a path.

    Raises:
        OptionError: no such package.
        TaskError: one that cannot be imported, or whose TASK or PLAN is none.
    """
    return replace(_read(_folder(place)), place=place)


def _folder(place: str) -> Path:
    """The package's folder. A path has a slash, or starts with a dot or ``~``; a name that is no
    shipped one may be a folder here, too.
    """
    tried = [] if "/" in place or place[:1] in (".", "~") else [f() / place for f in task_folders]
    path = local_path("task", place, OptionError).absolute()
    for folder in (*tried, path):
        if (folder / "__init__.py").is_file():
            return folder.resolve()
    shipped = (folder for f in task_folders if f().is_dir() for folder in f().iterdir())
    known = sorted({found.name for found in shipped if (found / "__init__.py").is_file()})
    raise OptionError(
        "task",
        expected=f"a shipped one ({', '.join(known) or 'none here'}), or a package folder with an"
        " __init__.py",
        got=f"'{place}'",
    )


def _read(folder: Path) -> FoundTask:
    module = _import(folder)
    task = getattr(module, "TASK", None)
    with own_code(folder, f"task '{folder}'"):
        missing = [name for name in Task.__annotations__ if not hasattr(task, name)]
    if task is None or missing or not callable(getattr(task, "start", None)):
        raise TaskError(
            f"task '{folder}'",
            expected=f"TASK with {', '.join([*Task.__annotations__, 'start(seed)'])}",
            got=f"no {(missing or ['start'])[0]}" if task is not None else "no TASK",
        )
    plan = getattr(module, "PLAN", {})
    if not isinstance(plan, Mapping) or not all(isinstance(name, str) for name in plan):
        raise TaskError(
            f"PLAN of task '{folder}'",
            expected="options by name, such as {'preset': 'small'}",
            got=f"{plan!r} ({type(plan).__name__})",
        )
    return FoundTask(CheckedTask(task, folder), folder, dict(plan))


def _import(folder: Path) -> ModuleType:
    """Import the package by its folder's name; its own folder must be what that name finds."""
    name, parent = folder.name, str(folder.parent)
    if parent not in sys.path:
        sys.path.insert(0, parent)
    with own_code(folder, f"task '{folder}'"):
        module = importlib.import_module(name)
    where = Path(str(module.__file__)).resolve().parent
    if where != folder:
        raise OptionError(
            f"task '{folder}'",
            expected="a folder name that no other package has",
            got=f"{name} of {where}",
            remedy="rename the folder",
        )
    return module
