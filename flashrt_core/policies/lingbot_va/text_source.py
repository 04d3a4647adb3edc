"""Which tokenizer and text encoder a deployment has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...checkpoint import PartedWeights
from ...errors import OptionError
from ...tensors import WeightsPart
from ..sentencepieces import Tokenizer
from ..text import require_rows
from .config import LingbotConfig
from .deployment import Details
from .text import PromptRows, Rows, StandIn
from .text_encoder import ROOT, TextEncoder, tensors

Array = np.ndarray[Any, Any]
_END = 1  # id of the end of text, in UMT5's vocabulary


class EncodedRows:
    """Rows of the checkpoint's text encoder; its weights are read when a prompt is set."""

    def __init__(self, config: LingbotConfig, file: Path) -> None:
        self._source = PartedWeights([WeightsPart(ROOT, file)], tensors(config))
        self._encoder = TextEncoder(config, self._source)
        self.digest = self._source.digest

    def encode(self, ids: Sequence[int]) -> Array:
        """[n, width] float32, each number rounded to bfloat16 as the official encoder gives it."""
        with torch.inference_mode():
            return self._encoder.encode(ids).bfloat16().float().numpy()


def prompt_rows(config: LingbotConfig, tokenizer: Path | None, details: Details) -> PromptRows:
    """The text side of a deployment; OptionError where a trained network lacks a part of it."""
    path = tokenizer or details.tokenizer
    if details.trained and path is None:
        raise OptionError(
            "option 'tokenizer'",
            expected="spiece.model in the folder tokenizer beside the weights",
            got="none",
            remedy="copy the folder tokenizer of robbyant/lingbot-va-base into the checkpoint's, "
            "or set it to a spiece.model of UMT5",
        )
    if details.trained and details.text_encoder is None:
        # Of no option: what a prompt means to this network is in that folder alone.
        raise OptionError(
            "option 'checkpoint'",
            expected="the folder text_encoder beside the weights, which makes rows of a prompt",
            got="none",
            remedy="copy the folder text_encoder of robbyant/lingbot-va-base into the checkpoint's",
        )
    pieces = Tokenizer(path)
    end = [_END if details.trained else pieces.bos]
    made: Rows = StandIn(config.net.text)
    if details.text_encoder is not None:
        require_rows(pieces, config.text.vocab)
        made = EncodedRows(config, details.text_encoder)
    return PromptRows(config, lambda text: [*pieces.encode(text), *end], made)
