"""π0.5 with quantised products: formats, packing, and whole decisions within the gates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from flashrt_core.calibration.run import calibrate
from flashrt_core.contract import DType, Role
from flashrt_core.errors import InputError, OptionError
from flashrt_core.fidelity.qualification import Report, gates_for, qualify
from flashrt_core.load import LoadOptions, calibration_of, describe, load, qualifier
from flashrt_core.observations import Sample, made_up_observations
from flashrt_core.policies.base import Processor
from flashrt_core.policies.pi05 import POLICY
from flashrt_core.precision import Format
from test.gpu import requires_gpu

from .harness import TWO, Pipeline, make_case, same_bits

TINY, BASE = POLICY.config("tiny"), POLICY.config("base")


def contract_of(precision: str):  # type: ignore[no-untyped-def]
    return POLICY.contract(BASE, POLICY.shapes(BASE, 2), TWO, precision)


def test_every_site_has_its_weights_and_input() -> None:
    names = {spec.name for spec in contract_of("bf16").buffers}
    for site in POLICY.sites.values():
        assert site.weight in names
        assert not site.source or site.source in names
        assert not site.rows or site.rows in names


def test_formats_of_the_fp8_plan() -> None:
    contract = contract_of("fp8")
    of = {spec.name: spec for spec in contract.buffers}
    for name in ("vision.out", "vision.fc2", "trunk.gate_up", "trunk.down", "expert.qkv"):
        weight, scale = of[f"{name}_weight"], of[f"{name}_weight_scale"]
        assert weight.dtype is (DType.I8 if name.startswith("expert") else DType.F8E4M3)
        rows = weight.shape[1] if name.startswith("expert") or "gate_up" in name else 1
        assert (scale.dtype, scale.shape) == (DType.F32, (weight.shape[0], rows))
        assert scale.role is Role.STATIC
    assert of["trunk.gate_up_x_scale"].shape == (17,) and of["vision.fc1_x_scale"].shape == (27,)
    # Weights alone: no scale of the input. In full: none at all.
    for name in ("expert.qkv_x_scale", "expert.down_x_scale", "vision.patch_weight_scale"):
        assert name not in of
    for name in ("trunk.qkv", "trunk.last_kv", "vision.patch", "vision.qkv"):
        assert of[f"{name}_weight"].dtype is DType.BF16
    for name in ("vision_mixed", "vision_hidden", "trunk_mixed", "trunk_hidden"):
        assert of[f"{name}_fp8"].dtype is DType.F8E4M3 and name not in of
    # Some sites read the normalised rows in fp8, some in bf16.
    for name in ("vision_normal", "trunk_normal"):
        assert of[f"{name}_fp8"].dtype is DType.F8E4M3 and of[name].dtype is DType.BF16
    for name in ("kv", "trunk_q", "trunk_qkv", "expert_mixed", "expert_hidden", "vision_patches"):
        assert of[name].dtype is DType.BF16
    context = contract.stage("context")
    assert {"trunk_normal_fp8", "trunk_normal", "vision_hidden_fp8"} <= set(context.writes)


def test_fp8_halves_the_weights() -> None:
    sizes = {}
    for precision in ("bf16", "fp8"):
        buffers = contract_of(precision).buffers
        static = [spec for spec in buffers if spec.role is Role.STATIC]
        weights = [spec for spec in static if spec.name != "trunk.embedding"]
        sizes[precision] = sum(spec.nbytes for spec in weights)
    assert 0.5 < sizes["fp8"] / sizes["bf16"] < 0.55


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_wide_plans_are_as_they_were(precision: str) -> None:
    assert not [s for s in contract_of(precision).buffers if "scale" in s.name or "fp8" in s.name]


def test_packed_weights_times_scales_are_the_weights() -> None:
    wide, low = Pipeline(TINY), Pipeline(TINY, precision="fp8")
    for name, site in POLICY.sites.items():
        if site.weight_scale not in low.buffers:
            wide_sites = ("vision.patch", "vision.qkv", "projector", "prefix.qkv", "prefix.last_kv")
            assert name in wide_sites
            assert torch.equal(low.buffers[site.weight], wide.buffers[site.weight].bfloat16())
            continue
        weight, scale = low.buffers[site.weight].float(), low.buffers[site.weight_scale]
        exact, whole = wide.buffers[site.weight], name.startswith("expert")
        top = torch.full_like(scale, 127.0 if whole else 448.0)
        rows = weight.abs().amax(-1)
        assert torch.equal(rows if scale.shape == rows.shape else rows.amax(-1, True), top), name
        error = (weight * scale[..., None] - exact).abs()
        limit = 0.50001 * scale[..., None] + 0 * exact
        if not whole:
            limit = exact.abs() / 16 + scale[..., None] * 2.0**-10
        assert (error <= limit).all(), name


def test_nothing_static_is_left_out() -> None:
    """Scales of inputs are the calibration's; everything else is filled by packing."""
    contract = POLICY.contract(TINY, POLICY.shapes(TINY, 2), TWO, "fp8")
    static = [spec for spec in contract.buffers if spec.role is Role.STATIC]
    buffers = {
        spec.name: torch.full(spec.shape, torch.nan).to(getattr(torch, spec.dtype.value))
        for spec in static
    }
    POLICY.pack(TINY, Pipeline(TINY).source, buffers)
    empty = [name for name, value in buffers.items() if value.float().isnan().any()]
    assert empty == [POLICY.sites[n].x_scale for n in POLICY.precision("fp8").calibrated]


def samples(processor: Processor, count: int, seed: int) -> Iterator[Sample]:
    return made_up_observations(processor.views, processor.state_dim, count, seed)


def calibrated(options: LoadOptions, path: Path, count: int = 6) -> LoadOptions:
    """The same options with a calibration on observations of seed 1."""
    found = calibrate(options, lambda p: samples(p, count, seed=1), origin="made up")
    found.write(path)
    return replace(options, calibration=str(path))


def fidelity(options: LoadOptions, count: int, noises: int, seed: int = 2) -> Report:
    session = load(options)
    return qualify(
        session,
        qualifier(options),
        gates_for("fp8"),
        samples(session.processor, count, seed),
        noises=noises,
        calibration=calibration_of(options, session),
    )


OPTIONS = LoadOptions(precision="fp8", threads=1, max_sessions=1, capsule_slots=0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> LoadOptions:
    return calibrated(OPTIONS, tmp_path_factory.mktemp("scales") / "tiny.json")


@pytest.mark.parametrize("preset", ["tiny", "small"])
@pytest.mark.parametrize("device", [pytest.param("cuda", marks=requires_gpu)])
def test_a_gpu_runs_the_plan_at_any_size(tmp_path: Path, preset: str, device: str) -> None:
    """Sizes for which no kernel was built: within the gates, and near the CPU's emulation."""
    on_cpu = calibrated(replace(OPTIONS, preset=preset), tmp_path / "scales.json")
    assert fidelity(replace(on_cpu, device=device), 8, 2).passed
    raw = []
    for options in (on_cpu, replace(on_cpu, device=device)):
        session = load(replace(options, prompt="pick up the cup"))
        try:
            ((_, observation),) = samples(session.processor, 1, seed=3)
            raw.append(session.decide(observation).raw)
        finally:
            session.engine.close()
    difference = float(np.sqrt(np.mean((raw[0] - raw[1]) ** 2)) / np.sqrt(np.mean(raw[0] ** 2)))
    assert difference < 0.03


def test_tiny_stays_within_the_gates(tiny: LoadOptions) -> None:
    """64 pairs of observation and noise, none of which was calibrated on."""
    report = fidelity(tiny, count=16, noises=4)
    assert report.passed, [gate for gate in report.gates if not gate.passed]
    assert report.decisions == 64
    assert report.calibration != "none" and report.precision.startswith("bf16; fp8: vision.out")
    # It is quantised at all: bf16 alone stays within 0.006 and 0.003.
    assert report.stages["context: keys"].relative > 0.02
    assert report.stages["action: actions from the found context"].relative > 0.004


def test_outlier_channels_stay_within_the_gates(tmp_path: Path) -> None:
    options = replace(OPTIONS, checkpoint="outliers:0")
    report = fidelity(calibrated(options, tmp_path / "scales.json"), count=4, noises=4)
    assert report.passed, [gate for gate in report.gates if not gate.passed]


def test_an_observation_of_the_calibration_is_refused(tiny: LoadOptions) -> None:
    with pytest.raises(InputError, match="observation 1: expected one that .* not calibrated on"):
        fidelity(tiny, count=1, noises=1, seed=1)


def test_two_layers_of_the_true_widths_stay_within_the_gates(tmp_path: Path) -> None:
    sizes = {"vision_depth": 1, "trunk_depth": 2, "expert_depth": 2, "vocab": 1024}
    options = replace(
        OPTIONS,
        preset="base",
        views=TWO[:1],
        prompt_buckets=(48,),
        steps=2,
        extra=sizes,
    )
    report = fidelity(calibrated(options, tmp_path / "cut.json", count=1), count=1, noises=2)
    assert report.passed, [gate for gate in report.gates if not gate.passed]


def test_decisions_repeat_bit_for_bit() -> None:
    pipeline, case = Pipeline(TINY, precision="fp8"), make_case(TINY, TWO, 20)
    for name, buffer in pipeline.buffers.items():
        if name.endswith("x_scale"):
            buffer.fill_(2.0**-6)
    first = pipeline.decide(case)
    pipeline.decide(make_case(TINY, TWO, 30, seed=1))
    assert same_bits(first, pipeline.decide(case))


MIXED = """
base: bf16
sites:
  "vision.*": w8a16
  vision.fc1: fp8
  "prefix.*": fp8
  prefix.qkv: bf16
  "expert.*": fp8
  expert.down: w8a16
  expert.qkv: i8a16
"""


def test_a_table_of_one_s_own_runs(tmp_path: Path) -> None:
    """Every format at work at once, in the expert too."""
    table = tmp_path / "plan.yaml"
    table.write_text(MIXED)
    options = calibrated(replace(OPTIONS, precision=str(table)), tmp_path / "mixed.json", count=2)
    session = load(options)
    plan = POLICY.precision(str(table))
    assert plan.sites["vision.patch"] is Format.W8A16 and "expert.out" in plan.calibrated
    dtypes = {name: str(b.dtype).split(".")[1] for name, b in session.engine.buffers.items()}
    assert dtypes["expert_mixed_fp8"] == "float8_e4m3fn" and dtypes["expert_hidden"] == "bfloat16"
    assert dtypes["trunk_normal"] == "bfloat16" and dtypes["trunk_normal_fp8"] == "float8_e4m3fn"
    assert "expert.down_x_scale" not in dtypes
    report = fidelity(options, count=2, noises=1)
    decision = report.stages["decision: actions"]
    assert decision.min_cosine > 0.99 and decision.mean_cosine > 0.998


def test_scales_reach_the_buffers(tiny: LoadOptions) -> None:
    session = load(tiny)
    found = calibration_of(tiny, session)
    assert found is not None
    for name in POLICY.precision("fp8").calibrated:
        buffer = session.engine.buffers[POLICY.sites[name].x_scale]
        assert buffer.tolist() == found.scales(name)
        for scale, amax in zip(found.scales(name), found.sites[name].amax, strict=True):
            assert float(np.log2(scale)).is_integer()
            assert amax / 448 <= scale < amax / 224


def test_the_fingerprint_holds_plan_and_scales(tiny: LoadOptions, tmp_path: Path) -> None:
    first = load(tiny).fingerprint
    other = load(calibrated(OPTIONS, tmp_path / "other.json", count=7)).fingerprint
    assert first.diff(other) == ["calibration"]
    plain = load(replace(OPTIONS, precision="bf16")).fingerprint
    assert plain.parts["precision"] == "bf16" and plain.parts["calibration"] == "none"
    assert first.diff(plain) == ["calibration", "layout", "precision"]
    description = describe(tiny)
    assert description.fingerprint == first and description.missing is None


def test_inspection_says_that_scales_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    description = describe(OPTIONS)
    assert description.fingerprint is None
    assert "run flashrt calibrate pi05" in str(description.missing)
    assert description.contract.buffer("trunk.down_weight").dtype is DType.F8E4M3
    with pytest.raises(OptionError, match="option 'calibration': .*none for this plan"):
        load(OPTIONS)
