"""A policy's configuration of what options and checkpoint say, and whether the two fit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import OptionError
from .base import Deployment, Policy


def sized(
    policy: Policy,
    preset: str,
    overrides: Mapping[str, Any],
    deployment: Deployment,
    checkpoint: str | Path,
) -> Any:
    """The configuration of ``preset`` with ``overrides``.

    Args:
        policy: whose.
        preset: the option.
        overrides: of the checkpoint and of other options.
        deployment: what the checkpoint says.
        checkpoint: where it lies, for the message.

    Raises:
        OptionError: unknown or contradicting values; or sizes that the checkpoint's tensors do not
            have, while they have those of another preset, which the message names.
    """
    own = deployment.preset
    if own is None or own == preset:
        return policy.config(preset, **overrides)
    wrong = OptionError(
        "option 'preset'",
        expected=f"{own!r}, as the weights of checkpoint {str(checkpoint)!r} are",
        got=repr(preset),
        remedy=f"give --preset {own}, or set preset to {own}",
    )
    try:
        config = policy.config(preset, **overrides)
    except OptionError as error:
        if preset not in policy.presets:
            raise error.reworded(remedy=wrong.remedy) from error
        raise wrong from error
    # Overrides may make one preset of another.
    shapes, expected = (
        {name: spec.shape for name, spec in policy.tensors(each).items()}
        for each in (config, policy.config(own))
    )
    if shapes != expected:
        raise wrong
    return config
