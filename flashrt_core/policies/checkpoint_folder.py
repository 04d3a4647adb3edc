"""What policies ask of a checkpoint's folder: whose weights these are, and of which preset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ..errors import OptionError, WeightsError
from ..tensors import TensorSpec
from .json_fields import shown


def preset_of(
    shapes: Mapping[str, tuple[int, ...]],
    presets: Mapping[str, Any],
    tensors: Callable[[Any], Mapping[str, TensorSpec]],
) -> str | None:
    """The preset whose tensors have these names, or other ones they go by, and shapes.

    Args:
        shapes: of the file's tensors.
        presets: configurations by name.
        tensors: configuration -> what a checkpoint of it holds.
    """
    for preset, config in presets.items():
        specs = [(name, spec) for name, spec in tensors(config).items() if spec.used]
        if all(
            any(shapes.get(each) == spec.shape for each in (*spec.aliases, name))
            for name, spec in specs
        ):
            return preset
    return None


def require_network(
    what: str, names: Collection[str], root: str, network: str, remedy: str
) -> None:
    """WeightsError on a file of another network: what else it lacks is then of no interest.

    Args:
        what: the checkpoint, for the message.
        names: of the file's tensors.
        root: what some of them have in their name.
        network, remedy: for the message.
    """
    if not any(root in name for name in names):
        raise WeightsError(
            what,
            expected=f"weights of {network}, tensors {root}...",
            got=f"{len(names)} tensors of another network: {', '.join([*names][:3])}, ...",
            remedy=remedy,
        )


def check_cameras(
    cameras: Sequence[str], views: Sequence[str], slots: Sequence[str], whose: str
) -> None:
    """That the views in use are those of a checkpoint's cameras, where a slot means its camera.

    Args:
        cameras: the checkpoint's names of them, in the order of the slots; none: it does not say.
        views: in use, in the order of the slots.
        slots: of the policy.
        whose: cameras these are, for the message.

    Raises:
        WeightsError: more cameras than slots.
        OptionError: other views than the first ones, one a camera.
    """
    if len(cameras) > len(slots):
        raise WeightsError(
            f"cameras of {whose}", expected=f"at most {len(slots)}", got=list(cameras)
        )
    wanted = slots[: len(cameras)]
    if cameras and tuple(views) != tuple(wanted):
        raise OptionError(
            "option 'views'",
            expected=f"{', '.join(wanted)}, as the checkpoint was trained with: "
            f"{', '.join(cameras)}",
            got=list(views),
        )


def require_fixed(config: Mapping[str, Any], fixed: Mapping[str, object], what: str) -> None:
    """WeightsError where a value, if it is there, makes a network that is not built here."""
    for name, expected in fixed.items():
        value = config.get(name, expected)
        if value != expected or isinstance(value, bool) != isinstance(expected, bool):
            raise WeightsError(
                f"{name} of {what}",
                expected=expected,
                got=shown(value),
                remedy="this variant is not supported",
            )
