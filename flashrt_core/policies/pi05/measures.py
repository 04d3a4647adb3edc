"""How π0.5 is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from torch import Tensor

from ...contract import ShapeKey
from ...tensors import TensorSource
from ..measures import Measures, Product
from .config import GemmaConfig, Pi05Config
from .schedule import fill_modulation, norm_names


def _products(config: Pi05Config, shape: ShapeKey) -> dict[str, Iterable[Product]]:
    image_rows = shape.views * config.view_tokens
    rows = image_rows + shape.prompt_tokens
    return {
        "vision": _vision(config, image_rows),
        "prefix": _prefix(config, rows),
        "action": _action(config, shape, rows),
    }


def _vision(config: Pi05Config, rows: int) -> Iterator[Product]:
    vision, D = config.vision, config.vision.width
    yield Product(rows, D, config.patch_dim, "vision.patch")
    for _ in range(vision.depth):
        yield Product(rows, 3 * D, D, "vision.qkv")
        yield Product(rows, D, D, "vision.out")
        yield Product(rows, vision.ffn, D, "vision.fc1")
        yield Product(rows, D, vision.ffn, "vision.fc2")
        yield Product(2 * rows, config.view_tokens, D)
    yield Product(rows, config.trunk.width, D, "projector")


def _prefix(config: Pi05Config, rows: int) -> Iterator[Product]:
    for _ in range(config.trunk.depth - 1):
        yield from _layer("prefix", config.trunk, rows, rows)
    columns = 2 * config.trunk.head_dim
    yield Product(rows, columns, config.trunk.width, "prefix.last_kv")


def _action(config: Pi05Config, shape: ShapeKey, rows: int) -> Iterator[Product]:
    for _ in range(shape.steps * config.expert.depth):
        yield from _layer("expert", config.expert, shape.horizon, rows + shape.horizon)


def _layer(stack: str, sizes: GemmaConfig, rows: int, keys: int) -> Iterator[Product]:
    columns = sizes.q_width + 2 * sizes.head_dim
    yield Product(rows, columns, sizes.width, f"{stack}.qkv")
    yield Product(2 * rows, keys, sizes.q_width)
    yield Product(rows, sizes.width, sizes.q_width, f"{stack}.out")
    yield Product(rows, 2 * sizes.ffn, sizes.width, f"{stack}.gate_up")
    yield Product(rows, sizes.width, sizes.ffn, f"{stack}.down")


def _table_tensors(config: Pi05Config) -> list[str]:
    layers = [*(f"{name}.dense" for name in norm_names(config)), "time_mlp_in", "time_mlp_out"]
    return [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


def _fill_tables(config: Pi05Config, source: TensorSource, buffers: Mapping[str, Tensor]) -> None:
    fill_modulation(config, source, buffers["expert.modulation"])


MEASURES = Measures(
    title="π0.5",
    cases=tuple(product((1, 2, 3), (48, 200), (10, 50))),
    capsule_case=(2, 48, 10),
    stages=("context", "action"),
    action_layers=lambda config, steps: steps * config.expert.depth,
    # The last layer of the prefix makes keys and values only.
    depths=lambda config: {"prefix": config.trunk.depth - 1, "expert": config.expert.depth},
    products=_products,
    table_tensors=_table_tensors,
    tables=("expert.modulation",),
    fill_tables=_fill_tables,
)
