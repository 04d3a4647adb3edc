"""Files that are named by their package."""

from __future__ import annotations

from pathlib import Path

import pytest

from flashrt_core.errors import OptionError
from flashrt_ros import paths
from flashrt_ros.loading import load_options
from flashrt_ros.parameters import build_config
from flashrt_ros.replay import transport

ROOT = Path(__file__).resolve().parents[2]


def test_a_file_of_a_package_is_found_wherever_it_is_installed() -> None:
    assert paths.local_place("package://flashrt_ros/config/x.yaml") == str(ROOT / "config/x.yaml")
    for text in ("random:0", "/opt/weights", "", "weights/mine"):
        assert paths.local_place(text) == text
    with pytest.raises(OptionError, match="no 'no_such_package'"):
        paths.local_place("package://no_such_package/weights")


def test_the_node_loads_from_a_package() -> None:
    values = {
        "cameras": ["base_0_rgb"],
        "camera.base_0_rgb.topic": "image",
        "action.names": ["a"],
        "checkpoint": "package://flashrt_ros/weights",
        "tokenizer": "package://flashrt_ros/text.model",
        "norm_stats": "stats.json",
    }
    options = load_options(build_config(values))
    assert options.checkpoint == str(ROOT / "weights")
    assert options.tokenizer == ROOT / "text.model"
    assert (options.norm_stats, options.calibration) == (Path("stats.json"), None)


def test_the_demo_that_ships_needs_recording_and_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "share_directory", lambda: tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "pi05_tabletop.yaml").write_text("")
    assert transport.shipped_demo() is None
    for part in ("demo", "policy"):
        folder = tmp_path / "examples" / "tabletop" / part
        folder.mkdir(parents=True)
        assert transport.shipped_demo() is None, "an empty folder is no recording"
        (folder / "file").write_text("")
    found = transport.shipped_demo()
    assert found is not None and found.recording == tmp_path / "examples" / "tabletop" / "demo"
