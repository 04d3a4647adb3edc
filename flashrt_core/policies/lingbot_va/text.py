"""An instruction's rows on the host: text to tokens to rows, once a prompt.

The rows come from the checkpoint's text encoder. Random weights have none: their rows are a fixed
function of the token ids, of the size that a trained encoder's have.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, Protocol

import numpy as np

from ..text import instruction, read_only, require_room
from .config import LingbotConfig

Array = np.ndarray[Any, Any]
#: Tokens of a text, the end of text last.
Encode = Callable[[str], list[int]]


class Rows(Protocol):
    """Token ids -> rows [n, width] float32."""

    digest: str

    def encode(self, ids: Sequence[int]) -> Array: ...


class StandIn:
    """Rows of random weights: each token's own, and a little of all before it."""

    digest = "stand-in"

    def __init__(self, width: int) -> None:
        self._width = width

    def encode(self, ids: Sequence[int]) -> Array:
        """[n, width] float32, standard normal."""
        rows = np.stack([self._row(token) for token in ids])
        mean = np.cumsum(rows, axis=0) / np.sqrt(np.arange(1, len(ids) + 1))[:, None]
        return ((rows + 0.5 * mean) / 1.5).astype(np.float32)

    def _row(self, token: int) -> Array:
        draw = np.random.Generator(np.random.Philox(key=token))
        return draw.standard_normal(self._width, dtype=np.float32)


class PromptRows:
    """The windows of a prompt.

    Args:
        config: sizes.
        encode: text to token ids.
        rows: token ids to rows.
    """

    def __init__(self, config: LingbotConfig, encode: Encode, rows: Rows) -> None:
        self._config, self._encode, self._rows = config, encode, rows
        self._made = lru_cache(maxsize=16)(self._make)
        self._empty = rows.encode(encode(""))

    @property
    def digest(self) -> str:
        """Of the rows of the empty text, and what makes them."""
        return sha256(self._empty.tobytes() + self._rows.digest.encode()).hexdigest()

    def check(self, text: str) -> None:
        """InputError when ``text`` is empty or too long for the largest bucket."""
        self._ids(text)

    def windows(self, text: str) -> tuple[Array, Array]:
        """``prompt_rows`` [2, P, width] float32 and ``prompt_lengths`` [2] int32, read-only."""
        return self._made(text)

    def _ids(self, text: str) -> list[int]:
        ids = self._encode(instruction(text, clean))
        require_room(len(ids), self._config.max_prompt_tokens - 1)
        return ids

    def _make(self, text: str) -> tuple[Array, Array]:
        config = self._config
        texts = (self._rows.encode(self._ids(text)), self._empty)
        rows = np.zeros((2, config.max_prompt_tokens, config.net.text), np.float32)
        for index, each in enumerate(texts):
            rows[index, 1 : 1 + len(each)] = each
        rows, lengths = read_only(rows, np.array([len(each) for each in texts], np.int32))
        return rows, lengths


def clean(text: str) -> str:
    """As the official code cleans it: entities resolved, white space to single spaces."""
    return re.sub(r"\s+", " ", html.unescape(html.unescape(text))).strip()
