"""Sizes that transformers of several policies have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transformer:
    """A pre-norm transformer whose heads fill its width.

    Attributes:
        width: D of its rows; ``heads`` divides it.
        depth: layers.
        heads: attention heads.
        ffn: hidden width of the feed-forward block.
    """

    width: int
    depth: int
    heads: int
    ffn: int

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.width // self.heads
