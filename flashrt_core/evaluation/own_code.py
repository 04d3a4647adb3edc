"""A task's own code, held to its protocol: what goes wrong in it is one line that names its place.

Tasks are written by users. An exception of theirs is no defect of this package, so it ends a
command as any other mistake does; and what an episode returns is looked at before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from inspect import getattr_static
from pathlib import Path
from traceback import extract_tb
from typing import Any, cast

import numpy as np

from ..errors import FlashRTError
from ..policies.base import Observation

Array = np.ndarray[Any, Any]
#: Simulated time after which an episode counts as one without an end, unless its task says other.
LONGEST_S = 600.0
_ROUNDED_S = 1e-6  # by which sums of steps may be off
#: What every episode is asked for; the rest of the protocol only where somebody asks for it.
_NEEDED = ("instruction", "time_s", "success", "score", "done", "observation", "advance", "close")


class TaskError(FlashRTError):
    """A simulated episode is not what its protocol says, or its process ended."""

    code = 95


@contextmanager
def own_code(folder: Path, call: str) -> Iterator[None]:
    """Turn what the code in ``folder`` raises into one line; TaskError.

    Errors of this package pass: a task that raises them says itself what is wrong. So do signals.

    Args:
        folder: of the task's package.
        call: what of it is called, for the message.
    """
    try:
        yield
    except FlashRTError:
        raise
    except Exception as error:
        raise _refused(folder, call, error) from error
    except SystemExit as error:
        if type(error) is not SystemExit:  # a signal asks the command to end
            raise
        raise _refused(folder, call, error) from error


def _refused(folder: Path, call: str, error: BaseException) -> TaskError:
    said = str(error)
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_file():
        place, said = f"{error.filename}:{error.lineno}", error.msg
    else:
        frames = extract_tb(error.__traceback__)
        own = [each for each in frames if Path(each.filename).is_relative_to(folder)]
        last = (own or frames)[-1]
        place = f"{last.filename}:{last.lineno}"
    missing = isinstance(error, ModuleNotFoundError)
    return TaskError(
        f"{call}, {place}",
        expected="no exception",
        got=f"{type(error).__name__}: {said}" if said else type(error).__name__,
        remedy="install what it needs: pip install 'flashrt-ros[sim]' for the shipped tasks"
        if missing
        else None,
    )


class CheckedTask:
    """A task whose code is called through :func:`own_code`; a ``Task``.

    Args:
        task: what a package has as ``TASK``.
        folder: of the package.

    Raises:
        TaskError: an attribute of another type, or without a meaning.
    """

    def __init__(self, task: Any, folder: Path) -> None:
        self._task, self._folder = task, folder
        self._what = f"task '{folder}'"
        with own_code(folder, self._what):
            self.name: str = self._is("name", "a text", _is_text)
            self.dt_s = float(self._is("dt_s", "seconds from row to row, above 0", _is_time))
            self.views: Mapping[str, str] = dict(
                self._is("views", "view slot -> camera, at least one", _is_views)
            )
            self.joint_names = tuple(self._is("joint_names", "a tuple of different names", _is_set))
            self.instructions = tuple(self._is("instructions", "a tuple of texts", _is_set))
            self.longest_s = float(
                self._is("longest_s", "seconds, above 0", _is_time)
                if hasattr(task, "longest_s")
                else LONGEST_S
            )

    def _is(self, name: str, expected: str, fits: Any) -> Any:
        value = getattr(self._task, name)
        if not fits(value):
            got = f"{value!r} ({type(value).__name__})"
            raise TaskError(f"{name} of {self._what}", expected=expected, got=got)
        return value

    def check(self) -> None:
        """Whatever the task itself wants to look at before anything starts: its ``check()``."""
        if callable(check := getattr(self._task, "check", None)):
            with own_code(self._folder, f"check() of {self._what}"):
                check()

    def start(self, seed: int) -> CheckedEpisode:
        """The episode of a seed; TaskError where there is none."""
        call = f"start({seed}) of {self._what}"
        with own_code(self._folder, call):
            found = self._task.start(seed)
            missing = [name for name in _NEEDED if not _has(found, name)]
        if missing:
            raise TaskError(
                call,
                expected=f"an episode with {', '.join(_NEEDED)}",
                got=f"{type(found).__name__} without {', '.join(missing)}",
            )
        return CheckedEpisode(found, self, self._folder, f"episode {seed} of {self._what}")


class CheckedEpisode:
    """An episode whose code is called through :func:`own_code`; an ``Episode``.

    Args:
        episode: what ``start`` returned.
        task: whose.
        folder: of the package.
        what: the episode, for messages.
    """

    def __init__(self, episode: Any, task: CheckedTask, folder: Path, what: str) -> None:
        self._episode, self._task = episode, task
        self._folder, self._what = folder, what
        self.instruction: str = self._of("instruction", str, "a text")

    def _of(self, name: str, kinds: Any, expected: str) -> Any:
        with own_code(self._folder, f"{name} of {self._what}"):
            value = getattr(self._episode, name)
        if not isinstance(value, kinds):
            got = f"{value!r} ({type(value).__name__})"
            raise TaskError(f"{name} of {self._what}", expected=expected, got=got)
        return value

    def _call(self, name: str, *arguments: Any) -> Any:
        call = f"{name}() of {self._what}"
        if not callable(method := getattr(self._episode, name, None)):
            raise TaskError(call, expected="a method", got="none of that name")
        with own_code(self._folder, call):
            return method(*arguments)

    def _array(self, name: str, *arguments: Any) -> Array:
        found = self._call(name, *arguments)
        try:
            values = np.asarray(found)
        except (TypeError, ValueError):  # lists in it of different lengths
            values = np.empty(0, object)
        if values.dtype.hasobject:
            raise TaskError(
                f"{name}() of {self._what}",
                expected="an array of numbers, or what NumPy makes one of",
                got=type(found).__name__,
                remedy="put parts of different shapes behind each other: "
                "np.concatenate([part.ravel() for part in parts])",
            )
        return values

    def _number(self, name: str) -> float:
        number = float(self._of(name, (int, float, np.integer, np.floating), "a number"))
        if not math.isfinite(number):
            raise TaskError(f"{name} of {self._what}", expected="a finite number", got=number)
        return number

    @property
    def time_s(self) -> float:
        """Simulated time."""
        return self._number("time_s")

    @property
    def success(self) -> bool:
        """Whether it is done."""
        return bool(self._of("success", (bool, np.bool_), "true or false"))

    @property
    def score(self) -> float:
        """How well."""
        return self._number("score")

    @property
    def done(self) -> bool:
        """Success, or over."""
        return bool(self._of("done", (bool, np.bool_), "true or false"))

    def observation(self) -> Observation:
        """Of this moment; TaskError where it is none, or lacks a view or a joint."""
        found = self._call("observation")
        views, joints = list(self._task.views), len(self._task.joint_names)
        expected = f"an Observation with images {views} and a state of {joints} numbers"
        if not isinstance(found, Observation):
            got = type(found).__name__
        elif not isinstance(images := cast(Any, found.images), Mapping):
            got = f"images that are a {type(images).__name__}"
        elif missing := [view for view in views if view not in found.images]:
            got = f"no image {missing[0]!r}"
        elif found.state is not None and (shape := _shape(found.state)) != (joints,):
            got = f"a state of shape {list(shape)}" if shape else "a state that is no array"
        else:
            return found
        raise TaskError(f"observation() of {self._what}", expected=expected, got=got)

    def advance(self, target: Array, seconds: float) -> None:
        """Simulate; TaskError where time stands still, or the episode has no end."""
        before = self.time_s
        self._call("advance", target, seconds)
        if self.done:
            return
        now, longest = self.time_s, self._task.longest_s
        if now <= before:
            raise TaskError(
                f"time_s of {self._what} behind advance(..., {seconds:g})",
                expected=f"more than {before:g} s",
                got=f"{now:g} s",
            )
        if now > longest + _ROUNDED_S:
            raise TaskError(
                self._what,
                expected=f"an end within {longest:g} s of simulated time",
                got=f"none at {now:g} s",
                remedy="let `done` be true when its time is over, or give the task a `longest_s`",
            )

    def save(self) -> Array:
        """The simulator's state; TaskError where it is no array of plain values."""
        return self._array("save")

    def restore(self, state: Array) -> None:
        """Go on from it."""
        self._call("restore", state)

    def picture(self, width: int, height: int) -> Array:
        """For people; TaskError where it is no array."""
        return self._array("picture", width, height)

    def close(self) -> None:
        """Release it."""
        self._call("close")


def _has(found: Any, name: str) -> bool:
    """Whether it is there, even if asking for it fails: that is another mistake."""
    return getattr_static(found, name, None) is not None or hasattr(found, name)


def _shape(value: Any) -> tuple[int, ...]:
    """Of an array; () of what is none."""
    try:
        return np.shape(value)
    except ValueError:
        return ()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_time(value: Any) -> bool:
    kinds = (int, float, np.integer, np.floating)
    return isinstance(value, kinds) and not isinstance(value, bool) and bool(0 < value < math.inf)


def _is_views(value: Any) -> bool:
    pairs = isinstance(value, Mapping) and [part for pair in value.items() for part in pair]
    return bool(pairs) and all(map(_is_text, pairs or ()))


def _is_set(value: Any) -> bool:
    texts = isinstance(value, tuple | list) and all(map(_is_text, value))
    return texts and 0 < len(value) == len(set(value))
