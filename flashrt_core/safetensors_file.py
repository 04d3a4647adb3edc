"""Safetensors files as they lie on disk: mapped, one or several, and their digest.

A file is mapped, never read as a whole: a tensor's pages are given back as soon as the next one is
asked for, so a checkpoint larger than the free memory can be packed. Format: 8 bytes with the
length of a JSON header, the header, then the tensors' bytes without a gap.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from .errors import WeightsError
from .files import LFS_POINTER, LFS_REMEDY, read_json

#: Called with what is being done, bytes done and bytes in all.
Progress = Callable[[str, int, int], None]

#: What the name of a list of several files ends in.
INDEX = ".index.json"
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
USABLE = ("F32", "BF16", "F16")
CONVERT = "convert to F32, BF16 or F16"
_MOST = 1 << 63  # numbers of a header are below it
_HEADER_LIMIT = 100_000_000  # bytes, the format's own limit
_CHUNK = 64 << 20  # bytes that one digest covers; part of the digest scheme
_READ = 4 << 20


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


class TensorFile(Protocol):
    """One file, or several that are one checkpoint.

    Attributes:
        path: the file, or the list of them.
        nbytes: in all.
    """

    path: Path
    nbytes: int

    @property
    def entries(self) -> dict[str, Entry]:
        """Name -> where a tensor lies."""

    def read(self, name: str) -> Tensor:
        """See :meth:`SafetensorsFile.read`."""

    def digest(self, progress: Progress | None = None) -> str:
        """Identity of the contents."""


class Shards:
    """Several safetensors files with a list that says which tensor lies in which.

    Args:
        path: the list, a ``model.safetensors.index.json``.

    Raises:
        WeightsError: a file is missing or damaged, or has other tensors than the list says.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        places = _places(path)
        self._files = {
            name: SafetensorsFile(path.parent / name) for name in sorted(set(places.values()))
        }
        self.nbytes = sum(file.nbytes for file in self._files.values())
        for name, file in self._files.items():
            listed = {tensor for tensor, at in places.items() if at == name}
            if listed != set(file.entries):
                other = sorted(listed ^ set(file.entries))
                raise WeightsError(
                    f"checkpoint {str(file.path)!r}",
                    expected=f"the {len(listed)} tensors that {path.name} says",
                    got=f"{len(file.entries)}; the first that differs is {other[0]}",
                    remedy="copy all files of the checkpoint again",
                )
        self._at = {tensor: self._files[name] for tensor, name in places.items()}

    @property
    def entries(self) -> dict[str, Entry]:
        """Name -> where a tensor lies in its file."""
        return {name: file.entries[name] for name, file in self._at.items()}

    def read(self, name: str) -> Tensor:
        """See :meth:`SafetensorsFile.read`."""
        return self._at[name].read(name)

    def digest(self, progress: Progress | None = None) -> str:
        """SHA-256 over the digests of the files, by name, 64 hex digits."""
        whole, done = hashlib.sha256(b"flashrt-shards-1:"), 0

        def told(what: str, read: int, _: int) -> None:
            if progress is not None:
                progress(what, done + read, self.nbytes)

        for name, file in self._files.items():
            whole.update(f"{name}:{file.digest(told)};".encode())
            done += file.nbytes
        return whole.hexdigest()


def open_file(path: Path) -> TensorFile:
    """A safetensors file, or those of a list; WeightsError when it cannot be read."""
    return Shards(path) if path.name.endswith(INDEX) else SafetensorsFile(path)


def _places(path: Path) -> dict[str, str]:
    """Tensor -> name of the file beside the list."""
    where = f"checkpoint {str(path)!r}"
    content = read_json(path, where, WeightsError)
    places = content.get("weight_map") if isinstance(content, dict) else None
    fits = isinstance(places, dict) and all(
        isinstance(name, str) and name.endswith(".safetensors") and name == Path(name).name
        for name in places.values()
    )
    if not places or not fits:
        raise WeightsError(
            where, expected="a weight_map of tensors and files beside it", got="another content"
        )
    return dict(places)


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
            expected=f"a format of {', '.join(USABLE)}",
            got=value["dtype"],
            remedy=CONVERT,
        )
    return Entry(shape, value["dtype"], base + first, last - first)


def _number(name: str, key: str, value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MOST:
        raise ValueError(f"{value!r} in {key} of tensor {name!r}")
    return value
