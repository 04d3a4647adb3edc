"""Checkpoint tensors by name. Policies pack them into static buffers; nothing else reads them.

``random:<seed>`` stands in for a checkpoint where only speed, shapes or plumbing matter. A tensor
is a pure function of (seed, name), whatever was read before it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .checkpoint import FILE_NAME, CheckpointWeights, Progress, file_of
from .errors import OptionError, WeightsError
from .files import local_path
from .tensors import TensorSource, TensorSpec

__all__ = ["RandomWeights", "TensorSource", "TensorSpec", "checkpoint_path", "open_weights"]

_RANDOM_SCHEME = "random-v2"  # part of the digest; changes when the same seed gives other numbers
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


def open_weights(
    uri: str | Path, tensors: Mapping[str, TensorSpec], progress: Progress | None = None
) -> TensorSource:
    """Opens a checkpoint.

    Args:
        uri: ``random:<seed>``, or the path of a checkpoint folder or of a safetensors file.
        tensors: names, shapes and random statistics that the policy expects.
        progress: told how far a file is hashed and packed.

    Raises:
        OptionError: ``random:`` without a whole number >= 0.
        WeightsError: the path cannot be read, or holds other tensors.
    """
    path = checkpoint_path(uri)
    if path is not None:
        return CheckpointWeights(file_of(path), tensors, progress)
    seed = str(uri).partition(":")[2]
    if not (seed.isascii() and seed.isdigit()):
        raise OptionError(
            "option 'checkpoint'", expected="random:<whole number> or a path", got=repr(str(uri))
        )
    return RandomWeights(int(seed), tensors)


def checkpoint_path(uri: str | Path) -> Path | None:
    """The path that ``uri`` means; None for a random stand-in.

    WeightsError where no file can have that path.
    """
    if isinstance(uri, str) and uri.startswith("random:"):
        return None
    if uri == "":
        raise WeightsError(
            "checkpoint ''", expected=f"a folder with {FILE_NAME}, or random:<seed>", got="no path"
        )
    return local_path("checkpoint", uri, WeightsError)
