"""The contract of π0.5: names, sizes and what a capsule holds."""

from __future__ import annotations

import pytest

from flashrt_core.contract import DType, Rate, Role, ShapeKey, Update, total_bytes
from flashrt_core.errors import ContractError, OptionError
from flashrt_core.policies import find_policy
from flashrt_core.policies.pi05 import POLICY

from .harness import TWO, VIEWS

BASE, TINY = POLICY.config("base"), POLICY.config("tiny")


def base_contract(precision: str = "bf16", views: tuple[str, ...] = TWO):  # type: ignore[no-untyped-def]
    return POLICY.contract(BASE, POLICY.shapes(BASE, len(views)), views, precision)


def test_registered() -> None:
    assert find_policy("pi05") is POLICY
    assert POLICY.presets == ("base", "small", "tiny")


def test_inputs_stages_output() -> None:
    contract = base_contract(views=VIEWS)
    names = [spec.name for spec in contract.inputs]
    assert names == [*(f"image.{v}" for v in VIEWS), "prompt_tokens", "prompt_length", "noise"]
    image = contract.input("image.base_0_rgb")
    assert (image.shape, image.dtype, image.update, image.rate) == (
        (224, 224, 3),
        DType.U8,
        Update.SWAP,
        Rate.OBSERVATION,
    )
    assert contract.input("prompt_tokens").transform == "prompt"
    assert contract.input("prompt_tokens").shape == (200,)
    assert contract.output("actions").shape == (10, 32)
    assert [stage.name for stage in contract.stages] == ["prompt", "context", "action"]
    assert [stage.name for stage in contract.decision_stages] == ["context", "action"]


def test_shapes_are_the_prompt_buckets() -> None:
    assert POLICY.shapes(BASE, 3) == tuple(ShapeKey(3, n, 10, 10) for n in (48, 96, 200))


def test_static_buffers_hold_each_weight_once() -> None:
    """Bytes in bf16: matrices as counted for the release, without the last layer's dead parts."""
    contract = base_contract()
    sizes = {spec.name: spec.shape for spec in contract.buffers if spec.role is Role.STATIC}
    assert sizes["vision.qkv_weight"] == (27, 3456, 1152)
    assert sizes["trunk.qkv_weight"] == (17, 2560, 2048)
    assert sizes["trunk.last_kv_weight"] == (512, 2048)
    assert sizes["trunk.gate_up_weight"] == (17, 32768, 2048)
    assert sizes["expert.down_weight"] == (18, 1024, 4096)
    assert sizes["expert.modulation"] == (10, 37, 3, 1024)

    def two_byte_elements(group: str) -> int:
        chosen = [s for s in contract.buffers if s.name.startswith(group)]
        return (
            total_bytes(s for s in chosen if s.dtype is DType.BF16 and s.role is Role.STATIC) // 2
        )

    # 18 layers of matrices less what layer 17 does not need: q, o and its feed-forward block.
    assert two_byte_elements("trunk.") - 257152 * 2048 == 1_872_756_736
    assert two_byte_elements("expert.") == 18 * (1024 * 2560 + 2048 * 1024 + 3 * 1024 * 4096)
    norms = 4 * 27 * 1152 + 2 * 1152
    stream = (1 + 256 + 2 * 27) * 1152  # biases and positions that enter the residual stream
    assert two_byte_elements("vision.") == 412_442_352 - norms - stream


def test_capsule_regions() -> None:
    """18,432 bytes of K/V a prefix token in bf16, and nothing of the suffix rows."""
    contract = base_contract()
    for shape in contract.shapes:
        regions = {region.name: region for region in contract.regions[shape]}
        assert list(regions) == ["context_kv", "prompt_embedding", "expert_rope", "prefix_length"]
        rows = 512 + shape.prompt_tokens
        kv = regions["context_kv"]
        assert kv.nbytes == 18_432 * rows
        assert (kv.rows, kv.row_bytes, kv.pitch) == (36, rows * 512, (512 + 200 + 10) * 512)
        assert regions["prompt_embedding"].nbytes == shape.prompt_tokens * 2048 * 2
        assert regions["expert_rope"].nbytes == 10 * 256 * 4
        assert regions["prefix_length"].nbytes == 4


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_formats(precision: str) -> None:
    contract = base_contract(precision)
    wide = DType.F32 if precision == "fp32" else DType.BF16
    for name in ("kv", "trunk_q", "vision.qkv_bias", "expert.down_weight", "prompt_embedding"):
        assert contract.buffer(name).dtype is wide
    plain = ("noise", "actions", "expert.modulation", "trunk.norm1_weight", "expert_rope")
    for name in (*plain, "vision_x", "trunk_x", "vision.out_bias", "projector.bias"):
        assert contract.buffer(name).dtype is DType.F32


def test_unknown_precision() -> None:
    known = "'precision': expected one of .'bf16', 'fp32', 'fp8'., or the path of a YAML.*'fp4'"
    with pytest.raises(OptionError, match=known):
        base_contract("fp4")


@pytest.mark.parametrize(
    ("shape", "views", "message"),
    [
        (ShapeKey(3, 32, 10, 10), TWO, "shape 3 views.*expected at most 2 views"),
        (ShapeKey(2, 129, 10, 10), TWO, "at most 2 views and 128 tokens"),
        (ShapeKey(2, 32, 11, 10), TWO, "horizon 10"),
        (ShapeKey(2, 32, 10, 5), TWO, "10 steps"),
        (ShapeKey(2, 32, 10, 10), TWO[::-1], "expected in the order of"),
        (ShapeKey(2, 32, 10, 10), ("base_0_rgb", "top"), "expected in the order of"),
        (ShapeKey(2, 32, 10, 10), (), "expected in the order of"),
    ],
)
def test_shapes_and_views_that_cannot_run(
    shape: ShapeKey, views: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ContractError, match=message):
        POLICY.contract(TINY, (shape,), views, "fp32")
