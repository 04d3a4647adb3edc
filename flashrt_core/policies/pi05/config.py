"""Sizes and switches of π0.5. Every width and depth of the pipeline comes from here.

Source of the ``base`` sizes: openpi (PaliGemma 3B with a 300M action expert), as released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..overrides import CHECKS, LIMITS, Check, flag, numerics, overridden, require_rules
from ..transformer import Transformer
from .numerics import Numerics, parse_numerics

#: Camera names that the model knows, in the order of their tokens.
SLOTS: tuple[str, ...] = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")

#: Pieces of the tokenizer that ships with the package (a test compares it with the file).
TINY_VOCAB = 1024


@dataclass(frozen=True)
class GemmaConfig:
    """A Gemma stack with one key/value head: the trunk, or the action expert.

    Attributes:
        width: D of the residual stream.
        depth: layers.
        heads: query heads.
        head_dim: width of a head, even.
        ffn: hidden width of the GeGLU block.
    """

    width: int
    depth: int
    heads: int
    head_dim: int
    ffn: int

    @property
    def q_width(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of the one key head."""
        return self.head_dim


@dataclass(frozen=True)
class Pi05Config:
    """One π0.5 network and the shapes it runs at.

    Attributes:
        preset: name of the preset these sizes came from.
        vision: the image tower, SigLIP's.
        trunk: the prefix transformer; only its keys and values are used.
        expert: the action expert; same depth and head width as the trunk, whose cache it reads.
        image_size: side R of the square image the tower takes, pixels.
        patch: side of a patch, pixels; divides ``image_size``.
        vocab: rows of the embedding table.
        action_dim: width of an action row inside the network; robots use the first few.
        horizon: action rows H of a chunk.
        steps: denoising steps N.
        prompt_buckets: prompt lengths that are captured, ascending; the last is the limit.
        trained_tokens: longest prompt of the training; official code truncates there.
        state_in_prompt: write the discretised robot state into the prompt. False: the plain prompt
            of π0, and the network does not see the state at all.
        rope_theta: base of the rotary frequencies.
        eps: added under the root of every norm.
        numerics: which official implementation's roundings and conventions are reproduced.
        camera_bytes: room for an image of a camera as it comes: the device decodes and resizes it.
            Of larger ones the host makes squares; 0: of all.
        real_time_chunking: a decision may be guided towards the rows of the chunk before it.
    """

    preset: str
    vision: Transformer
    trunk: GemmaConfig
    expert: GemmaConfig
    image_size: int
    patch: int
    vocab: int
    action_dim: int
    horizon: int
    steps: int
    prompt_buckets: tuple[int, ...]
    trained_tokens: int = 200
    state_in_prompt: bool = True
    rope_theta: float = 10000.0
    eps: float = 1e-6
    numerics: Numerics = field(default_factory=Numerics)
    camera_bytes: int = 0
    real_time_chunking: bool = False

    state_width: ClassVar[int] = 0  # the state is text, if anything
    image_doc: ClassVar[str] = "resized to the square, aspect kept, zero padding"

    @property
    def view_tokens(self) -> int:
        """Rows that one camera takes in the prefix."""
        return (self.image_size // self.patch) ** 2

    @property
    def patch_dim(self) -> int:
        """Numbers of one RGB patch."""
        return 3 * self.patch * self.patch

    @property
    def max_prompt_tokens(self) -> int:
        """Longest prompt that a captured bucket holds."""
        return self.prompt_buckets[-1]

    @property
    def norms(self) -> int:
        """Conditioned norms of the expert: two a layer and the last."""
        return 2 * self.expert.depth + 1


BASE = Pi05Config(
    preset="base",
    vision=Transformer(width=1152, depth=27, heads=16, ffn=4304),
    trunk=GemmaConfig(width=2048, depth=18, heads=8, head_dim=256, ffn=16384),
    expert=GemmaConfig(width=1024, depth=18, heads=8, head_dim=256, ffn=4096),
    image_size=224,
    patch=14,
    vocab=257152,
    action_dim=32,
    horizon=10,
    steps=10,
    prompt_buckets=(48, 96, 200),
)

TINY = Pi05Config(
    preset="tiny",
    vision=Transformer(width=64, depth=2, heads=4, ffn=160),
    trunk=GemmaConfig(width=128, depth=3, heads=4, head_dim=32, ffn=256),
    expert=GemmaConfig(width=64, depth=3, heads=4, head_dim=32, ffn=128),
    image_size=56,
    patch=14,
    vocab=TINY_VOCAB,
    action_dim=32,
    horizon=10,
    steps=10,
    prompt_buckets=(32, 64, 128),
)

#: Small enough to be trained and to decide on a CPU: two 96-pixel cameras, one simple task.
SMALL = Pi05Config(
    preset="small",
    vision=Transformer(width=128, depth=3, heads=4, ffn=256),
    trunk=GemmaConfig(width=128, depth=4, heads=4, head_dim=32, ffn=256),
    expert=GemmaConfig(width=128, depth=4, heads=4, head_dim=32, ffn=256),
    image_size=96,
    patch=16,
    vocab=TINY_VOCAB,
    action_dim=32,
    horizon=10,
    steps=10,
    prompt_buckets=(32, 64, 128),
)

PRESETS: Mapping[str, Pi05Config] = {"base": BASE, "small": SMALL, "tiny": TINY}

_LIMITS = {
    **LIMITS,
    "image_size": (14, 1024),
    "trained_tokens": (1, 4096),
    "camera_bytes": (0, 1 << 28),
}


_CHECKS: Mapping[str, Check] = {
    **CHECKS,
    "numerics": numerics(Numerics, parse_numerics),
    "state_in_prompt": flag,
}


def make_config(preset: str, **overrides: Any) -> Pi05Config:
    """The sizes of ``preset`` with single values replaced.

    Args:
        preset: "base", "small" or "tiny".
        overrides: field names of :class:`Pi05Config`; those of a part with its name in front
            (``trunk_depth=2``, ``vision_ffn=64``). ``numerics`` also takes the text that
            :func:`~.numerics.parse_numerics` reads.

    Raises:
        OptionError: unknown preset or name, a value of the wrong type or out of range, or sizes
            that do not fit together.
    """
    config = overridden("pi05", preset, PRESETS, overrides, _CHECKS, _LIMITS)
    _check_together(config)
    return config


def _check_together(config: Pi05Config) -> None:
    vision, trunk, expert = config.vision, config.trunk, config.expert
    rules = (
        (
            config.image_size % config.patch == 0,
            "image_size",
            f"a multiple of patch {config.patch}",
        ),
        (vision.width % vision.heads == 0, "vision_width", f"a multiple of {vision.heads} heads"),
        (expert.depth == trunk.depth, "expert_depth", f"the trunk's depth {trunk.depth}"),
        (
            expert.head_dim == trunk.head_dim,
            "expert_head_dim",
            f"the trunk's head width {trunk.head_dim}",
        ),
        (trunk.head_dim % 2 == 0, "trunk_head_dim", "an even number"),
        (expert.width % 2 == 0, "expert_width", "an even number"),
        (
            not 0 < config.camera_bytes < 3 * config.image_size**2,
            "camera_bytes",
            f"0, or room for the network's own square, {3 * config.image_size**2}",
        ),
    )
    require_rules("pi05", config, rules)
