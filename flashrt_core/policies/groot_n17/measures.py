"""How GR00T N1.7 is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from ...contract import ShapeKey
from ...tensors import TensorSource
from ..measures import Measures, Product
from .config import GrootConfig
from .pack import fill_rope
from .tables import MODEL, fill_modulation
from .weights import BLOCKS


def _products(config: GrootConfig, shape: ShapeKey) -> dict[str, Iterable[Product]]:
    return {
        "vision": _vision(config, shape.views),
        "context": _context(config, shape),
        "action": _action(config, shape),
    }


def _vision(config: GrootConfig, views: int) -> Iterator[Product]:
    vision, D, M, width = config.vision, config.vision.width, config.merged, config.text.width
    rows = views * config.view_patches
    yield Product(rows, D, config.patch_dim, "vision.patch")
    for _ in range(vision.depth):
        yield Product(rows, 3 * D, D, "vision.qkv")
        yield Product(2 * rows, config.view_patches, D)
        yield Product(rows, D, D, "vision.out")
        yield Product(rows, vision.ffn, D, "vision.fc1")
        yield Product(rows, D, vision.ffn, "vision.fc2")
    for group in ("merger", *["features"] * len(vision.features)):
        yield Product(views * config.view_tokens, M, M, f"{group}.fc1")
        yield Product(views * config.view_tokens, width, M, f"{group}.fc2")


def _context(config: GrootConfig, shape: ShapeKey) -> Iterator[Product]:
    text, adapter, head = config.text, config.adapter, config.head
    D, images = text.width, shape.views * config.view_tokens
    rows = images + shape.prompt_tokens
    for _ in range(text.depth):
        yield Product(rows, text.q_width + 2 * text.kv_width, D, "text.qkv")
        yield Product(rows, rows, text.q_width)  # a causal half of two products
        yield Product(rows, D, text.q_width, "text.out")
        yield Product(rows, 2 * text.ffn, D, "text.gate_up")
        yield Product(rows, D, text.ffn, "text.down")
    for _ in range(adapter.depth):
        yield Product(rows, 3 * D, D, "adapter.qkv")
        yield Product(2 * rows, rows, D)
        yield Product(rows, D, D, "adapter.out")
        yield Product(rows, adapter.ffn, D, "adapter.fc1")
        yield Product(rows, D, adapter.ffn, "adapter.fc2")
    columns = 2 * head.width
    yield Product(shape.prompt_tokens, head.text_blocks * columns, D, "head.text_kv")
    yield Product(images, head.image_blocks * columns, D, "head.image_kv")
    yield Product(1, head.width, head.hidden, "base")


def _action(config: GrootConfig, shape: ShapeKey) -> Iterator[Product]:
    head, W, rows = config.head, config.head.width, config.rows
    keys = (shape.prompt_tokens, rows, shape.views * config.view_tokens, rows)
    for _ in range(shape.steps):
        yield Product(shape.horizon, W, W, "base")
        for block in range(head.depth):
            wide, site = (3 * W, "head.qkv") if block % 2 else (W, "head.q")
            yield Product(rows, wide, W, site)
            yield Product(2 * rows, keys[block % 4], W)
            yield Product(rows, W, W, "head.out")
            yield Product(rows, head.ffn, W, "head.fc1")
            yield Product(rows, W, head.ffn, "head.fc2")
        yield Product(shape.horizon, head.hidden, W, "base")


def _table_tensors(config: GrootConfig) -> list[str]:
    time = f"{MODEL}timestep_encoder.timestep_embedder.linear_"
    layers = [f"{BLOCKS}{block}.norm1.linear" for block in range(config.head.depth)]
    layers += [f"{MODEL}proj_out_1", f"{time}1", f"{time}2"]
    return [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]


def _fill_tables(config: GrootConfig, source: TensorSource, buffers: Mapping[str, Tensor]) -> None:
    fill_modulation(config, source, buffers["head.modulation"])


MEASURES = Measures(
    title="GR00T N1.7",
    # Words of an instruction and the marks of the chat: about 28 tokens with two cameras.
    cases=((1, 32, 40), (2, 32, 40), (1, 64, 40), (2, 64, 40)),
    capsule_case=(2, 32, 40),
    stages=("vision", "context", "action"),
    action_layers=lambda config, steps: steps * config.head.depth,
    # Blocks of the head come in fours: to text, to themselves, to images, to themselves.
    depths=lambda config: {"text": config.text.depth, "head": config.head.depth // 4},
    products=_products,
    table_tensors=_table_tensors,
    tables=("head.modulation",),
    fill_tables=_fill_tables,
    shaped=("text.rope",),
    fill_shaped=fill_rope,
)
