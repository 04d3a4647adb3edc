"""Bad arguments of every op: refused at capture, by the name of the op and of the argument."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

import flashrt_core.kernels
from flashrt_core import gemm
from flashrt_core.devices.cpu import CpuDevice
from flashrt_core.errors import ContractError
from flashrt_core.kernels.op import Op
from flashrt_core.kernels.row_moments import RowMoments

from .helpers import normal, run

Tensors = dict[str, Tensor]


def f32(*shape: int) -> Tensor:
    return normal(*shape, seed=0)


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


_ADA = {"x": f32(3, 4), "scale": f32(4), "shift": f32(4)}
_QKV = {"rope": f32(3, 2), "q": f32(3, 6), "k": f32(3, 2), "v": f32(3, 2)}
# op -> its tensors, all of them right, and its scalars
GOOD: Mapping[str, tuple[Tensors, dict[str, Any]]] = {
    "rms_norm": ({"x": f32(3, 4), "weight": f32(4), "out": f32(3, 4)}, {"eps": 1e-6}),
    "layer_norm": (
        {"x": f32(3, 4), "weight": f32(4), "bias": f32(4), "out": f32(3, 4)},
        {"eps": 1e-6},
    ),
    "layer_norm_linear": (
        {
            "x": f32(3, 4),
            "gain": f32(4),
            "shift": f32(4),
            "weight": f32(5, 4),
            "bias": f32(5),
            "out": f32(3, 5),
        },
        {"eps": 1e-6, "activation": "silu"},
    ),
    "rope_attention": (
        {
            "qkv": f32(3, 16),
            "rope": f32(3, 4),
            "q": f32(3, 8),
            "k": f32(3, 4),
            "v": f32(3, 4),
            "out": f32(3, 8),
        },
        {"head_dim": 4, "scale": 1.0},
    ),
    "layer_norm_attention": (
        {
            "x": f32(3, 4),
            "gain": f32(4),
            "shift": f32(4),
            "weight": f32(6, 4),
            "bias": f32(6),
            "q": f32(3, 6),
            "k": f32(5, 2, 3),
            "v": f32(5, 2, 3),
            "out": f32(3, 6),
        },
        {"head_dim": 3, "eps": 1e-6, "scale": 1.0},
    ),
    "layer_norm_pool_attention": (
        {
            "x": f32(3, 4),
            "gain": f32(4),
            "shift": f32(4),
            "weight": f32(18, 4),
            "bias": f32(18),
            "rope": f32(3, 2),
            "rows": i32(4, 0, 2),
            "q_norm": f32(6),
            "k_norm": f32(6),
            "key_bias": f32(5),
            "qkv": f32(3, 18),
            "q": f32(3, 6),
            "k": f32(5, 6),
            "v": f32(5, 6),
            "out": f32(3, 6),
        },
        {"head_dim": 2, "eps": 1e-6, "scale": 1.0},
    ),
    "image_patches": (
        {"image": torch.zeros(4, 6, 3, dtype=torch.uint8), "out": f32(6, 12)},
        {"patch": 2},
    ),
    "add_rows": ({"src": f32(3, 4), "out": f32(3, 4)}, {}),
    "copy_rows": ({"src": f32(3, 4), "out": f32(3, 4)}, {}),
    "embed_rows": (
        {"tokens": i32(1, 2, 3), "length": i32(2), "table": f32(9, 4), "out": f32(3, 4)},
        {"scale": 2.0},
    ),
    "offset_count": ({"count": i32(2), "out": i32(0)}, {"offset": 5}),
    "rope_rows": ({"first": i32(2), "out": f32(3, 4)}, {"theta": 1e4}),
    "qkv_rope_kv": ({"qkv": f32(3, 10), **_QKV}, {"head_dim": 2}),
    "attention": (
        {"q": f32(3, 4, 2), "k": f32(5, 2, 2), "v": f32(5, 2, 2), "out": f32(3, 8)},
        {"scale": 1.0, "prefix_length": i32(2), "prefix_rows": 4},
    ),
    "glu_linear": ({"x": f32(3, 4), "weight": f32(10, 4), "out": f32(3, 5)}, {}),
    "ada_rms_norm_qkv_rope_kv": (
        {**_ADA, "weight": f32(10, 4), **_QKV},
        {"head_dim": 2, "eps": 1e-6},
    ),
    "ada_rms_norm_geglu": ({**_ADA, "weight": f32(10, 4), "out": f32(3, 5)}, {"eps": 1e-6}),
    "linear_gated_residual": (
        {"x": f32(3, 4), "weight": f32(5, 4), "gate": f32(5), "out": f32(3, 5)},
        {},
    ),
    "action_in": (
        {"x": f32(3, 2), "weight": f32(5, 2), "bias": f32(5), "out": f32(3, 5)},
        {},
    ),
    "action_out_euler": (
        {
            "hidden": f32(3, 4),
            "scale": f32(4),
            "shift": f32(4),
            "weight": f32(2, 4),
            "bias": f32(2),
            "x": f32(3, 2),
            "out": f32(3, 2),
        },
        {"dt": -0.1, "eps": 1e-6},
    ),
    "linear": (
        {"x": f32(3, 4), "weight": f32(5, 4), "bias": f32(5), "out": f32(3, 5)},
        {"residual": f32(3, 5)},
    ),
    "conv_frames": (
        {
            "x": f32(1, 3, 4, 6, 2),
            "past": f32(1, 2, 4, 6, 2),
            "weight": f32(5, 3, 3, 3, 2),
            "bias": f32(5),
            "out": f32(1, 3, 4, 6, 5),
        },
        {"residual": f32(1, 3, 4, 6, 5)},
    ),
    "mean_frames": ({"x": f32(1, 3, 4, 6, 2), "out": f32(1, 2, 2, 3, 4)}, {"halved": (True, True)}),
    "frame_patches": ({"frames": f32(2, 4, 6, 3), "out": f32(2, 2, 3, 12)}, {}),
    "fill": ({"out": f32(3, 4)}, {"value": 2}),
    "guided_step": (
        {"wanted": f32(3, 4), "other": f32(3, 4), "x": f32(3, 4)},
        {"guidance": 5.0, "dt": -0.1},
    ),
    "span_bias": ({"lengths": i32(2, 1), "out": f32(2, 4)}, {"rows": 9}),
    "take_rows": (
        {"holders": i32(1, -1, 0, 1), "kinds": i32(0, 0, 0, 1), "rows": i32(0, 0), "bias": f32(8)},
        {"kind": 0},
    ),
    "grid_rope": (
        {
            "start": i32(2),
            "at": f32(3, 3),
            "rates": f32(2, 2),
            "axes": i32(0, 1),
            "out": f32(3, 4),
        },
        {},
    ),
}


_GUIDE: dict[str, Any] = {"previous": f32(3, 2), "guidance": f32(3, 2), "time": 0.5}


def function(name: str) -> Callable[..., None]:
    module = gemm if name == "linear" else import_module(f"flashrt_core.kernels.{name}")
    found: Callable[..., None] = getattr(module, name)
    return found


def issue(name: str, tensors: Tensors, scalars: dict[str, Any]) -> None:
    run(lambda lane: function(name)(lane, *tensors.values(), **scalars))


def test_every_op_is_listed() -> None:
    ops = set()
    for module in pkgutil.iter_modules(flashrt_core.kernels.__path__):
        found = vars(import_module(f"flashrt_core.kernels.{module.name}")).values()
        ops |= {value.name for value in found if isinstance(value, Op)}
    assert ops | {gemm.LINEAR.name} == set(GOOD)


@pytest.mark.parametrize("name", GOOD)
def test_good_arguments_pass_and_are_one_issue(name: str) -> None:
    tensors, scalars = GOOD[name]
    device = CpuDevice()
    program = device.capture(
        [("op", lambda lane: function(name)(lane, *tensors.values(), **scalars))]
    )
    assert len(program.calls[0][1]) == 1
    device.replay(program)


CASES = [(name, argument) for name, (tensors, _) in GOOD.items() for argument in tensors]


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_wrong_rank(name: str, argument: str) -> None:
    tensors, scalars = GOOD[name]
    bad = {**tensors, argument: tensors[argument].unsqueeze(0)}
    with pytest.raises(ContractError, match=f"^{name}: argument '{argument}': expected .*, got .*"):
        issue(name, bad, scalars)


@pytest.mark.parametrize(("name", "argument"), CASES)
def test_wrong_dtype(name: str, argument: str) -> None:
    tensors, scalars = GOOD[name]
    bad = {**tensors, argument: tensors[argument].to(torch.int64)}
    with pytest.raises(ContractError, match=f"^{name}: argument '{argument}': .*got int64$"):
        issue(name, bad, scalars)


@pytest.mark.parametrize(("name", "argument"), [case for case in CASES if case[0] != "fill"])
def test_wrong_size(name: str, argument: str) -> None:
    """One more than right in every dimension: it contradicts another argument, or divides badly."""
    tensors, scalars = GOOD[name]
    good = tensors[argument]
    grown = torch.zeros([size + 1 for size in good.shape], dtype=good.dtype)
    with pytest.raises(ContractError, match=f"^{name}: "):
        issue(name, {**tensors, argument: grown}, scalars)


@pytest.mark.parametrize("name", sorted(set(GOOD) - {"offset_count"}))  # it takes single numbers
def test_strided_columns(name: str) -> None:
    tensors, scalars = GOOD[name]
    argument, good = next((k, v) for k, v in tensors.items() if v.shape[-1] > 1)
    wide = good.new_zeros(*good.shape[:-1], 2 * good.shape[-1])
    with pytest.raises(ContractError, match=f"{name}: argument '{argument}': .*contiguous"):
        issue(name, {**tensors, argument: wide[..., ::2]}, scalars)


@pytest.mark.parametrize(
    ("name", "out", "source"),
    [
        ("linear", "out", "x"),
        ("glu_linear", "out", "x"),
        ("layer_norm_linear", "out", "x"),
        ("layer_norm_attention", "out", "k"),
        ("layer_norm_pool_attention", "out", "k"),
        ("rope_attention", "out", "qkv"),
        ("action_in", "out", "x"),
        ("linear_gated_residual", "out", "x"),
        ("ada_rms_norm_geglu", "out", "x"),
        ("ada_rms_norm_qkv_rope_kv", "q", "x"),
        ("action_out_euler", "out", "hidden"),
        ("attention", "out", "k"),
        ("copy_rows", "out", "src"),
        ("add_rows", "out", "src"),
        ("conv_frames", "out", "x"),
        ("mean_frames", "out", "x"),
        ("frame_patches", "out", "frames"),
    ],
)
def test_overlap_is_refused(name: str, out: str, source: str) -> None:
    tensors, scalars = GOOD[name]
    memory = torch.zeros(512)
    shared = {
        **tensors,
        out: memory[: tensors[out].numel()].view(tensors[out].shape),
        source: memory[1 : 1 + tensors[source].numel()].view(tensors[source].shape),
    }
    with pytest.raises(ContractError, match=f"{name}: argument '{out}': .*apart from '{source}'"):
        issue(name, shared, scalars)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("linear", {"activation": "tanh"}, "activation: expected none or .* or relu, got tanh"),
        ("layer_norm_linear", {"activation": "tanh"}, "activation: expected none or .*, got tanh"),
        ("glu_linear", {"activation": "relu"}, "activation: expected gelu_tanh or silu, got relu"),
        ("action_in", {"activation": "gelu"}, "activation: expected none or silu or relu, got"),
        ("linear", {"residual": i32(1)[None]}, "argument 'residual': expected float32 or"),
        ("linear", {"residual": f32(2, 5)}, "rows of 'residual': expected a divisor of 3, got 2"),
        ("attention", {"segments": 2}, "rows of 'q' and 'k'"),
        ("layer_norm_pool_attention", {"segments": 2}, "rows of 'x' and 'k': expected multiples"),
        ("attention", {"prefix_rows": 6}, "prefix_rows: expected 1..5"),
        ("attention", {"prefix_rows": 0}, "prefix_rows: expected 1..5"),
        ("attention", {"prefix_length": f32(1)}, "argument 'prefix_length': expected int32"),
        ("attention", {"causal": True}, "rows of 'k': expected 3 as of 'q', with causal, got 5"),
        ("image_patches", {"merge": 4}, "multiples of the patch, 2, times merge, 4, got"),
        ("image_patches", {"merge": 0}, "argument 'merge': expected at least 1, got 0"),
        ("image_patches", {"patch": 5}, "sides that are multiples of the patch, 5, got .4, 6."),
        ("image_patches", {"patch": 0}, "argument 'image'"),
        ("qkv_rope_kv", {"head_dim": 3}, "argument 'rope'"),
        ("qkv_rope_kv", {"q_norm": f32(2)}, "'q_norm' and 'k_norm': expected both or none, got"),
        ("qkv_rope_kv", {"k_norm": f32(2)}, "'q_norm' and 'k_norm': expected both or none, got"),
        ("qkv_rope_kv", {"q_norm": f32(2), "k_norm": f32(3)}, "argument 'k_norm': expected .Dkv"),
        ("qkv_rope_kv", {"q_norm": f32(3), "k_norm": f32(2)}, "argument 'q_norm': expected .2."),
        (
            "action_out_euler",
            {"previous": f32(3, 2)},
            "'guidance' and 'time': expected all or none",
        ),
        ("action_out_euler", {"time": 0.5}, "'guidance' and 'time': expected all or none"),
        ("action_out_euler", {**_GUIDE, "previous": f32(3, 3)}, "argument 'previous': expected"),
        ("action_out_euler", {**_GUIDE, "guidance": f32(3)}, "argument 'guidance': expected"),
        ("action_out_euler", {**_GUIDE, "time": 0.0}, "'time': expected within .0, 1., got 0.0"),
    ],
)
def test_bad_scalars(name: str, changes: dict[str, Any], message: str) -> None:
    tensors, scalars = GOOD[name]
    with pytest.raises(ContractError, match=message):
        issue(name, tensors, {**scalars, **changes})


@pytest.mark.parametrize(
    ("name", "gain", "shift"),
    [
        ("layer_norm", "weight", "bias"),
        ("layer_norm_linear", "gain", "shift"),
        ("layer_norm_attention", "gain", "shift"),
        ("layer_norm_pool_attention", "gain", "shift"),
        ("action_out_euler", "scale", "shift"),
    ],
)
def test_half_an_affine_norm(name: str, gain: str, shift: str) -> None:
    tensors, scalars = GOOD[name]
    for missing in (gain, shift):
        with pytest.raises(ContractError, match=f"'{gain}' and '{shift}': expected both or none"):
            issue(name, {**tensors, missing: None}, scalars)  # type: ignore[dict-item]


@pytest.mark.parametrize("name", ["linear", "layer_norm_linear", "layer_norm_attention"])
def test_moments_without_room(name: str) -> None:
    tensors, scalars = GOOD[name]
    moments = RowMoments(f32(tensors["x"].shape[0], 2))
    with pytest.raises(ContractError, match=f"{name}: argument 'moments': expected .* 64"):
        issue(name, tensors, {**scalars, "moments": moments})


def test_gains_of_heads_that_are_not_there() -> None:
    tensors, scalars = GOOD["qkv_rope_kv"]
    tail = {**tensors, "qkv": f32(3, 4), "q": None}
    norms = {"q_norm": f32(2), "k_norm": f32(2)}
    with pytest.raises(ContractError, match="expected no 'q_norm' without 'q'"):
        issue("qkv_rope_kv", tail, {**scalars, **norms})  # type: ignore[arg-type]


def test_no_tensor_at_all() -> None:
    tensors, scalars = GOOD["rms_norm"]
    with pytest.raises(ContractError, match="rms_norm: argument 'x': expected a tensor, got list"):
        issue("rms_norm", {**tensors, "x": [1.0]}, scalars)  # type: ignore[dict-item]
