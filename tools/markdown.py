"""Text and tables as the documents have them."""

from __future__ import annotations

import re
from collections.abc import Iterator


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A table, with a line break behind it."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def wrap(sentences: list[str]) -> str:
    """Words in lines of at most 104 characters; whatever stands between backticks stays whole."""
    lines, line = [], ""
    for word in _words(" ".join(sentences)):
        if line and len(line) + 1 + len(word) > 104:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line])


def _words(text: str) -> Iterator[str]:
    return (match[0] for match in re.finditer(r"(?:`[^`]*`|\S)+", text))
