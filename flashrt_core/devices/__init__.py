"""Execution targets behind one protocol. ``open_device`` alone knows their names."""

from __future__ import annotations

from ..errors import OptionError
from .base import Device, Program, Segment
from .cpu import CpuDevice

__all__ = ["DEVICES", "Device", "Program", "Segment", "open_device"]

DEVICES = ("cpu", "cuda")


def open_device(name: str, *, threads: int = 0, overlap: bool = True) -> Device:
    """The device called ``name``.

    ``threads`` is for the CPU device, ``overlap`` for the CUDA device.

    Raises OptionError on an unknown name, DeviceError when this machine or build lacks it. There is
    no fallback: a robot must not silently run on something slower than what was asked for.
    """
    if name == "cpu":
        return CpuDevice(threads)
    if name == "cuda":
        from .cuda import CudaDevice  # only here: it needs packages that a CPU host lacks

        return CudaDevice(overlap=overlap)
    raise OptionError("option 'device'", expected=f"one of {list(DEVICES)}", got=repr(name))
