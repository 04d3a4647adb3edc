"""How LingBot-VA is measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from torch import Tensor

from ...contract import ShapeKey
from ...tensors import TensorSource
from ..measures import Measures, Product
from .config import LingbotConfig
from .encoder_layout import convs, groups
from .pack import TIME_EMBEDDERS, tabulate
from .weights import NET

_TABLES = ("net.video_table", "net.video_last", "net.action_table", "net.action_last")


def _products(config: LingbotConfig, shape: ShapeKey) -> dict[str, Iterable[Product]]:
    """Of a decision with a full history."""
    video, action = config.video_tokens(shape.views), config.horizon
    return {
        "commit": (
            *_encoder(config, shape.views),
            *_pass(config, shape, 2 * video, "base"),
            *_pass(config, shape, 2 * action, "base"),
        ),
        "video": (
            *(p for _ in range(config.steps) for p in _pass(config, shape, 2 * video, "base")),
            *_pass(config, shape, 2 * video, "base"),
        ),
        "action": (
            *(p for _ in range(config.action_steps) for p in _pass(config, shape, action, "step")),
            *_pass(config, shape, 2 * action, "base"),
        ),
    }


def _encoder(config: LingbotConfig, views: int) -> Iterator[Product]:
    for group in groups(config, views):
        frames = 4 * config.frames
        for conv in convs(config):
            level = conv.halves
            left = frames >> max(0, level - 1)
            cells = group.views * left * group.height * group.width // 4**level
            out, *kernel, into = conv.shape
            if kernel[0] == 1:  # what halves pictures leaves a quarter of the cells
                cells //= 4
            yield Product(cells, out, prod(kernel) * into, "base")


def _pass(config: LingbotConfig, shape: ShapeKey, rows: int, weights: str) -> Iterator[Product]:
    """One pass; ``weights``: "base", or the group of sites whose weights it has."""
    net, D = config.net, config.net.width

    def site(part: str) -> str:
        return "base" if weights == "base" else f"{weights}.{part}"

    for _ in range(net.depth):
        yield Product(rows, 3 * D, D, site("qkv"))
        yield Product(2 * rows, config.capacity(shape.views), D)
        yield Product(rows, D, D, site("out"))
        yield Product(rows, D, D, site("text_q"))
        yield Product(2 * rows, shape.prompt_tokens, D)
        yield Product(rows, D, D, site("text_out"))
        yield Product(rows, net.ffn, D, site("fc1"))
        yield Product(rows, D, net.ffn, site("fc2"))


def _table_tensors(config: LingbotConfig) -> list[str]:
    layers = [
        f"{NET}{name}.{part}"
        for name in TIME_EMBEDDERS.values()
        for part in ("time_embedder.linear_1", "time_embedder.linear_2", "time_proj")
    ]
    blocks = [f"{NET}blocks.{block}.scale_shift_table" for block in range(config.net.depth)]
    whole = [f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")]
    return [*whole, *blocks, f"{NET}scale_shift_table"]


def _fill_tables(
    config: LingbotConfig, source: TensorSource, buffers: Mapping[str, Tensor]
) -> None:
    for stream in TIME_EMBEDDERS:
        tabulate(config, source, buffers, stream)


MEASURES = Measures(
    title="LingBot-VA",
    cases=((2, 64, 0),),
    capsule_case=(2, 64, 0),
    stages=("commit", "video", "action"),
    action_layers=lambda config, _: config.action_steps * config.net.depth,
    depths=lambda config: {"net": config.net.depth},
    products=_products,
    table_tensors=_table_tensors,
    tables=_TABLES,
    fill_tables=_fill_tables,
)
