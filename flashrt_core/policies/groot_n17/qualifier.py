"""What the stages of GR00T N1.7 leave in their buffers, beside what the reference makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torch import Tensor

from ...tensors import TensorSource
from ..base import Product
from ..qualifier import Array, Read, ReferenceQualifier, found_tensor, product
from ..windows import STATE, image_input, views_of
from .config import SLOTS, GrootConfig
from .reference import Reference, ReferenceContext


class GrootQualifier(ReferenceQualifier[ReferenceContext]):
    """The reference on the same weights, asked for the stages' products.

    Args:
        config: sizes and numerics of the plan.
        source: its checkpoint; read unrounded, whatever the precision plan.
        place: where torch computes the reference.
    """

    def __init__(self, config: GrootConfig, source: TensorSource, place: str = "cpu") -> None:
        super().__init__()
        self._reference = Reference(config, source, place=place)

    def _make_context(self, values: Mapping[str, Array], tokens: list[int]) -> ReferenceContext:
        images = [values[image_input(slot)] for slot in views_of(values, SLOTS)]
        return self._reference.context(images, tokens, values[STATE])

    def _sample(self, context: ReferenceContext, noise: Array) -> Tensor:
        return self._reference.act(noise, context)

    def _sample_found(self, read: Read, context: ReferenceContext, noise: Array) -> Tensor:
        found = {kind: found_tensor(kv) for kind, kv in _found(read, context).items()}
        state = self._reference.tensor(read("state_token"))
        return self._reference.act(noise, replace(context, state=state), found=found)

    def _contexts(self, read: Read, context: ReferenceContext) -> Iterator[Product]:
        yield product("vision", "image rows", read("image_embedding"), context.embedding)
        rows = {"text": context.rows[~context.images], "image": context.rows[context.images]}
        for kind, kv in _found(read, context).items():
            wanted = self._reference.keys_values(kind, rows[kind])
            yield product("context", f"{kind} keys and values", kv, wanted)
        yield product("context", "state row", read("state_token"), context.state)


def _found(read: Read, context: ReferenceContext) -> dict[str, Array]:
    """Keys and values by kind, of the rows in use."""
    return {"text": read("text_kv")[: len(context.text)], "image": read("image_kv")}
