"""Checkpoint folders of NVIDIA's and LeRobot's layout: what they say, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flashrt_core.errors import FlashRTError, InputError, OptionError, WeightsError
from flashrt_core.load import LoadOptions, configuration, describe, load
from flashrt_core.policies.groot_n17 import POLICY

from .folders import (
    MODALITY,
    ROBOT,
    STATISTICS,
    TINY,
    Folder,
    arm,
    observation,
    options,
)


def test_an_official_folder(official: Folder) -> None:
    folder = official()
    deployment, config = configuration(options(folder))
    assert (deployment.origin, deployment.cameras) == ("official", ("front", "wrist"))
    assert (deployment.state_dim, deployment.action_dim, deployment.preset) == (3, 3, "tiny")
    assert (config.embodiment, config.steps, config.horizon) == (2, 2, TINY.horizon)
    assert config.numerics.image_resize == "area"
    session = load(options(folder))
    seen = observation()
    decision = session.decide(seen)
    # Behind the trained rows nothing goes out; of the state, what lies outside is cut.
    assert decision.actions.shape == (5, 3) and session.processor.relative == (1, 2)
    values = session.processor.encode(seen, "pick it up")
    assert values["state"][0, :4].tolist() == [0.5, -1.0, 1.0, 0.0]
    raw = np.clip(decision.raw[:5, :3], -1, 1)
    wanted = np.stack([(raw[:, 0] + 1) / 2, 0.5 + 0.1 * raw[:, 1], -3.0 + 0.2 * raw[:, 2]], axis=1)
    np.testing.assert_allclose(decision.actions, wanted, atol=1e-6)
    session.engine.close()


def test_both_layouts_hold_the_same_network(
    official: Folder, lerobot: Folder, weights: dict[str, torch.Tensor]
) -> None:
    """Equal weights and numerics: equal raw actions from equal windows."""
    noise = np.random.default_rng(2).standard_normal((TINY.horizon, 32), dtype=np.float32)
    found = []
    for write in (official, lerobot):
        session = load(options(write(), numerics="exact"))
        session.observe(observation(64))
        plain = np.full((64, 64, 3), 90, np.uint8)  # the two layouts make other pictures
        session.write({f"image.{view}": plain for view in POLICY.slots[:2]})
        with pytest.raises(InputError, match="state: expected 3 numbers, got none"):
            session.decide(noise=noise)  # actions add to the state of an observation
        found.append(session.read("actions"))
        session.engine.close()
        for path in list(write().iterdir()):
            path.unlink()
    assert np.array_equal(found[0], found[1])


def test_a_lerobot_folder(lerobot: Folder) -> None:
    folder = lerobot()
    deployment, config = configuration(options(folder))
    assert (deployment.origin, deployment.cameras) == ("lerobot", ("front", "wrist"))
    assert (config.embodiment, config.steps, config.numerics.image_resize) == (2, 2, "bicubic")
    text = describe(options(folder)).transforms["images"]
    assert text == "bicubic to 64, 0.9375 of it, to 64"


def test_statistics_of_a_data_set(lerobot: Folder) -> None:
    """A policy that was trained from the base: no groups, a number a dimension."""
    folder = lerobot()
    for name, feature, low, high in (
        ("pack", "observation.state", [-1.0, 0.0], [1.0, 2.0]),
        ("unpack", "action", [-2.0, 0.0, 5.0], [2.0, 1.0, 5.0]),
    ):
        stats = {f"{feature}.min": torch.tensor(low), f"{feature}.max": torch.tensor(high)}
        save_file(stats, folder / f"{name}.safetensors")
    before = json.loads((folder / "policy_preprocessor.json").read_text())
    before["steps"][1]["state_file"] = "pack.safetensors"
    (folder / "policy_preprocessor.json").write_text(json.dumps(before))
    unpack = {
        "registry_name": "groot_action_unpack_unnormalize_v2",
        "config": {"env_action_dim": 3},
        "state_file": "unpack.safetensors",
    }
    (folder / "policy_postprocessor.json").write_text(json.dumps({"steps": [unpack]}))
    session = load(options(folder))
    assert (session.processor.state_dim, session.processor.action_dim) == (2, 3)
    raw = np.zeros((TINY.horizon, 32), np.float32)
    raw[0, :3] = (0.5, 7.0, -1.0)
    assert session.processor.decode(raw, None)[0].tolist() == [1.0, 1.0, 5.0]
    session.engine.close()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"config": {"use_vlln": False}}, "use_vlln of the checkpoint .*: expected True, got False"),
    ({"config": {"state_history_length": 2}}, "state_history_length .*: expected 1, got 2"),
    ({"processor": {"modality_configs": 5}}, "modality_configs in .*: expected a JSON object"),
    (
        {
            "processor": {
                "modality_configs": {ROBOT: {**MODALITY, "video": {"delta_indices": [0, 1]}}}
            }
        },
        "one frame a camera",
    ),
    (
        {
            "processor": {
                "modality_configs": {
                    ROBOT: {
                        **MODALITY,
                        "action": {
                            "modality_keys": ["arm"],
                            "action_configs": [{"rep": "RELATIVE", "type": "EEF"}],
                        },
                    }
                }
            }
        },
        "'arm' of embodiment 'single_arm': expected joints, .*not supported",
    ),
    ({"statistics": {ROBOT: {**STATISTICS, "state": {}}}}, "arm in .statistics of .*no such key"),
    ({"processor": {"image_target_size": [64, 32]}}, "image_target_size in .*two equal .*64, 32"),
    ({"processor": {"crop_fraction": 2}}, "crop_fraction in .*: expected a number in .*got 2"),
    ({"processor": {"shortest_image_edge": "big"}}, "shortest_image_edge in .*: expected a whole"),
    ({"embodiment_id": {ROBOT: "two"}}, "slot of embodiment 'single_arm': expected a whole"),
    (
        {"processor": {"modality_configs": {}}},
        "modality_configs in .*: expected a robot's groups at least, got none; copy",
    ),
    ({"statistics": {ROBOT: arm([0.5, -2.0], [-1.0, 2.0])}}, "arm.q99.0.: .*not below 0.5, .*q01"),
    ({"statistics": {ROBOT: arm([-1e38, -2.0], [1e38, 2.0])}}, "arm.q01.0.: .*below 1e.30, got -"),
    ({"statistics": {ROBOT: arm([-1.0, -2.0], [1e39, 2.0])}}, "arm.q99.0.: .*below 1e.30, got 1e"),
    (
        {"statistics": {ROBOT: arm([-1.0, -2.0], ["1", "2"])}},
        "q99 in .*arm.: expected numbers, .*got .2. <U1",
    ),
    ({"statistics": {ROBOT: arm([-1.0, -2.0], [2.0])}}, "arm.q99: .* shape .*, .2., got .1."),
]


@pytest.mark.parametrize(("changes", "said"), REFUSED)
def test_what_an_official_folder_must_not_say(
    official: Folder, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(WeightsError, match=said) as raised:
        configuration(options(official(**changes)))
    assert "\n" not in str(raised.value)


def test_steps_that_are_not_known_are_refused(lerobot: Folder) -> None:
    step = {"registry_name": "absolute_actions_processor", "config": {}}
    with pytest.raises(WeightsError, match="steps in .*got .*absolute_actions_processor"):
        configuration(options(lerobot(after=[step])))
    with pytest.raises(WeightsError, match="expected LeRobot's policy type groot, got pi05"):
        configuration(options(lerobot(config={"type": "pi05"})))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"views": ("view_0",)},
            "option 'views': expected view_0, view_1, as the .* trained with: front, wrist, got",
        ),
        (
            {"views": ("view_1", "view_2")},
            "option 'views': expected view_0, view_1, as the .* trained with: front, wrist, got",
        ),
        ({"state_dim": 4}, "option 'state_dim': expected 3, as the checkpoint was trained, got 4"),
        ({"preset": "base"}, "option 'preset': expected 'tiny', as the weights"),
        (
            {"extra": {"embodiment": 1}},
            "option 'embodiment': expected the slot of a robot that the checkpoint knows: "
            "2 .single_arm., got 1, which no robot has$",
        ),
        ({"real_time_chunking": True, "absent_views": 1}, "policy 'groot_n17' needs every camera"),
    ],
)
def test_options_that_do_not_fit(official: Folder, given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said) as raised:
        load(options(official(), **given))
    assert "\n" not in str(raised.value)


def test_without_its_text_encoding_the_remedy_is_told(official: Folder) -> None:
    folder = official()
    (folder / "tokenizer.json").unlink()
    missing = describe(options(folder)).missing
    assert missing is not None and "Cosmos-Reason2" in str(missing)
    for content in ("{}", '{"model": {"type": "WordPiece"}}', "[]"):
        (folder / "tokenizer.json").write_text(content)
        with pytest.raises(OptionError, match=r"option 'tokenizer': .*byte-level BPE"):
            load(options(folder))


def test_a_picture_that_is_no_square_is_refused_by_its_view(official: Folder) -> None:
    session = load(options(official()))
    wide = observation()
    wide.images["view_1"] = np.zeros((48, 64, 3), np.uint8)  # type: ignore[index]
    with pytest.raises(FlashRTError, match=r"image 'view_1': expected a square.*image_resize"):
        session.decide(wide)
    session.engine.close()


def test_random_weights_take_no_statistics(tmp_path: Path) -> None:
    plain = LoadOptions(policy="groot_n17", norm_stats=tmp_path / "statistics.json")
    with pytest.raises(OptionError, match="option 'norm_stats': expected a checkpoint beside it"):
        configuration(plain)
