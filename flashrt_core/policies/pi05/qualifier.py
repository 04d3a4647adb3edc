"""What the stages of π0.5 leave in their buffers, beside what the reference makes of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ...tensors import TensorSource
from ..base import Product
from .camera import decode_view
from .config import SLOTS, Pi05Config
from .contract import image_input
from .reference import Reference

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
        tokens = [int(token) for token in values["prompt_tokens"][:length]]
        images = {
            slot: decode_view(self._config, slot, values)
            for slot in SLOTS
            if image_input(slot) in values
        }
        expected = self._reference.decide(images, tokens, noise)
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
