"""What the stages of π0.5 leave in their buffers, beside what the reference makes of the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from ...tensors import TensorSource
from ..base import Product
from ..qualifier import Array, Read, ReferenceQualifier, found_tensor, product
from ..windows import views_of
from .camera import decode_view
from .config import SLOTS, Pi05Config
from .reference import Reference, ReferenceContext


class Pi05Qualifier(ReferenceQualifier[ReferenceContext]):
    """The reference on the same weights, asked for the stages' products.

    Args:
        config: sizes and numerics of the plan.
        source: its checkpoint; read unrounded, whatever the precision plan.
        place: where torch computes the reference.
    """

    def __init__(self, config: Pi05Config, source: TensorSource, place: str = "cpu") -> None:
        super().__init__()
        self._config = config
        self._reference = Reference(config, source, place=place)

    def _make_context(self, values: Mapping[str, Array], tokens: list[int]) -> ReferenceContext:
        images = {slot: decode_view(self._config, slot, values) for slot in views_of(values, SLOTS)}
        return self._reference.context(images, tokens)

    def _sample(self, context: ReferenceContext, noise: Array) -> Tensor:
        return self._reference.finish(context, noise).actions

    def _sample_found(self, read: Read, context: ReferenceContext, noise: Array) -> Tensor:
        keys, values = map(found_tensor, _found(read, context))
        return self._reference.act(noise, keys, values, torch.ones(keys.shape[1], dtype=torch.bool))

    def _contexts(self, read: Read, context: ReferenceContext) -> Iterator[Product]:
        keys, values = _found(read, context)
        for name, found, expected in (
            ("keys", keys, context.keys),
            ("values", values, context.values),
        ):
            wanted = expected[:, context.valid].flatten(0, 1)
            yield product("context", name, found.reshape(wanted.shape), wanted)


def _found(read: Read, context: ReferenceContext) -> tuple[Array, Array]:
    """Keys and values of the prefix rows in use, both [L, rows, d]."""
    cache = read("kv")[:, :, : int(context.valid.sum())]
    return cache[:, 0], cache[:, 1]
