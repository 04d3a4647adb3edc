"""The guided end of a denoising step on CUDA: the reference of its op, and bits at both ends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from flashrt_core.kernels.action_out_euler import action_out_euler, action_out_euler_ref
from test.gpu import PLACE, error, kernel_device, run, runs_kernels

pytestmark = runs_kernels

FLOAT32 = 2e-5


@pytest.fixture(scope="module")
def device() -> Iterator[Any]:
    with kernel_device(overlap="on") as device:
        yield device


@pytest.mark.parametrize("actions", [32, 7])  # a kernel of its own, and that of other widths
@pytest.mark.parametrize("rows", [3, 10, 50])
def test_guided_step(device: Any, rows: int, actions: int) -> None:
    draw = partial(torch.randn, generator=torch.Generator(PLACE).manual_seed(1), device=PLACE)
    hidden, sample = draw(rows, 1024).bfloat16(), draw(rows, actions)
    table, weight, bias = 0.3 * draw(2, 1024), draw(actions, 1024), draw(actions)
    args = (table[0], table[1], weight, bias)
    step: dict[str, float] = {"dt": -0.1, "eps": 1e-6}
    plain = sample.clone()
    run(device, lambda lane: action_out_euler(lane, hidden, *args, plain, plain, **step))  # type: ignore[arg-type]

    # Rows by any weight, then a kept one and a free one.
    guidance, previous = torch.rand(rows, actions, device=PLACE), draw(rows, actions)
    guidance[-2], guidance[-1] = 1.0, 0.0
    for time in (0.5, 0.1):  # on the way, and in the last step
        guide: dict[str, Any] = {"previous": previous, "guidance": guidance, "time": time, **step}
        wanted, found = torch.empty_like(sample), sample.clone()
        action_out_euler_ref(hidden.float(), *args, sample, wanted, **guide)
        body = partial(action_out_euler, **guide)
        run(device, lambda lane: body(lane, hidden, *args, found, found))  # noqa: B023
        assert error(found, wanted) < FLOAT32
        assert torch.equal(found[-1], plain[-1]), "free: the bits of a plain step"
    assert torch.equal(found[-2], previous[-2]), "kept: exactly"
