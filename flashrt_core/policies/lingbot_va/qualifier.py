"""What the stages of LingBot-VA make of an episode's first decision, beside the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...tensors import TensorSource
from ..base import Product
from ..windows import image_input, views_of
from .config import SLOTS, LingbotConfig
from .layout import to_tokens
from .reference import Chunk, Reference

Array = np.ndarray[Any, Any]


class LingbotQualifier:
    """The reference on the same weights, asked for the stages' products.

    Args:
        config: sizes of the plan.
        source: its checkpoint; read unrounded, whatever the precision plan.
        place: where torch computes the reference.
    """

    def __init__(self, config: LingbotConfig, source: TensorSource, place: str = "cpu") -> None:
        self._config, self._source, self._place = config, source, place
        self._references: dict[int, Reference] = {}

    def actions(
        self, values: Mapping[str, Array], noise: Mapping[str, Array], turn: int = 0
    ) -> Array:
        """Decision ``turn`` of an episode on windows, those before in order: raw actions [H, A]
        float32.
        """
        return self._decide(values, noise, turn).actions.cpu().numpy()

    def products(
        self,
        read: Callable[[str], Array],
        values: Mapping[str, Array],
        noise: Mapping[str, Array],
        actions: Array,
    ) -> list[Product]:
        """Pairs of what was found and what the reference expects, in stage order.

        Args:
            read: buffer name -> its contents after the decision, an episode's first.
            values: the windows of the observation.
            noise: of the decision, by input.
            actions: [H, A], as the network gave them.
        """
        config = self._config
        chunk = self._decide(values, noise)
        first = to_tokens(chunk.latents[:, :1]).cpu().numpy()
        unused = [c for c in range(config.action_dim) if c not in config.channels]
        found = actions[config.frame_rows :].copy()
        found[:, unused] = 0.0
        expected = chunk.actions.cpu().numpy()[config.frame_rows :]
        video = to_tokens(chunk.latents).cpu().numpy()
        return [
            Product("commit", "first frame", read("first"), first),
            Product("video", "latents", read("net_video"), video),
            Product("decision", "actions", found, expected),
        ]

    def _decide(
        self, values: Mapping[str, Array], noise: Mapping[str, Array], turn: int = 0
    ) -> Chunk:
        count = self._config.pictures[min(turn, 2)]
        frames = [_pictures(values[image_input(slot)], count) for slot in views_of(values, SLOTS)]
        views = len(frames)
        if views not in self._references:
            self._references[views] = Reference(self._config, self._source, views, self._place)
        reference = self._references[views]
        if turn:
            return reference.decide(frames, noise, values["executed"])
        reference.restart()
        lengths = values["prompt_lengths"]
        rows = [text[1 : 1 + n] for text, n in zip(values["prompt_rows"], lengths, strict=True)]
        reference.set_prompt(rows[0], rows[1])
        return reference.decide(frames, noise)


def _pictures(window: Array, count: int) -> Array:
    """[.., H/2, W/2, 12] -> the first pictures of a window, [count, H, W, 3]."""
    cells = window.reshape(-1, *window.shape[-3:])[:count]
    _, h, w, _ = cells.shape
    made = cells.reshape(count, h, w, 3, 2, 2).transpose(0, 1, 5, 2, 4, 3)
    return np.ascontiguousarray(made).reshape(count, 2 * h, 2 * w, 3)
