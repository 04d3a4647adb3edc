"""What LeRobot's code reads from the GPU is recorded once, so that a graph can hold the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import pytest
import torch

from flashrt_core.bench.peer_lerobot_groot_n17 import _HostValues


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of which one function is replaced, as it may not be installed."""
    imported: Any = ModuleType("transformers.utils.import_utils")
    imported.is_cuda_stream_capturing = lambda: True
    utils: Any = ModuleType("transformers.utils")
    utils.import_utils = imported
    whole: Any = ModuleType("transformers")
    whole.utils = utils
    for module in (whole, utils, imported):
        monkeypatch.setitem(sys.modules, module.__name__, module)


# Inference mode hands over other functions than the plain one: both are recorded alike.
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.to("meta"),  # another device
        lambda x: x[1].item(),
        lambda x: bool(x.sum() > 3),
        lambda x: int(x.max()),
        lambda x: x.tolist(),
        lambda x: torch.nonzero(x),
        lambda x: torch.repeat_interleave(x),
        lambda x: torch.tensor([2, 3]),
    ],
    ids=["to", "item", "bool", "int", "tolist", "nonzero", "repeat", "tensor"],
)
@pytest.mark.usefixtures("transformers")
def test_what_the_host_reads_comes_from_the_recording(
    mode: Callable[[], AbstractContextManager[None]], read: Callable[[torch.Tensor], Any]
) -> None:
    host = _HostValues()
    with mode():
        first, second = torch.tensor([0, 1, 2]), torch.tensor([2, 0, 0])
        with host.active():
            recorded, beside = read(first), first + 1
        host.replays = True
        with host.active():
            again, fresh = read(second), second + 1
    assert again is recorded or again == recorded
    assert type(again) is type(recorded)
    assert torch.equal(beside, torch.tensor([1, 2, 3]))
    assert torch.equal(fresh, torch.tensor([3, 1, 1])), "what stays there is computed"


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.usefixtures("transformers")
def test_masks_are_places_of_the_recording(
    mode: Callable[[], AbstractContextManager[None]],
) -> None:
    host = _HostValues()
    with mode():
        rows = torch.arange(4)
        with host.active():
            chosen = rows[torch.tensor([True, False, True, False])]
        host.replays = True
        with host.active():
            again = (rows * 2)[torch.tensor([False, False, False, True])]
    assert chosen.tolist() == [0, 2] and again.tolist() == [0, 4]
