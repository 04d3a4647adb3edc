"""LingBot-VA: streaming video encoder, and one transformer that denoises video and actions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...contract import Contract, ShapeKey
from ...precision import Precision
from ...weights import TensorSource, TensorSpec
from ..base import Deployment, Policy, ProcessorOptions
from ..plan_buffers import bucket_shapes
from .config import PRESETS, SLOTS, LingbotConfig, make_config
from .contract import make_contract
from .deployment import read_deployment
from .measures import MEASURES
from .pack import pack
from .preprocess import LingbotProcessor
from .qualifier import LingbotQualifier
from .sites import SITES, make_precision
from .stages import Body, make_body
from .weights import tensors

__all__ = ["POLICY", "LingbotConfig", "LingbotPolicy"]


class LingbotPolicy:
    """What the engine and the loader ask of LingBot-VA; see ``Policy`` in ``policies/base.py``."""

    name = "lingbot_va"
    presets = tuple(sorted(PRESETS))
    slots = SLOTS
    masks_views = False
    continues_chunks = False
    looks_back = True
    sites = SITES
    measures = MEASURES

    def deployment(self, checkpoint: Path | None, norm_stats: Path | None) -> Deployment:
        """What an official or LeRobot checkpoint says beside its weights."""
        return read_deployment(checkpoint, norm_stats)

    def config(self, preset: str, **overrides: Any) -> LingbotConfig:
        """Sizes of a preset with single values replaced; OptionError on anything unknown."""
        return make_config(preset, **overrides)

    def of_activations(self, config: LingbotConfig) -> LingbotConfig:
        """The same: every part of it changes activations."""
        return config

    def precision(self, value: str | Path) -> Precision:
        """The plan of a name or a YAML file; OptionError otherwise."""
        return make_precision(value)

    def shapes(self, config: LingbotConfig, views: int) -> tuple[ShapeKey, ...]:
        """One shape a prompt bucket."""
        return bucket_shapes(config, views)

    def contract(
        self,
        config: LingbotConfig,
        shapes: tuple[ShapeKey, ...],
        views: tuple[str, ...],
        precision: str | Precision,
    ) -> Contract:
        """The execution contract; OptionError on an unknown precision plan."""
        return make_contract(config, shapes, views, precision)

    def tensors(self, config: LingbotConfig) -> dict[str, TensorSpec]:
        """Checkpoint tensors, with the folder they are in as part of their names."""
        return tensors(config)

    def pack(
        self, config: LingbotConfig, source: TensorSource, buffers: Mapping[str, Tensor]
    ) -> None:
        """Fill the static buffers."""
        pack(config, source, buffers)

    def body(
        self,
        config: LingbotConfig,
        contract: Contract,
        stage: str,
        shape: ShapeKey,
        variant: int = 0,
    ) -> Body:
        """The body of a stage for one shape and variant."""
        return make_body(config, contract, stage, shape, variant)

    def processor(self, config: LingbotConfig, options: ProcessorOptions) -> LingbotProcessor:
        """Host-side transforms; OptionError when the options do not fit."""
        return LingbotProcessor(config, options)

    def qualifier(
        self, config: LingbotConfig, source: TensorSource, place: str
    ) -> LingbotQualifier:
        """The reference to compare a plan with."""
        return LingbotQualifier(config, source, place)


POLICY: Policy = LingbotPolicy()
