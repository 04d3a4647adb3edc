"""The stages of π0.5 on the CPU device, without engine and session."""

from __future__ import annotations

from flashrt_core.policies.pi05 import POLICY, Pi05Config

from ..pipeline import Case, StagePipeline, draw_case, same_bits, spread, worst

__all__ = ["TWO", "VIEWS", "Case", "Pipeline", "make_case", "same_bits", "spread", "worst"]

VIEWS = POLICY.slots
TWO = VIEWS[:2]


def make_case(config: Pi05Config, views: tuple[str, ...], length: int, seed: int = 0) -> Case:
    """Random pixels, token ids and noise."""
    return draw_case(config, views, length, seed, lowest=4)


class Pipeline(StagePipeline):
    """Buffers, weights and captured stages of one configuration."""

    def __init__(
        self,
        config: Pi05Config,
        views: tuple[str, ...] = TWO,
        precision: str = "fp32",
        weights: str = "random:0",
    ) -> None:
        super().__init__(POLICY, config, views, precision, weights)
