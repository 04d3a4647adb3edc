"""Launchers of the ops without a GPU: which kernel, which sizes, arguments as declared."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from flashrt_core.contract import Contract
from flashrt_core.errors import ContractError
from flashrt_core.gemm import linear
from flashrt_core.kernels import (
    ada_rms_norm_geglu,
    ada_rms_norm_qkv_rope_kv,
    linear_gated_residual,
)
from flashrt_core.kernels.attention import attention
from flashrt_core.kernels.glu_linear import glu_linear
from flashrt_core.kernels.launch import TensorMap
from flashrt_core.kernels.quantised import E4M3
from flashrt_core.kernels.rms_norm import rms_norm
from flashrt_core.kernels.skinny import SIDE_BY_SIDE
from flashrt_core.policies.pi05 import POLICY
from test.kernels.signatures import OPS, CheckingLauncher, Lane, Launch, declared


def launch_policy(
    preset: str,
    views: int,
    launcher: CheckingLauncher,
    precision: str = "bf16",
    **overrides: Any,
) -> None:
    config = POLICY.config(preset, **overrides)
    shapes = POLICY.shapes(config, views)
    contract: Contract = POLICY.contract(config, shapes, POLICY.slots[:views], precision)
    buffers = {
        spec.name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype.value))
        for spec in contract.buffers
    }
    for stage in contract.stages:
        POLICY.body(config, contract, stage.name, shapes[0])(Lane(launcher), buffers)


#: The real widths with one or two layers: the kernels are those of the real sizes.
SHALLOW = {
    "vision_depth": 1,
    "trunk_depth": 2,
    "expert_depth": 2,
    "vocab": 2000,
    "steps": 1,
    "prompt_buckets": (48,),
}


@pytest.mark.parametrize("architecture", [80, 90, 120])
@pytest.mark.parametrize("views", [1, 3])
def test_real_widths_launch_as_declared(architecture: int, views: int) -> None:
    launcher = CheckingLauncher(architecture)
    launch_policy("base", views, launcher, **SHALLOW)
    kernels = [launch.kernel for launch in launcher.launches]
    assert kernels.count("image_patches_bf16") == views
    sm90 = "_sm90" if architecture == 90 else ""
    assert f"attention_segments_d72_bf16{sm90}" in kernels
    assert "attention_rows_bf16" not in kernels
    assert any(kernel.endswith("_sm90") for kernel in kernels) == (architecture == 90)


@pytest.mark.parametrize(("architecture", "whole"), [(90, True), (90, False), (120, False)])
def test_fp8_plan_launches_as_declared(architecture: int, whole: bool) -> None:
    launcher = CheckingLauncher(architecture, finished=whole)
    launch_policy("base", 2, launcher, "fp8", **SHALLOW)
    kernels = [launch.kernel for launch in launcher.launches]
    sm90 = "_sm90" if architecture == 90 else ""
    for name in (
        "layer_norm_f32_fp8",
        f"attention_segments_d72_fp8{sm90}",
        "rms_norm_f32_fp8",
        f"attention_shared_kv_d256_fp8{sm90}",
    ):
        assert name in kernels
    # No pass behind a product, where the library does all of it.
    behind = [kernel for kernel in kernels if kernel.startswith("product_rows")]
    assert sorted(behind) == ([] if whole else [*["product_rows_f32"] * 4, "product_rows_fp8"])
    if whole:
        wide = CheckingLauncher(architecture)
        launch_policy("base", 2, wide, **SHALLOW)
        assert (launcher.products, len(kernels)) == (wide.products, len(wide.launches))
    gates = [kernel for kernel in kernels if kernel.startswith("glu_")]
    assert len(gates) == 1 and "fp8" in gates[0]
    expert = [kernel for kernel in kernels if kernel.startswith("ada_rms_norm_g")]
    assert all("_i8" in kernel for kernel in expert) and len(expert) == 2


def test_scales_are_handed_on() -> None:
    launcher = CheckingLauncher(finished=False)
    x, weight = torch.empty(512, 64).to(E4M3), torch.empty(32, 64).to(E4M3)
    x_scale, weight_scale, out_scale = torch.ones(1), torch.ones(1), torch.ones(1)
    stream, hidden = torch.empty(512, 32), torch.empty(512, 32).to(E4M3)
    given: dict[str, Any] = {"x_scale": x_scale, "weight_scale": weight_scale}
    lane = Lane(launcher)
    linear(lane, x, weight, None, stream, residual=stream, **given)
    linear(lane, x, weight, None, hidden, activation="gelu_tanh", out_scale=out_scale, **given)
    added, quantised = launcher.launches
    assert added.args[2] is stream and added.args[-2:] == (0, 1)
    assert quantised.args[3] is out_scale and quantised.args[-2:] == (1, 0)
    merged, scales = torch.empty(512, 16).to(E4M3), torch.ones(32)
    given |= {"weight_scale": scales, "out_scale": out_scale}
    glu_linear(lane, x, weight, merged, **given)
    assert launcher.launches[-1].args[1] is scales


def test_formats_without_a_kernel_are_refused() -> None:
    lane = Lane(CheckingLauncher())
    x, weight = torch.empty(8, 60).bfloat16(), torch.empty(32, 60).to(torch.int8)
    with pytest.raises(ContractError, match=r"linear.*a multiple of 8 columns.*int8 \[32, 60\]"):
        linear(lane, x, weight, None, torch.empty(8, 32), weight_scale=torch.ones(32))
    x, weight = torch.empty(8, 64).bfloat16(), torch.empty(32, 64)
    row, out = torch.empty(64), torch.empty(8, 16).bfloat16()
    told = r"up to 56 rows of 1024 .* got 8 rows of 64 .*site another format"
    with pytest.raises(ContractError, match=told):
        ada_rms_norm_geglu.ada_rms_norm_geglu(
            lane, x, row, row, weight.to(E4M3), out,
            eps=1e-6, x_scale=torch.ones(1), weight_scale=torch.ones(32),
        )  # fmt: skip


def test_raw_images_launch_as_declared() -> None:
    launcher = CheckingLauncher()
    launch_policy("base", 2, launcher, **SHALLOW, camera_bytes=3_000_000)
    kernels = [launch.kernel for launch in launcher.launches]
    assert kernels.count("image_patches_raw_bf16") == 2
    assert "image_patches_bf16" not in kernels


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("preset", ["tiny", "small"])
def test_small_widths_launch_as_declared(preset: str, precision: str) -> None:
    launcher = CheckingLauncher()
    launch_policy(preset, 2, launcher, precision)
    kernels = [launch.kernel for launch in launcher.launches]
    assert "attention_rows_bf16" in kernels
    assert ("expand_rows_i8" in kernels) == (precision == "fp8")


def test_sources_declare_each_entry_once() -> None:
    assert len(declared()) >= 20
    assert "glu_linear_gelu_tanh_192_64_4_2_bf16_sm90" in declared()


def launch_few_queries(architecture: int, rows: int, prefix: int) -> Launch:
    launcher = CheckingLauncher(architecture)
    q, k = torch.empty(rows, 8, 256).bfloat16(), torch.empty(prefix + rows, 1, 256).bfloat16()
    length, out = torch.empty(1, dtype=torch.int32), torch.empty(rows, 2048).bfloat16()
    options: dict[str, Any] = {"scale": 1.0, "prefix_length": length, "prefix_rows": prefix}
    attention(Lane(launcher), q, k, k.clone(), out, **options)
    (launch,) = launcher.launches
    return launch


@pytest.mark.parametrize(
    ("rows", "prefix", "block_rows", "keys"),
    [
        (10, 560, 8, 640),
        (15, 968, 8, 1024),
        (16, 560, 16, 640),
        (30, 712, 16, 1024),
        (50, 560, 32, 1024),
        (50, 968, 32, 1024),
        (64, 960, 32, 1024),
    ],
)
def test_few_queries_share_the_keys_in_a_cluster(
    rows: int, prefix: int, block_rows: int, keys: int
) -> None:
    launch = launch_few_queries(90, rows, prefix)
    assert launch.kernel == f"attention_few_queries_d256_{block_rows}_{keys}_bf16_cluster"
    assert (launch.grid, launch.cluster) == ((8, -(-rows * 8 // block_rows)), 8)
    # Values, queries and what comes from the other blocks.
    assert launch.shared_bytes > keys // 8 * 512 + block_rows * (512 + 512)


@pytest.mark.parametrize(("architecture", "rows", "prefix"), [(90, 64, 968), (89, 10, 560)])
def test_few_queries_without_a_cluster(architecture: int, rows: int, prefix: int) -> None:
    launch = launch_few_queries(architecture, rows, prefix)
    assert launch.kernel == "attention_few_queries_d256_bf16"
    assert (launch.grid, launch.cluster) == ((1, rows // 2), None)


def test_plans_give_the_shared_memory_that_the_sources_assert() -> None:
    asserted, shape_of = {}, {}
    for path in OPS.glob("*.cu"):
        source = path.read_text()
        for shape, size in re.findall(r"static_assert\((\w+)::kSharedBytes == (\d+)", source):
            asserted[shape] = int(size)
        for kernel, shape in re.findall(r"^FLASHRT_\w+\((\w+), (\w+), \d\)", source, re.MULTILINE):
            shape_of[kernel] = shape
    plans = [
        *ada_rms_norm_qkv_rope_kv._PLANS,
        *ada_rms_norm_geglu._PLANS,
        *linear_gated_residual._PLANS,
    ]
    whole = [
        *ada_rms_norm_qkv_rope_kv._WHOLE_PLANS,
        *ada_rms_norm_geglu._WHOLE_PLANS,
        *linear_gated_residual._WHOLE_PLANS,
    ]
    assert len(plans) == 26
    # In bf16 one is no faster than the one below, and the other would leave no room for others.
    alone = {"ada_rms_norm_qkv_rope_kv_14_i8_hopper", "ada_rms_norm_geglu_14_i8_sm90"}
    assert {plan.kernel for plan in whole} - alone == {
        plan.kernel.replace("bf16", "i8")
        for plan in plans
        # These would spill.
        if not re.fullmatch(r"ada_rms_norm_geglu_62_bf16_(cluster|sm90)", plan.kernel)
    }
    for plan in plans + whole:
        assert plan.shared_bytes == asserted[shape_of[plan.kernel]], plan.kernel


def launch_expert_layer(architecture: int, rows: int, *, whole: bool = False) -> list[Launch]:
    """The four products of an expert layer, with bf16 or int8 weights."""
    launcher = CheckingLauncher(architecture)
    lane = Lane(launcher)
    x, hidden, attended = (torch.empty(rows, size).bfloat16() for size in (1024, 4096, 2048))
    table, rope = torch.empty(3, 1024), torch.empty(rows, 256)
    weights = [(2560, 1024), (1024, 2048), (8192, 1024), (1024, 4096)]
    dtype = torch.int8 if whole else torch.bfloat16
    qkv, out, gate_up, down = (torch.empty(shape, dtype=dtype) for shape in weights)
    scales: list[dict[str, Any]] = [
        {"weight_scale": torch.empty(shape[0])} if whole else {} for shape in weights
    ]
    keys, values = torch.empty(2, rows, 256).bfloat16().unbind()
    ada_rms_norm_qkv_rope_kv.ada_rms_norm_qkv_rope_kv(
        lane,
        x,
        table[0],
        table[1],
        qkv,
        rope,
        attended,
        keys,
        values,
        head_dim=256,
        eps=1e-6,
        **scales[0],
    )
    linear_gated_residual.linear_gated_residual(lane, attended, out, table[2], x, **scales[1])
    ada_rms_norm_geglu.ada_rms_norm_geglu(
        lane, x, table[0], table[1], gate_up, hidden, eps=1e-6, **scales[2]
    )
    linear_gated_residual.linear_gated_residual(lane, hidden, down, table[2], x, **scales[3])
    return launcher.launches


@pytest.mark.parametrize(
    ("architecture", "rows", "norm", "plain"),
    [
        (80, 10, "14_bf16", "16_bf16"),
        (90, 1, "14_bf16_cluster", "16_bf16_cluster"),
        (90, 14, "14_bf16_cluster", "16_bf16_cluster"),
        (90, 30, "30_bf16_cluster", "32_bf16_cluster"),
        (90, 33, "54_bf16_sm90", "56_bf16_sm90"),
        (90, 54, "54_bf16_sm90", "56_bf16_sm90"),
        (90, 62, "62_bf16_sm90", "64_bf16_sm90"),
        (110, 10, "14_bf16_cluster", "16_bf16_cluster"),
    ],
)
def test_products_of_an_expert_layer(architecture: int, rows: int, norm: str, plain: str) -> None:
    launches = launch_expert_layer(architecture, rows)
    assert [launch.kernel for launch in launches] == [
        f"ada_rms_norm_qkv_rope_kv_{norm}",
        f"linear_gated_residual_k2048_{plain}",
        f"ada_rms_norm_geglu_{norm}",
        f"linear_gated_residual_k4096_{plain}",
    ]


@pytest.mark.parametrize(("architecture", "rows"), [(80, 10), (90, 10), (90, 50)])
def test_int8_weights_of_an_expert_layer(architecture: int, rows: int) -> None:
    """The same kernels as with bf16, by another name; for few rows two of their own."""
    wide = [launch.kernel for launch in launch_expert_layer(architecture, rows)]
    launches = launch_expert_layer(architecture, rows, whole=True)
    expected = [name.replace("bf16", "i8") for name in wide]
    if architecture == 90 and rows <= 14:
        expected[0] = "ada_rms_norm_qkv_rope_kv_14_i8_hopper"
        expected[2] = "ada_rms_norm_geglu_14_i8_sm90"
    assert [launch.kernel for launch in launches] == expected


def test_int8_kernels_for_few_rows_lie_side_by_side() -> None:
    """They divide a multiprocessor alike; gate and up fit beside the product in front of them."""
    launches = launch_expert_layer(90, 10, whole=True)
    assert {launch.carveout for launch in launches} == {SIDE_BY_SIDE}
    _, out, gate_up, _ = launches
    room = SIDE_BY_SIDE * 228 * 1024 // 100
    assert out.shared_bytes + gate_up.shared_bytes + 2 * 1024 <= room
    assert {launch.carveout for launch in launch_expert_layer(90, 50, whole=True)} == {None}
    assert {launch.carveout for launch in launch_expert_layer(90, 10)} == {None}


def test_int8_weights_take_rows_in_runs_where_no_kernel_takes_all() -> None:
    launches = launch_expert_layer(80, 50, whole=True)
    down = [launch for launch in launches if "k4096" in launch.kernel]
    assert [launch.args[5] for launch in down] == [13, 13, 13, 11]
    assert {launch.kernel for launch in down} == {"linear_gated_residual_k4096_16_i8"}


def test_products_of_many_rows_on_other_generations() -> None:
    """No warpgroup products there; the product of q, k and v has no cluster kernel for so many."""
    assert [launch.kernel for launch in launch_expert_layer(100, 50)] == [
        "ada_rms_norm_qkv_rope_kv_62_bf16",
        "linear_gated_residual_k2048_64_bf16_cluster",
        "ada_rms_norm_geglu_62_bf16_cluster",
        "linear_gated_residual_k4096_64_bf16_cluster",
    ]


def test_down_product_takes_the_weight_as_tiles() -> None:
    *_, launch = launch_expert_layer(90, 50)
    assert (launch.grid, launch.block, launch.cluster) == (1024 // 64 * 8, 256, 8)
    tiles = launch.args[1]
    assert isinstance(tiles, TensorMap)
    assert (tiles.rows, tiles.columns, tiles.stride) == (1024, 4096, 4096)
    assert (tiles.box_rows, tiles.box_columns) == (64, 64)


def test_gate_and_up_run_at_once() -> None:
    """256 blocks, two on a multiprocessor, which has 228 KiB and takes 1 KiB a block for itself."""
    *_, launch, _ = launch_expert_layer(90, 50)
    assert (launch.grid, launch.cluster) == (256, 2)
    assert 2 * (launch.shared_bytes + 1024) <= 228 * 1024


@pytest.mark.parametrize(("architecture", "clusters"), [(80, False), (90, True), (110, True)])
def test_expert_layer_is_five_launches(architecture: int, clusters: bool) -> None:
    launcher = CheckingLauncher(architecture)
    launch_policy("base", 2, launcher, **SHALLOW)
    kernels = [launch.kernel for launch in launcher.launches]
    first = kernels.index("action_in_d32_bf16")
    suffix = "_cluster" if clusters else ""
    queries = "_8_640_bf16_cluster" if clusters else "_bf16"
    assert kernels[first + 1 : first + 6] == [
        f"ada_rms_norm_qkv_rope_kv_14_bf16{suffix}",
        f"attention_few_queries_d256{queries}",
        f"linear_gated_residual_k2048_16_bf16{suffix}",
        f"ada_rms_norm_geglu_14_bf16{suffix}",
        f"linear_gated_residual_k4096_16_bf16{suffix}",
    ]
    assert kernels[-1] == "action_out_euler_d32_bf16"


@pytest.mark.parametrize(("preset", "end"), [("base", "d32"), ("tiny", "rows")])
def test_a_guided_plan_differs_in_the_end_of_its_steps_only(preset: str, end: str) -> None:
    sizes = SHALLOW if preset == "base" else {}
    steps = {**sizes, "steps": 4}
    launches = []
    for guided in (False, True):
        launcher = CheckingLauncher()
        launch_policy(preset, 2, launcher, **steps, real_time_chunking=guided)
        launches.append(launcher.launches)
    plain, guided_ones = launches
    assert not any("guided" in launch.kernel for launch in plain)
    ends = [k for k, launch in enumerate(plain) if launch.kernel == f"action_out_euler_{end}_bf16"]
    assert len(ends) == 4
    for k, (a, b) in enumerate(zip(plain, guided_ones, strict=True)):
        if k not in ends:
            assert (a.kernel, a.grid, a.block) == (b.kernel, b.grid, b.block)
            continue
        assert b.kernel == f"action_out_euler_guided_{end}_bf16"
        previous, guidance, *pitches, time, share = b.args[len(a.args) :]
        assert previous.shape == guidance.shape == (10, 32) and pitches == [32, 32]
        step = ends.index(k)
        assert time == pytest.approx(1.0 - step / 4, rel=1e-7)
        assert share == pytest.approx(1.0 / (4 - step), rel=1e-6)
    assert share == 1.0, "the last step goes all the way"


def test_float32_is_refused_in_one_line() -> None:
    x = torch.empty(4, 64)
    with pytest.raises(ContractError, match="bfloat16.*float32.*precision"):
        rms_norm(Lane(CheckingLauncher()), x, torch.empty(64), x.clone(), eps=1e-6)


def test_unaligned_rows_are_refused() -> None:
    x = torch.empty(4, 72).bfloat16()[:, 4:68]
    with pytest.raises(ContractError, match="16-byte aligned"):
        rms_norm(Lane(CheckingLauncher()), x, torch.empty(64), torch.empty(4, 64).bfloat16(), eps=1)


def test_heads_apart_are_refused() -> None:
    q = torch.empty(8, 4, 64).bfloat16()[:, :, :32]
    k = torch.empty(8, 4, 32).bfloat16()
    with pytest.raises(ContractError, match="side by side"):
        attention(
            Lane(CheckingLauncher()), q, k, k.clone(), torch.empty(8, 128).bfloat16(), scale=1.0
        )
