"""The identity of an execution plan: what must be equal for saved state to be usable.

Pure data. A capsule carries the fingerprint of the plan that made it; a restore compares and names
the parts that differ. Source: paper section 3.4 and appendix A.1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from functools import cached_property
from typing import Any

from .contract import Contract


@dataclass(frozen=True)
class Fingerprint:
    """Named parts, each a short readable text or a digest."""

    parts: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over all parts, 64 hex digits."""
        return sha256_of(dict(self.parts))

    def diff(self, other: Fingerprint) -> list[str]:
        """Names of the parts that differ, sorted."""
        names = set(self.parts) | set(other.parts)
        return sorted(name for name in names if self.parts.get(name) != other.parts.get(name))


def sha256_of(value: Any) -> str:
    """SHA-256 of ``value`` as canonical JSON; dataclasses count as their fields."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def fingerprint(
    contract: Contract,
    *,
    config: Any,
    precision: str,
    weights: str,
    arch: str,
    library: str,
    transforms: Mapping[str, str],
    calibration: str = "none",
    execution: Mapping[str, str] | None = None,
) -> Fingerprint:
    """The fingerprint of a plan.

    Args:
        contract: its shapes, buffers and regions are hashed.
        config: the policy's configuration, a dataclass.
        precision: name of the precision plan.
        weights: digest of the weights.
        arch: architecture of the device (``cpu-x86_64``, ``sm_90a``).
        library: digest of the kernel library.
        transforms: identity of the host-side transforms.
        calibration: digest of the scale table, ``none`` without one.
        execution: further parts, of a device whose bits depend on how it was opened.
    """
    regions = {str(key): list(value) for key, value in contract.regions.items()}
    return Fingerprint(
        {
            "policy": contract.policy,
            "config": sha256_of(config),
            "shapes": "; ".join(str(key) for key in sorted(contract.shapes)),
            "precision": precision,
            "weights": weights,
            "transforms": sha256_of(dict(transforms)),
            "calibration": calibration,
            "library": library,
            "arch": arch,
            "layout": sha256_of([contract.buffers, regions]),
            **(execution or {}),
        }
    )
