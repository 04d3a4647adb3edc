"""openpi and LeRobot checkpoint folders: read, matched, refused with one clear line."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flashrt_core.errors import FlashRTError, OptionError, WeightsError
from flashrt_core.load import LoadOptions, describe, load
from flashrt_core.policies.base import Observation

from . import case as parity
from .folders import HEAD, Tensors, write_lerobot, write_norm_stats, write_openpi
from .test_decisions import decide, golden, worst

CASE = parity.CASES[0]  # two views


def options(folder: Path, **changes: Any) -> LoadOptions:
    values: dict[str, Any] = {
        "preset": "base",
        "checkpoint": str(folder),
        "views": parity.VIEWS[:2],
        "state_dim": parity.STATS_DIM,
        "action_dim": parity.STATS_DIM,
        "prompt_buckets": (96,),
        "max_sessions": 1,
        "capsule_slots": 0,
        "threads": 1,
        "extra": parity.SIZES,
    }
    return LoadOptions(**{**values, **changes})


def observation() -> Observation:
    state, _ = parity.statistics_inputs()
    images = {view: parity.raw_image(view, 60, 80) for view in parity.VIEWS[:2]}
    return Observation(images, state[0])


def actions_of(chosen: LoadOptions) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Raw and robot actions of one observation, noise from the seed."""
    session = load(chosen)
    try:
        session.set_prompt("pick up the red block")
        decision = session.decide(observation())
        return decision.raw, decision.actions
    finally:
        session.engine.close()


def test_both_folders_are_recognised(tmp_path: Path) -> None:
    """Each runs under the profile of its origin and gives the actions of that code."""
    openpi = load(options(write_openpi(tmp_path / "openpi")))
    lerobot = load(options(write_lerobot(tmp_path / "lerobot")))
    try:
        # LeRobot's dtype is float32: plain frequencies. openpi always runs in bfloat16.
        found = decide(lerobot, CASE).raw
        assert worst(found, golden("lerobot")["two_views.actions"]) < 5e-6
        found = decide(openpi, CASE).raw
        assert worst(found, golden("openpi")["rounded.actions"]) < 5e-6
    finally:
        openpi.engine.close()
        lerobot.engine.close()


def test_equal_actions_under_one_profile(tmp_path: Path) -> None:
    """The same weights, statistics and switches give the same bits from either folder."""
    openpi = write_openpi(tmp_path / "openpi")
    lerobot = write_lerobot(tmp_path / "lerobot")
    raw, actions = actions_of(options(openpi, numerics="openpi"))
    raw2, actions2 = actions_of(options(lerobot, numerics="openpi"))
    assert np.array_equal(raw, raw2)
    np.testing.assert_allclose(actions, actions2, rtol=1e-6)  # LeRobot's statistics are float32
    raw3, _ = actions_of(options(openpi, numerics="lerobot"))
    raw4, _ = actions_of(options(lerobot))
    assert np.array_equal(raw3, raw4)
    assert not np.array_equal(raw, raw3)


@pytest.mark.parametrize("tables", ["head", "lookup"])
def test_either_name_of_the_tied_table(tmp_path: Path, tables: str) -> None:
    both, _ = actions_of(options(write_lerobot(tmp_path / "both")))
    one, _ = actions_of(options(write_lerobot(tmp_path / "one", tables=tables)))
    assert np.array_equal(both, one)


def test_the_lookup_table_counts_where_both_are_there(tmp_path: Path) -> None:
    """LeRobot's two tables are not tied after training; its network looks up in the second."""

    def spoil_head(found: Tensors) -> Tensors:
        found[f"model.{HEAD}"] = torch.zeros_like(found[f"model.{HEAD}"])
        return found

    plain, _ = actions_of(options(write_lerobot(tmp_path / "plain")))
    spoiled, _ = actions_of(options(write_lerobot(tmp_path / "spoiled", change=spoil_head)))
    assert np.array_equal(plain, spoiled)


def test_lerobot_bf16_and_horizon_from_its_configuration(tmp_path: Path) -> None:
    session = load(options(write_lerobot(tmp_path / "l", dtype="bfloat16", horizon=15, steps=4)))
    try:
        (shape,) = session.contract.shapes
        assert (shape.horizon, shape.steps) == (15, 4)
    finally:
        session.engine.close()
    session = load(options(write_lerobot(tmp_path / "r", dtype="bfloat16")))
    try:
        found = decide(session, CASE).raw
        assert worst(found, golden("lerobot")["rounded.actions"]) < 5e-6
    finally:
        session.engine.close()


def test_options_override_the_folder(tmp_path: Path) -> None:
    folder = write_openpi(tmp_path / "openpi", horizon=15)
    assert describe(options(folder)).contract.shapes[0].horizon == 15
    assert describe(options(folder, horizon=3)).contract.shapes[0].horizon == 3
    assert describe(options(folder)).fingerprint.diff(
        describe(options(folder, numerics="exact")).fingerprint
    ) == ["config"]


def test_the_fingerprint_holds_what_turns_robot_units_into_windows(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "l")
    plain = describe(options(folder)).fingerprint
    assert plain is not None
    stats = write_norm_stats(tmp_path / "norm_stats.json", scale=2.0)
    tokenizer = tmp_path / "other.model"
    model = bytearray((folder / "tokenizer.model").read_bytes())
    model[model.index(b"<unk>") + 1] ^= 1  # the piece's name; the file still parses
    tokenizer.write_bytes(bytes(model))
    relative = (True,) * parity.STATS_DIM
    for change in ({"norm_stats": stats}, {"tokenizer": tokenizer}, {"delta_actions": relative}):
        other = describe(options(folder, **change)).fingerprint
        assert other is not None and plain.diff(other) == ["transforms"], change
    same = describe(options(folder, delta_actions=(False,))).fingerprint
    assert same == plain, "what has no effect is no difference"


def test_dimensions_come_from_the_checkpoint(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "l")
    chosen = options(folder, state_dim=None, action_dim=None)
    description = describe(chosen)
    assert description.missing is None
    assert description.transforms["actions"].startswith(f"{parity.STATS_DIM} numbers, range")
    assert actions_of(chosen)[1].shape[1] == parity.STATS_DIM


def test_unused_tensors_may_be_absent(tmp_path: Path) -> None:
    """Nothing reads the expert's head nor what follows the last layer's keys and values."""
    unused = ("gemma_expert.lm_head.weight", "layers.17.mlp.up_proj.weight", "model.norm.weight")

    def prune(found: Tensors) -> Tensors:
        trunk = "paligemma.model.language_model."
        return {
            name: tensor
            for name, tensor in found.items()
            if not (name.endswith(unused) and (trunk in name or "lm_head" in name))
        }

    whole = write_openpi(tmp_path / "whole")
    pruned = write_openpi(tmp_path / "pruned", change=prune)
    assert (pruned / "model.safetensors").stat().st_size < (
        whole / "model.safetensors"
    ).stat().st_size
    assert np.array_equal(actions_of(options(whole))[0], actions_of(options(pruned))[0])


def test_relative_actions_add_the_state(tmp_path: Path) -> None:
    """As LeRobot's absolute_actions_processor: every joint but the excluded gripper."""
    plain = write_lerobot(tmp_path / "plain")
    relative = write_lerobot(tmp_path / "relative", relative=True)
    _, base = actions_of(options(plain))
    _, found = actions_of(options(relative))
    state = observation().state
    assert state is not None
    mask = np.array(["gripper" not in name for name in parity.ACTION_NAMES])
    np.testing.assert_allclose(found, base + np.where(mask, state, 0), rtol=1e-6, atol=1e-7)
    _, found = actions_of(options(plain, delta_actions=(False, True)))
    np.testing.assert_allclose(found[:, 1], base[:, 1] + state[1], rtol=1e-6)
    np.testing.assert_array_equal(found[:, 0], base[:, 0])


@pytest.mark.parametrize("source", ["openpi", "lerobot"])
@pytest.mark.parametrize("name", ["all", "gripper"])
def test_delta_actions_equal_official(source: str, name: str) -> None:
    mask = tuple(name == "all" or "gripper" not in joint for joint in parity.ACTION_NAMES)
    # Random weights have no statistics: the sum is what is compared.
    session = load(options(Path("random:0"), delta_actions=mask, numerics=source))
    state, actions = parity.statistics_inputs()
    padded = np.pad(actions[0], ((0, 0), (0, 32 - parity.STATS_DIM)))
    try:
        found = session.processor.decode(padded, state[0])
    finally:
        session.engine.close()
    expected = golden(source)[f"absolute.{name}"].reshape(found.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("mode", ["QUANTILES", "MEAN_STD", "MIN_MAX"])
def test_statistics_of_lerobot_folders(tmp_path: Path, mode: str) -> None:
    session = load(options(write_lerobot(tmp_path / "l", mode=mode)))
    _, actions = parity.statistics_inputs()
    padded = np.pad(actions[0], ((0, 0), (0, 32 - parity.STATS_DIM)))
    try:
        found = session.processor.decode(padded, None)
    finally:
        session.engine.close()
    np.testing.assert_array_equal(found, golden("lerobot")[f"restore.{mode}"][0])


# ---- refusals ----------------------------------------------------------------------------------


def refusal(chosen: LoadOptions) -> str:
    with pytest.raises(FlashRTError) as caught:
        load(chosen)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 900
    return line


def cut(file: Path, size: int) -> None:
    data = file.read_bytes()
    file.write_bytes(data[:size])


def overwrite(file: Path, at: int, data: bytes) -> None:
    content = bytearray(file.read_bytes())
    content[at : at + len(data)] = data
    file.write_bytes(bytes(content))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: cut(file, 5), "do not start with its header"),
        (lambda file: cut(file, 200), "do not start with its header"),
        (lambda file: cut(file, file.stat().st_size - 1000), "as its header says"),
        (lambda file: overwrite(file, 0, struct.pack("<Q", 1 << 62)), "do not start"),
        (lambda file: overwrite(file, 40, b"\x00\xff\x00"), "safetensors header"),
        (lambda file: file.write_bytes(b""), "do not start with its header"),
        (lambda file: file.unlink(), "a folder without it"),
    ],
)
def test_damaged_files(tmp_path: Path, damage: Callable[[Path], object], said: str) -> None:
    folder = write_openpi(tmp_path / "openpi")
    damage(folder / "model.safetensors")
    with pytest.raises(WeightsError):
        load(options(folder))
    assert said in refusal(options(folder))


def test_damaged_values(tmp_path: Path) -> None:
    def spoil(found: Tensors) -> Tensors:
        found["action_in_proj.weight"][3, 4] = float("nan")
        return found

    line = refusal(options(write_openpi(tmp_path / "openpi", change=spoil)))
    assert "action_in_proj.weight" in line and "finite" in line


def drop_half(found: Tensors) -> Tensors:
    return {name: tensor for index, (name, tensor) in enumerate(found.items()) if index % 2}


def reshape_one(found: Tensors) -> Tensors:
    found["time_mlp_in.weight"] = found["time_mlp_in.weight"][:-1].clone()
    return found


def integers(found: Tensors) -> Tensors:
    found["time_mlp_in.bias"] = found["time_mlp_in.bias"].to(torch.int32)
    return found


def extra(found: Tensors) -> Tensors:
    return found | {"state_proj.weight": torch.zeros(2, 2)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop_half, ["missing: ", "and 4"]),
        (reshape_one, ["1 of another shape: time_mlp_in.weight [63, 64] instead of [64, 64]"]),
        (integers, ["time_mlp_in.bias I32", "not in F32, BF16, F16"]),
        (extra, ["1 unknown: state_proj.weight"]),
    ],
)
def test_other_tensors(
    tmp_path: Path, change: Callable[[Tensors], Tensors], said: list[str]
) -> None:
    with pytest.raises(WeightsError):
        load(options(write_openpi(tmp_path / "openpi", change=change)))
    line = refusal(options(tmp_path / "openpi"))
    assert all(text in line for text in said), line


def test_wrong_preset_names_shapes(tmp_path: Path) -> None:
    folder = write_openpi(tmp_path / "openpi")
    line = refusal(options(folder, extra={}))
    assert "of another shape" in line and "instead of" in line


def test_statistics_must_be_unambiguous(tmp_path: Path) -> None:
    several = write_openpi(tmp_path / "several", robots=("droid", "trossen"))
    line = refusal(options(several))
    assert "droid, trossen" in line and "norm_stats" in line
    none = write_openpi(tmp_path / "none", robots=())
    assert "norm_stats" in refusal(options(none))
    chosen = write_norm_stats(tmp_path / "norm_stats.json")
    load(options(none, norm_stats=chosen)).engine.close()


def test_lerobot_folder_without_processors(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "lerobot")
    (folder / "policy_preprocessor.json").unlink()
    assert "policy_preprocessor.json" in refusal(options(folder))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"type": "smolvla"}, "smolvla"),
        ({"paligemma_variant": "gemma_300m"}, "paligemma_variant"),
        ({"use_visual_memory": True}, "use_visual_memory"),
        ({"chunk_size": "fifty"}, "chunk_size"),
        ({"input_features": {"observation.state": {"shape": [8]}}}, "type in"),
    ],
)
def test_unsupported_lerobot_configurations(
    tmp_path: Path, config: dict[str, Any], said: str
) -> None:
    line = refusal(options(write_lerobot(tmp_path / "lerobot", config=config)))
    assert said in line


def test_malformed_configuration(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "lerobot")
    (folder / "config.json").write_text("{")
    assert "config.json" in refusal(options(folder))
    (folder / "config.json").write_text(json.dumps([1]))
    assert "JSON object" in refusal(options(folder))


def test_a_trained_network_needs_its_tokenizer(tmp_path: Path) -> None:
    folder = write_openpi(tmp_path / "openpi")
    (folder / "paligemma_tokenizer.model").unlink()
    with pytest.raises(OptionError) as caught:
        load(options(folder))
    line = str(caught.value)
    assert "tokenizer" in line and "paligemma_tokenizer.model" in line


def test_robot_dimensions_must_be_the_trained_ones(tmp_path: Path) -> None:
    folder = write_lerobot(tmp_path / "lerobot")
    assert "state_dim" in refusal(options(folder, state_dim=7))
    assert "action_dim" in refusal(options(folder, action_dim=7))
    openpi = write_openpi(tmp_path / "openpi")
    assert "expected 8" in refusal(options(openpi, state_dim=6))
    assert "expected 8" in refusal(options(openpi, action_dim=7))
    stats = next(openpi.rglob("norm_stats.json"))
    write_norm_stats(stats, width=32)  # padded: the robot's are the first
    load(options(openpi, state_dim=7, action_dim=7)).engine.close()
    write_norm_stats(stats)
    assert "action_dim" in refusal(options(openpi, action_dim=14))


@pytest.mark.parametrize(
    ("numerics", "said"),
    [
        ("jax", "a profile of"),
        ("openpi,rope=exact", "a switch of"),
        ("openpi,time_grid=odd", "time_grid=accumulated|multiplied"),
        ("openpi,time_grid", "time_grid=accumulated|multiplied"),
    ],
)
def test_unknown_numerics(numerics: str, said: str) -> None:
    line = refusal(LoadOptions(numerics=numerics))
    assert said in line
