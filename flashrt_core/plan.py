"""What a policy contributes to an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .contract import Contract
from .devices import Device
from .errors import DeviceError
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

    def pack_on(self, device: Device, buffers: dict[str, Tensor]) -> None:
        """Fill the static buffers; DeviceError where the device's memory does not take it."""
        try:
            self.pack(buffers)
        except torch.OutOfMemoryError as error:  # tensors that packing needs for a while
            raise DeviceError(
                f"memory of device {device.name!r} while weights are packed",
                got=str(error),
                remedy="stop other programs on it, or choose a smaller preset",
            ) from error
