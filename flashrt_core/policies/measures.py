"""What measuring a policy needs to know of it beyond its contract: a policy's ``measures``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..contract import ShapeKey
from ..tensors import TensorSource


@dataclass(frozen=True)
class Product:
    """A dense product or a part of an attention, for the least time that it takes.

    Attributes:
        rows, columns, depth: of the product.
        site: whose format its weight has; none is attention: bf16, and its operands are in the
            cache. "base" is a weight of the plan's base.
    """

    rows: float
    columns: float
    depth: float
    site: str = ""


#: Views, prompt tokens and horizon, of each.
Shapes = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Measures:
    """How a policy is measured.

    Attributes:
        title: the policy's name where people read it.
        cases: views, prompt tokens and horizon of the shapes that are measured by default at the
            real sizes; horizon 0: what follows from others of them.
        capsule_case: that of the bench of capsules.
        stages: of a decision, in order.
        action_layers: configuration and steps of the sampler -> equal layers of the stage
            ``action``, those of all its steps.
        depths: configuration -> name of a part -> equal layers that follow each other in it, no
            two the same; by what a trace finds them.
        products: configuration and shape -> stage -> its products, for the roofline.
        table_tensors: configuration -> checkpoint tensors that ``fill_tables`` reads.
        tables: static buffers that ``fill_tables`` fills.
        fill_tables: what depends on the steps, from configuration, tensors and buffers.
        shaped: static buffers that hold other numbers for other shapes, so that a plan's cannot be
            taken over by another; ``fill_shaped`` fills them, from configuration and buffers.
    """

    title: str
    cases: Shapes
    capsule_case: tuple[int, int, int]
    stages: tuple[str, ...]
    action_layers: Callable[[Any, int], int]
    depths: Callable[[Any], Mapping[str, int]]
    products: Callable[[Any, ShapeKey], Mapping[str, Iterable[Product]]]
    table_tensors: Callable[[Any], list[str]]
    tables: tuple[str, ...]
    fill_tables: Callable[[Any, TensorSource, Mapping[str, Tensor]], None]
    shaped: tuple[str, ...] = ()
    fill_shaped: Callable[[Any, Mapping[str, Tensor]], None] = field(default=lambda *_: None)
