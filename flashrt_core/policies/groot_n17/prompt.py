"""The text that GR00T N1.7 reads: one turn of a user, the images first, then the instruction.

Source: Isaac-GR00T's processor (what it does to an instruction) and the chat template of Qwen3-VL.
"""

from __future__ import annotations

from ...errors import OptionError
from ..text import instruction, require_room
from .config import GrootConfig
from .tokenizer import Tokenizer


def clean(text: str) -> str:
    """Lower case, and nothing but letters, digits, underscores and white space."""
    return "".join(each for each in text.lower() if each.isalnum() or each.isspace() or each == "_")


class PromptEncoder:
    """Instruction to the token ids of the text rows; those of images are left out.

    Args:
        config: sizes; its ``lead`` is held against the tokenizer.
        tokenizer: text to ids.
        views: cameras in use.
        formal: whether the instruction is cleaned first, as in the training.

    Raises:
        OptionError: the tokenizer is not of the chat that the network was trained with.
    """

    def __init__(
        self, config: GrootConfig, tokenizer: Tokenizer, views: int, *, formal: bool = True
    ) -> None:
        self._limit, self._formal = config.max_prompt_tokens, formal
        self._tokenizer = tokenizer
        start, end = (tokenizer.special(f"<|im_{part}|>") for part in ("start", "end"))
        first, last = (tokenizer.special(f"<|vision_{part}|>") for part in ("start", "end"))
        lead = [start, *tokenizer.encode("user"), *tokenizer.encode("\n")]
        if len(lead) != config.lead:
            raise OptionError(
                f"tokenizer {tokenizer.name!r}",
                expected=f"{config.lead} tokens of the chat before the images",
                got=len(lead),
            )
        self._before = [*lead, *[first, last] * views]
        self._behind = [end, *tokenizer.encode("\n")]

    def check(self, text: str) -> None:
        """InputError when ``text`` is empty or too long."""
        self.encode(text)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of all text rows; InputError on an instruction that is empty or too long."""
        words = instruction(text, clean if self._formal else str)
        ids = (*self._before, *self._tokenizer.encode(words), *self._behind)
        chat = len(self._before) + len(self._behind)
        require_room(len(ids), self._limit, f" with the chat's {chat}")
        return ids
