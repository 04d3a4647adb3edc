"""The dense products of LingBot-VA as sites of a precision plan, and the plans that ship.

Sites are those of the denoising steps: ``video.*`` of the video's, with both prompts' rows, and
``step.*`` of the actions', with few. What is written into the history, and the prompt, has the
plan's base in every plan: what a decision adds there stays for many others. So the weights of a
site that has the base are those of ``net.*``; others are kept beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...precision import LOW_BIT, Format, Precision, Site, read_precision
from ..dense import WIDE, Dense, site_buffers

#: Products of a block, and the buffers their input is in.
PARTS: Mapping[str, str] = {
    "qkv": "net_normal",
    "out": "net_mixed",
    "text_q": "net_normal",
    "text_out": "net_mixed",
    "fc1": "net_normal",
    "fc2": "net_hidden",
}

_WEIGHTS_ONLY = (Format.W4A16, Format.W8A16, Format.I8A16)
#: Parts whose op multiplies by a gate behind the product, row by row of the weight anyhow.
_GATED = ("out", "fc2")

SITES: Mapping[str, Site] = {
    **{
        f"video.{part}": Site(
            f"video.{part}_weight",
            source,
            formats=(Format.FP8,),
            rows_scaled=part in _GATED,
            shared=f"net.{part}_weight",
        )
        for part, source in PARTS.items()
    },
    **{
        f"step.{part}": Site(
            f"step.{part}_weight",
            source,
            formats=_WEIGHTS_ONLY,
            shared=f"net.{part}_weight",
            stage="action",
        )
        for part, source in PARTS.items()
    },
}

# Left at 16 bits: what self-attention ends in, and the hidden units of the feed-forward block.
_VIDEO = {f"video.{part}": "fp8" for part in ("qkv", "text_q", "text_out", "fc2")}

#: What a YAML table would say.
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    **WIDE,
    # Steps of few rows take as long as their weights' bytes.
    "int4": {"base": "bf16", "sites": {"step.*": "w4a16"}},
    "fp8": {"base": "bf16", "sites": _VIDEO},
    "fp8_int4": {"base": "bf16", "sites": {**_VIDEO, "step.*": "w4a16"}},
}


def dense(buffers: Mapping[str, Tensor], group: str, part: str, layer: int) -> Dense:
    """The buffers of a product of a block: its own in ``group``, else those of every pass."""
    name = f"{group}.{part}"
    if name in SITES and SITES[name].weight in buffers:
        return site_buffers(SITES, buffers, name, layer)
    return Dense(buffers[f"net.{part}_weight"][layer], None, None, buffers[PARTS[part]])


def own_weights(plan: Precision) -> tuple[str, ...]:
    """Sites whose weights are kept beside those of every pass."""
    return tuple(name for name, form in plan.sites.items() if form in LOW_BIT)


def make_precision(value: Any) -> Precision:
    """A plan by name or path, or as it is; OptionError otherwise."""
    return read_precision(value, SITES, PRECISIONS)
