"""Checkpoint tensors by name. Policies pack them into static buffers; nothing else reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from torch import Tensor


class TensorSource(Protocol):
    """Named tensors of one checkpoint."""

    digest: str  # part of the fingerprint

    def names(self) -> Iterable[str]:
        """All tensor names."""

    def get(self, name: str) -> Tensor:
        """The tensor called ``name``; WeightsError when missing."""
