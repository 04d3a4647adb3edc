"""The time that no implementation of π0.5 can beat on a GPU: each product's arithmetic or bytes.

Products run one behind the other, so the floor is the sum over them of the larger of two times. The
activations' own bytes are left out: they stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..contract import ShapeKey
from ..policies.pi05.config import GemmaConfig, Pi05Config


@dataclass(frozen=True)
class Ceiling:
    """What a GPU was measured to sustain.

    Attributes:
        flops: bf16 tensor-core arithmetic a second.
        bandwidth: bytes of device memory a second, reads and writes.
    """

    flops: float
    bandwidth: float


#: Measured on the GPU: a large bf16 product, and a device-to-device copy.
CEILINGS = {"NVIDIA H200": Ceiling(790e12, 4.3e12)}


@dataclass(frozen=True)
class _Product:
    rows: float
    columns: float
    depth: float
    weights: bool = True  # read from device memory; attention's operands are in the cache

    def milliseconds(self, ceiling: Ceiling) -> float:
        arithmetic = 2 * self.rows * self.columns * self.depth / ceiling.flops
        moved = self.columns * self.depth * 2 / ceiling.bandwidth if self.weights else 0.0
        return max(arithmetic, moved) * 1e3


def floor_ms(config: Pi05Config, shape: ShapeKey, ceiling: Ceiling) -> dict[str, float]:
    """Least milliseconds of vision, prefix and action, for bf16 weights."""
    image_rows = shape.views * config.view_tokens
    rows = image_rows + shape.prompt_tokens
    stages = {
        "vision": _vision(config, image_rows),
        "prefix": _prefix(config, rows),
        "action": _action(config, shape, rows),
    }
    return {
        name: sum(product.milliseconds(ceiling) for product in products)
        for name, products in stages.items()
    }


def _vision(config: Pi05Config, rows: int) -> Iterator[_Product]:
    vision, D = config.vision, config.vision.width
    yield _Product(rows, D, config.patch_dim)
    for _ in range(vision.depth):
        yield _Product(rows, 3 * D, D)
        yield _Product(rows, D, D)
        yield _Product(rows, vision.ffn, D)
        yield _Product(rows, D, vision.ffn)
        yield _Product(2 * rows, config.view_tokens, D, weights=False)
    yield _Product(rows, config.trunk.width, D)


def _prefix(config: Pi05Config, rows: int) -> Iterator[_Product]:
    for _ in range(config.trunk.depth - 1):
        yield from _layer(config.trunk, rows, rows)
    yield _Product(rows, 2 * config.trunk.head_dim, config.trunk.width)


def _action(config: Pi05Config, shape: ShapeKey, rows: int) -> Iterator[_Product]:
    for _ in range(shape.steps * config.expert.depth):
        yield from _layer(config.expert, shape.horizon, rows + shape.horizon)


def _layer(sizes: GemmaConfig, rows: int, keys: int) -> Iterator[_Product]:
    yield _Product(rows, sizes.q_width + 2 * sizes.head_dim, sizes.width)
    yield _Product(2 * rows, keys, sizes.q_width, weights=False)
    yield _Product(rows, sizes.width, sizes.q_width)
    yield _Product(rows, 2 * sizes.ffn, sizes.width)
    yield _Product(rows, sizes.width, sizes.ffn)
