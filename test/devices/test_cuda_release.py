"""Whatever fails on a GPU: one line that says so, and nothing stays open."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core import load as composition
from flashrt_core.devices import cuda
from flashrt_core.errors import FlashRTError
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from test.devices.fake_cuda import FakeCuda, Result

OPTIONS = LoadOptions(
    device="cuda", precision="bf16", views=("base_0_rgb",), steps=1, prompt_buckets=(32,),
    max_sessions=1, capsule_slots=1, host_slots=1, prompt="pick up the cup",
    extra={"vision_depth": 1, "trunk_depth": 1, "expert_depth": 1},
)  # fmt: skip
#: Calls that give something back: where they fail there is nothing to be done.
CLOSING = ("Destroy", "Unload", "Release", "Free")


def decide(session: Session) -> None:
    image = np.zeros((30, 40, 3), np.uint8)
    session.decide(Observation({"base_0_rgb": image}, np.zeros(7, np.float32)))


def refused(run: Any) -> FlashRTError:
    """The error that ``run`` ends with; it must be ours, and one line."""
    with pytest.raises(FlashRTError) as caught:
        run()
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def test_a_load_and_a_decision_leave_nothing_open(whole: FakeCuda) -> None:
    session = load(OPTIONS)
    decide(session)
    kinds = Counter(kind for kind, _ in whole.opened)
    assert {"context", "library", "stream", "executable graph", "event"} <= set(kinds)
    assert "graph" not in kinds
    session.engine.close()
    session.engine.close()
    assert not whole.opened


@pytest.mark.parametrize("result", [Result.CUDA_ERROR_OUT_OF_MEMORY, Result.CUDA_ERROR_NOT_FOUND])
def test_whichever_call_fails_everything_is_released(whole: FakeCuda, result: Result) -> None:
    session = load(OPTIONS)
    driver = session.engine.device.driver  # type: ignore[attr-defined]
    opening = [name for name in driver.calls if not any(part in name for part in CLOSING)]
    session.engine.close()
    assert len(opening) > 15
    for name in opening:
        whole.failing = {name: result}
        error = refused(lambda: load(OPTIONS))
        assert name in str(error) or "kernel" in str(error), f"{name}: {error}"
        if result is Result.CUDA_ERROR_OUT_OF_MEMORY:
            assert "out of memory" in str(error).lower(), f"{name}: {error}"
        whole.failing = {}
        assert not whole.opened, f"open after a failed {name}"


def test_a_fault_while_deciding_is_told_and_everything_is_released(whole: FakeCuda) -> None:
    session = load(OPTIONS)
    whole.failing = {"cuStreamSynchronize": Result.CUDA_ERROR_NOT_FOUND}
    assert "cuStreamSynchronize" in str(refused(lambda: decide(session)))
    # The fault stays: waiting fails at the end too, which must not keep the rest open.
    assert "cuStreamSynchronize" in str(refused(session.engine.close))
    assert not whole.opened
    session.engine.close()


def no_memory(*args: Any, **kwargs: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has ...")


@pytest.mark.parametrize("place", ["arena", "products", "pack", "stage"])
def test_no_memory_in_torch(whole: FakeCuda, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    said = {
        "arena": "memory of GPU 'Fake GPU' for the policy's buffers: expected .* GB free, got 2.00",
        "products": "memory of GPU 'Fake GPU' for the workspace of products: got 2.00 of 8.00 GB",
        "pack": "memory of device 'cuda' while weights are packed.*smaller preset",
        "stage": "memory of GPU 'Fake GPU' for what stage 'prompt' needs beside its buffers",
    }
    if place == "arena":
        monkeypatch.setattr(torch, "zeros", no_memory)
    elif place == "products":
        monkeypatch.setattr(cuda, "CublasLt", no_memory)
    elif place == "pack":
        monkeypatch.setattr(composition.find_policy("pi05"), "pack", no_memory)
    else:
        monkeypatch.setattr(cuda.CudaLauncher, "launch", no_memory)
    error = str(refused(lambda: load(OPTIONS)))
    assert re.search(said[place], error), error
    assert not whole.opened


def test_torch_that_cannot_use_the_gpu(whole: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def old() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old.\nPlease update")

    monkeypatch.setattr(torch.cuda, "init", old)
    error = str(refused(lambda: load(OPTIONS)))
    assert "got The NVIDIA driver on your system is too old.; install torch" in error
    assert not whole.opened
