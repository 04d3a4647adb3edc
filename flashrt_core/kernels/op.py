"""What an op is: the maths by name, its reference, and (where built) its CUDA launcher.

Each ``kernels/<op>.py`` holds one op: an argument check, the torch reference that writes ``out`` in
place, the :class:`Op`, and the function that stages call with a lane. Devices decide how an op
runs; stages and kernels never ask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Op:
    """One piece of maths.

    Attributes:
        name: named for the maths, never for a model or a chip.
        reference: torch implementation; accumulates in float32, rounds once to ``out``'s dtype.
        launch: CUDA launcher with the same arguments behind a stream; None where there is none.
        operands: the weight and the input of its dense product, from the same arguments, as the
            product reads them; None where it holds none.
        low_bit: whether ``launch`` takes quantised arguments.
    """

    name: str
    reference: Callable[..., None]
    launch: Callable[..., None] | None = None
    operands: Callable[..., tuple[Any, Any]] | None = None
    low_bit: bool = False


class Lane(Protocol):
    """Where a stage body puts its work, in order."""

    def issue(self, op: Op, *args: Any, **kwargs: Any) -> None:
        """Append one op with its tensors and scalars."""
