"""π0.5: image tower, trunk that writes the K/V cache, conditioned action expert, Euler sampler."""

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
from .config import PRESETS, SLOTS, Pi05Config, make_config
from .contract import make_contract
from .deployment import check_views, read_deployment
from .measures import MEASURES
from .preprocess import Pi05Processor
from .qualifier import Pi05Qualifier
from .sites import SITES, make_precision
from .stages import Body, make_body
from .weights import pack, tensors

__all__ = ["POLICY", "Pi05Config", "Pi05Policy"]


class Pi05Policy:
    """What the engine and the loader ask of π0.5; see ``Policy`` in ``policies/base.py``."""

    name = "pi05"
    presets = tuple(sorted(PRESETS))
    slots = SLOTS
    masks_views = True
    continues_chunks = True
    looks_back = False
    sites = SITES
    measures = MEASURES

    def deployment(self, checkpoint: Path | None, norm_stats: Path | None) -> Deployment:
        """What an openpi or LeRobot checkpoint says beside its weights."""
        return read_deployment(checkpoint, norm_stats)

    def config(self, preset: str, **overrides: Any) -> Pi05Config:
        """Sizes of a preset with single values replaced; OptionError on anything unknown."""
        return make_config(preset, **overrides)

    def of_activations(self, config: Pi05Config) -> Pi05Config:
        """The same for cameras whose images the host resizes, and without guidance.

        Both ways of resizing give the same pixels, and without a chunk to continue guidance does
        nothing.
        """
        return replace(config, camera_bytes=0, real_time_chunking=False)

    def precision(self, value: str | Path) -> Precision:
        """The plan of a name or a YAML file; OptionError otherwise."""
        return make_precision(value)

    def shapes(self, config: Pi05Config, views: int) -> tuple[ShapeKey, ...]:
        """One shape a prompt bucket."""
        return bucket_shapes(config, views)

    def contract(
        self,
        config: Pi05Config,
        shapes: tuple[ShapeKey, ...],
        views: tuple[str, ...],
        precision: str | Precision,
    ) -> Contract:
        """The execution contract; OptionError on an unknown precision plan."""
        return make_contract(config, shapes, views, precision)

    def tensors(self, config: Pi05Config) -> dict[str, TensorSpec]:
        """Checkpoint tensors by openpi's names."""
        return tensors(config)

    def pack(self, config: Pi05Config, source: TensorSource, buffers: Mapping[str, Tensor]) -> None:
        """Fill the static buffers."""
        pack(config, source, buffers)

    def body(self, config: Pi05Config, contract: Contract, stage: str, shape: ShapeKey) -> Body:
        """The body of a stage for one shape."""
        return make_body(config, contract, stage, shape)

    def processor(self, config: Pi05Config, options: ProcessorOptions) -> Pi05Processor:
        """Host-side transforms; OptionError when the options do not fit."""
        if options.deployment is not None:
            check_views(options.deployment, options.views)
        return Pi05Processor(config, options)

    def qualifier(self, config: Pi05Config, source: TensorSource, place: str) -> Pi05Qualifier:
        """The reference to compare a plan with."""
        return Pi05Qualifier(config, source, place)


POLICY: Policy = Pi05Policy()
