"""What a policy expects of a checkpoint, and how it reads one: tensors by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that a checkpoint of a policy holds.

    Attributes:
        shape: its sizes.
        mean, std: normal distribution that a random stand-in is drawn from; the policy chooses
            them so that activations keep their size through the depth.
        used: False: the policy never reads it, so a checkpoint may lack it.
        aliases: other names that a checkpoint may have it under, preferred to its own: of two tied
            copies, the one that the official code reads.
        outliers: where a stand-in has outlier channels, some of this tensor's rows make them.
    """

    shape: tuple[int, ...]
    mean: float = 0.0
    std: float = 0.02
    used: bool = True
    aliases: tuple[str, ...] = ()
    outliers: bool = False


@dataclass(frozen=True)
class WeightsPart:
    """A file that holds a part of a checkpoint.

    Attributes:
        start: what the policy's names of its tensors begin with.
        file: a safetensors file, or the list of several.
        within: what their names in the file begin with instead.
        unread: beginnings of names in the file that nobody reads.
    """

    start: str
    file: Path
    within: str = ""
    unread: tuple[str, ...] = ()


class TensorSource(Protocol):
    """Named tensors of one checkpoint."""

    @property
    def digest(self) -> str:
        """Identity of the contents; part of the fingerprint."""
        ...

    def names(self) -> Iterable[str]:
        """All tensor names."""
        ...

    def get(self, name: str) -> Tensor:
        """The tensor called ``name``; WeightsError when missing."""
        ...
