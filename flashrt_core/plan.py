"""What a policy contributes to an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from .contract import Contract
from .fingerprint import Fingerprint
from .policies.base import Processor
from .working_set import MakeBody


@dataclass(frozen=True)
class Plan:
    """What a policy contributes to an engine."""

    contract: Contract
    fingerprint: Fingerprint
    processor: Processor
    body: MakeBody  # stage name, shape (and variant of a history) -> its body over ops
    pack: Callable[[dict[str, Tensor]], None]  # fills the static buffers
    calibration: str = "none"  # which one the scales come from, for people
