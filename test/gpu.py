"""What the tests that need a GPU share."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.contract import BufferSpec, DType, Role
from flashrt_core.kernels.op import Lane
from flashrt_core.session import Session

requires_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


_WHOLE = os.environ.get("FLASHRT_EMULATED") == "1"
#: Whether kernels are emulated: where there is no GPU, or one is not wanted.
EMULATED = _WHOLE or not torch.cuda.is_available()
#: Where tests of ops have their tensors.
PLACE = "cpu" if EMULATED else "cuda"
#: Of tests of kernels, which run on a GPU, or on the CPU (test/emulator).
runs_kernels = [pytest.mark.gpu, pytest.mark.kernels]
#: Of tests of the emulator that take more than a few seconds.
WHOLE_EMULATION = pytest.mark.skipif(not _WHOLE, reason="takes long; `make test-emulated` runs it")
#: Tests of kernels that are emulated everywhere: one or two of every kind of instruction. Others
#: take minutes together, and run where emulation is asked for.
EMULATED_EVERYWHERE = (
    "test_eight_pieces_of_every_kind",
    "test_rms_norm[7-1024-",
    "test_layer_norm[5-8-",
    "test_qkv_rope_kv[13-4-32]",
    "test_prompt_rows",
    "test_ends_of_a_step[1]",
    "test_attention_over_a_prefix[10-58-4-32-40-48]",
    "test_attention_over_a_prefix[304-304-8-256-257-304]",
    "test_attention_of_few_queries[304-8]",
    "test_attention_of_many_heads[36-36-4-2-64-3]",
    "test_causal_attention[4-2-32-17]",
    "test_norm_in_front_of_few_rows[41-96-1536-True-relu]",
    "test_norm_in_front_of_few_rows_in_e4m3[48-96-False-into-fp8]",
    "test_few_e4m3_rows_into_the_stream[48-96-none]",
    "test_attention_behind_a_norm_in_e4m3[17-0-2-48-1536-True-into-bf16]",
    "test_causal_rows_turn_and_attend[4-1-17-",
    "test_fused_geglu_tiles[8-glu_linear_gelu_tanh_152_64_4_2_bf16_sm90]",
    "test_norms_into_e4m3[3-8-",
    "test_8_bit_weights_of_any_size[7-48-128-",
    "test_keys_count_as_their_bias_says[7-300-2-2-128-0.4]",
    "test_frames_are_convolved[1-2-2-6-8-176-",
)


def skip_emulation(items: list[pytest.Item]) -> None:
    """Of tests of kernels, leaves those that run on this machine without being asked for."""
    if not EMULATED or _WHOLE:
        return
    skip = pytest.mark.skip(reason="no CUDA device; `make test-emulated` runs it on the CPU")
    for item in items:
        everywhere = item.name.startswith(EMULATED_EVERYWHERE)
        if item.get_closest_marker("kernels") and not everywhere:
            item.add_marker(skip)


def synchronize() -> None:
    """What torch has put into tensors is there."""
    if not EMULATED:
        torch.cuda.synchronize()


@contextmanager
def kernel_device(**options: Any) -> Iterator[Any]:
    """A device for single ops: the GPU with ``options`` as :class:`CudaDevice` takes them, or the
    emulated one, for which they mean nothing.
    """
    if EMULATED:
        from test.emulator.device import EmulatedDevice

        architecture = int(os.environ.get("FLASHRT_EMULATED_ARCHITECTURE", "90"))
        order = int(os.environ.get("FLASHRT_EMULATED_ORDER", "0"))
        yield EmulatedDevice(architecture=architecture, order=order)
        return
    from flashrt_core.devices.cuda import CudaDevice

    device = CudaDevice(**options)
    try:
        # Products are timed on weights anywhere in the device's memory.
        device.allocate([BufferSpec("cold", (256 << 20,), DType.U8, Role.SCRATCH)])
        yield device
    finally:
        device.close()


def run(device: Any, body: Callable[[Lane], None]) -> Any:
    """Captures one body on a device and replays it once."""
    program = device.capture([("op", body)])
    device.replay(program)
    return program


def error(out: Tensor, reference: Tensor) -> float:
    """||out - reference|| / ||reference||; infinite when anything is not finite."""
    out, reference = out.double(), reference.double()
    if not bool(torch.isfinite(out).all()):
        return float("inf")
    return float((out - reference).norm() / reference.norm())


#: What one decision asks of the driver: fresh windows in one copy, the graph, the actions, one
#: wait, the time of each stage. No call here allocates, captures or compiles.
DECISION_CALLS = {
    "cuMemcpyHtoDAsync": 1,
    "cuGraphLaunch": 1,
    "cuMemcpyDtoHAsync": 1,
    "cuStreamSynchronize": 1,
    "cuEventElapsedTime": 2,
}
#: Between memory of the GPU a kernel of our own copies; to the host and back the copy engines, what
#: is in pieces in a graph. None of them waits.
CAPSULE_CALLS = {
    "snapshot": {"cuLaunchKernel": 1},
    "restore": {"cuLaunchKernel": 1},
    "fork": {"cuLaunchKernel": 1},
    "live fork": {"cuLaunchKernel": 1},
    "to host": {"cuMemcpyAsync": 1},
    "restore from host": {"cuGraphLaunch": 1},
    "to device": {"cuMemcpyAsync": 1},
    "switch": {"cuLaunchKernel": 2},
    "restore behind another": {"cuLaunchKernel": 2},
}


def capsule_calls(session: Session) -> dict[str, dict[str, int]]:
    """The driver's calls for everything that can be done with the state of a session.

    The engine needs room for three sessions and a capsule in either place.
    """
    engine = session.engine
    store, other = engine.store, engine.create_session("other", prompt=session.prompt)
    doing: dict[str, Callable[[], object]] = {
        "snapshot": lambda: session.snapshot("mark"),
        "restore": lambda: session.restore("mark"),
        "fork": lambda: engine.fork("branch", capsule="mark"),
        "live fork": lambda: engine.fork("branch", source=session.name),
        "to host": lambda: store.to_host("mark"),
        "restore from host": lambda: session.restore("mark"),
        "to device": lambda: store.to_device("mark"),
        "switch": lambda: engine.admit(other),
        "restore behind another": lambda: session.restore("mark"),
    }
    other.select_shape(engine.contract.shapes[0])
    found = {}
    for _ in range(2):  # a capsule that is new, and one that is there already
        other.resume(session.host_state())  # something to make room for, and to come back to
        engine.admit(session)
        for name, do in doing.items():
            with count_calls(engine.device.driver) as calls:  # type: ignore[attr-defined]
                do()
            assert found.setdefault(name, dict(calls)) == calls
            if "fork" in name:
                engine.drop_session("branch")
    engine.drop_session("other")
    return found


class _Counting:
    """The driver's bindings with every call counted, also those around ``CudaDriver.call``."""

    def __init__(self, api: Any, calls: Counter[str]) -> None:
        self._api, self._calls = api, calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._api, name)
        if not name.startswith("cu") or not callable(found):
            return found

        def counted(*args: Any) -> Any:
            self._calls[name] += 1
            return found(*args)

        return counted


@contextmanager
def count_calls(driver: Any) -> Iterator[Counter[str]]:
    """Counts every call of a device's driver by name."""
    api, calls = driver.api, Counter[str]()
    driver.api = _Counting(api, calls)
    try:
        yield calls
    finally:
        driver.api = api
