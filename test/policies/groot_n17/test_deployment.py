"""Checkpoint folders of NVIDIA's and LeRobot's layout: what they say, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flashrt_core.errors import FlashRTError, OptionError, WeightsError
from flashrt_core.load import LoadOptions, configuration, describe, load
from flashrt_core.policies.base import Observation
from flashrt_core.policies.groot_n17 import POLICY
from flashrt_core.policies.groot_n17.weights import LEROBOT
from flashrt_core.weights import open_weights

TINY = POLICY.config("tiny")
TOKENIZER = Path(__file__).parents[3] / "flashrt_core/policies/groot_n17/tiny_tokenizer.json"
ROBOT = "single_arm"
MODALITY: dict[str, Any] = {
    "state": {"modality_keys": ["arm", "gripper"]},
    "action": {
        "modality_keys": ["gripper", "arm"],
        "delta_indices": [0, 1, 2, 3, 4],
        "action_configs": [
            {"rep": "ABSOLUTE", "type": "NON_EEF"},
            {"rep": "RELATIVE", "type": "NON_EEF", "state_key": "arm"},
        ],
    },
    "video": {"modality_keys": ["front", "wrist"], "delta_indices": [0]},
}


def spans(low: list[float], high: list[float]) -> dict[str, list[float]]:
    return {"min": low, "max": high, "q01": low, "q99": high, "mean": low, "std": high}


STATISTICS = {
    "state": {"arm": spans([-1.0, -2.0], [1.0, 2.0]), "gripper": spans([0.0], [1.0])},
    "action": {"arm": spans([-9.0, -9.0], [9.0, 9.0]), "gripper": spans([0.0], [1.0])},
    "relative_action": {"arm": spans([-0.1, -0.2], [0.1, 0.2])},
}


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    source = open_weights("random:3", POLICY.tensors(TINY))
    unused = {name for name, spec in POLICY.tensors(TINY).items() if not spec.used}
    return {name: source.get(name) for name in source.names() if name not in unused}


Folder = Callable[..., Path]


@pytest.fixture
def official(tmp_path: Path, weights: dict[str, torch.Tensor]) -> Folder:
    """``official(processor=.., config=..) -> folder`` with single values replaced."""

    def write(**changes: dict[str, Any]) -> Path:
        names = sorted(weights)
        for index, part in enumerate((names[::2], names[1::2])):
            save_file({name: weights[name] for name in part}, tmp_path / f"m{index}.safetensors")
        places = {name: f"m{index % 2}.safetensors" for index, name in enumerate(names)}
        parts: dict[str, Any] = {
            "model.safetensors.index": {"weight_map": places},
            "config": {
                "model_type": "Gr00tN1d7",
                "action_horizon": TINY.horizon,
                "num_inference_timesteps": 2,
            },
            "processor_config": {
                "processor_kwargs": {
                    "modality_configs": {ROBOT: MODALITY},
                    "use_percentiles": True,
                    "use_relative_action": True,
                    "use_albumentations": True,
                    "image_target_size": [64, 64],
                    "shortest_image_edge": 64,
                    "crop_fraction": 0.95,
                }
                | changes.pop("processor", {})
            },
            "statistics": {ROBOT: STATISTICS},
            "embodiment_id": {ROBOT: 2},
        }
        for name, change in changes.items():
            parts[name] = parts[name] | change
        for name, content in parts.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
        return tmp_path

    return write


@pytest.fixture
def lerobot(tmp_path: Path, weights: dict[str, torch.Tensor]) -> Folder:
    """``lerobot(pack=.., after=..) -> folder`` of a policy that took over NVIDIA's groups."""

    def write(**changes: dict[str, Any]) -> Path:
        named = {f"{LEROBOT}{name}": tensor for name, tensor in weights.items()}
        save_file(named, tmp_path / "model.safetensors")
        visual = {"type": "VISUAL", "shape": [3, 48, 64]}
        config = {
            "type": "groot",
            "num_inference_timesteps": 2,
            "input_features": {
                "observation.images.front": visual,
                "observation.images.wrist": visual,
                "observation.state": {"type": "STATE", "shape": [3]},
            },
        }
        pack = {"embodiment_tag": ROBOT, "embodiment_mapping": {ROBOT: 2}}
        encode = {"image_target_size": [64, 64], "image_crop_size": [60, 60]}
        decode = {
            "raw_stats": STATISTICS,
            "modality_config": MODALITY,
            "use_percentiles": True,
            "use_relative_action": True,
        }
        before = [
            {"registry_name": "rename_observations_processor", "config": {}},
            {
                "registry_name": "groot_n1_7_pack_inputs_v1",
                "config": pack | changes.get("pack", {}),
            },
            {
                "registry_name": "groot_n1_7_vlm_encode_v1",
                "config": encode | changes.get("encode", {}),
            },
        ]
        after = [
            {
                "registry_name": "groot_n1_7_action_decode_v1",
                "config": decode | changes.get("decode", {}),
            },
            *changes.get("after", ()),
        ]
        for name, content in (
            ("config", config | changes.get("config", {})),
            ("policy_preprocessor", {"steps": before}),
            ("policy_postprocessor", {"steps": after}),
        ):
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        (tmp_path / "tokenizer.json").write_bytes(TOKENIZER.read_bytes())
        return tmp_path

    return write


def options(folder: Path, **given: Any) -> LoadOptions:
    return LoadOptions(
        policy="groot_n17", checkpoint=folder, prompt="pick it up", threads=1, **given
    )


def observation(side: int = 80, state: tuple[float, ...] = (0.5, -3.0, 1.0)) -> Observation:
    draw = np.random.default_rng(1)
    images = {
        view: draw.integers(0, 256, (side, side, 3), dtype=np.uint8) for view in POLICY.slots[:2]
    }
    return Observation(images, np.array(state, np.float32))


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
        found.append(session.decide(noise=noise).raw)
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
        ({"views": ("view_0",)}, "option 'views': expected 2 of them, .*: front, wrist, got"),
        ({"state_dim": 4}, "option 'state_dim': expected 3, as the checkpoint was trained, got 4"),
        ({"preset": "base"}, "option 'preset': expected 'tiny', as the weights"),
        ({"extra": {"embodiment": 1}}, "the slot of one of {'single_arm': 2}, got 1, of 0"),
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
