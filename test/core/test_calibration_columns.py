"""What a calibration keeps for weights of four bits: how much each column of an input counts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flashrt_core.calibration.observer import Observer
from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.errors import OptionError
from flashrt_core.fingerprint import sha256_of
from flashrt_core.gemm import linear
from flashrt_core.kernels.op import Lane
from flashrt_core.precision import Format, Site
from flashrt_core.scales import read_calibration

from .test_calibration import FOUND, buffers_of


def test_sites_that_share_a_weight_are_told_apart_by_stage() -> None:
    """And of those that may have four bits the mean square of every column is kept."""
    four = {"formats": (Format.W4A16,), "shared": "stack_weight"}
    sites = {
        "all": Site("all_weight", "x", shared="stack_weight"),
        "own": Site("own_weight", "x", stage="late", **four),
    }
    buffers, observer, device = buffers_of(), Observer(sites), CpuDevice()
    weight, out = buffers["stack_weight"], buffers["out"]

    def body(lane: Lane, held: Any) -> None:
        for layer in (0, 1):
            linear(lane, held["x"], weight[layer], None, out)

    programs = [
        device.capture([("s", lambda lane, name=name: observer.watch(body, name)(lane, buffers))])
        for name in ("early", "late")
    ]
    observer.active = True
    seen = [torch.randn(5, 8, generator=torch.Generator().manual_seed(i)) for i in range(2)]
    for program, times in zip(programs, (10.0, 1.0), strict=True):
        for x in seen:
            buffers["x"].copy_(x * times)
            device.replay(program)
    ranges, inputs = observer.ranges(100.0), observer.inputs()
    amax = float(torch.cat(seen).abs().max())
    assert ranges["own"].amax == (amax, amax) and ranges["all"].amax[0] == pytest.approx(10 * amax)
    assert list(inputs) == ["own"] and len(inputs["own"]) == 2
    wanted = torch.cat(seen).square().mean(0)
    assert all(torch.allclose(each, wanted) for each in inputs["own"])


def test_columns_are_kept_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "scales.json"
    columns = {"a": (torch.tensor([0.5, 3.1415926, 0.0, 1e-30]),) * 3}
    found = replace(FOUND, inputs=columns)
    assert found.digest != FOUND.digest
    found.write(file)
    again = read_calibration(file)
    assert again.digest == found.digest
    assert torch.equal(again.inputs["a"][2], columns["a"][0].bfloat16().float())
    buffers = {
        "a_weight": torch.zeros(3, 6, 2, dtype=torch.uint8),
        "b_weight": torch.zeros(1, 6, 4),
    }
    sites = {name: Site(f"{name}_weight") for name in ("a", "b")}
    given = again.importances(sites, buffers)
    assert {name: tuple(each.shape) for name, each in given.items()} == {
        "a_weight_importance": (3, 4)
    }
    buffers["a_weight"] = buffers["a_weight"][:2]
    with pytest.raises(OptionError, match=r"expected \[4\] x 2 columns, got a malformed one"):
        again.importances(sites, buffers)
    document = json.loads(file.read_text())
    document["inputs"]["a"][0] = "AAA"
    del document["sha256"]
    file.write_text(json.dumps(document | {"sha256": sha256_of(document)}))
    with pytest.raises(OptionError, match="malformed"):
        read_calibration(file)
