"""The dense products of GR00T N1.7 as sites of a precision plan, and the plans that ship.

Not among them: what takes the state and the actions in and out, in every plan of its base or wider
(under 1 % of the work, and every error of theirs is an error of the action itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...precision import Precision, Site, read_precision
from ..dense import TOWER, WIDE, library_site, site_buffers

_CONTEXT, _TEXT = "context_length", "text_length"

SITES: Mapping[str, Site] = {
    **TOWER,
    "merger.fc1": library_site("merger.fc1_weight", "merger_normal"),
    "merger.fc2": library_site("merger.fc2_weight", "merger_hidden"),
    "features.fc1": library_site("features.fc1_weight", "merger_normal"),
    "features.fc2": library_site("features.fc2_weight", "merger_hidden"),
    "text.qkv": library_site("text.qkv_weight", "text_normal", _CONTEXT),
    "text.out": library_site("text.out_weight", "text_mixed", _CONTEXT),
    "text.gate_up": Site("text.gate_up_weight", "text_normal", _CONTEXT),
    "text.down": library_site("text.down_weight", "text_hidden", _CONTEXT),
    "adapter.qkv": library_site("adapter.qkv_weight", "adapter_normal", _CONTEXT),
    "adapter.out": library_site("adapter.out_weight", "adapter_mixed", _CONTEXT),
    "adapter.fc1": library_site("adapter.fc1_weight", "adapter_normal", _CONTEXT),
    "adapter.fc2": library_site("adapter.fc2_weight", "adapter_hidden", _CONTEXT),
    "head.text_kv": library_site("head.text_kv_weight", "adapter_text", _TEXT),
    "head.image_kv": library_site("head.image_kv_weight", "adapter_images"),
    "head.q": library_site("head.q_weight"),
    "head.qkv": library_site("head.qkv_weight"),
    "head.out": library_site("head.out_weight", "head_mixed"),
    "head.fc1": library_site("head.fc1_weight"),
    "head.fc2": library_site("head.fc2_weight", "head_hidden"),
}

_NARROW = {
    # What stays wide costs little and matters most (docs/numerics.md): q, k and v of tower and
    # adapter, and keys and values of the context, which are read in every step.
    "vision.*": "fp8",
    "vision.patch": "bf16",
    "vision.qkv": "bf16",
    "merger.*": "bf16",
    "features.*": "bf16",
    "text.*": "fp8",
    "adapter.*": "fp8",
    "adapter.qkv": "bf16",
    # Most of the head's weights; the other products would not be faster.
    "head.qkv": "fp8",
    "head.fc1": "fp8",
    "head.fc2": "fp8",
}

#: What a YAML table would say.
PRECISIONS: Mapping[str, Mapping[str, Any]] = {
    **WIDE,
    "fp8": {"base": "bf16", "sites": _NARROW},
}

#: The buffers of a site, from those of the contract, its name and the layer.
dense = partial(site_buffers, SITES)


def make_precision(value: Any) -> Precision:
    """A plan by name or path, or as it is; OptionError otherwise."""
    return read_precision(value, SITES, PRECISIONS)
