"""What a decision launches on a GPU, without one: as the sources declare it, and how much."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch

from flashrt_core.policies.lingbot_va import POLICY
from test.kernels.signatures import CheckingLauncher, Lane

DEPTH, LATER = 2, 2  # blocks; the variant of a stage behind an episode's first two decisions


def launched(
    stage: str,
    architecture: int = 90,
    precision: str = "bf16",
    preset: str = "base",
    variant: int = LATER,
) -> CheckingLauncher:
    """What a stage launches; memory is set aside and never touched."""
    sizes = {"net_depth": DEPTH, "steps": 2, "action_steps": 2}
    config = POLICY.config(preset, **(sizes if preset == "base" else {}))
    shapes = POLICY.shapes(config, 2)
    contract = POLICY.contract(config, shapes, POLICY.slots[:2], precision)
    buffers = {
        spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype.value))
        for spec in contract.buffers
    }
    launcher = CheckingLauncher(architecture)
    last = contract.stage(stage).variants - 1
    body = POLICY.body(config, contract, stage, shapes[0], min(variant, last))
    body(Lane(launcher), buffers)
    return launcher


@pytest.mark.parametrize(
    ("architecture", "precision", "preset"),
    [(80, "bf16", "base"), (90, "bf16", "tiny"), (90, "fp8", "base")],
)
def test_every_op_has_a_launcher(architecture: int, precision: str, preset: str) -> None:
    for stage in ("prompt", "commit", "video", "action"):
        for variant in (0, LATER):
            assert launched(stage, architecture, precision, preset, variant).launches
    video = launched("video", architecture, precision, preset)
    kernels = Counter(launch.kernel for launch in video.launches)
    assert ("layer_norm_bf16_fp8" in kernels) == (precision == "fp8")
    assert ("gated_residual_norm_fp8" in kernels) == (precision == "fp8")
    assert any(kernel.endswith("_sm90") for kernel in kernels) == (
        architecture == 90 and preset == "base"
    )


def test_a_block_of_the_actions_is_eight_kernels() -> None:
    """Each streams its weights once, none through the library."""
    kernels = [launch.kernel for launch in launched("action").launches]
    first = kernels.index("layer_norm_linear_squares_k3072_144_bf16_sm90")
    assert kernels[first : first + 8] == [
        "layer_norm_linear_squares_k3072_144_bf16_sm90",
        "attention_heads_d128_pooled_bf16_hopper",
        "linear_gated_residual_k3072_96_16_bf16_sm90",
        "layer_norm_linear_squares_k3072_96_bf16_sm90",
        "attention_heads_d128_normed_short_bf16_hopper",
        "linear_k3072_96_16_bf16_sm90",
        "layer_norm_linear_k3072_112_bf16_sm90",
        "linear_gated_residual_k14336_96_16_bf16_sm90",
    ]


def test_weights_of_the_actions_fill_the_chip_at_once() -> None:
    """128 blocks of 132; those of any product fit beside those of the next one, on a multiprocessor
    of 228 KiB that takes 1 KiB a block.
    """
    launches = launched("action").launches
    streamed = [
        launch
        for launch in launches
        if "_96_16_bf" in launch.kernel or "norm_linear" in launch.kernel
    ]
    assert {launch.grid for launch in streamed} == {128}
    for one, other in pairwise(streamed):
        assert one.shared_bytes + other.shared_bytes + 2048 <= 228 * 1024


def test_a_block_of_the_video_is_thirteen_launches() -> None:
    launcher = launched("video")
    blocks = 3 * DEPTH - 1  # of two steps and a pass that only writes
    assert launcher.products == 6 * blocks + 1 + 2
    kernels = Counter(launch.kernel for launch in launcher.launches)
    assert kernels["attention_biased_d128_shared_bf16_sm90"] == blocks
    assert kernels["attention_biased_d128_kept_bf16_sm90"] == blocks
    assert kernels["gated_residual_norm_bf16"] == 2 * blocks - 2
    assert kernels["gated_residual_biased_bf16"] == 2
    assert kernels["qkv_row_norm_rope_kv_kept_bf16"] == blocks + 1
    assert kernels["rms_norm_bf16"] == blocks


def test_pictures_are_encoded_by_our_own_products() -> None:
    """Deep levels have few cells: their products are split to fill the chip."""
    launches = launched("commit").launches
    convs = [launch for launch in launches if launch.kernel.startswith("conv_frames")]
    assert len(convs) == 27
    assert sum(launch.kernel.startswith("conv_sums") for launch in launches) >= 10
    for launch in convs:
        x, y, splits = launch.grid  # type: ignore[misc]
        assert x * y * splits >= 48, launch
