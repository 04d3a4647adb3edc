"""Small plans of every policy through the whole core, and what they are shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

#: Options that make the tiny preset of a policy smaller, beside one view.
SMALL: Mapping[str, dict[str, Any]] = {
    "pi05": {
        "views": ("base_0_rgb",),
        "state_dim": 1,
        "prompt_buckets": (3, 16),
        "extra": {"vision_depth": 1, "trunk_depth": 2, "expert_depth": 2},
    },
    "groot_n17": {
        "views": ("view_0",),
        "state_dim": 1,
        "prompt_buckets": (9, 24),
        "extra": {
            "vision_depth": 1,
            "vision_features": (0,),
            "text_depth": 1,
            "adapter_depth": 1,
            "head_depth": 3,
        },
    },
}
POLICIES = tuple(SMALL)


def small(policy: str, **options: Any) -> Session:
    """A session of one step."""
    chosen = {"steps": 1, "prompt": "cup", "threads": 1, **SMALL[policy], **options}
    return load(LoadOptions(policy=policy, **chosen))


def tiny(policy: str, **options: Any) -> Session:
    """A session of the tiny preset as it is, with a robot of 7 numbers."""
    chosen = {"prompt": "pick up the red cup", "threads": 1, **options}
    return load(LoadOptions(policy=policy, **chosen))


def observation(session: Session, seed: int) -> Observation:
    """Random pictures of another size than the network's, and a random state."""
    draw = np.random.default_rng(seed)
    views = session.processor.views
    images = {view: draw.integers(0, 256, (48, 64, 3), dtype=np.uint8) for view in views}
    state = draw.uniform(-1, 1, session.processor.state_dim).astype(np.float32)
    return Observation(images, state, stamp_ns=seed)
