"""Checkpoint files: a memory-mapped safetensors reader, and the match of a file with a policy.

The file is mapped, never read as a whole: a tensor's pages are given back as soon as the next one
is asked for, so a checkpoint larger than the free memory can be packed. Format: 8 bytes with the
length of a JSON header, the header, then the tensors' bytes without a gap.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .errors import WeightsError
from .files import LFS_POINTER, LFS_REMEDY
from .tensors import TensorSpec

#: Called with what is being done, bytes done and bytes in all.
Progress = Callable[[str, int, int], None]

FILE_NAME = "model.safetensors"
_FORMATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_USABLE = ("F32", "BF16", "F16")
_CONVERT = "convert to F32, BF16 or F16"
_MOST = 1 << 63  # numbers of a header are below it
_HEADER_LIMIT = 100_000_000  # bytes, the format's own limit
_CHUNK = 64 << 20  # bytes that one digest covers; part of the digest scheme
_READ = 4 << 20
_NAMED = 3  # tensors that a message names of each kind of trouble
#: Left in files by older versions of the libraries that write them; nothing reads them.
_IGNORED_SUFFIXES = (".position_ids", ".rotary_emb.inv_freq")


@dataclass(frozen=True)
class Entry:
    """Where a tensor lies. ``start`` is counted from the first byte of the file."""

    shape: tuple[int, ...]
    format: str
    start: int
    nbytes: int


class SafetensorsFile:
    """A mapped safetensors file.

    Args:
        path: the file.

    Raises:
        WeightsError: it is missing, truncated, or its header contradicts itself.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.nbytes = os.fstat(file.fileno()).st_size
                self._header, self.entries = _read_header(path, file, self.nbytes)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path, an empty file
            raise WeightsError(
                f"checkpoint {str(path)!r}",
                expected="a readable safetensors file",
                got=getattr(error, "strerror", None) or str(error),
            ) from error
        self._last: tuple[int, int] | None = None

    def read(self, name: str) -> Tensor:
        """A tensor over the mapped bytes, read-only; its pages may leave memory at the next call.

        Reading it later is still correct, it only costs reading the file again.
        """
        entry = self.entries[name]
        self._release()
        page = mmap.PAGESIZE
        first = entry.start // page * page
        span = (first, min(self.nbytes, entry.start + entry.nbytes) - first)
        if entry.nbytes == 0:
            return torch.empty(entry.shape, dtype=_FORMATS[entry.format])
        self._map.madvise(mmap.MADV_WILLNEED, *span)
        self._last = span
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given buffer is not writable")
            flat = torch.frombuffer(
                self._map, dtype=torch.uint8, count=entry.nbytes, offset=entry.start
            )
        if entry.start % _FORMATS[entry.format].itemsize:
            flat = flat.clone()  # views of wider types need aligned bytes
        return flat.view(_FORMATS[entry.format]).view(entry.shape)

    def digest(self, progress: Progress | None = None) -> str:
        """SHA-256 over the header and the SHA-256 of every 64 MiB of the rest, 64 hex digits.

        Chunks are hashed on all cores: the hash and the reads run outside the interpreter lock, so
        the disk is the limit (about 2 s for 7 GB at 3 GB/s).
        """
        start = 8 + len(self._header)
        spans = [(at, min(_CHUNK, self.nbytes - at)) for at in range(start, self.nbytes, _CHUNK)]
        whole = hashlib.sha256(b"flashrt-weights-1:" + self._header)
        done = 0
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                for (_, size), chunk in zip(
                    spans, pool.map(lambda span: _hash(descriptor, *span), spans), strict=True
                ):
                    whole.update(chunk)
                    done += size
                    if progress is not None:
                        progress("hash", done, self.nbytes - start)
        finally:
            os.close(descriptor)
        return whole.hexdigest()

    def _release(self) -> None:
        if self._last is not None:
            self._map.madvise(mmap.MADV_DONTNEED, *self._last)
            self._last = None


class CheckpointWeights:
    """The tensors of a checkpoint by the policy's names; a ``TensorSource``.

    Args:
        path: a safetensors file.
        specs: what the policy expects. A file whose names all start with ``model.`` is read
            without that prefix.
        progress: told how far hashing and packing are.

    Raises:
        WeightsError: the file cannot be read, or tensors are missing, unknown, of another shape or
            of a format without fractions. One line names the first few of each kind.
    """

    def __init__(
        self, path: Path, specs: Mapping[str, TensorSpec], progress: Progress | None = None
    ) -> None:
        self._file = SafetensorsFile(path)
        self._specs = dict(specs)
        self._progress = progress
        self._at = _match(self._file, specs)
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


def _hash(descriptor: int, start: int, size: int) -> bytes:
    chunk = hashlib.sha256()
    end = start + size
    while start < end:
        data = os.pread(descriptor, min(_READ, end - start), start)
        if not data:
            raise WeightsError("checkpoint", expected="its full length", got="a file that shrank")
        chunk.update(data)
        start += len(data)
    return chunk.digest()


def _read_header(path: Path, file: Any, size: int) -> tuple[bytes, dict[str, Entry]]:
    def broken(expected: str, got: object) -> WeightsError:
        return WeightsError(
            f"checkpoint {str(path)!r}",
            expected=expected,
            got=got,
            remedy="the file is damaged or incomplete: copy it again",
        )

    start = file.read(len(LFS_POINTER))
    if start == LFS_POINTER:
        raise WeightsError(
            f"checkpoint {str(path)!r}",
            expected="a safetensors file",
            got="a git-lfs pointer to it",
            remedy=LFS_REMEDY,
        )
    file.seek(8)
    length = int.from_bytes(start[:8], "little") if size >= 8 else _HEADER_LIMIT + 1
    if length > min(_HEADER_LIMIT, size - 8):
        raise broken("a safetensors file", f"{size} bytes that do not start with its header")
    raw = file.read(length)
    try:
        table = json.loads(raw)
        items = [(name, value) for name, value in table.items() if name != "__metadata__"]
        entries = {name: _entry(path, name, value, 8 + length) for name, value in items}
    except RecursionError as error:
        raise broken("a safetensors header", "JSON nested too deeply") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise broken("a safetensors header", f"{type(error).__name__}: {error}") from error
    at = 8 + length
    for name, entry in sorted(entries.items(), key=lambda item: item[1].start):
        fits = prod(entry.shape) * _FORMATS[entry.format].itemsize == entry.nbytes
        if entry.start != at or not fits:
            raise broken(f"tensor {name!r} at byte {at}", f"{entry}")
        at += entry.nbytes
    if at != size:
        raise broken(f"{at} bytes, as its header says", f"{size} bytes")
    return raw, entries


def _entry(path: Path, name: str, value: Any, base: int) -> Entry:
    first, last = (_number(name, "data_offsets", number) for number in value["data_offsets"])
    shape = tuple(_number(name, "shape", number) for number in value["shape"])
    if last < first or prod(size or 1 for size in shape) >= _MOST:
        raise ValueError(f"offsets {first}..{last} of shape {shape} of tensor {name!r}")
    if not isinstance(value["dtype"], str):
        raise ValueError(f"dtype {value['dtype']!r} of tensor {name!r}")
    if value["dtype"] not in _FORMATS:
        raise WeightsError(
            f"tensor {name!r} of {str(path)!r}",
            expected=f"a format of {', '.join(_USABLE)}",
            got=value["dtype"],
            remedy=_CONVERT,
        )
    return Entry(shape, value["dtype"], base + first, last - first)


def _number(name: str, key: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} in {key} of tensor {name!r}")
    return value


def _match(file: SafetensorsFile, specs: Mapping[str, TensorSpec]) -> dict[str, str]:
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
        name for name in there if name not in expected and not name.endswith(_IGNORED_SUFFIXES)
    ]
    shapes, formats = [], []
    for name, at in found.items():
        entry = file.entries[at]
        if entry.shape != specs[name].shape:
            shapes.append(f"{name} {list(entry.shape)} instead of {list(specs[name].shape)}")
        if entry.format not in _USABLE:
            formats.append(f"{name} {entry.format}")
    troubles = [
        _summary(missing, "missing"),
        _summary(unknown, "unknown"),
        _summary(shapes, "of another shape"),
        _summary(formats, f"not in {', '.join(_USABLE)}"),
    ]
    troubles = [text for text in troubles if text]
    if troubles:
        raise WeightsError(
            f"checkpoint {str(file.path)!r}",
            expected=f"the {len(specs)} tensors of this policy and preset",
            got=f"{len(names)} tensors; " + "; ".join(troubles),
            remedy=_CONVERT
            if formats and not (missing or shapes)
            else "choose the policy and preset that this checkpoint was made for",
        )
    return found


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of a file; WeightsError when it cannot be read."""
    return {name: entry.shape for name, entry in SafetensorsFile(path).entries.items()}


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
    """The weights file of a checkpoint: ``path`` itself, or its ``model.safetensors``.

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
    file = path / FILE_NAME
    if file.is_file():
        return file
    if not path.exists():
        got, remedy = "no such path", None
    elif (path / f"{FILE_NAME}.index.json").exists():
        got, remedy = "a checkpoint in several files", "save it as one file"
    elif (path / "params").is_dir():
        got = "a JAX checkpoint"
        remedy = "convert it with openpi's examples/convert_jax_model_to_pytorch.py"
    else:
        got, remedy = "a folder without it", None
    raise WeightsError(
        f"checkpoint {str(path)!r}", expected=f"a folder with {FILE_NAME}", got=got, remedy=remedy
    )
