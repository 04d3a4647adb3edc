"""The stages of GR00T N1.7 on the CPU device, without engine and session."""

from __future__ import annotations

from torch import Tensor

from flashrt_core.policies.groot_n17 import POLICY, GrootConfig
from flashrt_core.policies.groot_n17.layout import marks
from flashrt_core.policies.groot_n17.reference import Reference, ReferenceContext
from flashrt_core.tensors import TensorSource

from ..pipeline import Case, StagePipeline, draw_case

VIEWS = POLICY.slots
TWO = VIEWS[:2]


def make_case(config: GrootConfig, views: tuple[str, ...], words: int, seed: int = 0) -> Case:
    """Random pixels, token ids, state and noise; ``words`` behind the marks of the chat."""
    return draw_case(config, views, marks(config, len(views)) + words, seed)


def referred(case: Case, reference: Reference) -> tuple[ReferenceContext, Tensor]:
    """Context and actions that the reference makes of a case."""
    assert case.state is not None
    context = reference.context(list(case.images.values()), case.tokens, case.state)
    return context, reference.act(case.noise, context, case.guide)


class Pipeline(StagePipeline):
    """Buffers, weights and captured stages of one configuration."""

    def __init__(
        self,
        config: GrootConfig,
        views: tuple[str, ...] = TWO,
        precision: str = "fp32",
        weights: str | TensorSource = "random:0",
    ) -> None:
        super().__init__(POLICY, config, views, precision, weights)
