"""Host side of GR00T N1.7: images to squares, state to its row, prompt to tokens, actions back.

Source: Isaac-GR00T's and LeRobot's processors for GR00T N1.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import InputError, OptionError
from ...images import Frame
from ..base import Deployment, Observation, Prepared, ProcessorOptions
from ..checkpoint_folder import check_cameras
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
from ..text import encoding_path, prompt_windows, require_rows
from ..windows import STATE, image_input
from .config import SLOTS, GrootConfig
from .deployment import Details, read_deployment
from .embodiment import Embodiment
from .images import Framing, Shown
from .prompt import PromptEncoder
from .tokenizer import Tokenizer

Array = np.ndarray[Any, Any]

#: The text encoding that trained weights need, and where it can be had.
_ENCODING = (
    "the path of the text encoding of Cosmos-Reason2 (Qwen3-VL)",
    "set it to tokenizer.json of nvidia/Cosmos-Reason2-2B",
)


class GrootProcessor(RobotSide):
    """Transforms between robot units and the windows of the contract.

    Stateless: what it keeps of the last prompts is their tokens, which depend on nothing else.

    Args:
        config: sizes.
        options: cameras in use, the robot's dimensions, statistics and tokenizer.

    Raises:
        OptionError: the options do not fit the policy, or a file they name cannot be used.
    """

    ENCODED = ("state", "embodiment", "images", "instruction", "tokenizer")

    def __init__(self, config: GrootConfig, options: ProcessorOptions) -> None:
        self._config = config
        self.views = ordered_views(options.views, SLOTS)
        deployment = options.deployment or read_deployment(None, options.norm_stats)
        details: Details = deployment.details
        state_dim = in_range("state_dim", options.state_dim, 1, config.state_width)
        action_dim = in_range("action_dim", options.action_dim, 1, config.action_dim)
        tokenizer = Tokenizer(encoding_path(options, details, deployment.origin, *_ENCODING))
        require_rows(tokenizer, config.vocab)
        formal = details.formal
        self._prompts = PromptEncoder(config, tokenizer, len(self.views), formal=formal)
        self._text = prompt_windows(self._prompts.encode, config.max_prompt_tokens)
        # The deployment's are those of the robot that is in use by default.
        own = _embodiment(config, deployment)
        check_cameras(own.cameras, self.views, SLOTS, f"the checkpoint's robot {own.name!r}")
        state_trained, action_trained = (
            None if each is None else each.dims for each in (own.state, own.actions)
        )
        self._states = as_trained("state_dim", state_dim, state_trained, own.state)
        actions = as_trained("action_dim", action_dim, action_trained, own.actions)
        relative, bases = own.relative[:action_dim], own.bases[: sum(own.relative[:action_dim])]
        given = options.delta_actions
        super().__init__(
            state_dim,
            action_dim,
            config.action_dim,
            actions,
            relative if given is None else given,
            bases=bases if given is None and relative else None,
            state_needed=True,
        )
        self._rows = own.rows
        size = config.image_size
        shown = details.shown or Shown(size, size, config.crop / 1000, boxed=False)
        self._framing = Framing(
            size, shown.edge, shown.fraction, shown.boxed, config.numerics.image_resize
        )
        self.square = self._framing.square
        self.identity = {
            "state": normalised(state_dim, self._states),
            **self.action_identity,
            "rows": str(own.rows or config.horizon),
            "embodiment": str(config.embodiment),
            "images": self._framing.identity,
            "instruction": "cleaned" if formal else "as it is",
            "tokenizer": tokenizer.digest,
        }

    def check_prompt(self, text: str) -> None:
        """InputError when ``text`` is empty or exceeds the last bucket."""
        self._prompts.check(text)

    def encode(self, observation: Observation, prompt: str) -> dict[str, Array]:
        """Input name -> window value.

        Args:
            observation: an image for every view in use, and the state.
            prompt: the instruction.

        Returns:
            ``image.<view>`` [R, R, 3] uint8, ``state`` [1, state width] float32; ``prompt_tokens``
            [P] and ``prompt_length`` [1] int32, both read-only.

        Raises:
            InputError: a view is missing or unknown, an image, the state or the prompt is unusable.
        """
        values: dict[str, Array] = {}
        images = checked_images(observation, self.views)
        for view in self.views:
            made = prepared_values(view, images.get(view))
            if made is None:
                made = {image_input(view): self._square(view, checked_image(view, images))}
            values |= made
        state = self.checked_state(observation.state)
        window = np.zeros((1, self._config.state_width), np.float32)
        if state is not None:  # it is needed, so it is there
            own = state if self._states is None else self._states.normalise(state)
            window[0, : self.state_dim] = own
        values[STATE] = window
        values["prompt_tokens"], values["prompt_length"] = self._text(prompt)
        return values

    def prepare(self, view: str, image: Array | Frame) -> Prepared:
        """Encode the image of one camera; InputError where it is unusable."""
        image = checked_image(view, {view: image})
        return Prepared(view, image, {image_input(view): self._square(view, image)})

    def check_windows(self, values: Mapping[str, Array]) -> None:
        """Nothing: no two windows say the same."""

    def prompt_tokens(self, values: Mapping[str, Array]) -> int:
        """Text rows that encoded ``values`` need."""
        return int(values["prompt_length"][0])

    def decode(self, actions: Array, state: Array | None) -> Array:
        """Raw actions [H, A] -> [rows, action_dim] float32 in robot units.

        Of the horizon, those rows that the checkpoint was trained for this robot. Errors as those
        of :class:`RobotSide`.
        """
        return super().decode(actions, state)[: self._rows]

    def _square(self, view: str, image: Array | Frame) -> Array:
        try:
            return self._framing(image.rgb() if isinstance(image, Frame) else image)
        except InputError as error:
            what = f"image {view!r}"
            raise InputError(
                what, expected=error.expected, got=error.got, remedy=error.remedy
            ) from error


def _embodiment(config: GrootConfig, deployment: Deployment) -> Embodiment:
    """What is known of the slot in use; OptionError where that is nothing, or several robots."""
    details: Details = deployment.details
    if not details.embodiments:
        return Embodiment("", config.embodiment)
    slot = config.embodiment
    found = [each for each in details.embodiments.values() if each.slot == slot]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{each.slot} ({name})" for name, each in details.embodiments.items())
    silent = [name for name, own in details.silent.items() if own == slot]
    if found:
        got = f"{slot}, which {' and '.join(each.name for each in found)} share"
    elif silent:
        got = f"{slot} ({', '.join(silent)}), with no statistics for {', '.join(silent)}"
    else:
        got = f"{slot}, which no robot has"
    raise OptionError(
        "option 'embodiment'",
        expected=f"the slot of a robot that the checkpoint knows: {known}",
        got=got,
        remedy="give the statistics.json that its training wrote as norm_stats" if silent else None,
    )
