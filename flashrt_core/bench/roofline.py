"""The time that no implementation can beat on a GPU: each product's arithmetic or bytes.

Products run one behind the other, so the floor is the sum over them of the larger of two times. The
activations' own bytes are left out: they stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..policies.measures import Product
from ..precision import LOW_BIT, Format, Precision


@dataclass(frozen=True)
class Ceiling:
    """What a GPU was measured to sustain.

    Attributes:
        flops: bf16 tensor-core arithmetic a second; E4M3 operands have twice as much.
        bandwidth: bytes of device memory a second, reads and writes.
    """

    flops: float
    bandwidth: float


#: Measured on the GPU: a large bf16 product, and a device-to-device copy.
CEILINGS = {"NVIDIA H200": Ceiling(790e12, 4.3e12)}


def floor_ms(
    products: Mapping[str, Iterable[Product]], ceiling: Ceiling, precision: Precision
) -> dict[str, float]:
    """Least milliseconds of each stage in a plan of 16 bits or less."""
    return {
        name: sum(_milliseconds(product, ceiling, precision) for product in each)
        for name, each in products.items()
    }


def _milliseconds(product: Product, ceiling: Ceiling, precision: Precision) -> float:
    form = precision.sites.get(product.site, Format.BF16) if product.site else None
    rate = ceiling.flops * (2 if form is Format.FP8 else 1)
    arithmetic = 2 * product.rows * product.columns * product.depth / rate
    width = 0 if form is None else 1 if form in LOW_BIT else 2
    moved = product.columns * product.depth * width / ceiling.bandwidth
    return max(arithmetic, moved) * 1e3
