"""The time that no implementation of π0.5 can beat on a GPU: each product's arithmetic or bytes.

Products run one behind the other, so the floor is the sum over them of the larger of two times. The
activations' own bytes are left out: they stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..contract import ShapeKey
from ..policies.pi05.config import GemmaConfig, Pi05Config
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


@dataclass(frozen=True)
class _Product:
    rows: float
    columns: float
    depth: float
    site: str = ""  # none is attention: bf16, and its operands are in the cache

    def milliseconds(self, ceiling: Ceiling, precision: Precision) -> float:
        form = precision.sites[self.site] if self.site else None
        rate = ceiling.flops * (2 if form is Format.FP8 else 1)
        arithmetic = 2 * self.rows * self.columns * self.depth / rate
        width = 0 if form is None else 1 if form in LOW_BIT else 2
        moved = self.columns * self.depth * width / ceiling.bandwidth
        return max(arithmetic, moved) * 1e3


def floor_ms(
    config: Pi05Config, shape: ShapeKey, ceiling: Ceiling, precision: Precision
) -> dict[str, float]:
    """Least milliseconds of vision, prefix and action in a plan of 16 bits or less."""
    image_rows = shape.views * config.view_tokens
    rows = image_rows + shape.prompt_tokens
    stages = {
        "vision": _vision(config, image_rows),
        "prefix": _prefix(config, rows),
        "action": _action(config, shape, rows),
    }
    return {
        name: sum(product.milliseconds(ceiling, precision) for product in products)
        for name, products in stages.items()
    }


def _vision(config: Pi05Config, rows: int) -> Iterator[_Product]:
    vision, D = config.vision, config.vision.width
    yield _Product(rows, D, config.patch_dim, "vision.patch")
    for _ in range(vision.depth):
        yield _Product(rows, 3 * D, D, "vision.qkv")
        yield _Product(rows, D, D, "vision.out")
        yield _Product(rows, vision.ffn, D, "vision.fc1")
        yield _Product(rows, D, vision.ffn, "vision.fc2")
        yield _Product(2 * rows, config.view_tokens, D)
    yield _Product(rows, config.trunk.width, D, "projector")


def _prefix(config: Pi05Config, rows: int) -> Iterator[_Product]:
    for _ in range(config.trunk.depth - 1):
        yield from _layer("prefix", config.trunk, rows, rows)
    columns = 2 * config.trunk.head_dim
    yield _Product(rows, columns, config.trunk.width, "prefix.last_kv")


def _action(config: Pi05Config, shape: ShapeKey, rows: int) -> Iterator[_Product]:
    for _ in range(shape.steps * config.expert.depth):
        yield from _layer("expert", config.expert, shape.horizon, rows + shape.horizon)


def _layer(stack: str, sizes: GemmaConfig, rows: int, keys: int) -> Iterator[_Product]:
    columns = sizes.q_width + 2 * sizes.head_dim
    yield _Product(rows, columns, sizes.width, f"{stack}.qkv")
    yield _Product(2 * rows, keys, sizes.q_width)
    yield _Product(rows, sizes.width, sizes.q_width, f"{stack}.out")
    yield _Product(rows, 2 * sizes.ffn, sizes.width, f"{stack}.gate_up")
    yield _Product(rows, sizes.width, sizes.ffn, f"{stack}.down")
