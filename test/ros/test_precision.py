"""A node configuration with a quantised plan: what it loads, and what it says where it cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rclpy")

from flashrt_core.calibration.run import calibrate
from flashrt_core.engine import describe
from flashrt_core.errors import FlashRTError
from flashrt_core.load import load
from flashrt_core.observations import made_up_observations
from flashrt_ros.loading import load_options
from flashrt_ros.parameters import build_config
from flashrt_ros.wording import in_node_terms

pytestmark = pytest.mark.ros
VALUES: dict[str, Any] = {
    "prompt": "wave",
    "precision": "fp8",
    "horizon": 2,
    "steps": 1,
    "threads": 1,
    "cameras": ["front"],
    "camera.front.topic": "image",
    "camera.front.slot": "base_0_rgb",
    "joints.names": ["a", "b"],
}


def write_scales(path: Path) -> Path:
    options = replace(load_options(build_config(VALUES)), prompt="")
    calibrate(
        options, lambda p: made_up_observations(p.views, p.state_dim, 1), origin="made up"
    ).write(path)
    return path


def test_a_node_loads_a_quantised_plan(tmp_path: Path) -> None:
    scales = write_scales(tmp_path / "scales.json")
    session = load(load_options(build_config(VALUES | {"calibration": str(scales)})))
    assert session.fingerprint.parts["precision"].startswith("bf16; fp8: ")
    digest = session.fingerprint.parts["calibration"]
    told = describe(session.engine)["calibration"]  # on /diagnostics
    assert told == f"{scales} (1 observations, made up; digest {digest[:16]})"
    (_, observation), *_ = made_up_observations(("base_0_rgb",), 2, 1)
    assert session.decide(observation).actions.shape == (2, 2)


def test_scales_serve_a_plan_that_may_do_without_a_camera(tmp_path: Path) -> None:
    two = VALUES | {
        "cameras": ["front", "side"],
        "camera.side.topic": "side",
        "camera.side.slot": "left_wrist_0_rgb",
    }
    views = ("base_0_rgb", "left_wrist_0_rgb")
    path = tmp_path / "scales.json"
    options = replace(load_options(build_config(two)), prompt="")
    calibrate(
        options, lambda p: made_up_observations(p.views, p.state_dim, 1), origin="made up"
    ).write(path)
    values = two | {"calibration": str(path), "camera.side.on_missing": "hold"}
    session = load(load_options(build_config(values)))
    (_, seen), *_ = made_up_observations(views, 2, 1)
    whole = session.decide(seen).actions
    alone = session.decide(replace(seen, images={views[0]: seen.images[views[0]]})).actions
    assert whole.shape == alone.shape == (2, 2) and not (whole == alone).all()


def refusal(**changes: Any) -> str:
    config = build_config(VALUES | changes)
    with pytest.raises(FlashRTError) as found:
        load(load_options(config))
    return str(in_node_terms(found.value, config))


def test_refusals_name_the_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    none = refusal()
    assert none.startswith("parameter 'calibration': expected a calibration file")
    assert "run flashrt calibrate pi05" in none and "\n" not in none
    scales = str(write_scales(tmp_path / "scales.json"))
    assert "parameter 'calibration': expected one of this plan, got a stale one, of" in refusal(
        calibration=scales, steps=2
    )
    table = tmp_path / "plan.yaml"
    table.write_text("base: bf16\nsites: {nose: fp8}\n")
    assert refusal(precision=str(table)).startswith("parameter 'precision': expected sites of")
