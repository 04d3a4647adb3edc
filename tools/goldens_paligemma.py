"""Narrow sizes of the networks that golden data of π0.5 come from, where their code fixes them."""

from __future__ import annotations

from typing import Any

from flashrt_core.policies.pi05.config import Pi05Config


def narrow_vlm(config: Any, sizes: Pi05Config, **vision: Any) -> Any:
    """A configuration of PaliGemma at other sizes; ``vision``: further ones of its tower."""
    with_values(
        config.vision_config,
        hidden_size=sizes.vision.width,
        intermediate_size=sizes.vision.ffn,
        num_hidden_layers=sizes.vision.depth,
        num_attention_heads=sizes.vision.heads,
        patch_size=sizes.patch,
        projection_dim=sizes.trunk.width,
        **vision,
    )
    with_values(config.text_config, vocab_size=sizes.vocab)
    return with_values(config, projection_dim=sizes.trunk.width)


def with_values(config: Any, **values: Any) -> Any:
    """The same configuration, with these."""
    for name, value in values.items():
        setattr(config, name, value)
    return config
