"""What the host-side transforms of policies share: the robot's numbers, and which views there are.

Units are turned into the network's and back by :class:`RobotSide`, with statistics and with actions
that are relative to the state; a policy adds what its network reads of images, state and prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from ..errors import InputError, OptionError
from ..images import Frame
from .base import Observation, Prepared, as_array
from .normalisation import LARGEST

Array = np.ndarray[Any, Any]
S = TypeVar("S", bound="Scale")


class Scale(Protocol):
    """Statistics of a robot's numbers, and the arithmetic they are used with.

    Attributes:
        source: where they come from, for messages.
    """

    @property
    def source(self) -> str: ...

    @property
    def dims(self) -> int:
        """Numbers that they cover."""

    @property
    def identity(self) -> str:
        """The arithmetic in words and a digest of the numbers; equal for equal effect."""

    def take(self: S, dims: int) -> S:
        """Those of the first ``dims`` numbers."""

    def restore(self, values: Array) -> Array:
        """Network's range [rows, dims] -> robot units."""

    def invert(self, values: Array) -> Array:
        """Robot units [rows, dims] -> what :meth:`restore` makes them of, float64."""


# Beyond it no action of a network lies, in its own units. What would is an action that never moved
# in the training data: its statistics hold no scale, and rounding alone would be such a number.
_FURTHEST = 10.0


class RobotSide:
    """A robot's state and actions, and what of the transforms a network reads.

    A policy sets ``identity``, and ``ENCODED`` to those of its parts that its inputs depend on.

    Args:
        state_dim, action_dim: numbers of the robot.
        width: of an action row inside the network.
        statistics: of the actions, for ``action_dim`` numbers; None where the network's range is
            the robot's unit.
        relative: for each action whether the state is added to it.
        bases: of the relative actions, in their order: which number of the state; None: that of
            the action's own place.
        state_needed: whether the network reads the state.

    Raises:
        OptionError: ``relative`` does not fit the robot.
    """

    ENCODED: ClassVar[tuple[str, ...]]
    identity: Mapping[str, str]
    square = False

    def __init__(
        self,
        state_dim: int,
        action_dim: int,
        width: int,
        statistics: Scale | None,
        relative: tuple[bool, ...],
        *,
        bases: tuple[int, ...] | None = None,
        state_needed: bool,
    ) -> None:
        self.state_dim, self.action_dim = state_dim, action_dim
        self._width = width
        self._action_stats = statistics
        self._state_needed = state_needed
        self.relative = self._mask(relative, bases)
        self._bases = list(self.relative if bases is None else bases)

    @property
    def encoding(self) -> Mapping[str, str]:
        """The parts of ``identity`` that :meth:`encode` depends on."""
        return {name: self.identity[name] for name in self.ENCODED}

    @property
    def action_identity(self) -> dict[str, str]:
        """What is done to actions, in words with a digest."""
        return {
            "actions": normalised(self.action_dim, self._action_stats),
            "relative actions": ", ".join(map(str, self.relative)) or "none",
            **self._moved(),
        }

    def _moved(self) -> dict[str, str]:
        moved = self._bases != list(self.relative)
        return {"bases of them": ", ".join(map(str, self._bases))} if moved else {}

    def prepare(self, view: str, image: Array | Frame) -> Array | Frame | Prepared:
        """Nothing here: the image itself."""
        return image

    def decode(self, actions: Array, state: Array | None) -> Array:
        """Raw actions [H, A] -> [H, action_dim] float32 in robot units.

        Args:
            actions: as the network gives them.
            state: [state_dim] of the observation; needed where actions are relative to it.

        Raises:
            InputError: actions of another shape, or no state where it is needed.
        """
        if actions.ndim != 2 or actions.shape[1] != self._width:
            raise InputError(
                "raw actions", expected=f"[rows, {self._width}]", got=list(actions.shape)
            )
        own = actions[:, : self.action_dim]
        if self._action_stats is not None:
            own = self._action_stats.restore(own)
        if self.relative:
            own = own.copy()
            own[:, list(self.relative)] += self._base(state).astype(own.dtype)
        return np.array(own, dtype=np.float32, order="C")

    def encode_actions(self, actions: Array, state: Array | None) -> Array:
        """Actions in robot units -> the raw ones that :meth:`decode` makes them of.

        Args:
            actions: [n, action_dim] float, finite.
            state: [state_dim] of the observation that the raw ones are to answer; needed where
                actions are relative to it.

        Returns:
            [n, A] float32. NaN in the padded columns, of which the robot knows nothing, and where
            the network could not say such an action (more than 10 in its units).

        Raises:
            InputError: actions of another shape, or no state where it is needed.
        """
        if actions.ndim != 2 or actions.shape[1] != self.action_dim:
            raise InputError(
                "actions", expected=f"[rows, {self.action_dim}]", got=list(actions.shape)
            )
        own = actions.astype(np.float64)
        if self.relative:
            own[:, list(self.relative)] -= self._base(state)
        if self._action_stats is not None:
            own = self._action_stats.invert(own)
        own[~(np.abs(own) <= _FURTHEST)] = np.nan
        raw = np.full((len(own), self._width), np.nan, np.float32)
        raw[:, : self.action_dim] = own
        return raw

    def checked_state(self, state: Array | None) -> Array | None:
        """[state_dim] float64; InputError on what is none, and on None where it is needed."""
        if state is None:
            if self._state_needed:
                raise InputError("state", expected=f"{self.state_dim} numbers", got="none")
            return None
        values = as_array("state", state)
        if values.shape != (self.state_dim,) or values.dtype.kind not in "fiu":
            raise InputError(
                "state",
                expected=f"[{self.state_dim}] numbers",
                got=f"{list(values.shape)} {values.dtype}",
            )
        exact = values.astype(np.float64)
        for index, value in enumerate(exact.tolist()):
            if not isfinite(value):
                raise InputError(f"state[{index}]", expected="a finite number", got=value)
            if abs(value) >= LARGEST:
                raise InputError(
                    f"state[{index}]", expected=f"a number below {LARGEST:g}", got=f"{value:g}"
                )
        return exact

    def _base(self, state: Array | None) -> Array:
        """What is added to the relative actions."""
        base = self.checked_state(state)
        if base is None:
            raise InputError(
                "state", expected=f"{self.state_dim} numbers: actions add to it", got="none"
            )
        return base[self._bases]

    def _mask(self, relative: tuple[bool, ...], bases: tuple[int, ...] | None) -> tuple[int, ...]:
        """Indices of the action dimensions that are relative to the state."""
        indices = np.flatnonzero(np.asarray(relative, dtype=bool))
        places = indices if bases is None else np.array(bases)
        beyond = indices.size and max(places) >= self.state_dim
        if len(relative) > self.action_dim or beyond:
            raise OptionError(
                "option 'delta_actions'",
                expected=f"at most {self.action_dim} values, true only where the state of "
                f"{self.state_dim} numbers has one to add",
                got=list(relative),
            )
        return tuple(indices.tolist())


def normalised(dims: int, stats: Scale | None) -> str:
    """What is done to numbers of the robot, in words with a digest."""
    return f"{dims} numbers as they are" if stats is None else stats.identity


def as_trained(name: str, dims: int, trained: int | None, stats: S | None) -> S | None:
    """The statistics of the robot's dimensions; OptionError when the checkpoint knows others."""
    wrong = trained is not None and dims != trained
    if wrong or (stats is not None and stats.dims < dims):
        raise OptionError(
            f"option {name!r}",
            expected=f"{trained}, as the checkpoint was trained"
            if wrong
            else f"at most {stats.dims if stats else 0}, as {stats.source if stats else ''} has",
            got=dims,
        )
    return None if stats is None else stats.take(dims)


def ordered_views(views: tuple[str, ...], slots: tuple[str, ...]) -> tuple[str, ...]:
    """The views in slot order; OptionError on one that is unknown or stands twice."""
    known = tuple(slot for slot in slots if slot in views)
    if not views or len(known) != len(views):
        raise OptionError(
            "option 'views'", expected=f"some of {list(slots)}, each once", got=list(views)
        )
    return known


def in_range(name: str, value: int, low: int, high: int) -> int:
    """A whole number of an option; OptionError where it is none or out of range."""
    if type(value) is not int or not low <= value <= high:
        raise OptionError(
            f"option {name!r}", expected=f"a whole number in {low}..{high}", got=repr(value)
        )
    return value


def checked_images(
    observation: Observation, views: tuple[str, ...]
) -> Mapping[str, Array | Frame | Prepared]:
    """The images of an observation; InputError where that is no mapping, or has other views."""
    images = observation.images
    if not isinstance(images, Mapping):
        raise InputError(
            "images", expected="a mapping of views to images", got=type(images).__name__
        )
    if not images.keys() <= set(views):
        unknown = sorted(set(images) - set(views), key=str)
        raise InputError(f"image {unknown[0]!r}", expected=f"one of the views {list(views)}")
    return images


def prepared_values(
    window: str, image: Array | Frame | Prepared | None
) -> Mapping[str, Array] | None:
    """What was made of an image for the windows of view ``window``; None where nothing was."""
    fits = isinstance(image, Prepared) and image.view == window
    return image.values if fits and isinstance(image, Prepared) else None


def checked_image(view: str, images: Mapping[str, Array | Frame | Prepared]) -> Array | Frame:
    """The image of a view; InputError when there is none, or it is not [Y, X, 3] uint8."""
    if view not in images:
        raise InputError(f"image {view!r}", expected="[Y, X, 3] uint8", got="none")
    image = images[view]
    if isinstance(image, Prepared):
        image = image.image
    if isinstance(image, Frame):
        return image
    image = as_array(f"image {view!r}", image)
    fits = image.ndim == 3 and image.shape[2] == 3 and image.size > 0 and image.dtype == np.uint8
    if not fits:
        raise InputError(
            f"image {view!r}",
            expected="[Y, X, 3] uint8",
            got=f"{list(image.shape)} {image.dtype}",
        )
    return image
