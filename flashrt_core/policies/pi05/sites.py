"""The dense products of π0.5 as sites of a precision plan, and the plans that ship.

Not among them: the action projections, the time MLP and the norms' own products, float32 in every
plan (0.1 % of the work, and every error of theirs is an error of the action itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...precision import Format, Precision, Site, read_precision
from ..dense import site_buffers

_PREFIX = "prefix_length"

# Products of op ``linear`` are the library's; the others have a kernel that multiplies rows.
_LIBRARY = partial(Site, rows_scaled=False)

SITES: Mapping[str, Site] = {
    # Pixels come as bytes: quantised once more they would lose half of their levels, for 0.1 % of
    # the work.
    "vision.patch": _LIBRARY(
        "vision.patch_weight", "vision_patches", formats=(Format.W8A16, Format.I8A16)
    ),
    "vision.qkv": _LIBRARY("vision.qkv_weight", "vision_normal"),
    "vision.out": _LIBRARY("vision.out_weight", "vision_mixed"),
    "vision.fc1": _LIBRARY("vision.fc1_weight", "vision_normal"),
    "vision.fc2": _LIBRARY("vision.fc2_weight", "vision_hidden"),
    "projector": _LIBRARY("projector.weight", "vision_normal"),
    "prefix.qkv": _LIBRARY("trunk.qkv_weight", "trunk_normal", _PREFIX),
    "prefix.out": _LIBRARY("trunk.out_weight", "trunk_mixed", _PREFIX),
    "prefix.gate_up": Site("trunk.gate_up_weight", "trunk_normal", _PREFIX),
    "prefix.down": _LIBRARY("trunk.down_weight", "trunk_hidden", _PREFIX),
    "prefix.last_kv": _LIBRARY("trunk.last_kv_weight", "trunk_normal", _PREFIX),
    "expert.qkv": Site("expert.qkv_weight"),
    "expert.out": Site("expert.out_weight", "expert_mixed"),
    "expert.gate_up": Site("expert.gate_up_weight"),
    "expert.down": Site("expert.down_weight", "expert_hidden"),
}

#: What a YAML table would say.
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {"base": "fp32"},
    "bf16": {"base": "bf16"},
    "fp8": {
        "base": "bf16",
        "sites": {
            # What stays wide costs little and matters most (docs/numerics.md): the projector makes
            # every image row of the trunk; q, k and v are what attention compares and mixes.
            "vision.*": "fp8",
            "vision.patch": "bf16",
            "vision.qkv": "bf16",
            "prefix.*": "fp8",
            "prefix.qkv": "bf16",
            "prefix.last_kv": "bf16",
            # E4M3 keeps 4 bits of a weight, int8 of its row's scale 8: a third of the error at the
            # same bytes, where ten steps of the whole stack add them up.
            "expert.*": "i8a16",
        },
    },
}


def make_precision(value: Any) -> Precision:
    """A plan by name or path, or as it is; OptionError otherwise."""
    return value if isinstance(value, Precision) else read_precision(value, SITES, PRECISIONS)


#: The buffers of a site, from those of the contract, its name and the layer.
dense = partial(site_buffers, SITES)
