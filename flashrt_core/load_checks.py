"""What options must be that no type says: held against a policy, a contract, and this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from .contract import Contract
from .devices.overlap import DEFAULT, FRONTS, Overlap
from .errors import DeviceError, OptionError
from .load_options import OPTIONS_OF_SOME, LoadOptions
from .policies.base import Policy


def check_reference(place: str) -> None:
    """Whether torch can compute a reference there; OptionError or DeviceError where it cannot."""
    if place not in ("cpu", "cuda"):
        raise OptionError("option 'reference_device'", expected="cpu or cuda", got=repr(place))
    if place == "cuda" and not torch.cuda.is_available():
        raise DeviceError(
            "option 'reference_device'",
            expected="a GPU that torch can use",
            got="none for 'cuda'",
            remedy="install a CUDA build of torch, or leave it out: the CPU computes the same",
        )


def views_in_use(options: LoadOptions, policy: Policy) -> tuple[str, ...]:
    """The views in use; OptionError on one that is unknown or stands twice."""
    given = policy.slots[:2] if options.views is None else options.views
    unknown = sorted(set(given) - set(policy.slots))
    if unknown or not given or len(set(given)) != len(given):
        raise OptionError(
            "option 'views'",
            expected=f"at least one of {list(policy.slots)}, each once",
            got=unknown[0] if unknown else list(given),
        )
    # The order of the slots is part of the model; the order of the option is not.
    return tuple(slot for slot in policy.slots if slot in given)


def absent_views(options: LoadOptions, policy: Policy, count: int) -> int:
    """How many views an observation may lack; one must be left, and the policy must be able to."""
    most = count - 1 if policy.masks_views else 0
    if options.absent_views > most:
        raise OptionError(
            "option 'absent_views'",
            expected=f"at most {most} of {count} views"
            if policy.masks_views
            else f"0: policy {policy.name!r} needs every camera",
            got=options.absent_views,
        )
    return options.absent_views


def check_options_of_some(policy: Policy, given: Mapping[str, Any]) -> None:
    """OptionError on a value that has an option of its own, which this policy's lacks."""
    known = {each.name for each in fields(policy.config(policy.presets[0]))}
    for name, leave in OPTIONS_OF_SOME.items():
        if name in given and name not in known:
            raise OptionError(
                f"option {name!r}",
                expected=f"nothing: policy {policy.name!r} has none",
                got=given[name],
                remedy=leave,
            )


def check_overlap(overlap: str | bool, contract: Contract) -> None:
    """On every device, though only one overlaps: what is refused there is refused here."""
    stages = [stage.name for stage in contract.stages]
    unknown = sorted(Overlap.parse(overlap).stages - set(stages))
    if unknown and overlap != DEFAULT:
        raise OptionError(
            "option 'overlap'", expected=f"on, off, or of {[*stages, *FRONTS]}", got=unknown
        )
