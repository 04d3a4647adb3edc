"""GR00T N1.7: image tower and cut text stack, adapter, alternating diffusion transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ...contract import Contract, ShapeKey
from ...precision import Precision
from ...weights import TensorSource, TensorSpec
from ..base import Deployment, Policy, ProcessorOptions
from ..plan_buffers import bucket_shapes
from .config import PRESETS, SLOTS, GrootConfig, make_config
from .contract import make_contract
from .deployment import read_deployment
from .measures import MEASURES
from .pack import pack
from .preprocess import GrootProcessor
from .qualifier import GrootQualifier
from .sites import SITES, make_precision
from .stages import Body, make_body
from .weights import tensors

__all__ = ["POLICY", "GrootConfig", "GrootPolicy"]


class GrootPolicy:
    """What the engine and the loader ask of GR00T N1.7; see ``Policy`` in ``policies/base.py``."""

    name = "groot_n17"
    presets = tuple(sorted(PRESETS))
    slots = SLOTS
    masks_views = False
    continues_chunks = True
    looks_back = False
    sites = SITES
    measures = MEASURES

    def deployment(self, checkpoint: Path | None, norm_stats: Path | None) -> Deployment:
        """What a checkpoint of NVIDIA's or LeRobot's says beside its weights."""
        return read_deployment(checkpoint, norm_stats)

    def config(self, preset: str, **overrides: Any) -> GrootConfig:
        """Sizes of a preset with single values replaced; OptionError on anything unknown."""
        return make_config(preset, **overrides)

    def of_activations(self, config: GrootConfig) -> GrootConfig:
        """The same without guidance: without a chunk to continue it does nothing."""
        return replace(config, real_time_chunking=False)

    def precision(self, value: str | Path) -> Precision:
        """The plan of a name or a YAML file; OptionError otherwise."""
        return make_precision(value)

    def shapes(self, config: GrootConfig, views: int) -> tuple[ShapeKey, ...]:
        """One shape a prompt bucket."""
        return bucket_shapes(config, views)

    def contract(
        self,
        config: GrootConfig,
        shapes: tuple[ShapeKey, ...],
        views: tuple[str, ...],
        precision: str | Precision,
    ) -> Contract:
        """The execution contract; OptionError on an unknown precision plan."""
        return make_contract(config, shapes, views, precision)

    def tensors(self, config: GrootConfig) -> dict[str, TensorSpec]:
        """Checkpoint tensors by Isaac-GR00T's names."""
        return tensors(config)

    def pack(
        self, config: GrootConfig, source: TensorSource, buffers: Mapping[str, Tensor]
    ) -> None:
        """Fill the static buffers."""
        pack(config, source, buffers)

    def body(self, config: GrootConfig, contract: Contract, stage: str, shape: ShapeKey) -> Body:
        """The body of a stage for one shape."""
        return make_body(config, contract, stage, shape)

    def processor(self, config: GrootConfig, options: ProcessorOptions) -> GrootProcessor:
        """Host-side transforms; OptionError when the options do not fit."""
        return GrootProcessor(config, options)

    def qualifier(self, config: GrootConfig, source: TensorSource, place: str) -> GrootQualifier:
        """The reference to compare a plan with."""
        return GrootQualifier(config, source, place)


POLICY: Policy = GrootPolicy()
