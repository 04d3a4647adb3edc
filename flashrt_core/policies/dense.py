"""The buffers of a policy's dense products, as its stages ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from torch import Tensor

from ..precision import Format, Site


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
