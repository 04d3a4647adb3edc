"""Demonstrations as the network takes them: images, prompt tokens, normalised relative actions."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flashrt_core.policies.base import Deployment, Observation, ProcessorOptions
from flashrt_core.policies.normalisation import from_arrays
from flashrt_core.policies.pi05.config import Pi05Config
from flashrt_core.policies.pi05.deployment import Details
from flashrt_core.policies.pi05.preprocess import Pi05Processor

from .dataset import load as load_cache
from .dataset import read_dataset

Array = np.ndarray[Any, Any]

_QUANTILES = {"q01": 0.01, "q99": 0.99}
EPS = 1e-8  # instead of a range of 0
#: A joint that hardly moved keeps a range of this width, in its own unit: otherwise rounding would
#: be scaled up to the range of the others.
_SPAN = 0.02


@dataclass(frozen=True)
class Demonstrations:
    """N decisions of an expert.

    Attributes:
        images: [N, V, R, R, 3] uint8 RGB, views in slot order.
        state: [N, D] float32, measured joint positions.
        chunk: [N, H, D] float32, joint targets from the observation on, one a step.
        task: [N] int64, index into ``instructions``.
        episode: [N] int64, which recording a row is of.
        instructions: texts.
    """

    images: Array
    state: Array
    chunk: Array
    task: Array
    episode: Array
    instructions: tuple[str, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of all of it: which recordings these are, wherever they lie."""
        found = hashlib.sha256(repr(self.instructions).encode())
        for part in (self.images, self.state, self.chunk, self.task, self.episode):
            found.update(f"{part.dtype}{part.shape}".encode())
            found.update(np.ascontiguousarray(part).data)
        return found.hexdigest()

    def take(self, rows: Array) -> Demonstrations:
        """Some of the decisions; ``rows`` [N] bool or indices."""
        return Demonstrations(
            self.images[rows],
            self.state[rows],
            self.chunk[rows],
            self.task[rows],
            self.episode[rows],
            self.instructions,
        )

    def split(self, share: float, seed: int) -> tuple[Demonstrations, Demonstrations]:
        """Two parts of whole episodes; the second has about ``share`` of them, at least one.

        An episode's part depends on its index alone: it stays when more are recorded.
        """
        episodes = np.unique(self.episode)
        lots = np.array([np.random.default_rng([seed, at]).random() for at in episodes])
        chosen = episodes[lots < max(share, lots.min(initial=1.0) + 1e-12)]
        apart = np.isin(self.episode, chosen)
        return self.take(~apart), self.take(apart)


def relative(chunk: Array, state: Array, joints: Sequence[bool]) -> Array:
    """Targets [N, H, D] less the state [N, D], where ``joints`` says so."""
    return chunk - np.where(np.asarray(joints), state, 0.0)[:, None].astype(chunk.dtype)


def statistics(state: Array, actions: Array) -> dict[str, Array]:
    """Quantiles of state [N, D] and of action rows [N, H, D], float32, by their names in a file."""
    found = {}
    for feature, values in (("observation.state", state), ("action", actions)):
        rows = values.reshape(-1, values.shape[-1]).astype(np.float64)
        low, high = (np.quantile(rows, share, axis=0) for share in _QUANTILES.values())
        margin = np.maximum(0.0, _SPAN - (high - low)) / 2
        found[f"{feature}.q01"] = (low - margin).astype(np.float32)
        found[f"{feature}.q99"] = (high + margin).astype(np.float32)
    return found


class Encoder:
    """What the engine will do to observations and actions, done to demonstrations.

    Args:
        config: sizes and numerics.
        stats: of :func:`statistics`.
        joints: for each joint whether its actions are relative to the state.
        views: cameras, in slot order.
    """

    def __init__(
        self,
        config: Pi05Config,
        stats: Mapping[str, Array],
        joints: Sequence[bool],
        views: tuple[str, ...],
    ) -> None:
        self._config, self._joints, self._views = config, tuple(joints), views
        guarded = config.numerics.normalisation == "guarded"
        state, self._actions = (
            from_arrays(
                feature,
                "quantiles",
                {name: stats[f"{feature}.{name}"] for name in _QUANTILES},
                guarded=guarded,
                eps=EPS,
            )
            for feature in ("observation.state", "action")
        )
        details = Details(state, self._actions, self._joints)
        size = len(self._joints)
        deployment = Deployment("lerobot", state_dim=size, action_dim=size, details=details)
        options = ProcessorOptions(views, size, size, deployment=deployment)
        self._processor = Pi05Processor(config, options)

    def prompts(self, state: Array, task: Array, texts: Sequence[str]) -> tuple[Array, Array]:
        """Tokens [N, P] int32, as long as the longest, and lengths [N] int32."""
        side = self._config.image_size
        images = {view: np.zeros((side, side, 3), np.uint8) for view in self._views}
        tokens = np.zeros((len(state), self._config.max_prompt_tokens), np.int32)
        lengths = np.zeros(len(state), np.int32)
        for row, (values, text) in enumerate(zip(state, task, strict=True)):
            found = self._processor.encode(Observation(images, values), texts[text])
            tokens[row] = found["prompt_tokens"]
            lengths[row] = found["prompt_length"][0]
        return tokens[:, : lengths.max(initial=1)], lengths

    def actions(self, chunk: Array, state: Array) -> Array:
        """Targets [N, H, D] in robot units -> [N, H, D] float32 in the network's range."""
        return self._actions.normalise(relative(chunk, state, self._joints)).astype(np.float32)

    def targets(self, actions: Array, state: Array) -> Array:
        """The way back: network's range [N, H, D] and states [N, D] to robot units."""
        own = self._actions.restore(actions)
        return np.asarray(relative(own, -state, self._joints), np.float32)


def load(path: Path | str) -> Demonstrations:
    """Recordings below a folder (a cache of them is kept there), or a cache file.

    Raises:
        OptionError: neither is there, or one that cannot be used.
        OutputError: the cache cannot be written.
    """
    path = Path(path)
    found = load_cache(path) if path.is_file() else read_dataset(path, path / "cache.npz")
    instructions = tuple(sorted(set(found.prompts)))
    tasks = np.array([instructions.index(prompt) for prompt in found.prompts], np.int64)
    return Demonstrations(
        found.images,
        found.state,
        found.chunk,
        tasks[found.episode],
        found.episode.astype(np.int64),
        instructions,
    )
