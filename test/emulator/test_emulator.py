"""What the emulator finds: kernels that do what they may not, and real ones with a line less.

That it runs right kernels right is what tests of ops show, whose kernels have passed on GPUs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flashrt_core.gemm import linear, linear_ref
from flashrt_core.kernels.attention import attention, attention_ref
from flashrt_core.kernels.linear_gated_residual import (
    linear_gated_residual,
    linear_gated_residual_ref,
)
from flashrt_core.kernels.rms_norm import rms_norm, rms_norm_ref
from test.gpu import WHOLE_EMULATION, error, run

from .device import EmulatedDevice, EmulationError

TRIALS = Path(__file__).with_name("trials.cu")
BF16 = torch.bfloat16
GENERATOR = torch.Generator().manual_seed(7)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def whole_emulation(*case: Any) -> Any:
    """A case; where the last value is true, one that takes long."""
    *values, long = case
    return pytest.param(*values, marks=WHOLE_EMULATION if long else ())


def draw(*shape: int, scale: float = 1.0, dtype: torch.dtype = BF16) -> Tensor:
    return (torch.randn(shape, generator=GENERATOR) * scale).to(dtype)


def launch(kernel: str, *args: Tensor, shared_bytes: int = 0, **sizes: Any) -> None:
    device = EmulatedDevice()
    device.launcher.sources = (TRIALS,)
    size = {"grid": 1, "block": 32, **sizes}
    device.launcher.launch(kernel, args=args, shared_bytes=shared_bytes, **size)
    device.launcher.steps[-1]()


@pytest.mark.parametrize(
    ("kernel", "sizes", "told"),
    [
        (
            "one_warp_is_late",
            {"block": 64},
            r"deadlock; 32 threads \(first 0\) of block \(0, 0, 0\): named barrier 3; 32 threads"
            r" \(first 32\) of .*: named barrier 4",
        ),
        ("lanes_part", {}, r"__shfl_xor_sync.* others of the warp are at __syncwarp"),
        ("lanes_have_left", {}, r"__syncwarp: lanes 00000020 have left|deadlock"),
        ("beyond_shared", {"shared_bytes": 64}, r"thread \(0, 0, 0\): access to byte 32000 of 64"),
        ("next_to_shared", {"shared_bytes": 64}, r"byte 64 of 64 bytes .* was written"),
        ("copy_beyond_shared", {"shared_bytes": 64}, r"cp.async: 16 bytes at 64 of 64 bytes"),
        ("barrier_of_nobody", {}, r"used before it is initialised"),
        ("bytes_that_never_come", {}, r"deadlock.*parity 0 \(0 of 1 arrivals and 48 bytes missing"),
        ("push_before_it_begins", {"grid": 2, "cluster": 2}, r"block \(1, 0, 0\) has not begun"),
        ("leave_before_it_comes", {"grid": 2, "cluster": 2}, r"block \(1, 0, 0\) has left"),
        ("poison", {}, r"1 arguments for 2"),
        ("poison", {"block": 64}, r"64 threads, for 32"),
        ("poison", {"grid": 3, "cluster": 2}, r"a grid of 3, clusters of \(2, 1, 1\)"),
        ("nowhere", {}, r"no entry for architecture 90"),
    ],
)
def test_what_may_not_be_done_is_told(kernel: str, sizes: dict[str, Any], told: str) -> None:
    with pytest.raises(EmulationError, match=told):
        launch(f"trial_{kernel}", torch.zeros(64), **sizes)


def test_what_is_not_there_yet_is_poison() -> None:
    out, values = torch.zeros(96), torch.arange(32.0)
    launch("trial_poison", out, values, shared_bytes=256)
    assert bool(out[:64].isnan().all())
    assert torch.equal(out[64:], values)


def norm(device: EmulatedDevice) -> float:
    x, weight = draw(3, 512), draw(512, dtype=torch.float32)
    out, want = torch.full((3, 512), float("nan")).bfloat16(), torch.empty(3, 512)
    run(device, lambda lane: rms_norm(lane, x, weight, out, eps=1e-6))
    rms_norm_ref(x.float(), weight, want, eps=1e-6)
    return error(out, want)


def heads(device: EmulatedDevice) -> float:
    q, k, v = (draw(100, 2, 64) for _ in range(3))
    out, want = torch.full((100, 128), float("nan")).bfloat16(), torch.empty(100, 128)
    run(device, lambda lane: attention(lane, q, k, v, out, scale=0.125))
    attention_ref(q.float(), k.float(), v.float(), want, scale=0.125)
    return error(out, want)


def shared_keys(device: EmulatedDevice) -> float:
    q, k, v = draw(80, 1, 256, scale=2.0), draw(200, 1, 256), draw(200, 1, 256)
    out, want = torch.full((80, 256), float("nan")).bfloat16(), torch.empty(80, 256)
    run(device, lambda lane: attention(lane, q, k, v, out, scale=1 / 16))
    attention_ref(q.float(), k.float(), v.float(), want, scale=1 / 16)
    return error(out, want)


def residual(device: EmulatedDevice) -> float:
    """Few rows: clusters, pushes and tiles that the copy engine brings."""
    branch, weight, gate = draw(40, 4096), draw(128, 4096, scale=1 / 64), draw(128, scale=0.3)
    gate, out = gate.float(), draw(40, 128)
    want = out.float()
    run(device, lambda lane: linear_gated_residual(lane, branch, weight, gate, out))
    linear_gated_residual_ref(branch.float(), weight.float(), gate, want)
    return error(out, want)


def few_rows(device: EmulatedDevice) -> float:
    x, weight, bias = draw(41, 1536), draw(192, 1536, scale=1 / 40), draw(192)
    out, want = torch.full((41, 192), float("nan")).bfloat16(), torch.empty(41, 192)
    run(device, lambda lane: linear(lane, x, weight, bias, out))
    linear_ref(x.float(), weight.float(), bias.float(), want)
    return error(out, want)


Case = Callable[[EmulatedDevice], float]
CASES: list[Case] = [norm, heads, shared_keys, residual, few_rows]
#: Whose kernels take long to compile.
LONG = (residual, few_rows)
ROUNDED = 3e-3  # one rounding to bf16, and probabilities rounded to it
FAILS = r"has left|has not begun|deadlock|more arrivals"

#: Of a kernel, a line without which it is wrong; and an order in which that shows.
MUTANTS: list[tuple[Case, str, str, str, int]] = [
    # A barrier of the block, copies that nobody waits for, operands in another order.
    (norm, "rms_norm", "__syncthreads();", "", 0),
    (heads, "attention_heads", "copy_wait<S::kStages - 1>();", "", 0),
    (heads, "attention_heads", "copy_wait<0>();\n    }\n    sync();", "copy_wait<0>();\n    }", 1),
    (heads, "attention_heads", "(mixed_[n], a, b[0], b[1])", "(mixed_[n], a, b[1], b[0])", 0),
    # Tiles of the copy engine: not there yet, still in use, of another number of bytes.
    (shared_keys, "attention_shared_kv_sm90", "ring.wait_full(value_frame(block));", "", 0),
    (shared_keys, "attention_shared_kv_sm90", "ring.wait_empty(index);", "", 0),
    (
        *(shared_keys, "attention_shared_kv_sm90", "expect(barrier, S::kFrameBytes);"),
        *("expect(barrier, S::kFrameBytes + 16);", 0),
    ),
    # Products of warpgroups: results and operands before they are waited for, other rows.
    (shared_keys, "attention_shared_kv_sm90", "wgmma_wait<0>();\n}", "}", 0),
    (
        *(shared_keys, "attention_shared_kv_sm90", "wgmma_columns(values + k * 2048"),
        *("wgmma_columns(values + k * 1024", 0),
    ),
    (residual, "linear_gated_residual", "wgmma_sync(1 + group_, 128);", "", 2),
    (residual, "linear_gated_residual", "if (step > 0) wgmma_wait<0>();", "", 0),
    (
        residual,
        "linear_gated_residual",
        "__syncthreads();\n    leave_partials",
        "leave_partials",
        1,
    ),
    (few_rows, "few_rows_linear", "(unit ^ (row & 7)) * 16", "unit * 16", 0),
    # Clusters: blocks that have not begun, sums that have not come.
    (few_rows, "few_rows_linear", "if constexpr (S::kSplit > 1) cluster_wait();", "", 2),
    (residual, "linear_gated_residual", "wait(kPushed);", "", 0),
    (residual, "linear_gated_residual", "(rows * S::kOwn * 16 + squares)", "(rows * 16)", 0),
]


@pytest.mark.parametrize("order", range(6))
@pytest.mark.parametrize("case", [whole_emulation(case, case in LONG) for case in CASES])
def test_right_kernels_are_right_in_every_order(case: Case, order: int) -> None:
    assert case(EmulatedDevice(order=order)) < ROUNDED


@pytest.mark.parametrize(
    ("case", "source", "old", "new", "order"),
    [whole_emulation(*mutant, mutant[0] in LONG) for mutant in MUTANTS],
)
def test_a_kernel_with_a_line_less_fails(
    case: Case, source: str, old: str, new: str, order: int
) -> None:
    device = EmulatedDevice(order=order)
    device.launcher.changes = {source: ((old, new),)}
    try:
        found = case(device)
    except EmulationError as told:
        assert re.search(FAILS, str(told)), told
    else:
        assert found > 10 * ROUNDED
