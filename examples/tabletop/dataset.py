"""Recorded episodes as arrays, and one file that holds them all for the next time."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from PIL import Image

from flashrt_core.errors import OptionError
from flashrt_core.outputs import whole_file

from .robot import HORIZON, JOINTS, PIXELS

_Any = np.ndarray[Any, Any]


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
    """

    images: _Any
    state: _Any
    chunk: _Any
    episode: _Any
    names: tuple[str, ...]
    prompts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.state)

    def prompt(self, moment: int) -> str:
        """The instruction of a moment."""
        return self.prompts[self.episode[moment]]


def read_episode(path: Path) -> Dataset:
    """The moments of one bag at which everything was recorded.

    Raises:
        OptionError: no bag, a damaged one, or one that is no recording of this task.
    """
    # Here, so that caches can be read where no bag is: on a GPU machine without rosbags.
    from rosbags.typesys import Stores, get_typestore

    from flashrt_ros.replay.bag import Bag

    from .recording import IMAGES, PLANS, PROMPTS, STATES, TOPICS

    store: Any = get_typestore(Stores.ROS2_JAZZY)
    moments: dict[int, dict[str, Any]] = {}
    prompt = ""
    with Bag(path) as bag:
        wrong = [name for name in TOPICS if name not in bag.topics]
        if wrong:
            raise OptionError(f"bag '{path}'", expected=f"topics {wrong}", got=bag.describe())
        for message in bag.messages(TOPICS):
            content = store.deserialize_cdr(message.data, TOPICS[message.topic])
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


def read_dataset(folder: Path, cache: Path | None = None) -> Dataset:
    """All bags below ``folder``, in the order of their names.

    Args:
        folder: that the bags lie in.
        cache: an .npz file. Bags that it holds are not read again; it is rewritten when it lacked
            one.

    Raises:
        OptionError: no bag there, a bag that cannot be used, or a file that is no cache.
        OutputError: the cache cannot be written.
    """
    paths = sorted(path.parent for path in folder.glob("*/metadata.yaml"))
    if not paths:
        raise OptionError(
            f"folder '{folder}'",
            expected="recorded episodes",
            got="none",
            remedy="record some: python -m tabletop.generate --help",
        )
    known = load(cache) if cache is not None and cache.exists() else None
    held = set(known.names) if known else set()
    fresh = [path for path in paths if path.name not in held]
    parts = [*([known] if known else []), *map(read_episode, fresh)]
    whole = parts[0] if len(parts) == 1 else join(parts)
    if cache is not None and fresh:
        save(whole, cache)
    return whole


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
        )


def load(path: Path) -> Dataset:
    """A cache as it was written; OptionError where the file is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in ("images", "state", "chunk", "episode")}
            names, prompts = file["names"].tolist(), file["prompts"].tolist()
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise OptionError(
            f"cache '{path}'",
            expected="one that was written here",
            got=f"{type(error).__name__}: {error}",
            remedy="remove it, and it is made anew from the bags",
        ) from error
    return Dataset(**arrays, names=tuple(names), prompts=tuple(prompts))


def _pixels(path: Path, data: _Any) -> _Any:
    with Image.open(io.BytesIO(data.tobytes())) as image:
        pixels = np.asarray(image.convert("RGB"))
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
