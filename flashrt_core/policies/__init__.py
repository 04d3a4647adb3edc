"""The policies, by name. Adding one is a folder and a line here."""

from __future__ import annotations

from importlib import import_module

from ..errors import OptionError
from .base import Policy

REGISTRY = {
    "groot_n17": "flashrt_core.policies.groot_n17",
    "lingbot_va": "flashrt_core.policies.lingbot_va",
    "pi05": "flashrt_core.policies.pi05",
}


def find_policy(name: str) -> Policy:
    """The policy called ``name``, imported on first use; OptionError with the known names."""
    if name not in REGISTRY:
        raise OptionError("option 'policy'", expected=f"one of {sorted(REGISTRY)}", got=repr(name))
    policy: Policy = import_module(REGISTRY[name]).POLICY
    return policy
