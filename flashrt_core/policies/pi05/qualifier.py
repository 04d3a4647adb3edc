"""What the stages of π0.5 leave in their buffers, beside what the reference makes of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ...tensors import TensorSource
from ..base import Product
from ..windows import image_input
from .camera import decode_view
from .config import SLOTS, Pi05Config
from .reference import Reference, ReferenceContext

Array = np.ndarray[Any, Any]


class Pi05Qualifier:
    """The reference on the same weights, asked for the stages' products.

    Args:
        config: sizes and numerics of the plan.
        source: its checkpoint; read unrounded, whatever the precision plan.
        place: where torch computes the reference.
    """

    def __init__(self, config: Pi05Config, source: TensorSource, place: str = "cpu") -> None:
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
            images = {
                slot: decode_view(self._config, slot, values)
                for slot in SLOTS
                if image_input(slot) in values
            }
            kept = {name: value.copy() for name, value in values.items()}
            self._last = kept, self._reference.context(images, tokens)
        return self._last[1]

    def actions(self, values: Mapping[str, Array], noise: Array) -> Array:
        """The decision on windows of an observation: raw actions [H, A] float32."""
        context = self._context(values, int(values["prompt_length"][0]))
        return np.asarray(self._reference.finish(context, noise).actions.float().cpu())

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
        expected = self._reference.finish(self._context(values, length), noise)
        rows = int(expected.valid.sum())
        cache = read("kv")[:, :, :rows]  # [L, 2, rows, d]
        keys, values_ = (torch.from_numpy(np.ascontiguousarray(cache[:, i])) for i in (0, 1))
        # The sampler on the context as it was found: the action stage's own error.
        alone = self._reference.act(noise, keys, values_, torch.ones(rows, dtype=torch.bool))

        def valid(tensor: torch.Tensor) -> Array:
            return tensor[:, expected.valid].flatten(0, 1).cpu().numpy()

        return [
            Product(
                "prompt",
                "embedding rows",
                read("prompt_embedding")[:length],
                expected.text[:length].cpu().numpy(),
            ),
            Product("context", "keys", keys.flatten(0, 1).numpy(), valid(expected.keys)),
            Product("context", "values", values_.flatten(0, 1).numpy(), valid(expected.values)),
            Product("action", "actions from the found context", actions, alone.cpu().numpy()),
            Product("decision", "actions", actions, expected.actions.cpu().numpy()),
        ]
