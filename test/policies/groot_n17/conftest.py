"""Checkpoint folders of both layouts, as the tests need them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from flashrt_core.policies.groot_n17 import POLICY
from flashrt_core.policies.groot_n17.weights import LEROBOT
from flashrt_core.weights import open_weights

from .folders import MODALITY, ROBOT, STATISTICS, TINY, TOKENIZER, Folder


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    source = open_weights("random:3", POLICY.tensors(TINY))
    unused = {name for name, spec in POLICY.tensors(TINY).items() if not spec.used}
    return {name: source.get(name) for name in source.names() if name not in unused}


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
