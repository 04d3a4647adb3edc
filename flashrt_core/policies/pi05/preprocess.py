"""Host side of π0.5: images to their windows, prompt and state to tokens, actions back.

Source: openpi's client and server transforms for π0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import numpy as np

from ...errors import InputError, OptionError
from ...images import Frame
from ..base import Observation, Prepared, ProcessorOptions
from ..robot_side import (
    RobotSide,
    as_trained,
    checked_image,
    checked_images,
    in_range,
    normalised,
    ordered_views,
    prepared_values,
)
from ..sentencepieces import Tokenizer
from ..text import encoding_path, prompt_windows, require_rows
from .camera import check_view, encode_view
from .config import SLOTS, Pi05Config
from .deployment import Details, read_deployment
from .prompt import PromptEncoder, discretise

Array = np.ndarray[Any, Any]

#: The text encoding that trained weights need, and where it can be had.
_ENCODING = (
    "the path of PaliGemma's SentencePiece model",
    "set it to paligemma_tokenizer.model of big_vision, or tokenizer.model of "
    "google/paligemma-3b-pt-224",
)
_BLACK = np.zeros((1, 1, 3), np.uint8)  # in windows that no stage reads


class Pi05Processor(RobotSide):
    """Transforms between robot units and the windows of the contract.

    Stateless: what it keeps of the last prompts is their tokens, which depend on nothing else.

    Args:
        config: sizes.
        options: cameras in use, the robot's dimensions, statistics and tokenizer.

    Raises:
        OptionError: the options do not fit the policy, or a file they name cannot be used.
    """

    ENCODED = ("state", "tokenizer")

    def __init__(self, config: Pi05Config, options: ProcessorOptions) -> None:
        self._config = config
        self.views = ordered_views(options.views, SLOTS)
        self._absent_views = options.absent_views
        state_dim = in_range("state_dim", options.state_dim, 0, 256)
        action_dim = in_range("action_dim", options.action_dim, 1, config.action_dim)
        if config.state_in_prompt and state_dim == 0:
            raise OptionError(
                "option 'state_dim'", expected="1 or more: the prompt holds it", got=0
            )
        deployment = options.deployment or read_deployment(None, options.norm_stats)
        details: Details = deployment.details
        tokenizer = Tokenizer(encoding_path(options, details, deployment.origin, *_ENCODING))
        require_rows(tokenizer, config.vocab)
        numerics, truncate = config.numerics, config.numerics.overlong_prompt == "truncate"
        self._padding: tuple[int, ...] = ()
        if numerics.state_text == "padded":
            self._padding = (*discretise(np.zeros(max(0, config.action_dim - state_dim))),)
        self._prompts = PromptEncoder(
            tokenizer,
            state_dim + len(self._padding) if config.state_in_prompt else None,
            config.max_prompt_tokens,
            truncate=truncate,
            # Random weights were not trained with any length.
            trained=config.trained_tokens if truncate or details.trained else None,
        )
        try:
            self._prompts.check("a")
        except InputError as error:
            raise OptionError(
                "option 'prompt_buckets'",
                expected=f"room for the state of {state_dim} numbers and an instruction",
                got=f"{config.max_prompt_tokens} tokens at most",
            ) from error
        self._text = prompt_windows(self._prompts.encode, config.max_prompt_tokens)
        self._state_stats = None
        if config.state_in_prompt:
            own = as_trained("state_dim", state_dim, deployment.state_dim, details.state)
            self._state_stats = own and replace(own, guarded=numerics.normalisation == "guarded")
        own = as_trained("action_dim", action_dim, deployment.action_dim, details.actions)
        super().__init__(
            state_dim,
            action_dim,
            config.action_dim,
            own and replace(own, guarded=numerics.normalisation == "guarded"),
            details.relative if options.delta_actions is None else options.delta_actions,
            state_needed=config.state_in_prompt,
        )
        read = normalised(state_dim, self._state_stats)
        self.identity = {
            "state": read if config.state_in_prompt else "not read",
            **self.action_identity,
            "tokenizer": tokenizer.digest,
        }

    def check_prompt(self, text: str) -> None:
        """InputError when ``text`` is empty or, with the longest state, exceeds the last bucket."""
        self._prompts.check(text)

    def encode(self, observation: Observation, prompt: str) -> dict[str, Array]:
        """Input name -> window value.

        Args:
            observation: an image for every view in use, and the state where the prompt holds it.
                Of absent views nothing is computed, so that they cannot be attended to; images of
                the others take the first windows, as nothing in the network names a camera.
            prompt: the instruction.

        Returns:
            ``image.<view>`` [R, R, 3] uint8, or a camera's bytes and ``picture.<view>`` [16] int32,
            either perhaps the image itself; ``prompt_tokens`` [P] and ``prompt_length`` [1] int32,
            both read-only.

        Raises:
            InputError: a view is missing or unknown, an image, the state or the prompt is unusable.
        """
        values: dict[str, Array] = {}
        images = checked_images(observation, self.views)
        present = self._present(images)
        for window, view in zip_longest(self.views, present):
            made = prepared_values(window, None if view is None else images.get(view))
            if made is None:
                image = _BLACK if view is None else checked_image(view, images)
                made = encode_view(self._config, window, image)
            values |= made
        state = self.checked_state(observation.state)
        if state is None or not self._config.state_in_prompt:
            bins = None
        else:
            normal = state if self._state_stats is None else self._state_stats.normalise(state)
            bins = (*discretise(normal), *self._padding)
        values["prompt_tokens"], values["prompt_length"] = self._text(prompt, bins)
        return values

    def prepare(self, view: str, image: Array | Frame) -> Prepared:
        """Encode the image of one camera; InputError where it is unusable."""
        image = checked_image(view, {view: image})
        return Prepared(view, image, encode_view(self._config, view, image))

    def check_windows(self, values: Mapping[str, Array]) -> None:
        """InputError when a camera's bytes and their description do not fit together."""
        for view in self.views:
            check_view(self._config, view, values)

    def prompt_tokens(self, values: Mapping[str, Array]) -> int:
        """Prompt rows that encoded ``values`` need."""
        return int(values["prompt_length"][0])

    def _present(self, images: Mapping[str, Any]) -> tuple[str, ...]:
        """The views that ``images`` has; all, for the check to name one, where too many lack."""
        present = tuple(view for view in self.views if view in images)
        return present if len(self.views) - len(present) <= self._absent_views else self.views
