"""What the stages of GR00T N1.7 leave in their buffers, beside what the reference makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...tensors import TensorSource
from ..base import Product
from ..windows import STATE, image_input
from .config import SLOTS, GrootConfig
from .reference import Reference, ReferenceContext

Array = np.ndarray[Any, Any]


class GrootQualifier:
    """The reference on the same weights, asked for the stages' products.

    Args:
        config: sizes and numerics of the plan.
        source: its checkpoint; read unrounded, whatever the precision plan.
        place: where torch computes the reference.
    """

    def __init__(self, config: GrootConfig, source: TensorSource, place: str = "cpu") -> None:
        self._config = config
        self._reference = Reference(config, source, place=place)
        self._last: tuple[dict[str, Array], ReferenceContext] | None = None

    def _context(self, values: Mapping[str, Array], length: int) -> ReferenceContext:
        """That of an observation; the last one is remembered, for further noises."""
        same = self._last is not None and all(
            np.array_equal(values[name], self._last[0][name]) for name in values
        )
        if self._last is None or not same:
            tokens = [int(token) for token in values["prompt_tokens"][:length]]
            images = [values[image_input(slot)] for slot in SLOTS if image_input(slot) in values]
            kept = {name: value.copy() for name, value in values.items()}
            self._last = kept, self._reference.context(images, tokens, values[STATE])
        return self._last[1]

    def actions(self, values: Mapping[str, Array], noise: Array) -> Array:
        """The decision on windows of an observation: raw actions [H, A] float32."""
        context = self._context(values, int(values["prompt_length"][0]))
        return np.asarray(self._reference.act(noise, context).float().cpu())

    def products(
        self,
        read: Callable[[str], Array],
        values: Mapping[str, Array],
        noise: Array,
        actions: Array,
    ) -> list[Product]:
        """Pairs of what was found and what the reference expects, in stage order.

        Args:
            read: buffer name -> its contents after the decision.
            values: the windows of the observation.
            noise: [H, A], of the decision.
            actions: [H, A], as the network gave them.
        """
        length = int(values["prompt_length"][0])
        context = self._context(values, length)
        text, images = context.rows[~context.images], context.rows[context.images]
        found = {"text": read("text_kv")[:length], "image": read("image_kv")}
        wanted = {
            kind: self._reference.keys_values(kind, rows)
            for kind, rows in (("text", text), ("image", images))
        }
        state = read("state_token")
        # The sampler on the context as it was found: the action stage's own error.
        alone = self._reference.act(
            noise,
            replace(context, state=self._reference.tensor(state)),
            found={kind: torch.from_numpy(np.ascontiguousarray(kv)) for kind, kv in found.items()},
        )
        expected = self._reference.act(noise, context)

        def product(stage: str, name: str, found: Array, wanted: torch.Tensor) -> Product:
            flat = (len(found), -1)
            return Product(
                stage,
                name,
                np.ascontiguousarray(found).reshape(flat),
                wanted.float().cpu().numpy().reshape(flat),
            )

        return [
            product("prompt", "embedding rows", read("prompt_embedding")[:length], context.text),
            product("vision", "image rows", read("image_embedding"), context.embedding),
            *(
                product("context", f"{kind} keys and values", kv, wanted[kind])
                for kind, kv in found.items()
            ),
            product("context", "state row", state, context.state),
            product("action", "actions from the found context", actions, alone),
            product("decision", "actions", actions, expected),
        ]
