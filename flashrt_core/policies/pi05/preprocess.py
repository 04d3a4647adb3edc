"""Host side of π0.5: images to their windows, prompt and state to tokens, actions back.

Source: openpi's client and server transforms for π0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, OptionError
from ..base import Observation, ProcessorOptions, as_array
from ..normalisation import Statistics
from .camera import check_view, checked_image, encode_view
from .config import SLOTS, Pi05Config
from .deployment import Details, read_deployment
from .prompt import PromptEncoder, discretise
from .tokenizer import Tokenizer

Array = np.ndarray[Any, Any]

# Beyond it no action of a network lies, in its own units. What would is an action that never moved
# in the training data: its statistics hold no scale, and rounding alone would be such a number.
_FURTHEST = 10.0
_BLACK = np.zeros((1, 1, 3), np.uint8)  # in windows that no stage reads


class Pi05Processor:
    """Transforms between robot units and the windows of the contract.

    Stateless: what it keeps of the last prompts is their tokens, which depend on nothing else.

    Args:
        config: sizes.
        options: cameras in use, the robot's dimensions, statistics and tokenizer.

    Raises:
        OptionError: the options do not fit the policy, or a file they name cannot be used.
    """

    def __init__(self, config: Pi05Config, options: ProcessorOptions) -> None:
        self._config = config
        self.views = _ordered_views(options.views)
        self._known = frozenset(self.views)
        self._absent_views = options.absent_views
        self.state_dim = _in_range("state_dim", options.state_dim, 0, 256)
        self.action_dim = _in_range("action_dim", options.action_dim, 1, config.action_dim)
        if config.state_in_prompt and self.state_dim == 0:
            raise OptionError(
                "option 'state_dim'", expected="1 or more: the prompt holds it", got=0
            )
        deployment = options.deployment or read_deployment(None, options.norm_stats)
        details: Details = deployment.details
        tokenizer = Tokenizer(_tokenizer_path(options, details, deployment.origin))
        if tokenizer.vocab > config.vocab:
            raise OptionError(
                f"tokenizer {tokenizer.name!r}",
                expected=f"at most {config.vocab} pieces, rows of the embedding table",
                got=tokenizer.vocab,
            )
        numerics = config.numerics
        truncate = numerics.overlong_prompt == "truncate"
        self._padding: tuple[int, ...] = ()
        if numerics.state_text == "padded":
            self._padding = (*discretise(np.zeros(max(0, config.action_dim - self.state_dim))),)
        self._prompts = PromptEncoder(
            tokenizer,
            self.state_dim + len(self._padding) if config.state_in_prompt else None,
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
                expected=f"room for the state of {self.state_dim} numbers and an instruction",
                got=f"{config.max_prompt_tokens} tokens at most",
            ) from error
        # Most decisions have the prompt of the last one, and a robot at rest its state.
        self._text = lru_cache(maxsize=16)(self._encode_text)
        self._state_stats = None
        if config.state_in_prompt:
            own = _as_trained("state_dim", self.state_dim, deployment.state_dim, details.state)
            self._state_stats = own and replace(own, guarded=numerics.normalisation == "guarded")
        own = _as_trained("action_dim", self.action_dim, deployment.action_dim, details.actions)
        self._action_stats = own and replace(own, guarded=numerics.normalisation == "guarded")
        relative = options.delta_actions
        self.relative = self._mask(details.relative if relative is None else relative)
        self.identity: Mapping[str, str] = {
            "state": _normalised(self.state_dim, self._state_stats)
            if config.state_in_prompt
            else "not read",
            "actions": _normalised(self.action_dim, self._action_stats),
            "relative actions": ", ".join(map(str, self.relative)) or "none",
            "tokenizer": tokenizer.digest,
        }

    @property
    def encoding(self) -> Mapping[str, str]:
        """The parts of ``identity`` that :meth:`encode` depends on."""
        return {name: self.identity[name] for name in ("state", "tokenizer")}

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
        if not isinstance(observation.images, Mapping):
            raise InputError(
                "images",
                expected="a mapping of views to images",
                got=type(observation.images).__name__,
            )
        if not observation.images.keys() <= self._known:
            unknown = sorted(set(observation.images) - self._known, key=str)
            raise InputError(
                f"image {unknown[0]!r}", expected=f"one of the views {list(self.views)}"
            )
        present = self._present(observation.images)
        for window, view in zip_longest(self.views, present):
            image = _BLACK if view is None else checked_image(view, observation.images)
            values |= encode_view(self._config, window, image)
        state = self._checked_state(observation.state)
        if state is None or not self._config.state_in_prompt:
            bins = None
        else:
            normal = state if self._state_stats is None else self._state_stats.normalise(state)
            bins = (*discretise(normal), *self._padding)
        values["prompt_tokens"], values["prompt_length"] = self._text(prompt, bins)
        return values

    def check_windows(self, values: Mapping[str, Array]) -> None:
        """InputError when a camera's bytes and their description do not fit together."""
        for view in self.views:
            check_view(self._config, view, values)

    def prompt_tokens(self, values: Mapping[str, Array]) -> int:
        """Prompt rows that encoded ``values`` need."""
        return int(values["prompt_length"][0])

    def decode(self, actions: Array, state: Array | None) -> Array:
        """Raw actions [H, A] -> [H, action_dim] float32 in robot units; nothing is clipped.

        Args:
            actions: as the network gives them.
            state: [state_dim] of the observation; needed where actions are relative to it.

        Raises:
            InputError: actions of another shape, or no state where it is needed.
        """
        if actions.ndim != 2 or actions.shape[1] != self._config.action_dim:
            raise InputError(
                "raw actions",
                expected=f"[rows, {self._config.action_dim}]",
                got=list(actions.shape),
            )
        own = actions[:, : self.action_dim]
        if self._action_stats is not None:
            own = self._action_stats.restore(own)
        if self.relative:
            own = own.copy()
            own[:, list(self.relative)] += self._base(state).astype(own.dtype)
        return np.array(own, dtype=np.float32, order="C")

    def encode_actions(self, actions: Array, state: Array | None) -> Array:
        """Actions in robot units -> the raw ones that :meth:`decode` makes them of.

        Args:
            actions: [n, action_dim] float, finite.
            state: [state_dim] of the observation that the raw ones are to answer; needed where
                actions are relative to it.

        Returns:
            [n, A] float32. NaN in the padded columns, of which the robot knows nothing, and where
            the network could not say such an action (more than 10 in its units).

        Raises:
            InputError: actions of another shape, or no state where it is needed.
        """
        if actions.ndim != 2 or actions.shape[1] != self.action_dim:
            raise InputError(
                "actions", expected=f"[rows, {self.action_dim}]", got=list(actions.shape)
            )
        own = actions.astype(np.float64)
        if self.relative:
            own[:, list(self.relative)] -= self._base(state)
        if self._action_stats is not None:
            own = self._action_stats.invert(own)
        own[~(np.abs(own) <= _FURTHEST)] = np.nan
        raw = np.full((len(own), self._config.action_dim), np.nan, np.float32)
        raw[:, : self.action_dim] = own
        return raw

    def _base(self, state: Array | None) -> Array:
        """What is added to the relative actions."""
        base = self._checked_state(state)
        if base is None:
            raise InputError(
                "state", expected=f"{self.state_dim} numbers: actions add to it", got="none"
            )
        return base[list(self.relative)]

    def _present(self, images: Mapping[str, Any]) -> tuple[str, ...]:
        """The views that ``images`` has; all, for the check to name one, where too many lack."""
        present = tuple(view for view in self.views if view in images)
        return present if len(self.views) - len(present) <= self._absent_views else self.views

    def _encode_text(self, prompt: str, bins: tuple[int, ...] | None) -> tuple[Array, Array]:
        """Tokens in their window, zero behind the prompt, and how many there are."""
        ids = self._prompts.encode(prompt, bins)
        tokens = np.zeros(self._config.max_prompt_tokens, np.int32)
        tokens[: len(ids)] = ids
        length = np.array([len(ids)], np.int32)
        for value in (tokens, length):
            value.setflags(write=False)  # they are handed out again
        return tokens, length

    def _mask(self, relative: tuple[bool, ...]) -> tuple[int, ...]:
        """Indices of the action dimensions that are relative to the state."""
        indices = np.flatnonzero(np.asarray(relative, dtype=bool))
        dims = min(self.action_dim, self.state_dim)
        if len(relative) > self.action_dim or (indices.size and indices[-1] >= dims):
            raise OptionError(
                "option 'delta_actions'",
                expected=f"at most {self.action_dim} values, true only where the state of "
                f"{self.state_dim} numbers has one to add",
                got=list(relative),
            )
        return tuple(indices.tolist())

    def _checked_state(self, state: Array | None) -> Array | None:
        if state is None:
            if self._config.state_in_prompt:
                raise InputError("state", expected=f"{self.state_dim} numbers", got="none")
            return None
        values = as_array("state", state)
        if values.shape != (self.state_dim,) or values.dtype.kind not in "fiu":
            raise InputError(
                "state",
                expected=f"[{self.state_dim}] numbers",
                got=f"{list(values.shape)} {values.dtype}",
            )
        exact = values.astype(np.float64)
        for index, value in enumerate(exact.tolist()):
            if not isfinite(value):
                raise InputError(f"state[{index}]", expected="a finite number", got=value)
        return exact


def _normalised(dims: int, stats: Statistics | None) -> str:
    return f"{dims} numbers as they are" if stats is None else stats.identity


def _tokenizer_path(options: ProcessorOptions, details: Details, origin: str) -> Path | None:
    path = options.tokenizer or details.tokenizer
    if path is None and details.trained:
        raise OptionError(
            "option 'tokenizer'",
            expected="the path of PaliGemma's SentencePiece model",
            got=f"none, for an {origin} checkpoint",
            remedy="set it to paligemma_tokenizer.model of big_vision, or tokenizer.model of "
            "google/paligemma-3b-pt-224; the checkpoint's folder is looked into too",
        )
    return path


def _as_trained(
    name: str, dims: int, trained: int | None, stats: Statistics | None
) -> Statistics | None:
    """The statistics of the robot's dimensions; OptionError when the checkpoint knows others."""
    wrong = trained is not None and dims != trained
    if wrong or (stats is not None and stats.dims < dims):
        raise OptionError(
            f"option {name!r}",
            expected=f"{trained}, as the checkpoint was trained"
            if wrong
            else f"at most {stats.dims if stats else 0}, as {stats.source if stats else ''} has",
            got=dims,
        )
    return None if stats is None else stats.take(dims)


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
