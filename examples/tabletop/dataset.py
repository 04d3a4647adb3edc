"""Recorded episodes as arrays, and one file that holds them all for the next time."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
from PIL import Image

from flashrt_core.errors import OptionError
from flashrt_core.outputs import whole_file

from .robot import HORIZON, JOINTS, PIXELS, VIEWS

_Any = np.ndarray[Any, Any]
_SHAPES = {
    "images": (len(VIEWS), PIXELS, PIXELS, 3),
    "state": (len(JOINTS),),
    "chunk": (HORIZON, len(JOINTS)),
    "episode": (),
}
#: What reading a file of any content as an archive of arrays may raise.
_NO_ARCHIVE = (
    AttributeError,
    BadZipFile,
    EOFError,
    LookupError,
    NotImplementedError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    zlib.error,
)


@dataclass(frozen=True)
class Dataset:
    """Moments of episodes, in order.

    Attributes:
        images: [N, 2, 96, 96, 3] uint8 RGB; the views in the task's order.
        state: [N, 7] float32, radians and metres.
        chunk: [N, 10, 7] float32, the expert's targets.
        episode: [N] int32, index into ``names``.
        names: of the bags.
        prompts: of each episode, its instruction.
        marks: of each bag, what is another one once its files change; empty where that is unknown.
    """

    images: _Any
    state: _Any
    chunk: _Any
    episode: _Any
    names: tuple[str, ...]
    prompts: tuple[str, ...]
    marks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.state)

    def prompt(self, moment: int) -> str:
        """The instruction of a moment."""
        return self.prompts[self.episode[moment]]

    def only(self, episode: int) -> Dataset:
        """One episode of it."""
        first, end = np.searchsorted(self.episode, [episode, episode + 1])
        return Dataset(
            self.images[first:end],
            self.state[first:end],
            self.chunk[first:end],
            np.zeros(end - first, np.int32),
            (self.names[episode],),
            (self.prompts[episode],),
            self.marks[episode : episode + 1],
        )


def read_episode(path: Path | str) -> Dataset:
    """The moments of one bag at which everything was recorded.

    Raises:
        OptionError: no bag, a damaged one, or one that is no recording of this task.
    """
    # Here, so that caches can be read where no bag is: on a GPU machine without rosbags.
    from rosbags.typesys import Stores, get_typestore

    from flashrt_ros.replay.bag import Bag

    from .recording import IMAGES, PLANS, PROMPTS, STATES, TOPICS

    path = Path(path)
    store: Any = get_typestore(Stores.ROS2_JAZZY)
    moments: dict[int, dict[str, Any]] = {}
    prompt = ""
    with Bag(path) as bag:
        wrong = [name for name in TOPICS if name not in bag.topics]
        if wrong:
            raise OptionError(f"bag '{path}'", expected=f"topics {wrong}", got=bag.describe())
        for message in bag.messages(TOPICS):
            content = _content(path, store, message.data, TOPICS[message.topic])
            if message.topic == PROMPTS:
                prompt = content.data
            else:
                moments.setdefault(message.stamp_ns, {})[message.topic] = content
    whole = [parts for _, parts in sorted(moments.items()) if len(parts) == len(TOPICS) - 1]
    if not whole or not prompt:
        raise OptionError(f"bag '{path}'", expected="a prompt and moments", got="none")
    return Dataset(
        images=np.stack([[_pixels(path, each[t].data) for t in IMAGES.values()] for each in whole]),
        state=_rows(path, [each[STATES].position for each in whole], (len(JOINTS),)),
        chunk=_rows(
            path,
            [[point.positions for point in each[PLANS].points] for each in whole],
            (HORIZON, len(JOINTS)),
        ),
        episode=np.zeros(len(whole), np.int32),
        names=(path.name,),
        prompts=(prompt,),
    )


def read_dataset(folder: Path | str, cache: Path | str | None = None) -> Dataset:
    """All bags below ``folder``, in the order of their names.

    Args:
        folder: that the bags lie in.
        cache: an .npz file. Bags that it holds as they are now are not read again; it is rewritten
            when it held others.

    Raises:
        OptionError: no bag there, a bag that cannot be used, or a file that is no cache.
        OutputError: the cache cannot be written.
    """
    folder, cache = Path(folder), None if cache is None else Path(cache)
    paths = sorted(path.parent for path in folder.glob("*/metadata.yaml"))
    if not paths:
        raise OptionError(
            f"folder '{folder}'",
            expected="recorded episodes",
            got="none" if folder.exists() else "no such folder",
            remedy="record some: python -m tabletop.generate --help",
        )
    known = None
    if cache is not None and cache.exists():
        try:
            known = load(cache)
        except OptionError as error:
            raise error.reworded(remedy="remove it, and it is made anew from the bags") from error
    there = [(path.name, mark(path)) for path in paths]
    held = list(zip(known.names, known.marks, strict=False)) if known else []
    if known and held == there:
        return known
    at = {each: index for index, each in enumerate(held)}
    parts = [
        known.only(at[each])
        if known and each in at
        else replace(read_episode(path), marks=each[1:])
        for path, each in zip(paths, there, strict=True)
    ]
    whole = join(parts)
    if cache is not None:
        save(whole, cache)
    return whole


def mark(bag: Path) -> str:
    """A digest of sizes and times of a bag's files: another one once they change."""
    found = []
    for file in sorted(bag.iterdir()):
        try:
            about = file.stat()
        except OSError:  # who reads it says so
            continue
        found.append(f"{file.name}:{about.st_size}:{about.st_mtime_ns}")
    return hashlib.sha256(os.fsencode("/".join(found))).hexdigest()[:16]


def join(parts: Sequence[Dataset]) -> Dataset:
    """Several as one; episodes keep their order."""
    before = np.cumsum([0, *(len(part.names) for part in parts)])
    return Dataset(
        images=np.concatenate([part.images for part in parts]),
        state=np.concatenate([part.state for part in parts]),
        chunk=np.concatenate([part.chunk for part in parts]),
        episode=np.concatenate(
            [part.episode + first for part, first in zip(parts, before, strict=False)]
        ).astype(np.int32),
        names=tuple(name for part in parts for name in part.names),
        prompts=tuple(prompt for part in parts for prompt in part.prompts),
        marks=tuple(mark for part in parts for mark in part.marks),
    )


def save(dataset: Dataset, path: Path) -> None:
    """Write a cache, whole or not at all; OutputError."""
    with whole_file("cache", path) as part, part.open("wb") as file:
        np.savez_compressed(
            file,
            images=dataset.images,
            state=dataset.state,
            chunk=dataset.chunk,
            episode=dataset.episode,
            names=np.array(dataset.names),
            prompts=np.array(dataset.prompts),
            marks=np.array(dataset.marks, np.str_),
        )


def load(path: Path | str) -> Dataset:
    """A cache as it was written; OptionError where the file is none."""
    path = Path(path)
    try:
        if path.is_file() and not is_zipfile(path):
            raise ValueError("no archive of arrays")
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in _SHAPES}
            names, prompts = file["names"].tolist(), file["prompts"].tolist()
            marks = file["marks"].tolist() if "marks" in file else []
        _check(arrays, names, prompts)
    except _NO_ARCHIVE as error:
        raise OptionError(
            f"cache '{path}'",
            expected="recorded episodes in one file, as training writes it",
            got=f"{type(error).__name__}: {error}",
            remedy="give the folder of the recordings, or the cache.npz that was made in it",
        ) from error
    return Dataset(**arrays, names=tuple(names), prompts=tuple(prompts), marks=tuple(marks))


def _check(arrays: dict[str, _Any], names: list[str], prompts: list[str]) -> None:
    """ValueError where arrays do not make a dataset."""
    episode = arrays["episode"]
    for name, shape in _SHAPES.items():
        found = arrays[name].shape
        if found != (len(episode), *shape):
            raise ValueError(f"{name} of shape {found}, {len(episode)} moments")
    for name in ("state", "chunk"):
        if arrays[name].dtype != np.float32 or not np.isfinite(arrays[name]).all():
            raise ValueError(f"{name} that are no finite float32 numbers")
    if arrays["images"].dtype != np.uint8 or episode.dtype != np.int32:
        raise ValueError("images that are not uint8, or episodes that are not int32")
    if len(names) != len(prompts) or np.unique(episode).tolist() != list(range(len(names))):
        raise ValueError(f"{len(names)} names and {len(prompts)} prompts of other episodes")
    if not len(episode) or (np.diff(episode) < 0).any():
        raise ValueError("no moments, or moments out of order")


def _content(path: Path, store: Any, data: bytes, kind: str) -> Any:
    try:
        return store.deserialize_cdr(data, kind)
    except (AssertionError, LookupError, TypeError, ValueError, struct.error) as error:
        raise OptionError(
            f"bag '{path}'", expected=kind, got=f"a damaged message: {error}"
        ) from error


def _pixels(path: Path, data: _Any) -> _Any:
    try:
        with Image.open(io.BytesIO(data.tobytes())) as image:
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError) as error:  # SyntaxError: of Pillow, of a broken PNG
        raise OptionError(f"bag '{path}'", expected="images", got=error) from error
    if pixels.shape != (PIXELS, PIXELS, 3):
        raise OptionError(
            f"bag '{path}'", expected=f"images of {PIXELS} x {PIXELS}", got=pixels.shape
        )
    return pixels


def _rows(path: Path, values: Sequence[Any], shape: tuple[int, ...]) -> _Any:
    try:
        rows = np.array(values, np.float32)
    except ValueError:  # rows of several lengths
        rows = np.zeros(0, np.float32)
    if rows.shape[1:] != shape:
        raise OptionError(f"bag '{path}'", expected=f"rows of {shape}", got=rows.shape[1:])
    return rows
