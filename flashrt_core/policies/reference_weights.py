"""The tensors of a checkpoint as a slow reference reads them."""

from __future__ import annotations

import torch
from torch import Tensor

from ..tensors import TensorSource


class ReferenceWeights:
    """Tensors at the place and in the format of a reference; some are kept once they were read.

    On a GPU all are: 11 to 13 GB in float32, against drawing or reading them anew in each decision.
    The host may lack that memory, and there the arithmetic takes longer than the reading, so it
    keeps only what every step reads again.

    Args:
        source: checkpoint.
        dtype, place: what its tensors become.
        again: beginnings of the names that every step reads.
    """

    def __init__(
        self,
        source: TensorSource,
        dtype: torch.dtype,
        place: torch.device,
        again: tuple[str, ...],
    ) -> None:
        self._source = source
        self._dtype = dtype
        self._place = place
        self._again = again
        self._kept: dict[str, Tensor] = {}

    def get(self, name: str, slot: int | None = None) -> Tensor:
        """One tensor, or its row ``slot``, of which a reference reads no other."""
        if name in self._kept:
            return self._kept[name]
        found = self._source.get(name)
        found = (found if slot is None else found[slot]).to(self._place).to(self._dtype)
        if self._place.type != "cpu" or name.startswith(self._again):
            self._kept[name] = found
        return found
