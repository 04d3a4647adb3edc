"""A policy's dense products: sites that many have, and buffers as its stages ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

from torch import Tensor

from ..precision import Format, Site

#: A product of op ``linear``, which is the library's; kernels of the others multiply rows.
library_site = partial(Site, rows_scaled=False)

#: Those of an image tower.
TOWER: Mapping[str, Site] = {
    # Pixels come as bytes: quantised once more they would lose half of their levels, for 0.1 % of
    # the work.
    "vision.patch": library_site(
        "vision.patch_weight", "vision_patches", formats=(Format.W8A16, Format.I8A16)
    ),
    "vision.qkv": library_site("vision.qkv_weight", "vision_normal"),
    "vision.out": library_site("vision.out_weight", "vision_mixed"),
    "vision.fc1": library_site("vision.fc1_weight", "vision_normal"),
    "vision.fc2": library_site("vision.fc2_weight", "vision_hidden"),
}

#: The plans without quantised products, as a YAML table would say them.
WIDE: Mapping[str, Mapping[str, Any]] = {"fp32": {"base": "fp32"}, "bf16": {"base": "bf16"}}


class Scales(TypedDict):
    """What the op of a product takes beside its operands."""

    x_scale: Tensor | None
    weight_scale: Tensor | None


@dataclass(frozen=True)
class Dense:
    """The buffers of one site in one layer.

    Attributes:
        weight: [N, K].
        weight_scale: [N] or [1] float32, or None for a weight that is not quantised.
        x_scale: [1] float32, or None for an input that is not.
        source: the whole scratch buffer that holds the input; where an op makes it, the weight.
    """

    weight: Tensor
    weight_scale: Tensor | None
    x_scale: Tensor | None
    source: Tensor

    @property
    def scales(self) -> Scales:
        """As keyword arguments of its op."""
        return {"x_scale": self.x_scale, "weight_scale": self.weight_scale}


def site_buffers(
    sites: Mapping[str, Site], buffers: Mapping[str, Tensor], name: str, layer: int | None = None
) -> Dense:
    """A site's buffers; ``layer`` for those that are stacked."""
    site = sites[name]
    weight, scale = buffers[site.weight], buffers.get(site.weight_scale)
    x_scale = buffers.get(site.x_scale)
    source = site.source_of(Format.BF16 if x_scale is None else Format.FP8)
    if layer is not None:
        weight = weight[layer]
        scale = None if scale is None else scale[layer]
        x_scale = None if x_scale is None else x_scale[layer : layer + 1]
    return Dense(weight, scale, x_scale, buffers[source] if source else weight)
