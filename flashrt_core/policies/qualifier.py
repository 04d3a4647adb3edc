"""What qualifiers share: a policy's reference, asked for what stages leave in their buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from .base import Product

Array = np.ndarray[Any, Any]
Read = Callable[[str], Array]


class Context(Protocol):
    """What a reference makes of one observation.

    Attributes:
        text: [P, D] embedding rows of the prompt, perhaps with padding behind.
    """

    @property
    def text(self) -> Tensor: ...


C = TypeVar("C", bound=Context)


class ReferenceQualifier(ABC, Generic[C]):
    """The frame of a qualifier; a policy adds what it calls its context and how that is sampled.

    The context of the last observation is remembered, for further noises.
    """

    def __init__(self) -> None:
        self._last: tuple[dict[str, Array], C] | None = None

    @abstractmethod
    def _make_context(self, values: Mapping[str, Array], tokens: list[int]) -> C:
        """The reference's, of the windows of an observation and the tokens of its prompt."""

    @abstractmethod
    def _sample(self, context: C, noise: Array) -> Tensor:
        """Actions [H, A] of a context."""

    @abstractmethod
    def _sample_found(self, read: Read, context: C, noise: Array) -> Tensor:
        """Actions [H, A] of the context that lies in the buffers: the action stage's own error."""

    @abstractmethod
    def _contexts(self, read: Read, context: C) -> Iterable[Product]:
        """The products of the stages between prompt and action, in order."""

    def actions(self, values: Mapping[str, Array], noise: Array, turn: int = 0) -> Array:
        """The decision on windows of an observation: raw actions [H, A] float32."""
        return np.asarray(self._sample(self._context(values), noise).float().cpu())

    def products(
        self, read: Read, values: Mapping[str, Array], noise: Array, actions: Array
    ) -> list[Product]:
        """Pairs of what was found and what the reference expects, in stage order.

        Args:
            read: buffer name -> its contents after the decision.
            values: the windows of the observation.
            noise: [H, A], of the decision.
            actions: [H, A], as the network gave them.
        """
        length = int(values["prompt_length"][0])
        context = self._context(values)
        prompt, text = read("prompt_embedding")[:length], context.text[:length]
        alone = self._sample_found(read, context, noise)
        return [
            product("prompt", "embedding rows", prompt, text),
            *self._contexts(read, context),
            product("action", "actions from the found context", actions, alone),
            product("decision", "actions", actions, self._sample(context, noise)),
        ]

    def _context(self, values: Mapping[str, Array]) -> C:
        same = self._last is not None and all(
            np.array_equal(values[name], self._last[0][name]) for name in values
        )
        if self._last is None or not same:
            tokens = values["prompt_tokens"][: int(values["prompt_length"][0])]
            kept = {name: value.copy() for name, value in values.items()}
            self._last = kept, self._make_context(values, [int(token) for token in tokens])
        return self._last[1]


def product(stage: str, name: str, found: Array, expected: Tensor) -> Product:
    """A stage's product from [n, ..] of both, as rows."""
    rows = (len(found), -1)
    return Product(
        stage,
        name,
        np.ascontiguousarray(found).reshape(rows),
        expected.float().cpu().numpy().reshape(rows),
    )


def found_tensor(found: Array) -> Tensor:
    """What was read of a buffer, for a reference to go on with."""
    return torch.from_numpy(np.ascontiguousarray(found))
