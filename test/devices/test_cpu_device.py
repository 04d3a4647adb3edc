"""The device that computes references."""

from __future__ import annotations

import pytest
import torch

from flashrt_core.devices.cpu import CpuDevice


@pytest.mark.parametrize(("place", "rounds"), [("cpu", True), ("cuda", False)])
def test_references_on_a_gpu_convolve_in_float32(
    monkeypatch: pytest.MonkeyPatch, place: str, rounds: bool
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    CpuDevice(place=place)
    assert torch.backends.cudnn.allow_tf32 is rounds
