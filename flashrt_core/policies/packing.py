"""What policies share where they declare checkpoint tensors and pack them into buffers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from ..kernels.four_bits import quantise_runs
from ..kernels.quantised import quantise_rows, quantise_whole
from ..tensors import TensorSource, TensorSpec

#: What a product or a norm has.
KINDS = ("weight", "bias")


def matrix(name: str, rows: int, columns: int, gain: float = 1.0) -> tuple[str, TensorSpec]:
    """A weight whose stand-in multiplies the size of what it takes by ``gain``."""
    return f"{name}.weight", TensorSpec((rows, columns), std=gain * columns**-0.5)


def dense(
    name: str, rows: int, columns: int, gain: float = 1.0
) -> Iterable[tuple[str, TensorSpec]]:
    """A weight and a bias."""
    yield matrix(name, rows, columns, gain)
    yield f"{name}.bias", TensorSpec((rows,), std=0.1 * gain)


def layer_norm(name: str, width: int) -> Iterable[tuple[str, TensorSpec]]:
    """Gain around 1, and offset."""
    yield f"{name}.weight", TensorSpec((width,), mean=1.0, std=0.1)
    yield f"{name}.bias", TensorSpec((width,), std=0.1)


def stack_rows(
    buffers: Mapping[str, Tensor],
    target: str,
    layer: int | None,
    source: TensorSource,
    names: Iterable[str],
) -> None:
    """Writes the tensors below each other into a buffer, or into its layer."""
    fill(buffers, target, torch.cat([source.get(name) for name in names]), layer)


def stack_both(
    buffers: Mapping[str, Tensor],
    target: str,
    layer: int | None,
    source: TensorSource,
    names: Iterable[str],
) -> None:
    """Weights below each other, and biases likewise; ``names`` are in front of both."""
    parts = tuple(names)
    for kind in KINDS:
        rows = (f"{name}.{kind}" for name in parts)
        stack_rows(buffers, f"{target}_{kind}", layer, source, rows)


def copy_parts(
    buffers: Mapping[str, Tensor],
    group: str,
    layer: int | None,
    source: TensorSource,
    name: str,
    parts: Mapping[str, str],
) -> None:
    """Weights and biases of parts of a group, from the tensors called ``name`` and their own."""
    for part, origin in parts.items():
        for kind in KINDS:
            tensor = source.get(f"{name}{origin}.{kind}")
            fill(buffers, f"{group}.{part}_{kind}", tensor, layer)


def pack_gated_layer(
    buffers: Mapping[str, Tensor], group: str, layer: int, source: TensorSource, name: str
) -> None:
    """The products of a layer as Transformers names those of Gemma, Qwen and others."""
    rows = (f"{name}self_attn.{part}_proj.weight" for part in "qkv")
    stack_rows(buffers, f"{group}.qkv_weight", layer, source, rows)
    fill(buffers, f"{group}.out_weight", source.get(f"{name}self_attn.o_proj.weight"), layer)
    for first, part in enumerate(("gate", "up")):
        weight = source.get(f"{name}mlp.{part}_proj.weight")
        fill(buffers, f"{group}.gate_up_weight", weight, layer, slice(first, None, 2))
    fill(buffers, f"{group}.down_weight", source.get(f"{name}mlp.down_proj.weight"), layer)


def fill(
    buffers: Mapping[str, Tensor],
    name: str,
    tensor: Tensor,
    layer: int | None = None,
    rows: slice = slice(None),
    importance: Tensor | None = None,
) -> None:
    """Writes a buffer, or its layer: rounded, or quantised with scales: one, a row or a run.

    Quantised where the buffer lies. ``rows``: of those of a weight with a scale a row or without.
    ``importance``: [K], how much the columns of a weight of four bits count, where no calibration
    has observed it; None: all alike.
    """
    target, scale = buffers[name], buffers.get(f"{name}_scale")
    observed = buffers.get(f"{name}_importance")
    if layer is not None:
        target, scale = target[layer], None if scale is None else scale[layer]
        observed = None if observed is None else observed[layer]
    if scale is None:
        target[rows].copy_(tensor)
        return
    tensor = tensor.to(target.device)
    if target.dtype is torch.uint8:
        run = 2 * target.shape[1] // scale.shape[1]
        values, of_runs = quantise_runs(tensor, run, importance if observed is None else observed)
        target.copy_(values)
        scale.copy_(of_runs)
        return
    if len(scale) == 1:
        values, of_all = quantise_whole(tensor)
        target.copy_(values)
        scale.copy_(of_all)
        return
    values, of_rows = quantise_rows(tensor, target.dtype)
    target[rows].copy_(values)
    scale[rows].copy_(of_rows)
