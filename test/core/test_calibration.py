"""Scale tables: what is written, what is refused and in which words, and what the observer sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flashrt_core.calibration.observer import Observer
from flashrt_core.calibration.run import calibrate
from flashrt_core.contract import ShapeKey
from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.errors import InputError, NumericsError, OptionError
from flashrt_core.fingerprint import sha256_of
from flashrt_core.gemm import linear
from flashrt_core.kernels.ada_rms_norm_geglu import ada_rms_norm_geglu
from flashrt_core.kernels.op import Lane
from flashrt_core.load import LoadOptions, calibrate_command, load
from flashrt_core.observations import made_up_observations
from flashrt_core.outputs import OutputError
from flashrt_core.policies.pi05 import POLICY
from flashrt_core.precision import Format, Precision, Site
from flashrt_core.scales import (
    KEY,
    Calibration,
    Range,
    check,
    default_path,
    find_calibration,
    power_of_two,
    read_calibration,
)

PLAN = Precision(Format.BF16, {"a": Format.FP8, "b": Format.W8A16})
PARTS = {name: f"{name} of the plan" for name in KEY}
FOUND = Calibration(
    key=PARTS,
    recorder={"arch": "cpu-x", "library": "torch-0", "observations": "made up: 2 with seed 0"},
    observations=("11", "22"),
    method="amax",
    percentile=99.9,
    sites={"a": Range((3.0, 448.0), (2.5, 400.0)), "b": Range((1.0,), (0.5,))},
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "deep" / "scales.json"
    FOUND.write(path)
    return path


def find(path: Path | None, **parts: str) -> Calibration:
    return find_calibration(path, PARTS | parts, PLAN, "flashrt calibrate pi05")


def test_a_file_is_read_as_it_was_written(file: Path) -> None:
    assert read_calibration(file) == FOUND == find(file)
    assert read_calibration(file).digest == FOUND.digest
    assert sorted(path.name for path in file.parent.iterdir()) == ["scales.json"]


def test_scales_are_powers_of_two_that_fit() -> None:
    assert FOUND.scales("a") == [2.0**-7, 1.0]
    assert replace(FOUND, method="percentile").scales("a") == [2.0**-7, 1.0]
    assert FOUND.scales("b") == [2.0**-8]


@pytest.mark.parametrize(
    ("value", "scale"),
    [(0.0, 1.0), (1.0, 1.0), (1.0000001, 2.0), (0.75, 1.0), (0.5, 0.5), (3e-300, 2.0**-126)],
)
def test_power_of_two(value: float, scale: float) -> None:
    assert power_of_two(value) == scale


def test_digests_follow_every_part() -> None:
    changes: list[dict[str, Any]] = [
        {"key": PARTS | {"weights": "others"}},
        {"recorder": {"arch": "cpu-y"}},
        {"observations": ("11",)},
        {"method": "percentile"},
        {"percentile": 99.0},
        {"sites": {"a": FOUND.sites["a"]}},
    ]
    digests = {replace(FOUND, **change).digest for change in changes} | {FOUND.digest}
    assert len(digests) == len(changes) + 1


def rewritten(file: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Changed and given a checksum that fits: not by a hand, but by a program of its own."""
    document = json.loads(file.read_text())
    del document["sha256"]
    change(document)
    file.write_text(json.dumps(document | {"sha256": sha256_of(document)}))
    return file


def refusal(path: Path | None, **parts: str) -> str:
    with pytest.raises(OptionError) as found:
        find(path, **parts)
    text = str(found.value)
    assert text.startswith("option 'calibration': expected ") and "\n" not in text
    return text


def test_no_file_says_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    none = refusal(tmp_path / "none.json")
    assert "none.json" in none and none.endswith(" run flashrt calibrate pi05")
    text = refusal(None)
    assert "got none for this plan; " in text and text.endswith(" run flashrt calibrate pi05")
    FOUND.write(default_path(PARTS))
    assert find(None) == FOUND
    assert "none for this plan" in refusal(None, weights="others")


def test_a_truncated_file(file: Path) -> None:
    whole = file.read_text()
    for length in (1, len(whole) // 2, len(whole) - 3):
        file.write_text(whole[:length])
        assert f"truncated file of {length} characters" in refusal(file)


@pytest.mark.parametrize("content", ["", "scales", "[1, 2"])
def test_no_json(file: Path, content: str) -> None:
    file.write_text(content)
    assert "no JSON" in refusal(file)


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"format": "other"}', "[" * 100_000])
def test_an_unknown_format(file: Path, content: str) -> None:
    file.write_text(content)
    text = refusal(file)
    assert "an unknown format" in text or "no JSON" in text


def test_an_unknown_version(file: Path) -> None:
    assert "expected version 1, got unknown version 2" in refusal(
        rewritten(file, lambda document: document.update(version=2))
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["sites"]["a"]["amax"].__setitem__(0, 4.0),
        lambda d: d["key"].update(weights="weights of the plan, edited"),
        lambda d: d["observations"]["each"].pop(),
        lambda d: d.update(method="percentile"),
        lambda d: d.update(note="harmless?"),
        lambda d: d.pop("sha256"),
        lambda d: d.update(sha256="0" * 64),
    ],
)
def test_edited_by_hand(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document))
    text = refusal(file)
    assert "one that was edited by hand or damaged" in text and "calibrate again" in text


def test_a_foreign_file(file: Path) -> None:
    text = refusal(file, policy="gr00t")
    assert (
        "expected one of policy 'gr00t', got a foreign one, of policy 'policy of the plan'" in text
    )
    assert "name a file of this policy" in text  # and not a command that would replace this one


@pytest.mark.parametrize("part", [name for name in KEY if name != "policy"])
def test_a_stale_file_says_what_changed(file: Path, part: str) -> None:
    text = refusal(file, **{part: "another"})
    assert text.endswith(f"got a stale one, of other {part}; run flashrt calibrate pi05")
    two = refusal(file, weights="others", shapes="more")
    assert "of other shapes and weights" in two


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("sites"),
        lambda d: d.update(sites=[]),
        lambda d: d["sites"]["a"].pop("amax"),
        lambda d: d["sites"]["a"].update(amax=["much"]),
        lambda d: d["sites"]["a"].update(amax=[-1.0]),
        lambda d: d["sites"]["a"].update(percentile=[float("inf")]),
        lambda d: d.update(key=3),
        lambda d: d.update(observations={}),
        lambda d: d.update(method="guess"),
    ],
)
def test_a_malformed_file(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    assert "a malformed one" in refusal(rewritten(file, change))


def test_an_incomplete_file() -> None:
    lacking = replace(FOUND, sites={"b": FOUND.sites["b"]})
    with pytest.raises(OptionError, match="expected a range of every fp8 site, got none of .'a'."):
        check(lacking, PARTS, PLAN)
    check(replace(FOUND, sites={"a": FOUND.sites["a"]}), PARTS, PLAN)  # b reads 16 bits


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert "Is a directory" in refusal(tmp_path)
    binary = tmp_path / "x.json"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "no text" in refusal(binary)


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="calibration '.*scales.json' cannot be written"):
        FOUND.write(tmp_path / "file" / "scales.json")


def test_ranges_are_one_a_layer() -> None:
    buffers = {"a_x_scale": torch.zeros(2), "b_weight": torch.zeros(3)}
    FOUND.fill({"a": Site("a_weight"), "b": Site("b_weight")}, buffers)
    assert buffers["a_x_scale"].tolist() == FOUND.scales("a")
    with pytest.raises(OptionError, match="expected 3 ranges, one a layer, got a malformed one, 2"):
        FOUND.fill({"a": Site("a_weight")}, {"a_x_scale": torch.zeros(3)})


# ---- the observer --------------------------------------------------------------------------------

SITES = {
    "stack": Site("stack_weight", "x", rows="count"),
    "one": Site("one.weight", "x"),
    "fused": Site("fused_weight"),
}


def buffers_of() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"stack_weight": (3, 6, 8), "one.weight": (6, 8), "fused_weight": (2, 12, 8)}
    return {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()} | {
        "x": torch.zeros(5, 8),
        "out": torch.zeros(5, 6),
        "other": torch.randn(6, 8, generator=draw),
        "count": torch.tensor([5], dtype=torch.int32),
        "gain": torch.ones(8),
    }


def stage(lane: Lane, buffers: Any) -> None:
    x, out = buffers["x"], buffers["out"]
    linear(lane, x, buffers["stack_weight"][2], None, out)
    linear(lane, x, buffers["stack_weight"][0], None, out)
    linear(lane, x, buffers["one.weight"], None, out)
    linear(lane, x, buffers["other"], None, out)
    fused, gain = buffers["fused_weight"][1], buffers["gain"]
    ada_rms_norm_geglu(lane, x, gain, gain, fused, out, eps=1e-6)


def observed(*inputs: Tensor, count: int = 5) -> Observer:
    buffers, observer, device = buffers_of(), Observer(SITES), CpuDevice()
    program = device.capture([("s", lambda lane: observer.watch(stage)(lane, buffers))])
    buffers["x"].fill_(1e6)
    device.replay(program)  # a warm-up does not count
    observer.active = True
    buffers["count"].fill_(count)
    for x in inputs:
        buffers["x"].copy_(x)
        device.replay(program)
    return observer


def test_the_observer_finds_site_layer_and_input() -> None:
    first, second = torch.full((5, 8), 0.5), torch.full((5, 8), -3.0)
    second[4] = 100.0
    found = observed(first, second, count=4).ranges(50.0)
    # Layers 0 and 2 of the stack were used; the last row does not count there.
    assert found["stack"] == Range((3.0, 3.0), (0.5, 0.5))
    assert found["one"].amax == (100.0,)
    # n = x / |x| * (1 + 1) + 1 in every row: 3 or -1.
    assert found["fused"].amax == (pytest.approx(3.0, rel=1e-4),)
    assert set(found) == {"stack", "one", "fused"}


@pytest.mark.parametrize("percentile", [1.0, 50.0, 99.0, 99.9, 100.0])
def test_percentiles_are_those_of_all_numbers(percentile: float) -> None:
    draw = torch.Generator().manual_seed(1)
    inputs = [torch.randn(5, 8, generator=draw).bfloat16().float() for _ in range(50)]
    every = np.sort(torch.cat(inputs).abs().flatten().numpy())
    found = observed(*inputs).ranges(percentile)["one"]
    wanted = every[max(0, int(np.ceil(percentile / 100 * len(every) - 1e-9)) - 1)]
    assert found.percentile == (pytest.approx(wanted),) and found.amax == (every[-1],)


def test_numbers_that_are_not_finite() -> None:
    with pytest.raises(NumericsError, match="input of stack, layer 2: expected finite values"):
        observed(torch.full((5, 8), float("inf")))
    with pytest.raises(NumericsError, match="got nan"):
        observed(torch.full((5, 8), float("nan")))


# ---- whole calibrations --------------------------------------------------------------------------

OPTIONS = LoadOptions(precision="fp8", threads=1, prompt_buckets=(32,), steps=2)


def made(options: LoadOptions = OPTIONS, count: int = 2, **changes: Any) -> Calibration:
    return calibrate(
        options,
        lambda p: made_up_observations(p.views, p.state_dim, count, 5),
        origin="made up",
        **changes,
    )


def test_a_calibration_repeats_and_follows_its_observations() -> None:
    first = made()
    assert first == made() and first.digest == made().digest
    assert len(set(first.observations)) == 2 and first.recorder["arch"].startswith("cpu")
    more = made(count=3)
    assert more.observations[:2] == first.observations
    assert set(first.sites) == set(POLICY.sites), "a product that the observer does not see"
    for name, each in first.sites.items():
        assert all(a <= b for a, b in zip(each.amax, more.sites[name].amax, strict=True))
    assert [len(first.sites[f"expert.{n}"].amax) for n in ("qkv", "out", "gate_up", "down")] == [
        3
    ] * 4
    assert len(first.sites["prefix.down"].amax) == 2 and len(first.sites["projector"].amax) == 1


def test_a_calibration_fits_its_plan_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "scales.json"
    made().write(path)
    options = replace(OPTIONS, calibration=str(path))
    session = load(options)
    assert session.fingerprint.parts["calibration"] == made().digest
    for change, part in (
        ({"checkpoint": "random:1"}, "weights"),
        ({"views": ("base_0_rgb",)}, "shapes"),
        ({"prompt_buckets": (64,)}, "config and shapes"),
        ({"horizon": 5}, "config and shapes"),
        ({"state_dim": 6}, "encoding"),
        ({"numerics": "openpi"}, "config"),
    ):
        with pytest.raises(OptionError, match=f"a stale one, of other {part}; run flashrt calib"):
            load(replace(options, **change))
    # Neither the way out of the network nor the layout of images changes an activation.
    load(replace(options, delta_actions=(True,) * 7, camera_bytes=240 * 320 * 3))


def test_wide_plans_read_no_calibration(tmp_path: Path) -> None:
    session = load(replace(OPTIONS, precision="bf16", calibration=str(tmp_path / "none.json")))
    assert session.fingerprint.parts["calibration"] == "none"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": "bf16"}, "option 'precision': expected a plan with fp8 products"),
        ({"device": "cuda"}, "option 'device': expected one of .'cpu', 'reference_cuda'."),
    ],
)
def test_plans_that_cannot_be_calibrated(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        made(replace(OPTIONS, **change))


def test_methods() -> None:
    assert made(method="percentile", percentile=90.0).method == "percentile"
    for change in ({"method": "mean"}, {"percentile": 0.0}, {"percentile": 101.0}):
        (name,) = change
        with pytest.raises(OptionError, match=f"option '{name}': expected"):
            made(**change)
    with pytest.raises(InputError, match="observations: expected at least one, got none"):
        made(count=0)


def test_the_command_is_the_one_that_makes_the_file() -> None:
    assert calibrate_command(LoadOptions(precision="fp8")) == (
        "flashrt calibrate pi05 --checkpoint random:0 --precision fp8 --npz FILE"
    )
    command = calibrate_command(replace(OPTIONS, preset="base", views=("base_0_rgb",)))
    assert "--preset base" in command and "--views base_0_rgb" in command
    assert "--steps 2" in command and "--prompt-buckets 32" in command


def test_shapes_are_part_of_the_key() -> None:
    assert str(ShapeKey(2, 32, 10, 2)) in made().key["shapes"]
