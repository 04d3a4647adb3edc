"""Checkpoint tensors by name. Policies pack them into static buffers; nothing else reads them.

``random:<seed>`` stands in for a checkpoint where only speed, shapes or plumbing matter. A tensor
is a pure function of (seed, name), whatever was read before it. ``outliers:<seed>`` is the same
with a few channels far larger than the rest, as trained networks have them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checkpoint import FILE_NAME, CheckpointWeights, PartedWeights, Progress, file_of
from .errors import OptionError, WeightsError
from .files import local_path
from .tensors import TensorSource, TensorSpec, WeightsPart

__all__ = [
    "OutlierWeights",
    "RandomWeights",
    "TensorSource",
    "TensorSpec",
    "checkpoint_path",
    "open_weights",
]

_RANDOM_SCHEME = "random-v2"  # part of the digest; changes when the same seed gives other numbers
_SCHEMES = ("random", "outliers")
#: Outlier channels: rows of a tensor for each of them, and their energy beside that of all others.
#: Of 2048 channels, 4 are 12 times as large.
OUTLIER_EVERY, OUTLIER_ENERGY = 512, 0.3
_BLOCK = 1 << 20  # values of a tensor that one stream of random numbers draws


class RandomWeights:
    """Normal float32 tensors, drawn when asked for and not kept.

    Args:
        seed: 0 or more.
        specs: what the checkpoint would hold.
    """

    def __init__(self, seed: int, specs: Mapping[str, TensorSpec]) -> None:
        self._seed = seed
        self._specs = dict(specs)
        text = json.dumps(
            [_RANDOM_SCHEME, seed, sorted((n, s.shape, s.mean, s.std) for n, s in specs.items())]
        )
        self.digest = hashlib.sha256(text.encode()).hexdigest()

    def names(self) -> Iterable[str]:
        """All tensor names."""
        return self._specs.keys()

    def get(self, name: str) -> Tensor:
        """A new float32 tensor; WeightsError on an unknown name."""
        if name not in self._specs:
            raise WeightsError(
                f"tensor {name!r}", expected=f"one of {len(self._specs)} known names", got="none"
            )
        spec = self._specs[name]
        values = np.empty(prod(spec.shape), dtype=np.float32)
        blocks = [values[start : start + _BLOCK] for start in range(0, len(values), _BLOCK)]
        if len(blocks) == 1:
            self._fill(name, 0, values)
        else:  # the threads end with the tensor: nothing of a load stays behind
            with ThreadPoolExecutor(min(len(blocks), os.cpu_count() or 1)) as workers:
                list(workers.map(partial(self._fill, name), range(len(blocks)), blocks))
        return torch.from_numpy(values).view(spec.shape).mul_(spec.std).add_(spec.mean)

    def _fill(self, name: str, index: int, block: np.ndarray[Any, Any]) -> None:
        """Draws one block from a stream of its own, so that all can be drawn at once."""
        part = f":{index}" if index else ""
        key = hashlib.sha256(f"{self._seed}:{name}{part}".encode()).digest()[:16]
        generator = np.random.Generator(np.random.SFC64(int.from_bytes(key, "little")))
        generator.standard_normal(dtype=np.float32, out=block)


class OutlierWeights:
    """A source's tensors with a few rows enlarged, where the policy's specs say ``outliers``.

    Which rows depends on the seed and on how many there are. So everything that writes into one
    residual stream has the same channels large, as in trained networks, and the stream carries them
    from layer to layer.

    Args:
        seed: 0 or more.
        source: where the tensors come from.
        specs: what the policy expects, by name.
    """

    def __init__(self, seed: int, source: TensorSource, specs: Mapping[str, TensorSpec]) -> None:
        self._seed = seed
        self._source = source
        self._large = {name for name, spec in specs.items() if spec.outliers}
        text = json.dumps([source.digest, seed, OUTLIER_EVERY, OUTLIER_ENERGY, sorted(self._large)])
        self.digest = hashlib.sha256(text.encode()).hexdigest()

    def names(self) -> Iterable[str]:
        """All tensor names."""
        return self._source.names()

    def get(self, name: str) -> Tensor:
        """A new float32 tensor; errors as those of the source."""
        tensor = self._source.get(name)
        if name in self._large:
            rows = self.rows(tensor.shape[0])
            tensor[rows] *= (OUTLIER_ENERGY * tensor.shape[0] / len(rows)) ** 0.5
        return tensor

    def rows(self, count: int) -> list[int]:
        """The enlarged ones of ``count`` rows: at least one."""
        draw = np.random.Generator(np.random.Philox(key=self._seed, counter=[0, 0, 0, count]))
        chosen = draw.permutation(count)[: max(1, count // OUTLIER_EVERY)]
        return sorted(int(row) for row in chosen)


def open_weights(
    uri: str | Path,
    tensors: Mapping[str, TensorSpec],
    progress: Progress | None = None,
    parts: Sequence[WeightsPart] = (),
) -> TensorSource:
    """Opens a checkpoint.

    Args:
        uri: ``random:<seed>``, ``outliers:<seed>``, or the path of a checkpoint folder or of a
            safetensors file.
        tensors: names, shapes and random statistics that the policy expects.
        progress: told how far a file is hashed and packed.
        parts: files that a folder's weights lie in; none: where they always lie.

    Raises:
        OptionError: ``random:`` or ``outliers:`` without a whole number >= 0.
        WeightsError: the path cannot be read, or holds other tensors.
    """
    path = checkpoint_path(uri)
    if path is not None and parts:
        return PartedWeights(parts, tensors, progress)
    if path is not None:
        return CheckpointWeights(file_of(path), tensors, progress)
    scheme, _, seed = str(uri).partition(":")
    # The length first: Python itself refuses to read numbers of thousands of digits.
    if not (seed.isascii() and seed.isdigit() and len(seed) <= 20 and int(seed) < 1 << 64):
        raise OptionError(
            "option 'checkpoint'",
            expected=f"{scheme}:<whole number> below 2**64, or a path",
            got=repr(str(uri)),
        )
    weights = RandomWeights(int(seed), tensors)
    return weights if scheme == "random" else OutlierWeights(int(seed), weights, tensors)


def checkpoint_path(uri: str | Path) -> Path | None:
    """The path that ``uri`` means; None for a random stand-in.

    WeightsError where no file can have that path.
    """
    if isinstance(uri, str) and uri.partition(":")[0] in _SCHEMES and ":" in uri:
        return None
    if uri == "":
        raise WeightsError(
            "checkpoint ''", expected=f"a folder with {FILE_NAME}, or random:<seed>", got="no path"
        )
    return local_path("checkpoint", uri, WeightsError)
