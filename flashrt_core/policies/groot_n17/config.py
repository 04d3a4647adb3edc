"""Sizes and switches of GR00T N1.7. Every width and depth of the pipeline comes from here.

Source of the ``base`` sizes: Isaac-GR00T and LeRobot's table of the released checkpoint
(GR00T-N1.7-3B), whose text stack is cut to 16 layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..overrides import (
    CHECKS,
    LIMITS,
    Check,
    numerics,
    overridden,
    positive,
    require_rules,
    whole_list,
)
from ..transformer import Transformer
from .numerics import Numerics, parse_numerics

#: Camera names that a plan may use, in the order of their tokens. The network names none: what the
#: first view means is what a checkpoint was trained with.
SLOTS: tuple[str, ...] = ("view_0", "view_1", "view_2", "view_3")

#: Pieces of the tokenizer that ships with the package, special ones included.
TINY_VOCAB = 1024


@dataclass(frozen=True)
class VisionConfig(Transformer):
    """The image tower of Qwen3-VL, with rotary positions.

    Attributes:
        table: side of the learned table of positions, which is sampled on the patches' grid.
        features: layers behind which rows leave for the text stack, ascending: its layer i gets
            those of the i-th.
    """

    table: int
    features: tuple[int, ...]


@dataclass(frozen=True)
class TextConfig:
    """The text stack of Qwen3-VL, cut: causal, grouped heads that are normalised, SwiGLU.

    Attributes:
        width: D of the residual stream.
        depth: layers that are kept.
        heads, kv_heads: query heads and key heads; these divide those.
        head_dim: width of a head, even.
        ffn: hidden width of the SwiGLU block.
        sections: rotary frequencies that turn with time, row and column; half a head in all.
    """

    width: int
    depth: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    sections: tuple[int, ...]

    @property
    def q_width(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Width of all key heads."""
        return self.kv_heads * self.head_dim


@dataclass(frozen=True)
class AdapterConfig:
    """Self-attention over all context rows, behind the text stack and of its width.

    Attributes:
        depth: layers.
        heads: attention heads.
        ffn: hidden width of the feed-forward block.
    """

    depth: int
    heads: int
    ffn: int


@dataclass(frozen=True)
class HeadConfig(Transformer):
    """The diffusion transformer on the state's row and the action rows.

    Even blocks attend to the context, every other one to its text rows, the rest to image rows; odd
    ones attend to the state and the actions.

    Attributes:
        hidden: of the projections of state and actions.
        time: width of the step's sinusoid in front of its MLP.
    """

    hidden: int
    time: int

    @property
    def text_blocks(self) -> int:
        """Blocks that attend to text rows: 0, 4, 8, .."""
        return (self.depth + 3) // 4

    @property
    def image_blocks(self) -> int:
        """Blocks that attend to image rows: 2, 6, 10, .."""
        return (self.depth + 1) // 4

    @property
    def self_blocks(self) -> int:
        """Blocks that attend to the state and the actions: 1, 3, 5, .."""
        return self.depth // 2


@dataclass(frozen=True)
class GrootConfig:
    """One GR00T N1.7 network and the shapes it runs at.

    Attributes:
        preset: name of the preset these sizes came from.
        vision, text, adapter, head: the four transformers.
        image_size: side R of the square image the tower takes, pixels.
        patch: side of a patch, pixels.
        merge: side of a group of patches that becomes one row of the text stack.
        vocab: rows of the embedding table.
        lead: tokens of a prompt in front of the first image's start mark.
        action_dim: width of an action row inside the network; robots use the first few.
        state_width: width of a state inside the network, likewise.
        horizon: action rows H of a chunk.
        positions: rows of the action positions' table; the first H are read.
        steps: denoising steps N.
        prompt_buckets: text rows that are captured, ascending, chat marks included.
        embodiments: slots of the projections of states and actions.
        embodiment: the slot in use.
        rope_theta: base of the text stack's rotary frequencies.
        vision_theta: base of the tower's.
        eps: added under the root of the norms of tower and text stack, and of the last one.
        adapter_eps: of the norms of adapter and head.
        time_scale: the network's time where the action is reached.
        numerics: which official implementation's roundings and conventions are reproduced.
        crop: how much of the picture's sides the network sees, per mille.
        real_time_chunking: a decision may be guided towards the rows of the chunk before it.
    """

    preset: str
    vision: VisionConfig
    text: TextConfig
    adapter: AdapterConfig
    head: HeadConfig
    image_size: int
    patch: int
    vocab: int
    prompt_buckets: tuple[int, ...]
    merge: int = 2
    lead: int = 3
    action_dim: int = 132
    state_width: int = 132
    horizon: int = 40
    positions: int = 1024
    steps: int = 4
    embodiments: int = 32
    embodiment: int = 10
    rope_theta: float = 5e6
    vision_theta: float = 1e4
    eps: float = 1e-6
    adapter_eps: float = 1e-5
    time_scale: int = 1000
    numerics: Numerics = field(default_factory=Numerics)
    crop: int = 950
    real_time_chunking: bool = False

    camera_bytes: ClassVar[int] = 0  # the host makes the squares
    image_doc: ClassVar[str] = "the middle of the picture, resized to the square"

    @property
    def grid(self) -> int:
        """Patches along a side of the image."""
        return self.image_size // self.patch

    @property
    def view_patches(self) -> int:
        """Rows that one camera takes in the tower."""
        return self.grid**2

    @property
    def view_tokens(self) -> int:
        """Rows that one camera takes in the text stack."""
        return (self.grid // self.merge) ** 2

    @property
    def merged(self) -> int:
        """Width of a group of patches."""
        return self.vision.width * self.merge**2

    @property
    def patch_dim(self) -> int:
        """Numbers of one RGB patch."""
        return 3 * self.patch * self.patch

    @property
    def max_prompt_tokens(self) -> int:
        """Most text rows that a captured bucket holds."""
        return self.prompt_buckets[-1]

    @property
    def rows(self) -> int:
        """Rows of the head: the state and the actions."""
        return 1 + self.horizon

    @property
    def norms(self) -> int:
        """Conditioned norms of the head: one a block and the last."""
        return self.head.depth + 1


BASE = GrootConfig(
    preset="base",
    vision=VisionConfig(width=1024, depth=24, heads=16, ffn=4096, table=48, features=(5, 11, 17)),
    text=TextConfig(
        width=2048, depth=16, heads=16, kv_heads=8, head_dim=128, ffn=6144, sections=(24, 20, 20)
    ),
    adapter=AdapterConfig(depth=4, heads=32, ffn=8192),
    head=HeadConfig(width=1536, depth=32, heads=32, ffn=6144, hidden=1024, time=256),
    image_size=256,
    patch=16,
    vocab=151936,
    prompt_buckets=(32, 64, 128),
)

TINY = GrootConfig(
    preset="tiny",
    vision=VisionConfig(width=64, depth=3, heads=2, ffn=96, table=6, features=(0, 1)),
    text=TextConfig(
        width=64, depth=3, heads=4, kv_heads=2, head_dim=16, ffn=96, sections=(4, 2, 2)
    ),
    adapter=AdapterConfig(depth=2, heads=2, ffn=128),
    head=HeadConfig(width=96, depth=8, heads=2, ffn=192, hidden=64, time=32),
    image_size=64,
    patch=16,
    vocab=TINY_VOCAB,
    prompt_buckets=(64, 128),
    action_dim=32,
    state_width=32,
    horizon=10,
    positions=64,
    embodiments=4,
    embodiment=1,
)

PRESETS: Mapping[str, GrootConfig] = {"base": BASE, "tiny": TINY}

_LIMITS = {
    **LIMITS,
    "image_size": (16, 1024),
    "merge": (1, 8),
    "lead": (0, 64),
    "state_width": (1, 256),
    "positions": (1, 1 << 16),
    "embodiments": (1, 1024),
    "embodiment": (0, 1023),
    "time_scale": (1, 1 << 20),
    "crop": (1, 1000),
    "kv_heads": (1, 256),
    "table": (1, 1024),
    "hidden": (4, 1 << 16),
    "time": (4, 1 << 16),
}
_CHECKS: Mapping[str, Check] = {
    **CHECKS,
    "numerics": numerics(Numerics, parse_numerics),
    "vision_features": whole_list("ascending layers of the tower", 0, 255, rising=True),
    "text_sections": whole_list("three counts of frequencies", 0, 512, rising=False, count=3),
    "vision_theta": positive,
    "adapter_eps": positive,
}


def make_config(preset: str, **overrides: Any) -> GrootConfig:
    """The sizes of ``preset`` with single values replaced.

    Args:
        preset: "base" or "tiny".
        overrides: field names of :class:`GrootConfig`; those of a part with its name in front
            (``text_depth=2``, ``head_ffn=64``). ``numerics`` also takes the text that
            :func:`~.numerics.parse_numerics` reads.

    Raises:
        OptionError: unknown preset or name, a value of the wrong type or out of range, or sizes
            that do not fit together.
    """
    config: GrootConfig = overridden("groot_n17", preset, PRESETS, overrides, _CHECKS, _LIMITS)
    _check_together(config)
    return config


def _check_together(config: GrootConfig) -> None:
    vision, text, head = config.vision, config.text, config.head
    side = config.patch * config.merge
    last, half = vision.features[-1], text.head_dim // 2
    rules = (
        (config.image_size % side == 0, "image_size", f"a multiple of patch x merge, {side}"),
        (
            vision.width % (4 * vision.heads) == 0,
            "vision_width",
            f"a multiple of 4 x {vision.heads} heads",
        ),
        (last < vision.depth, "vision_features", f"layers below the depth {vision.depth}"),
        (
            len(vision.features) <= text.depth,
            "vision_features",
            f"at most {text.depth}, the layers of the text stack",
        ),
        (text.heads % text.kv_heads == 0, "text_kv_heads", f"a divisor of {text.heads} heads"),
        (text.head_dim % 2 == 0, "text_head_dim", "an even number"),
        (sum(text.sections) == half, "text_sections", f"{half} frequencies, half a head"),
        (
            text.width % config.adapter.heads == 0,
            "adapter_heads",
            f"a divisor of the text stack's width {text.width}",
        ),
        (head.width % (2 * head.heads) == 0, "head_width", f"a multiple of 2 x {head.heads} heads"),
        (head.time % 2 == 0, "head_time", "an even number"),
        (head.depth >= 3, "head_depth", "3 or more, so that every kind of block is there"),
        (config.horizon <= config.positions, "horizon", f"at most {config.positions} positions"),
        (config.embodiment < config.embodiments, "embodiment", f"below {config.embodiments}"),
        (
            config.prompt_buckets[0] > config.lead + 2,
            "prompt_buckets",
            f"more than the chat's {config.lead + 2} marks",
        ),
    )
    require_rules("groot_n17", config, rules)
