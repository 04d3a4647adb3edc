"""The dense products of π0.5 as sites of a precision plan, and the plans that ship.

Not among them: the action projections, the time MLP and the norms' own products, float32 in every
plan (0.1 % of the work, and every error of theirs is an error of the action itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...precision import Precision, Site, read_precision
from ..dense import TOWER, WIDE, library_site, site_buffers

_PREFIX = "prefix_length"

SITES: Mapping[str, Site] = {
    **TOWER,
    "projector": library_site("projector.weight", "vision_normal"),
    "prefix.qkv": library_site("trunk.qkv_weight", "trunk_normal", _PREFIX),
    "prefix.out": library_site("trunk.out_weight", "trunk_mixed", _PREFIX),
    "prefix.gate_up": Site("trunk.gate_up_weight", "trunk_normal", _PREFIX),
    "prefix.down": library_site("trunk.down_weight", "trunk_hidden", _PREFIX),
    "prefix.last_kv": library_site("trunk.last_kv_weight", "trunk_normal", _PREFIX),
    "expert.qkv": Site("expert.qkv_weight"),
    "expert.out": Site("expert.out_weight", "expert_mixed"),
    "expert.gate_up": Site("expert.gate_up_weight"),
    "expert.down": Site("expert.down_weight", "expert_hidden"),
}

#: What a YAML table would say.
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    **WIDE,
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
    return read_precision(value, SITES, PRECISIONS)


#: The buffers of a site, from those of the contract, its name and the layer.
dense = partial(site_buffers, SITES)
