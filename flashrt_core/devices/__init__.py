"""Execution targets behind one protocol. ``open_device`` alone knows their names."""

from __future__ import annotations

import ctypes

from ..errors import DeviceError, OptionError
from .base import Device, Program, Segment
from .cpu import CpuDevice

__all__ = ["DEVICES", "Device", "Program", "Segment", "open_device"]

DEVICES = ("cpu", "cuda")


def open_device(name: str, *, threads: int = 0) -> Device:
    """The device called ``name``.

    Raises OptionError on an unknown name, DeviceError when this machine or build lacks it. There is
    no fallback: a robot must not silently run on something slower than what was asked for.
    """
    if name == "cpu":
        return CpuDevice(threads)
    if name == "cuda":
        raise _no_cuda()
    raise OptionError("option 'device'", expected=f"one of {list(DEVICES)}", got=repr(name))


def _no_cuda() -> DeviceError:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return DeviceError(
            "device 'cuda'",
            expected="an NVIDIA GPU with its driver",
            got="no driver library (libcuda.so.1) on this machine",
            remedy="install the NVIDIA driver, or set device to 'cpu'",
        )
    return DeviceError(
        "device 'cuda'",
        expected="a build with the CUDA kernels",
        got="a CPU-only build",
        remedy="set device to 'cpu'",
    )
