"""Checkpoints: the match of their files with what a policy expects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import WeightsError
from .safetensors_file import (
    CONVERT,
    INDEX,
    USABLE,
    Entry,
    Progress,
    SafetensorsFile,
    TensorFile,
    open_file,
)
from .tensors import TensorSpec, WeightsPart

__all__ = ["CheckpointWeights", "Entry", "Progress", "SafetensorsFile", "open_file"]

FILE_NAME = "model.safetensors"
_NAMED = 3  # tensors that a message names of each kind of trouble
#: Left in files by older versions of the libraries that write them; nothing reads them.
_IGNORED_SUFFIXES = (".position_ids", ".rotary_emb.inv_freq")


class CheckpointWeights:
    """The tensors of a checkpoint by the policy's names; a ``TensorSource``.

    Args:
        path: a safetensors file, or the list of several.
        specs: what the policy expects. A file whose names all start with ``model.`` is read
            without that prefix.
        progress: told how far hashing and packing are.
        unread: beginnings of names in the file that nobody reads.

    Raises:
        WeightsError: the file cannot be read, or tensors are missing, unknown, of another shape or
            of a format without fractions. One line names the first few of each kind.
    """

    def __init__(
        self,
        path: Path,
        specs: Mapping[str, TensorSpec],
        progress: Progress | None = None,
        unread: tuple[str, ...] = (),
    ) -> None:
        self._file = open_file(path)
        self._specs = dict(specs)
        self._progress = progress
        self._at = _match(self._file, specs, unread)
        self._total = sum(self._file.entries[at].nbytes for at in self._at.values())
        self._unread = set(self._at)
        self._done = 0

    @cached_property
    def digest(self) -> str:
        """Digest of the whole file; see :meth:`SafetensorsFile.digest`."""
        return self._file.digest(self._progress)

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return self._file.nbytes

    def names(self) -> Iterable[str]:
        """Names of the tensors that are there."""
        return self._at.keys()

    def get(self, name: str) -> Tensor:
        """The tensor in the file's own format; WeightsError when missing or not finite."""
        if name not in self._at:
            raise WeightsError(
                f"tensor {name!r}",
                expected=f"one of the {len(self._at)} tensors of {str(self._file.path)!r}",
                got="none of that name",
            )
        tensor = self._file.read(self._at[name])
        if tensor.numel():
            low, high = torch.aminmax(tensor)
            if not (torch.isfinite(low) and torch.isfinite(high)):
                raise WeightsError(
                    f"tensor {name!r} of {str(self._file.path)!r}",
                    expected="finite values",
                    got="NaN or infinity",
                    remedy="the file is damaged, or training diverged",
                )
        if self._progress is not None:
            if name in self._unread:
                self._unread.discard(name)
                self._done += tensor.nbytes
            self._progress("pack", self._done, self._total)
        return tensor


class PartedWeights:
    """The tensors of a checkpoint that lies in several places; a ``TensorSource``.

    Args:
        parts: the places; every name that the policy expects begins as one of them says.
        specs: what the policy expects.
        progress: told how far hashing and packing are, part by part.

    Raises:
        WeightsError: as those of :class:`CheckpointWeights`, of the first part that does not fit.
    """

    def __init__(
        self,
        parts: Iterable[WeightsPart],
        specs: Mapping[str, TensorSpec],
        progress: Progress | None = None,
    ) -> None:
        self._parts: dict[str, tuple[WeightsPart, CheckpointWeights]] = {}
        for part in parts:
            own = {
                self._inside(part, name): replace(
                    spec, aliases=tuple(self._inside(part, other) for other in spec.aliases)
                )
                for name, spec in specs.items()
                if name.startswith(part.start)
            }
            file = CheckpointWeights(part.file, own, progress, part.unread)
            self._parts[part.start] = (part, file)

    @cached_property
    def digest(self) -> str:
        """Of all parts and where they go."""
        each = {start: file.digest for start, (_, file) in self._parts.items()}
        return hashlib.sha256(json.dumps(each, sort_keys=True).encode()).hexdigest()

    def names(self) -> Iterable[str]:
        """Names of the tensors that are there."""
        for part, file in self._parts.values():
            yield from (part.start + name.removeprefix(part.within) for name in file.names())

    @staticmethod
    def _inside(part: WeightsPart, name: str) -> str:
        return part.within + name.removeprefix(part.start)

    def get(self, name: str) -> Tensor:
        """The tensor in its file's own format; WeightsError when missing or not finite."""
        for part, file in self._parts.values():
            if name.startswith(part.start):
                return file.get(self._inside(part, name))
        raise WeightsError(
            f"tensor {name!r}", expected=f"one of the parts {list(self._parts)}", got="another"
        )


def _match(
    file: TensorFile, specs: Mapping[str, TensorSpec], unread: tuple[str, ...] = ()
) -> dict[str, str]:
    """Name of the policy -> name in the file; WeightsError when they do not fit each other."""
    names = list(file.entries)
    prefix = "model." if names and all(name.startswith("model.") for name in names) else ""
    there = {name.removeprefix(prefix): name for name in names}
    known = {name: (*spec.aliases, name) for name, spec in specs.items()}
    found: dict[str, str] = {}
    missing = []
    for name, candidates in known.items():
        at = next((there[candidate] for candidate in candidates if candidate in there), None)
        if at is not None:
            found[name] = at
        elif specs[name].used:
            missing.append(name)
    expected = {candidate for candidates in known.values() for candidate in candidates}
    unknown = [
        name
        for name in there
        if name not in expected
        and not name.endswith(_IGNORED_SUFFIXES)
        and not name.startswith(unread)
    ]
    shapes, formats = [], []
    for name, at in found.items():
        entry = file.entries[at]
        if entry.shape != specs[name].shape:
            shapes.append(f"{name} {list(entry.shape)} instead of {list(specs[name].shape)}")
        if entry.format not in USABLE:
            formats.append(f"{name} {entry.format}")
    troubles = [
        _summary(missing, "missing"),
        _summary(unknown, "unknown"),
        _summary(shapes, "of another shape"),
        _summary(formats, f"not in {', '.join(USABLE)}"),
    ]
    troubles = [text for text in troubles if text]
    if troubles:
        raise WeightsError(
            f"checkpoint {str(file.path)!r}",
            expected=f"the {len(specs)} tensors of this policy and preset",
            got=f"{len(names)} tensors; " + "; ".join(troubles),
            remedy=CONVERT
            if formats and not (missing or shapes)
            else "choose the policy and preset that this checkpoint was made for",
        )
    return found


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a file; WeightsError when it cannot be read."""
    return {name: entry.shape for name, entry in open_file(path).entries.items()}


def read_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """All tensors of a small file in float64, whatever float or integer format they are stored in.

    WeightsError when the file cannot be read.
    """
    try:
        file = SafetensorsFile(path)
        return {name: file.read(name).to(torch.float64).numpy() for name in file.entries}
    except WeightsError as error:
        raise WeightsError(
            f"statistics {str(path)!r}",
            expected=error.expected,
            got=error.got,
            remedy=error.remedy or "copy the whole folder",
        ) from error


def _summary(names: list[str], kind: str) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} {kind}: {', '.join(names[:_NAMED])}{more}"


def file_of(path: Path) -> Path:
    """The weights file of a checkpoint: ``path`` itself, or its ``model.safetensors``, or the list
    of several files that stand for it.

    WeightsError when there is none.
    """
    try:
        return _file_of(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise WeightsError(
            f"checkpoint {str(path)!r}", expected=f"a folder with {FILE_NAME}", got=reason
        ) from error


def _file_of(path: Path) -> Path:
    if path.is_file():
        return path
    for file in (path / FILE_NAME, path / f"{FILE_NAME}{INDEX}"):
        if file.is_file():
            return file
    if not path.exists():
        got, remedy = "no such path", None
    elif (path / "params").is_dir():
        got = "a JAX checkpoint"
        remedy = "convert it with openpi's examples/convert_jax_model_to_pytorch.py"
    else:
        got, remedy = "a folder without it", None
    raise WeightsError(
        f"checkpoint {str(path)!r}", expected=f"a folder with {FILE_NAME}", got=got, remedy=remedy
    )
