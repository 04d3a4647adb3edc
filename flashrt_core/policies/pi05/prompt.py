"""The text that π0.5 reads: the instruction and, in most checkpoints, the robot's state as numbers.

Source: openpi's PaliGemma tokenizer wrapper; both of its formats are here.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import InputError
from ..sentencepieces import Tokenizer
from ..text import instruction

_LOG = logging.getLogger(__name__)

#: Left edges of the 256 bins over [-1, 1] that a normalised state value falls into.
BIN_EDGES: list[float] = np.linspace(-1.0, 1.0, 257)[:-1].tolist()


def discretise(state: np.ndarray[Any, Any]) -> list[int]:
    """Bin 0..255 of each normalised value; -1 below -1, and 255 for everything above the last edge.

    A value that sits on an edge belongs to the bin that starts there (0.0 -> 128).
    """
    return [bisect_right(BIN_EDGES, value) - 1 for value in state.tolist()]


def clean(text: str) -> str:
    """Outer whitespace off; underscores and newlines become spaces. Case stays as it is."""
    return text.strip().replace("_", " ").replace("\n", " ")


class PromptEncoder:
    """Instruction and state to token ids.

    Args:
        tokenizer: text to ids.
        state_dim: numbers of the state in the text; None for the format without state.
        limit: most tokens that fit, those of the largest captured bucket.
        truncate: cut a prompt of more tokens than the training had there, with one warning a text,
            as the official code does; else refuse it. What is cut first is the request for an
            action, then the state.
        trained: longest prompt of the training; None where that is the limit. A cut is here or
            nowhere: where the limit is lower, a prompt that exceeds it is refused.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        state_dim: int | None,
        limit: int,
        *,
        truncate: bool = False,
        trained: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._state_dim = state_dim
        self._limit = limit
        self._trained = limit if trained is None else trained
        self._truncate = truncate
        self._warned = ""

    def encode(self, text: str, bins: Sequence[int] | None) -> list[int]:
        """Token ids, begin-of-text first.

        Args:
            text: the instruction.
            bins: the discretised state; None in the format without state.

        Raises:
            InputError: the instruction is empty, or text and state need more than fits.
        """
        ids = self._ids(text, bins)
        self._check_length(len(ids))
        if len(ids) <= self._trained:
            return ids
        if text != self._warned:
            self._warned = text
            _LOG.warning(
                "prompt of %d tokens cut to %d, the longest of the training, as the official code "
                "does; the network does not see its end (%s): %.60r",
                len(ids),
                self._trained,
                "the last of the instruction"
                if bins is None
                else "the request for an action, before it the state",
                text,
            )
        return ids[: self._trained]

    def check(self, text: str) -> None:
        """InputError when ``text`` is empty, or too long with the longest text a state can have."""
        bins = None if self._state_dim is None else self._longest_state
        ids = self._ids(text, bins)
        room = "" if bins is None else f" with up to {self._state_tokens} for the robot's state"
        self._check_length(len(ids), room)

    def _check_length(self, count: int, room: str = "") -> None:
        """InputError where a prompt of ``count`` tokens, cut or not, does not fit."""
        most = min(self._limit, self._trained)
        if count <= most or (self._truncate and self._trained <= self._limit):
            return
        remedy = "shorten the text"
        if self._limit <= self._trained:
            remedy += " or configure a larger prompt bucket (prompt_buckets)"
        raise InputError(
            "prompt", expected=f"at most {most} tokens{room}", got=count, remedy=remedy
        )

    def _ids(self, text: str, bins: Sequence[int] | None) -> list[int]:
        words, encode = instruction(text, clean), self._tokenizer.encode
        if bins is None:
            # The newline that asks for the answer is encoded on its own, as the network saw it.
            return [self._tokenizer.bos, *encode(words), *encode("\n")]
        numbers = " ".join(map(str, bins))
        return [self._tokenizer.bos, *encode(f"Task: {words}, State: {numbers};\nAction: ")]

    @cached_property
    def _longest_state(self) -> list[int]:
        """The bins whose text takes the most tokens: no piece of a tokenizer spans two numbers, so
        each place can be judged alone; the last stands before a semicolon.
        """

        def longest(before: str, behind: str) -> int:
            encode = self._tokenizer.encode
            return max(range(-1, 256), key=lambda index: len(encode(f"{before}{index}{behind}")))

        count = self._state_dim or 0
        return [longest("0 ", " 0")] * (count - 1) + [longest("0 ", ";")]

    @property
    def _state_tokens(self) -> int:
        return len(self._tokenizer.encode("".join(f" {index}" for index in self._longest_state)))
