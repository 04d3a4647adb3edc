"""Host side of LingBot-VA: pictures to their windows, prompt to rows, actions and back.

Source: LeRobot's processor and policy for LingBot-VA, and the official server's transforms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import OptionError
from ...images import Frame
from ..base import Observation, Prepared, ProcessorOptions
from ..checkpoint_folder import check_cameras
from ..normalisation import Statistics
from ..robot_side import (
    RobotSide,
    as_trained,
    checked_image,
    checked_images,
    in_range,
    ordered_views,
)
from ..windows import image_input
from .config import SLOTS, LingbotConfig
from .deployment import Details, read_deployment
from .pictures import resized
from .text import PromptRows
from .text_source import prompt_rows

Array = np.ndarray[Any, Any]


class LingbotProcessor(RobotSide):
    """Transforms between robot units and the windows of the contract.

    Stateless: what it keeps of the last prompts is their rows, which depend on nothing else.

    Args:
        config: sizes.
        options: cameras in use, the robot's dimensions, statistics and tokenizer.

    Raises:
        OptionError: the options do not fit the policy, or a file they name cannot be used.
    """

    ENCODED = ("pictures", "text")

    def __init__(self, config: LingbotConfig, options: ProcessorOptions) -> None:
        self._config = config
        self.views = ordered_views(options.views, SLOTS)
        deployment = options.deployment or read_deployment(None, options.norm_stats)
        details: Details = deployment.details
        check_cameras(deployment.cameras, self.views, SLOTS, "the checkpoint's robot")
        statistics = _statistics(config, deployment.origin, details.actions)
        state_dim = in_range("state_dim", options.state_dim, 0, 256)
        most, used = len(config.channels), ",".join(map(str, config.channels))
        if options.action_dim > most:
            raise OptionError(
                "option 'action_dim'",
                expected=f"at most {most}, the columns of an action row in use (channels={used})",
                got=options.action_dim,
                remedy="name those that the robot was trained with: --set channels=0,1,2,..., in "
                'the node settings: ["channels=0,1,2,..."]',
            )
        action_dim = in_range("action_dim", options.action_dim, 1, most)
        if any(options.delta_actions or ()):
            raise OptionError(
                "option 'delta_actions'", expected="none: there is no state to add", got="some"
            )
        self._text: PromptRows = prompt_rows(config, options.tokenizer, details)
        own = as_trained("action_dim", action_dim, deployment.action_dim, statistics)
        super().__init__(state_dim, action_dim, len(config.channels), own, (), state_needed=False)
        self._columns = list(config.channels)
        self.identity = {
            **self.action_identity,
            "columns": ", ".join(map(str, config.channels)),
            "pictures": "bilinear",
            "text": self._text.digest,
        }

    def check_prompt(self, text: str) -> None:
        """InputError when ``text`` is empty or exceeds the last bucket."""
        self._text.check(text)

    def encode(self, observation: Observation, prompt: str) -> dict[str, Array]:
        """Input name -> window value; of pictures, one where the window takes several.

        Args:
            observation: an image for every view in use; the state is not read.
            prompt: the instruction.

        Returns:
            ``image.<view>`` [H/2, W/2, 12] float32; ``prompt_rows`` [2, P, width] float32 and
            ``prompt_lengths`` [2] int32, both read-only.

        Raises:
            InputError: a view is missing or unknown, an image or the prompt is unusable.
        """
        self.checked_state(observation.state)
        values = self.encode_pictures(checked_images(observation, self.views))
        values["prompt_rows"], values["prompt_lengths"] = self._text.windows(prompt)
        return values

    def encode_pictures(self, images: Mapping[str, Array | Frame | Prepared]) -> dict[str, Array]:
        """``image.<view>`` of every view; errors as those of :meth:`encode`."""
        images = checked_images(Observation(images), self.views)
        values = {}
        for index, view in enumerate(self.views):
            image = checked_image(view, images)
            pixels = image.rgb() if isinstance(image, Frame) else image
            values[image_input(view)] = squares(resized(pixels, *self._config.picture(index)))
        return values

    def check_windows(self, values: Mapping[str, Array]) -> None:
        """Nothing: no two windows say the same."""

    def prompt_tokens(self, values: Mapping[str, Array]) -> int:
        """Prompt rows that encoded ``values`` need, one for the padding."""
        return int(values["prompt_lengths"].max()) + 1

    def decode(self, actions: Array, state: Array | None) -> Array:
        """Raw actions [H, A] -> [H, action_dim] float32 in robot units."""
        return super().decode(actions[:, self._columns], state)

    def encode_actions(self, actions: Array, state: Array | None) -> Array:
        """The inverse of :meth:`decode`: [n, A] float32, NaN in columns of no robot."""
        own = super().encode_actions(actions, state)
        raw = np.full((len(own), self._config.action_dim), np.nan, np.float32)
        raw[:, self._columns] = own
        return raw


def _statistics(config: LingbotConfig, origin: str, found: Statistics | None) -> Statistics | None:
    """Those of the columns in use; OptionError where an official checkpoint lacks them, or where
    nothing says which columns they are of.
    """
    if found is None:
        if origin != "official":
            return None
        raise OptionError(
            "option 'norm_stats'",
            expected="statistics of the robot: the folder has none, and without them its actions "
            "would be the network's units",
            got="none",
            remedy="write q01 and q99 of the channels in use, from its training's norm_stat, "
            "into a file with norm_stats.actions.q01 and norm_stats.actions.q99",
        )
    used, width = len(config.channels), config.action_dim
    if found.dims <= used:
        return found
    if found.dims != width:
        raise OptionError(
            "option 'norm_stats'",
            expected=f"{used} numbers, one a channel in use, or {width}, one a column of an action "
            "row",
            got=f"{found.dims} in {found.source}",
        )
    return found.pick(config.channels)


def squares(picture: Array) -> Array:
    """[H, W, 3] -> [H/2, W/2, 12]: four pixels each, as channel, column, row."""
    height, width, _ = picture.shape
    cells = picture.reshape(height // 2, 2, width // 2, 2, 3).transpose(0, 2, 4, 3, 1)
    return np.ascontiguousarray(cells).reshape(height // 2, width // 2, 12)
