"""Sizes and switches of LingBot-VA. Every width and depth of the pipeline comes from here.

Source of the ``base`` sizes: the released lingbot-va-base (Wan2.2-5B) and LeRobot's defaults for
LIBERO, whose cameras, steps and window it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...errors import OptionError
from ..overrides import Check, buckets, overridden, positive, require_rules, whole_list

#: Camera names that a plan may use, in the order of their places on the latent grid. The network
#: names none: what the first view means is what a checkpoint was trained with.
SLOTS: tuple[str, ...] = ("view_0", "view_1", "view_2")

#: Pieces of the tokenizer that ships with the package, special ones included.
TINY_VOCAB = 1024

#: Frames of a camera that become one latent frame, and pixels on a side of a latent's cell.
TIME, SPACE = 4, 16


@dataclass(frozen=True)
class NetConfig:
    """The transformer that denoises video and actions.

    Attributes:
        depth: blocks L.
        heads: attention heads.
        head_dim: width of a head; a third of it, rounded down, is even.
        ffn: hidden width of the feed-forward block.
        text: width of the prompt's rows as the text encoder gives them.
        time: width of a step's sinusoid in front of its MLP.
    """

    depth: int
    heads: int
    head_dim: int
    ffn: int
    text: int
    time: int

    @property
    def width(self) -> int:
        """D of the residual stream."""
        return self.heads * self.head_dim


@dataclass(frozen=True)
class VaeConfig:
    """The streaming video encoder.

    Attributes:
        base: channels of the first level.
        levels: channels of each level, in multiples of ``base``; between two, pictures are halved,
            and behind the second and third also the frames.
        blocks: residual blocks a level.
        latent: channels of a latent cell.
    """

    base: int
    levels: tuple[int, ...]
    blocks: int
    latent: int

    @property
    def channels(self) -> tuple[int, ...]:
        """Of each level, the entry's in front."""
        return tuple(self.base * times for times in (1, *self.levels))

    def halves_time(self, level: int) -> bool:
        """Whether a level ends in half the frames."""
        return 0 < level < len(self.levels) - 1


@dataclass(frozen=True)
class TextConfig:
    """The text encoder (UMT5), of the width of :attr:`NetConfig.text`.

    Attributes:
        depth: layers.
        heads, head_dim: attention heads and their width.
        ffn: hidden width of the gated feed-forward block.
        vocab: rows of the embedding table.
        distances: buckets of relative positions.
        furthest: distance from which on all share a bucket.
    """

    depth: int
    heads: int
    head_dim: int
    ffn: int
    vocab: int
    distances: int = 32
    furthest: int = 128


@dataclass(frozen=True)
class LingbotConfig:
    """One LingBot-VA network and the shapes it runs at.

    Attributes:
        preset: name of the preset these sizes came from.
        net, vae, text: the three networks.
        height, width: of a camera's picture as the video encoder takes it, pixels.
        frames: latent frames F of a chunk.
        frame_rows: action rows a of a latent frame.
        window: how much of the past attention sees: half of it in chunks.
        steps: denoising steps of the video.
        action_steps: of the actions.
        shift, action_shift: how far the noise levels of each lean to the noisy end.
        guidance: how far the video leans from the empty prompt to the real one.
        action_dim: width of an action row inside the network.
        channels: columns of that row that the robot's numbers take, in the robot's order.
        tee: the second and third camera have half the size and stand side by side above the first;
            else all stand side by side.
        prompt_rows: prompt rows that the network attends to; those behind a prompt are all alike.
        prompt_buckets: rows that are captured, ascending; one stands for all that are alike.
        eps: added under the root of every norm.
        theta: base of the rotary frequencies.
    """

    preset: str
    net: NetConfig
    vae: VaeConfig
    text: TextConfig
    height: int
    width: int
    prompt_buckets: tuple[int, ...]
    frames: int = 4
    frame_rows: int = 4
    window: int = 30
    steps: int = 20
    action_steps: int = 50
    shift: float = 5.0
    action_shift: float = 0.05
    guidance: float = 5.0
    action_dim: int = 30
    channels: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
    tee: int = 0
    prompt_rows: int = 512
    eps: float = 1e-6
    theta: float = 1e4

    @property
    def horizon(self) -> int:
        """Action rows H of a chunk."""
        return self.frames * self.frame_rows

    @property
    def max_prompt_tokens(self) -> int:
        """Most prompt rows that a captured bucket holds."""
        return self.prompt_buckets[-1]

    @property
    def pictures(self) -> tuple[int, ...]:
        """Of every camera that a decision takes: the first, the second, and every later one."""
        return 1, TIME * (self.frames - 1), TIME * self.frames

    @property
    def stride(self) -> int:
        """Action rows between two pictures that the network sees."""
        return max(1, self.frame_rows // TIME)

    def picture(self, view: int) -> tuple[int, int]:
        """Height and width of a camera's picture, pixels."""
        half = 2 if self.tee and view else 1
        return self.height // half, self.width // half

    def grid(self, views: int) -> tuple[int, int]:
        """Height and width of the latent grid that all cameras share."""
        rows, columns = self.height // SPACE, self.width // SPACE
        return (rows * 3 // 2, columns) if self.tee else (rows, columns * views)

    def frame_tokens(self, views: int) -> int:
        """Tokens of a latent frame."""
        rows, columns = self.grid(views)
        return rows * columns // 4

    def video_tokens(self, views: int) -> int:
        """Tokens of a chunk's latent frames."""
        return self.frames * self.frame_tokens(views)

    def capacity(self, views: int) -> int:
        """Rows of the pool of keys and values."""
        return self.window // 2 * (self.video_tokens(views) + self.horizon)

    @property
    def token_width(self) -> int:
        """Numbers of a video token: four cells."""
        return 4 * self.vae.latent


BASE = LingbotConfig(
    preset="base",
    net=NetConfig(depth=30, heads=24, head_dim=128, ffn=14336, text=4096, time=256),
    vae=VaeConfig(base=160, levels=(1, 2, 4, 4), blocks=2, latent=48),
    text=TextConfig(depth=24, heads=64, head_dim=64, ffn=10240, vocab=256384),
    height=128,
    width=128,
    prompt_buckets=(64, 512),
)

TINY = LingbotConfig(
    preset="tiny",
    net=NetConfig(depth=3, heads=2, head_dim=32, ffn=96, text=32, time=32),
    vae=VaeConfig(base=8, levels=(1, 2, 4, 4), blocks=2, latent=48),
    text=TextConfig(depth=2, heads=2, head_dim=16, ffn=64, vocab=TINY_VOCAB),
    height=32,
    width=32,
    frames=2,
    window=6,
    steps=3,
    action_steps=4,
    prompt_buckets=(32, 64),
    prompt_rows=64,
)

PRESETS: Mapping[str, LingbotConfig] = {"base": BASE, "tiny": TINY}

_LIMITS = {
    "height": (32, 1024),
    "width": (1, 1024),
    "frames": (2, 64),
    "frame_rows": (1, 256),
    "window": (2, 1024),
    "steps": (1, 1000),
    "action_steps": (1, 1000),
    "action_dim": (1, 256),
    "tee": (0, 1),
    "prompt_rows": (4, 4096),
    "depth": (1, 256),
    "heads": (1, 256),
    "head_dim": (6, 1024),
    "ffn": (4, 1 << 18),
    "text": (4, 1 << 16),
    "time": (4, 1 << 16),
    "base": (2, 4096),
    "blocks": (1, 16),
    "latent": (1, 256),
    "vocab": (16, 1 << 20),
    "distances": (4, 1024),
    "furthest": (4, 1 << 16),
}
_CHECKS: Mapping[str, Check] = {
    "prompt_buckets": buckets,
    "channels": whole_list("columns of an action row, each once", 0, 255, rising=False),
    "vae_levels": whole_list("multiples of the base", 1, 64, rising=False),
    "shift": positive,
    "action_shift": positive,
    "guidance": positive,
    "eps": positive,
    "theta": positive,
}


def make_config(preset: str, **overrides: Any) -> LingbotConfig:
    """The sizes of ``preset`` with single values replaced.

    Args:
        preset: "base" or "tiny".
        overrides: field names of :class:`LingbotConfig`; those of a part with its name in front
            (``net_depth=2``, ``vae_base=16``). ``horizon`` may say what follows of them.

    Raises:
        OptionError: unknown preset or name, a value of the wrong type or out of range, or sizes
            that do not fit together.

    Buckets of the preset that ``prompt_rows`` has no room for end at it.
    """
    horizon = overrides.pop("horizon", None)
    config: LingbotConfig = overridden("lingbot_va", preset, PRESETS, overrides, _CHECKS, _LIMITS)
    if "prompt_buckets" not in overrides and config.max_prompt_tokens > config.prompt_rows:
        # The preset's: none of them needs more rows than the network attends to.
        kept = (each for each in config.prompt_buckets if each < config.prompt_rows)
        config = replace(config, prompt_buckets=(*kept, config.prompt_rows))
    _check_together(config)
    if horizon not in (None, config.horizon):
        raise OptionError(
            "override 'horizon' of policy 'lingbot_va'",
            expected=f"{config.horizon}, frames {config.frames} x frame_rows {config.frame_rows}",
            got=horizon,
            remedy="set these instead: --set frames=4, in the node settings: [frames=4]",
        )
    return config


def _check_together(config: LingbotConfig) -> None:
    net, vae, text = config.net, config.vae, config.text
    side = 4 * SPACE if config.tee else 2 * SPACE
    third = net.head_dim // 3
    rules = (
        (config.height % side == 0, "height", f"a multiple of {side}"),
        (config.width % side == 0, "width", f"a multiple of {side}"),
        (net.head_dim % 2 == 0 and third % 2 == 0, "net_head_dim", "even, and so its third"),
        (net.time % 2 == 0, "net_time", "an even number"),
        (len(vae.levels) == 4, "vae_levels", "four levels"),
        (
            config.frame_rows % config.stride == 0 and config.frame_rows // config.stride == TIME,
            "frame_rows",
            f"a multiple of {TIME}, the pictures of a latent frame",
        ),
        (
            len(set(config.channels)) == len(config.channels)
            and max(config.channels) < config.action_dim,
            "channels",
            f"columns below {config.action_dim}, each once",
        ),
        (config.guidance > 1.0, "guidance", "above 1: both prompts are run"),
        (
            config.prompt_buckets[0] >= 4 and config.max_prompt_tokens <= config.prompt_rows,
            "prompt_buckets",
            f"4 to {config.prompt_rows} rows",
        ),
        (text.distances % 4 == 0, "text_distances", "a multiple of 4"),
    )
    require_rules("lingbot_va", config, rules)
