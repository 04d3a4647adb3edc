"""Presets, overrides and checkpoint shapes."""

from __future__ import annotations

from math import prod

import pytest

from flashrt_core.errors import OptionError
from flashrt_core.policies.pi05 import POLICY
from flashrt_core.policies.pi05.config import TINY_VOCAB
from flashrt_core.policies.pi05.numerics import embedding_scale
from flashrt_core.policies.sentencepieces import Tokenizer
from flashrt_core.weights import TensorSpec


def count(tensors: dict[str, TensorSpec], *parts: str) -> int:
    return sum(prod(t.shape) for name, t in tensors.items() if all(p in name for p in parts))


def test_base_has_the_released_parameters() -> None:
    """Counts of openpi's checkpoint, block by block."""
    tensors = POLICY.tensors(POLICY.config("base"))
    assert len(tensors) == 812
    assert sum(prod(t.shape) for t in tensors.values()) == 3_616_757_520
    assert count(tensors, "vision_tower") == 412_442_352
    assert count(tensors, "multi_modal_projector") == 2_361_344
    assert count(tensors, "paligemma.lm_head") == 526_647_296
    assert count(tensors, "gemma_expert.lm_head") == 263_323_648
    assert count(tensors, "language_model", "proj") == 1_981_808_640
    assert count(tensors, ".dense") == 116_505_600
    assert count(tensors, "time_mlp") == 2_099_200
    expert = count(tensors, "gemma_expert", "proj") + count(tensors, "action_")
    assert expert == 311_493_664


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("action_in_proj.weight", (1024, 32)),
        ("action_out_proj.weight", (32, 1024)),
        ("time_mlp_out.bias", (1024,)),
        ("paligemma_with_expert.gemma_expert.model.norm.dense.weight", (3072, 1024)),
        (
            "paligemma_with_expert.gemma_expert.model.layers.17.self_attn.o_proj.weight",
            (1024, 2048),
        ),
        (
            "paligemma_with_expert.paligemma.model.language_model.layers.17.mlp.down_proj.weight",
            (2048, 16384),
        ),
        (
            "paligemma_with_expert.paligemma.model.vision_tower.vision_model.embeddings."
            "patch_embedding.weight",
            (1152, 3, 14, 14),
        ),
    ],
)
def test_base_names_and_shapes(name: str, shape: tuple[int, ...]) -> None:
    assert POLICY.tensors(POLICY.config("base"))[name].shape == shape


def test_base_sizes() -> None:
    config = POLICY.config("base")
    assert config.view_tokens == 256
    assert config.patch_dim == 588
    assert config.norms == 37
    assert config.max_prompt_tokens == 200
    assert embedding_scale(config.numerics, config.trunk.width) == pytest.approx(45.254834)
    assert config.vision.head_dim == 72


def test_tiny_knows_every_piece_of_the_tokenizer_that_ships() -> None:
    assert POLICY.config("tiny").vocab == TINY_VOCAB == Tokenizer().vocab


def test_overrides() -> None:
    config = POLICY.config(
        "tiny", horizon=4, trunk_depth=2, expert_depth=2, prompt_buckets=[16, 40], eps=1e-5
    )
    assert (config.horizon, config.trunk.depth, config.expert.depth) == (4, 2, 2)
    assert config.prompt_buckets == (16, 40)
    assert config.eps == 1e-5
    assert config.trunk.width == POLICY.config("tiny").trunk.width
    assert POLICY.config("tiny").horizon == 10


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"horizn": 4},
            "override 'horizn' of policy 'pi05': expected the name of a value, like horizon, got "
            "no such value; flashrt inspect pi05 --json lists them",
        ),
        ({"q": 4}, "override 'q' of policy 'pi05': expected a value's name, got no such value; "),
        ({"trunk": 3}, "override 'trunk'"),
        ({"horizon": 0}, "override 'horizon' .*: expected a whole number in 1..256, got 0"),
        ({"horizon": 2.0}, "got 2.0"),
        ({"horizon": True}, "got True"),
        ({"horizon": "10"}, "got '10'"),
        ({"steps": 1001}, "1..1000"),
        ({"trunk_heads": -1}, "override 'trunk_heads'"),
        ({"vocab": 1 << 30}, "override 'vocab'"),
        ({"state_in_prompt": 1}, "expected true or false, got 1"),
        ({"eps": 0}, "override 'eps'"),
        ({"rope_theta": float("nan")}, "override 'rope_theta'"),
        ({"prompt_buckets": []}, "override 'prompt_buckets'"),
        ({"prompt_buckets": 48}, "expected ascending token counts in 1..4096, got 48"),
        ({"prompt_buckets": (64, 32)}, "ascending"),
        ({"prompt_buckets": (32, 32)}, "ascending"),
        ({"prompt_buckets": (32, "64")}, "ascending"),
        ({"image_size": 57}, "size 'image_size' .*: expected a multiple of patch 14, got 57"),
        ({"vision_heads": 5}, "size 'vision_width' .*: expected a multiple of 5 heads, got 64"),
        ({"trunk_depth": 2}, "size 'expert_depth' .*: expected the trunk's depth 2, got 3"),
        ({"expert_head_dim": 16}, "size 'expert_head_dim'"),
        ({"expert_width": 65}, "size 'expert_width' .*an even number"),
        ({"trunk_head_dim": 33, "expert_head_dim": 33}, "size 'trunk_head_dim'"),
    ],
)
def test_bad_overrides(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        POLICY.config("tiny", **overrides)


def test_unknown_preset() -> None:
    known = "'preset': expected one of .'base', 'small', 'tiny'., got 'huge'"
    with pytest.raises(OptionError, match=known):
        POLICY.config("huge")
