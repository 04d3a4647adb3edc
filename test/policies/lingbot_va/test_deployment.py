"""Checkpoint folders, official and LeRobot's: what is read, and what is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flashrt_core.errors import FlashRTError, OptionError, WeightsError
from flashrt_core.load import LoadOptions, describe, load, processor_of
from flashrt_core.policies.base import Observation
from flashrt_core.policies.lingbot_va import POLICY
from flashrt_core.policies.lingbot_va.deployment import read_deployment
from flashrt_core.policies.lingbot_va.text_encoder import TextEncoder
from flashrt_core.policies.lingbot_va.text_encoder import tensors as text_tensors
from flashrt_core.policies.lingbot_va.weights import NET, VAE
from test.parity.groot import Formulas

TINY = POLICY.config("tiny")
VIEWS = ("view_0", "view_1")
WEIGHTS, TEXT = Formulas(POLICY.tensors(TINY)), Formulas(text_tensors(TINY))
LOW, HIGH = [-1.0, -2.0, 0.5], [1.0, 4.0, 0.75]


def save(file: Path, source: Formulas, start: str, within: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    own = [name for name in source.names() if name.startswith(start)]
    values = {within + n.removeprefix(start): source.get(n).contiguous() for n in own}
    if start == VAE:
        values["decoder.conv_in.weight"] = torch.zeros(3)
    save_file(values, file)


def beside(folder: Path) -> None:
    """What both layouts have of the frozen networks."""
    save(folder / "vae" / "diffusion_pytorch_model.safetensors", WEIGHTS, VAE)
    save(folder / "text_encoder" / "model.safetensors", TEXT, "text_encoder.")
    (folder / "tokenizer").mkdir()
    pieces = files("flashrt_core.policies.pi05").joinpath("tiny_tokenizer.model").read_bytes()
    (folder / "tokenizer" / "spiece.model").write_bytes(pieces)


@pytest.fixture
def official(tmp_path: Path) -> Path:
    save(tmp_path / "transformer" / "diffusion_pytorch_model.safetensors", WEIGHTS, NET)
    beside(tmp_path)
    return tmp_path


@pytest.fixture
def stats(tmp_path: Path) -> Path:
    """Statistics of three actions, which an official folder has none of."""
    file = tmp_path / "stats.json"
    file.write_text(json.dumps({"norm_stats": {"actions": {"q01": LOW, "q99": HIGH}}}))
    return file


@pytest.fixture
def lerobot(tmp_path: Path) -> Path:
    save(tmp_path / "model.safetensors", WEIGHTS, NET, NET)
    beside(tmp_path)
    write_config(tmp_path)
    step = {
        "registry_name": "unnormalizer_processor",
        "config": {"eps": 1e-8, "norm_map": {"ACTION": "QUANTILES"}},
        "state_file": "stats.safetensors",
    }
    (tmp_path / "policy_postprocessor.json").write_text(json.dumps({"steps": [step]}))
    stats = {"action.q01": torch.tensor(LOW), "action.q99": torch.tensor(HIGH)}
    save_file(stats, tmp_path / "stats.safetensors")
    return tmp_path


def write_config(folder: Path, **changes: Any) -> None:
    config = {
        "type": "lingbot_va",
        "height": 32,
        "width": 32,
        "frame_chunk_size": 2,
        "action_per_frame": 4,
        "attn_window": 6,
        "num_inference_steps": 2,
        "action_num_inference_steps": 2,
        "guidance_scale": 4,
        "snr_shift": 5.0,
        "action_snr_shift": 0.05,
        "max_sequence_length": 64,
        "used_action_channel_ids": [0, 2, 4],
        "camera_layout": "width_concat",
        "obs_cam_keys": ["observation.images.image", "observation.images.image2"],
        "output_features": {"action": {"type": "ACTION", "shape": [3]}},
        "wan_pretrained_path": "robbyant/lingbot-va-base",
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))


def options(folder: Path, **changes: Any) -> LoadOptions:
    return LoadOptions(
        **{
            "policy": "lingbot_va",
            "preset": "tiny",
            "checkpoint": folder,
            "device": "cpu",
            "precision": "fp32",
            "views": VIEWS,
            "threads": 1,
            "prompt": "stack them",
            **changes,
        }
    )


def test_an_official_folder(official: Path, stats: Path) -> None:
    found = read_deployment(official)
    assert (found.origin, found.preset, found.details.trained) == ("official", "tiny", True)
    session = load(options(official, norm_stats=stats, action_dim=3, extra={"channels": (0, 2, 4)}))
    draw = np.random.default_rng(0)
    images = {view: draw.integers(0, 256, (32, 32, 3), dtype=np.uint8) for view in VIEWS}
    decision = session.decide(Observation(images))
    raw = decision.raw[4:, [0, 2, 4]].astype(np.float64)
    span = np.subtract(HIGH, LOW) + 1e-6
    assert np.allclose(decision.actions, (raw + 1) / 2 * span + LOW, atol=1e-5)
    session.engine.close()


def test_an_official_folder_without_statistics_is_refused(official: Path) -> None:
    missing = describe(options(official)).missing
    assert missing is not None
    assert str(missing).startswith("option 'norm_stats': expected statistics of the robot: the ")
    with pytest.raises(OptionError, match=r"got none; write q01 and q99 .* norm_stats.actions.q01"):
        load(options(official))


def test_statistics_of_whole_rows_are_those_of_the_channels(official: Path, stats: Path) -> None:
    """As the official program writes them: a number a column, 0 in those that are not used."""
    given = {"norm_stats": stats, "action_dim": 3, "extra": {"channels": (0, 29, 4)}}
    few = processor_of(options(official, **given))
    whole = {"q01": [0.0] * 30, "q99": [0.0] * 30}
    for place, low, high in zip((0, 29, 4), LOW, HIGH, strict=True):
        whole["q01"][place], whole["q99"][place] = low, high
    stats.write_text(json.dumps({"norm_stats": {"actions": whole}}))
    assert processor_of(options(official, **given)).identity == few.identity
    short = {name: values[:10] for name, values in whole.items()}
    stats.write_text(json.dumps({"norm_stats": {"actions": short}}))
    with pytest.raises(
        OptionError, match="expected 3 numbers, one a channel in use, or 30, .*got 10"
    ):
        processor_of(options(official, **given))


def test_a_robot_of_more_numbers_is_told_how_to_name_them(official: Path, stats: Path) -> None:
    missing = describe(options(official, norm_stats=stats, action_dim=14)).missing
    assert missing is not None
    assert (
        "at most 7, the columns of an action row in use (channels=0,1,2,3,4,5,6), got 14; name"
        in str(missing)
    )
    assert "--set channels=0,1,2" in str(missing)


def test_an_encoding_has_no_more_ids_than_the_encoder_has_rows(official: Path, stats: Path) -> None:
    given = options(official, extra={"text_vocab": 512}, norm_stats=stats, action_dim=3)
    missing = describe(given).missing
    assert missing is not None
    assert "expected at most 512 ids, rows of the embedding table, got 1024" in str(missing)


def test_prompts_go_through_the_folders_text_encoder(official: Path, stats: Path) -> None:
    given = options(official, norm_stats=stats, action_dim=3)
    described = describe(given)
    assert described.missing is None and described.fingerprint is not None
    session = load(given)
    values = session.processor.encode(
        Observation({view: np.zeros((32, 32, 3), np.uint8) for view in VIEWS}), "stack them"
    )
    n, m = values["prompt_lengths"]
    encoder = TextEncoder(TINY, TEXT)
    empty = encoder.encode([1]).bfloat16().float().numpy()
    assert m == 1 and np.array_equal(values["prompt_rows"][1, 1:2], empty)
    rows = values["prompt_rows"][0]
    assert n > 2 and np.abs(rows[1 : 1 + n]).min() > 0 and not rows[0].any()
    assert not rows[1 + n :].any()
    session.engine.close()


def test_lerobots_folder(lerobot: Path) -> None:
    found = read_deployment(lerobot)
    assert (found.origin, found.preset, found.action_dim) == ("lerobot", "tiny", 3)
    assert found.cameras == ("image", "image2")
    config = POLICY.config("tiny", **found.overrides)
    assert (config.channels, config.guidance, config.steps) == ((0, 2, 4), 4.0, 2)
    statistics = found.details.actions
    assert statistics is not None and statistics.guarded
    session = load(options(lerobot))
    # Its weights are those of the official folder, under other names.
    table = session.buffers["net.video_in_bias"]
    assert torch.equal(table, WEIGHTS.get(f"{NET}patch_embedding_mlp.bias"))
    session.engine.close()


def test_the_frozen_networks_may_lie_elsewhere(lerobot: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "wan"
    elsewhere.mkdir()
    for name in ("vae", "text_encoder", "tokenizer"):
        (lerobot / name).rename(elsewhere / name)
    write_config(lerobot, wan_pretrained_path=str(elsewhere))
    found = read_deployment(lerobot)
    assert found.parts[1].file.is_relative_to(elsewhere)
    assert found.details.text_encoder is not None


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        (lambda at: write_config(at, type="act"), WeightsError, "type lingbot_va, got act"),
        (lambda at: write_config(at, action_guidance_scale=2), WeightsError, "expected 1.0, got 2"),
        (lambda at: write_config(at, camera_layout="x"), WeightsError, "robotwin_tshape, got 'x'"),
        (lambda at: write_config(at, height="a"), WeightsError, "height in .*whole number"),
        (lambda at: write_config(at, attn_window=5000), OptionError, "'window'.*1..1024|2..1024"),
        (lambda at: (at / "vae").rename(at / "w"), WeightsError, "the folder vae with diffusion"),
        (
            lambda at: (at / "tokenizer").rename(at / "t"),
            OptionError,
            "option 'tokenizer': expected spiece.model .* got none; copy the folder tokenizer",
        ),
        (
            lambda at: (at / "text_encoder").rename(at / "t"),
            OptionError,
            "option 'checkpoint': expected the folder text_encoder .* got none; copy the folder ",
        ),
        (
            lambda at: write_config(at, used_action_channel_ids=5),
            WeightsError,
            "used_action_channel_ids in .*config.json': expected a list of whole .*, got 5$",
        ),
        (
            lambda at: write_config(at, output_features={"action": 5}),
            WeightsError,
            "action in .*output_features': expected a JSON object, got 5$",
        ),
        (
            lambda at: write_config(at, output_features={"action": {"shape": [3, 2]}}),
            WeightsError,
            "output_features.action': expected one number, got .3, 2.$",
        ),
        (
            lambda at: write_config(at, camera_layout="robotwin_tshape", height=64, width=64),
            OptionError,
            "option 'views': expected view_0, view_1, view_2: pictures of .* got .'view_0', ",
        ),
        (
            lambda at: write_config(at, obs_cam_keys=["a"]),
            OptionError,
            "option 'views': expected view_0, as the checkpoint was trained with: a, got",
        ),
        (
            lambda at: write_config(at, obs_cam_keys=["a", "b", "c", "d"]),
            WeightsError,
            "cameras of the checkpoint's robot: expected at most 3, got .'a', 'b', 'c', 'd'.$",
        ),
        (lambda at: (at / "stats.safetensors").unlink(), WeightsError, "stats.safetensors"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    lerobot: Path, change: Callable[[Path], object], kind: type[FlashRTError], said: str
) -> None:
    change(lerobot)
    with pytest.raises(kind, match=said) as told:
        load(options(lerobot))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "views", [("view_0",), ("view_1", "view_2"), ("view_0", "view_1", "view_2")]
)
def test_other_cameras_than_it_was_trained_with(lerobot: Path, views: tuple[str, ...]) -> None:
    with pytest.raises(OptionError) as told:
        load(options(lerobot, views=views))
    assert str(told.value) == (
        "option 'views': expected view_0, view_1, as the checkpoint was trained with: image, "
        f"image2, got {list(views)}"
    )


def test_a_shorter_prompt_shortens_the_presets_buckets(lerobot: Path) -> None:
    write_config(lerobot, max_sequence_length=16)
    shapes = describe(options(lerobot)).contract.shapes
    assert [shape.prompt_tokens for shape in shapes] == [16]


def test_a_tensor_of_another_shape(official: Path, stats: Path) -> None:
    file = official / "vae" / "diffusion_pytorch_model.safetensors"
    file.unlink()
    other = Formulas(POLICY.tensors(POLICY.config("tiny", vae_base=16)))
    save(file, other, VAE)
    with pytest.raises(WeightsError, match="of another shape"):
        load(options(official, norm_stats=stats, action_dim=3))
