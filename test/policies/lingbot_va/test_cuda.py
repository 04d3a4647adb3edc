"""LingBot-VA on the CUDA device: whole episodes against the same stages in float32, and capsules.

The comparison runs the ops' references, once in float32 and once with every buffer in bf16 (what
plain torch in bf16 does, with fewer roundings). With ``FLASHRT_EMULATED=1`` the smallest episode
runs on emulated kernels.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flashrt_core.bench.capsules import measure
from flashrt_core.bench.case import Case as BenchCase
from flashrt_core.bench.scene import PROMPT, look_back, observations
from flashrt_core.kernels.op import Op
from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.lingbot_va import POLICY
from flashrt_core.weights import open_weights
from test.gpu import EMULATED, PLACE, error, kernel_device, requires_gpu
from test.parity import lingbot as parity

from .harness import Pipeline
from .test_reference import frames, noise

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
needs_gpu = requires_gpu[1]
needs_kernels = pytest.mark.skipif(
    EMULATED and os.environ.get("FLASHRT_EMULATED") != "1", reason="no CUDA device"
)

#: Two blocks of the true widths, over a shorter history.
CUT = parity.Case(
    "cut",
    views=2,
    chunks=6,
    preset="base",
    sizes=(("net_depth", 2), ("steps", 2), ("action_steps", 3), ("window", 8)),
)
#: More than the roundings of torch in bf16 leave of the same episode; the noise of both.
MORE = 1.3


torch.backends.cudnn.allow_tf32 = False  # the references' convolutions are float32


class References:
    """A device on which the references of ops run, on the GPU where there is one."""

    class _Lane:
        def issue(self, op: Op, *args: Any, **kwargs: Any) -> None:
            op.reference(*args, **kwargs)

    def allocate(self, specs: Any) -> dict[str, Tensor]:
        return {
            spec.name: torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype.value), device=PLACE)
            for spec in specs
        }

    def capture(self, segments: Any) -> Any:
        return segments

    def replay(self, program: Any) -> None:
        with torch.inference_mode():
            for _, body in program:
                body(self._Lane())

    def write(self, target: Tensor, value: np.ndarray[Any, Any]) -> None:
        target.copy_(torch.from_numpy(value))

    def read(self, source: Tensor) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = source.float().cpu().clone().numpy()
        return found


@contextmanager
def kernels() -> Iterator[Any]:
    if EMULATED:
        with kernel_device() as device:
            yield device
        return
    from flashrt_core.devices.cuda import CudaDevice

    device = CudaDevice()
    try:
        yield device
    finally:
        device.close()


@pytest.mark.parametrize(
    ("case", "bucket"),
    [
        pytest.param(parity.CASES[0], 0, marks=needs_kernels),
        pytest.param(parity.CASES[0], 1, marks=needs_gpu),
        pytest.param(parity.CASES[1], 0, marks=needs_gpu),
        pytest.param(parity.CASES[2], 0, marks=needs_gpu),
        pytest.param(CUT, 0, marks=needs_gpu),
    ],
    ids=["row", "row_full", "long_rows", "tee", "cut"],
)
def test_episodes_are_those_of_float32(case: parity.Case, bucket: int) -> None:
    source = parity.source(case) if case is not CUT else None
    source = source or open_weights("random:0", POLICY.tensors(case.config))
    with kernels() as device:
        exact, rounded = (
            Pipeline(case.config, case.views, plan, source, References())
            for plan in ("fp32", "bf16")
        )
        ours = Pipeline(case.config, case.views, "bf16", source, device)
        for each in (exact, rounded, ours):
            each.set_prompt(*parity.prompts(case), bucket)
        executed, used, evicted = None, list(case.config.channels), False
        for chunk in range(case.chunks):
            inputs = (frames(case, chunk), noise(case, chunk), executed, bucket)
            want, torchs, found = (each.decide(*inputs) for each in (exact, rounded, ours))
            errors = {
                "actions": [error(each[:, used], want[:, used]) for each in (found, torchs)],
                "video": [
                    error(each.read("net_video"), exact.read("net_video"))
                    for each in (ours, rounded)
                ],
            }
            print(case.name, chunk, errors)
            for name, (mine, theirs) in errors.items():
                assert mine < MORE * theirs + 1e-3, (name, chunk)
            for name in ("holders", "kinds", "frame"):
                assert torch.equal(ours.read(name), exact.read(name)), (name, chunk)
            evicted = evicted or not bool((exact.read("holders") < 0).any())
            executed = parity.executed(case, chunk, want.numpy())
    assert evicted or case.chunks < 6


OPTIONS = LoadOptions(
    policy="lingbot_va", preset="tiny", device="cuda", precision="bf16",
    views=("view_0", "view_1"), state_dim=1, max_sessions=2, capsule_slots=1,
)  # fmt: skip
BENCH = BenchCase(2, 32, 8, 3)


@needs_gpu
@pytest.mark.parametrize("overlap", ["on", "off"])
def test_an_episode_repeats_to_the_bit(overlap: str) -> None:
    """Also where kernels overlap everywhere, or nowhere."""
    made = []
    for way in ("off", overlap):
        session = load(replace(OPTIONS, overlap=way, prompt=PROMPT))
        try:
            seen = observations(session, BENCH)
            for turn in range(7):
                look_back(session, seen[turn])
                decision = session.decide(seen[turn])
            made.append(decision.raw)
        finally:
            session.engine.close()
    assert np.array_equal(*made)


@needs_gpu
def test_capsules_resume_an_episode_with_equal_bits() -> None:
    """Behind sixteen chunks: restored, forked, from the host, from a file, made anew."""
    result = measure(BENCH, OPTIONS, trials=2)
    assert result.bit_exact and result.chunks == 16, result.equal


@needs_gpu
def test_a_long_episode_allocates_nothing() -> None:
    session = load(replace(OPTIONS, prompt=PROMPT))
    try:
        seen = observations(session, BENCH)

        def decide(count: int) -> None:
            for turn in range(count):
                look_back(session, seen[turn % len(seen)])
                session.decide(seen[turn % len(seen)])

        decide(4)
        torch.cuda.synchronize()
        held, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        decide(200)
        assert torch.cuda.memory_allocated() == held and torch.cuda.mem_get_info()[0] >= free
    finally:
        session.engine.close()
