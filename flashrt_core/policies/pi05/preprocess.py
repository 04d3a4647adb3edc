"""Host side of π0.5: images to the tower's square, prompt and state to tokens, actions back.

Source: openpi's client and server transforms for π0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image

from ...errors import InputError, OptionError
from ..base import Observation, ProcessorOptions
from .config import SLOTS, Pi05Config
from .contract import image_input
from .normalisation import read_norm_stats
from .prompt import PromptEncoder, discretise
from .tokenizer import Tokenizer

Array = np.ndarray[Any, Any]


def resize_with_pad(image: Array, size: int) -> Array:
    """[Y, X, 3] uint8 -> [size, size, 3] uint8: bilinear, aspect kept, centred on black.

    Pillow does the filtering: its bilinear averages over the source area when it shrinks, and the
    networks were trained on exactly that. An image of the right size passes unchanged.
    """
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return np.ascontiguousarray(image)
    ratio = max(height, width) / size
    inner = (max(1, int(width / ratio)), max(1, int(height / ratio)))
    small = np.asarray(Image.fromarray(image).resize(inner, Image.Resampling.BILINEAR))
    left, top = (size - inner[0]) // 2, (size - inner[1]) // 2
    out = np.zeros((size, size, 3), np.uint8)
    out[top : top + inner[1], left : left + inner[0]] = small
    return out


class Pi05Processor:
    """Transforms between robot units and the windows of the contract. Stateless.

    Args:
        config: sizes.
        options: cameras in use, the robot's dimensions, statistics and tokenizer.

    Raises:
        OptionError: the options do not fit the policy, or a file they name cannot be used.
    """

    def __init__(self, config: Pi05Config, options: ProcessorOptions) -> None:
        self._config = config
        self.views = _ordered_views(options.views)
        self.state_dim = _in_range("state_dim", options.state_dim, 0, 256)
        self.action_dim = _in_range("action_dim", options.action_dim, 1, config.action_dim)
        if config.state_in_prompt and self.state_dim == 0:
            raise OptionError(
                "option 'state_dim'", expected="1 or more: the prompt holds it", got=0
            )
        tokenizer = Tokenizer(options.tokenizer)
        if tokenizer.vocab > config.vocab:
            raise OptionError(
                f"tokenizer {tokenizer.name!r}",
                expected=f"at most {config.vocab} pieces, rows of the embedding table",
                got=tokenizer.vocab,
            )
        in_text = self.state_dim if config.state_in_prompt else None
        self._prompts = PromptEncoder(tokenizer, in_text, config.max_prompt_tokens)
        try:
            self._prompts.check("a")
        except InputError as error:
            raise OptionError(
                "option 'prompt_buckets'",
                expected=f"room for the state of {self.state_dim} numbers and an instruction",
                got=f"{config.max_prompt_tokens} tokens at most",
            ) from error
        stats = options.norm_stats
        self._state_stats = (
            None if stats is None or in_text is None else read_norm_stats(stats, "state", in_text)
        )
        self._action_stats = (
            None if stats is None else read_norm_stats(stats, "actions", self.action_dim)
        )

    def check_prompt(self, text: str) -> None:
        """InputError when ``text`` is empty or, with the longest state, exceeds the last bucket."""
        self._prompts.check(text)

    def encode(self, observation: Observation, prompt: str) -> dict[str, Array]:
        """Input name -> window value.

        Args:
            observation: an image for every view in use, and the state where the prompt holds it.
            prompt: the instruction.

        Returns:
            ``image.<view>`` [R, R, 3] uint8, ``prompt_tokens`` [P] and ``prompt_length`` [1] int32.

        Raises:
            InputError: a view is missing or unknown, an image, the state or the prompt is unusable.
        """
        values: dict[str, Array] = {}
        unknown = sorted(set(observation.images) - set(self.views))
        if unknown:
            raise InputError(
                f"image {unknown[0]!r}", expected=f"one of the views {list(self.views)}"
            )
        for view in self.views:
            image = _checked_image(view, observation.images)
            values[image_input(view)] = resize_with_pad(image, self._config.image_size)
        state = self._checked_state(observation.state)
        bins = None
        if self._config.state_in_prompt and state is not None:
            normal = state if self._state_stats is None else self._state_stats.normalise(state)
            bins = discretise(normal)
        ids = self._prompts.encode(prompt, bins)
        tokens = np.zeros(self._config.max_prompt_tokens, np.int32)
        tokens[: len(ids)] = ids
        values["prompt_tokens"] = tokens
        values["prompt_length"] = np.array([len(ids)], np.int32)
        return values

    def prompt_tokens(self, values: Mapping[str, Array]) -> int:
        """Prompt rows that encoded ``values`` need."""
        return int(values["prompt_length"][0])

    def decode(self, actions: Array, state: Array | None) -> Array:
        """Raw actions [H, A] -> [H, action_dim] float32 in robot units; nothing is clipped.

        ``state`` is for policies whose actions are relative to it; these are not.
        """
        if actions.ndim != 2 or actions.shape[1] != self._config.action_dim:
            raise InputError(
                "raw actions",
                expected=f"[rows, {self._config.action_dim}]",
                got=list(actions.shape),
            )
        own = actions[:, : self.action_dim]
        if self._action_stats is not None:
            own = self._action_stats.restore(own.astype(np.float64))
        return np.array(own, dtype=np.float32, order="C")

    def _checked_state(self, state: Array | None) -> Array | None:
        if state is None:
            if self._config.state_in_prompt:
                raise InputError("state", expected=f"{self.state_dim} numbers", got="none")
            return None
        values = np.asarray(state)
        if values.shape != (self.state_dim,) or values.dtype.kind not in "fiu":
            raise InputError(
                "state",
                expected=f"[{self.state_dim}] numbers",
                got=f"{list(values.shape)} {values.dtype}",
            )
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise InputError(
                f"state[{bad[0]}]", expected="a finite number", got=float(values[bad[0]])
            )
        return values.astype(np.float64)


def _ordered_views(views: tuple[str, ...]) -> tuple[str, ...]:
    known = tuple(slot for slot in SLOTS if slot in views)
    if not views or len(known) != len(views):
        raise OptionError(
            "option 'views'", expected=f"some of {list(SLOTS)}, each once", got=list(views)
        )
    return known


def _in_range(name: str, value: int, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise OptionError(
            f"option {name!r}", expected=f"a whole number in {low}..{high}", got=repr(value)
        )
    return value


def _checked_image(view: str, images: Mapping[str, Array]) -> Array:
    if view not in images:
        raise InputError(f"image {view!r}", expected="[Y, X, 3] uint8", got="none")
    image = np.asarray(images[view])
    fits = image.ndim == 3 and image.shape[2] == 3 and image.size > 0 and image.dtype == np.uint8
    if not fits:
        raise InputError(
            f"image {view!r}",
            expected="[Y, X, 3] uint8",
            got=f"{list(image.shape)} {image.dtype}",
        )
    return image
