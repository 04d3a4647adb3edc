"""Where the official implementations of GR00T N1.7 differ in their numbers, as switches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..profiles import parse_profile


@dataclass(frozen=True)
class Numerics:
    """One value a switch.

    Attributes:
        rope_frequencies: "bfloat16": the rotary frequencies of tower and text stack went through
            bfloat16, as the buffers of a PyTorch module do when it is cast.
        image_resize: "area": OpenCV's averages over the source area, the aspect kept: a picture has
            to be a square. "bicubic": torch's with antialiasing, straight to the square.
    """

    rope_frequencies: Literal["exact", "bfloat16"] = "exact"
    image_resize: Literal["area", "bicubic"] = "bicubic"


#: Values that each switch may take, the order of :class:`Numerics`.
CHOICES: Mapping[str, tuple[str, ...]] = {
    "rope_frequencies": ("exact", "bfloat16"),
    "image_resize": ("area", "bicubic"),
}

_ROUNDED = Numerics(rope_frequencies="bfloat16", image_resize="area")

#: ``official``: Isaac-GR00T, which casts the whole network to bfloat16. ``lerobot``: LeRobot's
#: pipeline, its parameters in float32. ``lerobot_bf16``: cast as a whole. ``exact``: no one's
#: quirks.
PROFILES: Mapping[str, Numerics] = {
    "official": _ROUNDED,
    "lerobot": Numerics(),
    "lerobot_bf16": replace(_ROUNDED, image_resize="bicubic"),
    "exact": Numerics(),
}


def parse_numerics(text: str) -> Numerics:
    """A profile with single switches replaced: ``official`` or ``lerobot,image_resize=area``.

    OptionError on an unknown profile, switch or value.
    """
    return parse_profile(text, PROFILES, CHOICES)
