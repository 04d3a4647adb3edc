"""SentencePiece text encoding, from the small model that ships or from a file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import sentencepiece

from ..errors import OptionError
from .text import EncodingFile, require_unicode


class Tokenizer:
    """Text to token ids.

    Args:
        path: a SentencePiece model file; None for the one that ships (1024 pieces, byte fallback),
            which fits random weights only: a trained network knows its own tokenizer.

    Attributes:
        name: the file, or "tiny".
        digest: SHA-256 of the model.
        bos: id of the begin-of-text piece.

    Raises:
        OptionError: the file is missing, is no SentencePiece model, or has no begin-of-text piece.
    """

    def __init__(self, path: Path | None = None) -> None:
        shipped = files(f"{__package__}.pi05").joinpath("tiny_tokenizer.model")
        file = EncodingFile(path, shipped, "a SentencePiece model file")
        self.name = file.name
        model, self.digest = file.read()
        self._processor: Any = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            got = f"{self.name!r}, {len(model)} bytes that do not parse"
            raise file.unusable(got) from error
        self.bos = int(self._processor.bos_id())
        if self.bos < 0:
            raise OptionError(
                "option 'tokenizer'", expected="a model with a begin-of-text piece", got=self.name
            )

    @property
    def vocab(self) -> int:
        """Number of pieces; ids are below it."""
        return int(self._processor.vocab_size())

    def encode(self, text: str) -> list[int]:
        """Ids of ``text``, without begin or end; InputError when it is no valid Unicode."""
        require_unicode(text)
        return list(self._processor.EncodeAsIds(text))
