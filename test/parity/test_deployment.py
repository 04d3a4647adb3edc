"""Statistics, modes and fields of checkpoint folders: the right ones, or one line of refusal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from flashrt_core.errors import FlashRTError, OptionError, WeightsError
from flashrt_core.policies.base import Deployment
from flashrt_core.policies.pi05.config import SLOTS
from flashrt_core.policies.pi05.deployment import check_views, read_deployment

from . import case as parity
from .folders import write_lerobot, write_norm_stats, write_openpi

PRE, POST = "policy_preprocessor.json", "policy_postprocessor.json"
WEIGHTS = "model.safetensors"
DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_lerobot(tmp_path_factory.mktemp("lerobot") / "l", relative=True)


def copy(folder: Path, tmp_path: Path) -> Path:
    """A folder of its own; the weights, never written, are linked."""
    return Path(shutil.copytree(folder, tmp_path / "copy", copy_function=_link))


def _link(source: str, target: str) -> None:
    if source.endswith(WEIGHTS) and "processor" not in source:
        Path(target).symlink_to(source)
    else:
        shutil.copy(source, target)


def edit(file: Path, change: Callable[[Any], object]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def step_of(content: Any, kind: str) -> Any:
    return next(step for step in content["steps"] if step["registry_name"] == kind)


def refusal(path: Path, norm_stats: Path | None = None) -> str:
    with pytest.raises(FlashRTError) as caught:
        read_deployment(path, norm_stats)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 1000
    return line


def same(found: Any, part: str, first: str, second: str) -> None:
    known = parity.statistics(part)
    np.testing.assert_allclose(found.first, known[first], rtol=1e-6)
    np.testing.assert_allclose(found.second, known[second], rtol=1e-6)


# ---- weights alone -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["openpi", "lerobot"])
def test_weights_alone_take_norm_stats(tmp_path: Path, kind: str, lerobot: Path) -> None:
    folder = write_openpi(tmp_path / "o") if kind == "openpi" else lerobot
    file = tmp_path / "alone.safetensors"
    file.symlink_to(folder / WEIGHTS)
    assert "set norm_stats" in refusal(file)
    found = read_deployment(file, write_norm_stats(tmp_path / "stats.json"))
    assert found.origin == kind
    same(found.details.state, "state", "q01", "q99")
    same(found.details.actions, "action", "q01", "q99")
    assert (found.state_dim, found.action_dim) == (8, 8)


def test_weights_in_a_lerobot_folder_are_not_taken_alone(tmp_path: Path, lerobot: Path) -> None:
    stats = write_norm_stats(tmp_path / "stats.json")
    assert "set checkpoint to the folder" in refusal(lerobot / WEIGHTS, stats)


def test_random_weights_keep_the_identity() -> None:
    details = read_deployment(None).details
    assert details.state is None
    assert details.actions is None


# ---- LeRobot's statistics ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "kind", "change", "said"),
    [
        (POST, "unnormalizer_processor", lambda s: s.pop("config"), "config in"),
        (PRE, "normalizer_processor", lambda s: s.pop("config"), "config in"),
        (POST, "unnormalizer_processor", lambda s: s["config"].pop("norm_map"), "norm_map"),
        (POST, "unnormalizer_processor", lambda s: s["config"].update(norm_map={}), "ACTION"),
        (PRE, "normalizer_processor", lambda s: s["config"]["norm_map"].pop("STATE"), "STATE"),
        (POST, "unnormalizer_processor", lambda s: s["config"].update(norm_map=None), "norm_map"),
        (POST, "unnormalizer_processor", lambda s: s.update(config=None), "config in"),
        (POST, "unnormalizer_processor", lambda s: s.pop("state_file"), "state_file"),
        (POST, "unnormalizer_processor", lambda s: s.update(state_file="a\0b"), "readable"),
        (POST, "unnormalizer_processor", lambda s: s["config"].update(eps="1e-8"), "eps"),
        (POST, "unnormalizer_processor", lambda s: s["config"].update(eps=True), "eps"),
        (POST, "unnormalizer_processor", lambda s: s["config"].update(eps=float("nan")), "eps"),
        (POST, "unnormalizer_processor", lambda s: s["config"].update(eps=10**400), "eps"),
        (POST, "unnormalizer_processor", lambda s: s["config"].update(eps=0), "eps"),
        (POST, "unnormalizer_processor", lambda s: s.update(registry_name=5), "registry_name"),
        (PRE, "relative_actions_processor", lambda s: s.update(registry_name="MyRelative"), "My"),
        (
            PRE,
            "relative_actions_processor",
            lambda s: s["config"].update(enabled="false"),
            "'false'",
        ),
        (PRE, "relative_actions_processor", lambda s: s["config"].update(enabled=False), "enabled"),
        (
            PRE,
            "relative_actions_processor",
            lambda s: s["config"].update(exclude_joints="g"),
            "'g'",
        ),
        (PRE, "relative_actions_processor", lambda s: s["config"].update(action_names=5), "got 5"),
        (
            PRE,
            "relative_actions_processor",
            lambda s: s["config"].update(action_names=["j1"]),
            "expected 8 names",
        ),
    ],
)
def test_processor_steps_are_refused(
    tmp_path: Path,
    lerobot: Path,
    file: str,
    kind: str,
    change: Callable[[Any], object],
    said: str,
) -> None:
    folder = copy(lerobot, tmp_path)
    edit(folder / file, lambda content: change(step_of(content, kind)))
    line = refusal(folder)
    assert said in line, line
    assert file in line or "statistics" in line, line


@pytest.mark.parametrize("steps", [None, {}, 5, [None], ["x"]])
def test_steps_must_be_a_list_of_objects(tmp_path: Path, lerobot: Path, steps: Any) -> None:
    folder = copy(lerobot, tmp_path)
    edit(folder / POST, lambda content: content.update(steps=steps))
    assert "steps" in refusal(folder)


@pytest.mark.parametrize("text", [DEEP, "null", "{", "5"])
@pytest.mark.parametrize("file", [PRE, POST, "config.json"])
def test_malformed_files(tmp_path: Path, lerobot: Path, file: str, text: str) -> None:
    folder = copy(lerobot, tmp_path)
    (folder / file).write_text(text)
    assert file in refusal(folder)


@pytest.mark.parametrize(
    ("pattern", "feature"),
    [("*postprocessor*.safetensors", "action"), ("*pre*.safetensors", "observation.state")],
)
def test_statistics_without_the_feature(
    tmp_path: Path, lerobot: Path, pattern: str, feature: str
) -> None:
    folder = copy(lerobot, tmp_path)
    (file,) = folder.glob(pattern)
    kept = {k: v for k, v in load_file(file).items() if not k.startswith(f"{feature}.")}
    save_file(kept, file)
    line = refusal(folder)
    assert f"{feature}.q01" in line
    assert file.name in line
    found = read_deployment(folder, write_norm_stats(tmp_path / "stats.json")).details
    same(found.actions, "action", "q01", "q99")


def test_explicit_identity_stays(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "l", mode="IDENTITY")
    details = read_deployment(folder).details
    assert details.state is None
    assert details.actions is None
    assert "IDENTITY" in refusal(folder, write_norm_stats(tmp_path / "stats.json"))


# ---- norm_stats on a LeRobot folder ------------------------------------------------------------


def test_norm_stats_keep_mode_and_relative(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "l", mode="MEAN_STD", relative=True)
    details = read_deployment(folder, write_norm_stats(tmp_path / "stats.json")).details
    assert details.actions.mode == "mean_std"
    same(details.actions, "action", "mean", "std")
    same(details.state, "state", "mean", "std")
    assert details.relative == tuple("gripper" not in name for name in parity.ACTION_NAMES)
    few = write_norm_stats(tmp_path / "few.json", keep=("q01", "q99"))
    line = refusal(folder, few)
    assert "mean" in line
    assert "MEAN_STD" in line
    for text in (DEEP, "null", '{"norm_stats": null}', '{"norm_stats": {"state": 5}}'):
        few.write_text(text)
        with pytest.raises(OptionError):
            read_deployment(folder, few)
    assert "none" in refusal(folder, tmp_path / "missing.json")


@pytest.mark.parametrize("file", [PRE, POST])
def test_processor_files_are_required(tmp_path: Path, lerobot: Path, file: str) -> None:
    folder = copy(lerobot, tmp_path)
    (folder / file).unlink()
    for stats in (None, write_norm_stats(tmp_path / "stats.json")):
        line = refusal(folder, stats)
        assert file in line
        assert "norm_stats" not in line


def test_statistics_of_another_width(tmp_path: Path, lerobot: Path) -> None:
    folder = copy(lerobot, tmp_path)
    edit(folder / "config.json", lambda c: c["output_features"]["action"].update(shape=[6]))
    stats = write_norm_stats(tmp_path / "stats.json")
    assert "expected 6" in refusal(folder)
    assert "expected 6" in refusal(folder, stats)


# ---- config.json -------------------------------------------------------------------------------


@pytest.mark.parametrize("processors", [True, False])
@pytest.mark.parametrize("lost", [True, False])
def test_lerobot_folder_without_its_type(
    tmp_path: Path, lerobot: Path, lost: bool, processors: bool
) -> None:
    folder = copy(lerobot, tmp_path)
    if lost:
        (folder / "config.json").unlink()
    else:
        edit(folder / "config.json", lambda content: content.pop("type"))
    if not processors:
        (folder / PRE).unlink()
        (folder / POST).unlink()
    for stats in (None, write_norm_stats(tmp_path / "stats.json")):
        assert "config.json" in refusal(folder, stats)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("type", None),
        ("dtype", "float16"),
        ("dtype", None),
        ("image_resolution", None),
        ("image_resolution", [224]),
        ("image_resolution", [224, 225]),
        ("image_resolution", ["224", "224"]),
        ("image_resolution", [True, True]),
        ("image_resolution", [56.0, 56.0]),
        ("chunk_size", True),
        ("chunk_size", 10**400),
        ("num_inference_steps", 10.0),
        ("tokenizer_max_length", None),
        ("use_peft", 0),
        ("input_features", None),
        ("input_features", {"observation.state": None}),
        ("input_features", {"observation.state": {"type": 5, "shape": [8]}}),
        ("output_features", {"action": {"type": "ACTION", "shape": "8"}}),
        ("output_features", {"action": {"type": "ACTION", "shape": [True]}}),
    ],
)
def test_configuration_fields_are_checked(
    tmp_path: Path, lerobot: Path, key: str, value: Any
) -> None:
    folder = copy(lerobot, tmp_path)
    edit(folder / "config.json", lambda content: content.update({key: value}))
    line = refusal(folder)
    assert key in line or next(iter(value)) in line, line


@pytest.mark.parametrize("names", [("model.layers.0.mlp.up.weight",), ("a", "b", "c", "d")])
@pytest.mark.parametrize("config", [None, {"model_type": "llama"}])
def test_weights_of_another_network(
    tmp_path: Path, names: tuple[str, ...], config: dict[str, str] | None
) -> None:
    folder = tmp_path / "foreign"
    folder.mkdir()
    save_file({name: np.zeros(2) for name in names}, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    for path in (folder, folder / "model.safetensors"):
        line = refusal(path)
        assert "expected weights of π0.5, tensors paligemma_with_expert." in line, line
        assert f"got {len(names)} tensors of another network: {names[0]}" in line
        assert "norm_stats" not in line and "statistics" not in line


def test_more_views_than_trained() -> None:
    deployment = Deployment("lerobot", cameras=("image", "image2"))
    check_views(deployment, SLOTS[:2])
    check_views(Deployment("random"), SLOTS)
    with pytest.raises(OptionError, match="at most 2"):
        check_views(deployment, SLOTS)


def test_an_openpi_horizon_that_is_no_number(tmp_path: Path) -> None:
    folder = write_openpi(tmp_path / "o")
    edit(folder / "config.json", lambda content: content.update(action_horizon="10"))
    with pytest.raises(WeightsError, match="action_horizon"):
        read_deployment(folder)
