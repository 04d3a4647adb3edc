"""What the slow references of policies share: how they read a checkpoint, formulas of any network.

Each writes its network down in its own file; nothing here knows one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..tensors import TensorSource

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ReferenceGuide:
    """What guides the sampler, both [H, A].

    Attributes:
        previous: numbers to guide towards.
        weight: how far, 0..1.
    """

    previous: Array
    weight: Array


class ReferenceNetwork:
    """A network on unpacked weights, which are kept once they were read, or some of them.

    On a GPU all are: 11 to 13 GB in float32, against drawing or reading them anew in each decision.
    The host may lack that memory, and there the arithmetic takes longer than the reading, so it
    keeps only what every step reads again.

    Args:
        source: checkpoint.
        dtype: torch.float32, or torch.float64.
        place: where torch computes.
        again: beginnings of the names that every step reads.
    """

    def __init__(
        self,
        source: TensorSource,
        dtype: torch.dtype,
        place: str | torch.device,
        again: tuple[str, ...],
    ) -> None:
        self.dtype = dtype
        self.place = torch.device(place)
        self._source = source
        self._again = again
        self._kept: dict[str, Tensor] = {}

    def get(self, name: str, slot: int | None = None) -> Tensor:
        """A tensor of the checkpoint, or its row ``slot``, of which a reference reads no other."""
        if name in self._kept:
            return self._kept[name]
        found = self._source.get(name)
        found = (found if slot is None else found[slot]).to(self.place).to(self.dtype)
        if self.place.type != "cpu" or name.startswith(self._again):
            self._kept[name] = found
        return found

    def tensor(self, values: Array) -> Tensor:
        """Numbers of the host where the reference computes."""
        return torch.from_numpy(np.array(values, order="C")).to(self.place, self.dtype)

    def norm(self, name: str, x: Tensor, eps: float) -> Tensor:
        """LayerNorm with gain and offset."""
        return standardise(x, eps) * self.get(f"{name}.weight") + self.get(f"{name}.bias")


def standardise(x: Tensor, eps: float) -> Tensor:
    """LayerNorm without gain and offset."""
    centred = x - x.mean(dim=-1, keepdim=True)
    return centred / torch.sqrt((centred**2).mean(dim=-1, keepdim=True) + eps)


def unit_rms(x: Tensor, eps: float) -> Tensor:
    """RMS norm without gain."""
    return x / torch.sqrt((x**2).mean(dim=-1, keepdim=True) + eps)


def gelu(x: Tensor) -> Tensor:
    """GELU, the form with tanh."""
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
