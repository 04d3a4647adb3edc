"""Execution targets behind one protocol. ``open_device`` alone knows their names."""

from __future__ import annotations

import torch

from ..errors import DeviceError, OptionError
from .base import Device, Program, Segment
from .cpu import CpuDevice
from .overlap import DEFAULT

__all__ = ["DEVICES", "Device", "Program", "Segment", "open_device"]

DEVICES = ("cpu", "cuda")
#: The torch references on a GPU: far too slow for a robot, right for qualification at true size.
REFERENCE_CUDA = "reference_cuda"


def open_device(name: str, *, threads: int = 0, overlap: str | bool = DEFAULT) -> Device:
    """The device called ``name``.

    ``threads`` is for the CPU device, ``overlap`` for the CUDA device.

    Raises OptionError on an unknown name, DeviceError when this machine or build lacks it. There is
    no fallback: a robot must not silently run on something slower than what was asked for.
    """
    if name == "cpu":
        return CpuDevice(threads)
    if name == REFERENCE_CUDA:
        if not torch.cuda.is_available():
            raise DeviceError(
                f"device {name!r}",
                expected="a GPU that torch can use",
                got="none",
                remedy="install a CUDA build of torch, or set device to 'cpu'",
            )
        return CpuDevice(threads, "cuda")
    if name == "cuda":
        from .cuda import CudaDevice  # only here: it needs packages that a CPU host lacks

        return CudaDevice(overlap=overlap)
    raise OptionError("option 'device'", expected=f"one of {list(DEVICES)}", got=repr(name))
