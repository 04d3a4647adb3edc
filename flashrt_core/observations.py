"""Sets of observations to calibrate on or to compare with: from a file, or made up."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .errors import InputError, NumericsError, OptionError, ShapeKeyError
from .images import Frame
from .outputs import whole_file
from .policies.base import Observation, Prepared
from .session import SEEDS

Array = np.ndarray[Any, Any]
Sample = tuple[str, Observation]  # prompt and observation

#: What numpy raises on a file that is none of its own, cut short or of absurd sizes.
_UNREADABLE = (OSError, ValueError, EOFError, MemoryError, OverflowError, zipfile.BadZipFile)
_ZIP, _ARRAY = b"PK", b"\x93NUMPY"  # what a file of arrays starts with, and one of a single array
_WRITE = "write one with flashrt eval TASK --observations FILE, or as docs/numerics.md says"
_PROMPTS = ("pick up the red block", "open the upper drawer slowly", "wipe the table")
_CAMERA = (240, 320)  # pixels of a made-up camera image: not the network's size


def made_up_observations(
    views: tuple[str, ...], state_dim: int, count: int, seed: int = 0, *, square: bool = False
) -> Iterator[Sample]:
    """Prompts with random scenes: coarse patches and noise, states in [-1, 1].

    Pictures are wider than high, as most cameras', unless they have to be ``square``.

    OptionError on a seed that a session could not have.
    """
    if seed not in SEEDS:
        raise OptionError(
            "seed of the observations", expected=f"a number of 0..{SEEDS[-1]}", got=seed
        )
    height, width = _CAMERA[0], _CAMERA[0] if square else _CAMERA[1]
    for index in range(count):
        draw = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, index]))
        images = {}
        for view in views:
            coarse = draw.integers(0, 200, (height // 40, width // 40, 3))
            grain = draw.integers(0, 56, (height, width, 3))
            blocks = coarse.repeat(40, axis=0).repeat(40, axis=1)
            images[view] = (blocks + grain).astype(np.uint8)
        state = draw.uniform(-1.0, 1.0, state_dim).astype(np.float32)
        yield _PROMPTS[index % len(_PROMPTS)], Observation(images, state)


def read_observations(path: Path, views: tuple[str, ...]) -> Iterator[Sample]:
    """Observations of an ``.npz`` file, in order.

    Arrays of n entries each: ``prompt`` (text), ``image.<view>`` [n, H, W, 3] uint8 RGB of every
    view, and ``state`` [n, state_dim] float32 in robot units, where the policy takes one.

    Raises:
        OptionError: no such file, or not these arrays.
    """
    what = f"observations {str(path)!r}"
    try:
        _refuse_other(path, what)
        file = np.load(path, allow_pickle=False)
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OptionError(
            what, expected="a readable .npz file", got=reason, remedy=_WRITE
        ) from error
    with file:
        arrays = _arrays(file, path, views)
    for index, prompt in enumerate(arrays["prompt"]):
        images = {view: arrays[f"image.{view}"][index] for view in views}
        state = arrays["state"][index] if "state" in arrays else None
        yield str(prompt), Observation(images, state)


def _refuse_other(path: Path, what: str) -> None:
    """OptionError on a file that is no .npz; numpy would speak of pickles that it must not open."""
    with path.open("rb") as opened:
        start = opened.read(len(_ARRAY))
    if not start.startswith(_ZIP):
        got = "one array" if start == _ARRAY else "a file of another kind" if start else "no bytes"
        raise OptionError(what, expected="a readable .npz file", got=got, remedy=_WRITE)


def write_observations(samples: Sequence[Sample], path: Path) -> None:
    """Write what :func:`read_observations` reads, whole or not at all.

    Raises:
        InputError: there are none, or their images or states are not of one size.
        OutputError: the file system refuses.
    """
    if not samples:
        raise InputError("observations to write", expected="at least one", got="none")
    arrays: dict[str, Any] = {"prompt": np.array([prompt for prompt, _ in samples])}
    try:
        for view in samples[0][1].images:
            arrays[f"image.{view}"] = np.stack([_pixels(each.images[view]) for _, each in samples])
        if samples[0][1].state is not None:
            arrays["state"] = np.stack([np.asarray(each.state) for _, each in samples])
    except (KeyError, ValueError) as error:
        raise InputError(
            "observations to write", expected="the same views and sizes in all", got=error
        ) from error
    with whole_file("observations", path) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _pixels(image: Array | Frame | Prepared) -> Array:
    image = image.image if isinstance(image, Prepared) else image
    return image.rgb() if isinstance(image, Frame) else image


def digest_of(sample: Sample) -> str:
    """SHA-256 of a prompt and an observation, whatever its stamp and the layout of its images."""
    prompt, observation = sample
    parts = {f"image.{view}": _pixels(image) for view, image in sorted(observation.images.items())}
    if observation.state is not None:
        parts["state"] = np.asarray(observation.state, np.float32)
    layout = [(name, list(part.shape), str(part.dtype)) for name, part in parts.items()]
    digest = hashlib.sha256(json.dumps([prompt, layout]).encode())
    for part in parts.values():
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def number_of(count: int, origin: str) -> str:
    """Which of several observations it is, for messages: ``observation 3 of npz: robot.npz``."""
    return f"observation {count} of {origin}" if origin else f"observation {count}"


@contextmanager
def naming(observation: str) -> Iterator[None]:
    """What is refused of an observation names it: ``observation 3 of npz: robot.npz, state[2]``."""
    try:
        yield
    except (InputError, NumericsError, ShapeKeyError) as error:
        raise error.reworded(f"{observation}, {error.what}") from error


def require_apart(sample: Sample, used: frozenset[str], name: str) -> None:
    """InputError when an observation to compare on is one that was calibrated on."""
    if digest_of(sample) in used:
        raise InputError(
            name,
            expected="one that the plan was not calibrated on",
            got="one of its calibration's",
            remedy="compare on other observations (another --seed or file)",
        )


def _arrays(file: Any, path: Path, views: tuple[str, ...]) -> dict[str, Array]:
    wanted = ["prompt", *(f"image.{view}" for view in views)]
    missing = [name for name in wanted if name not in file.files]
    if missing:
        raise OptionError(
            f"observations {str(path)!r}", expected=f"arrays {wanted}", got=f"no {missing[0]!r}"
        )
    names = wanted + (["state"] if "state" in file.files else [])
    try:
        arrays = {name: file[name] for name in names}
    except _UNREADABLE as error:
        objects = isinstance(error, ValueError) and "pickle" in str(error)
        raise OptionError(
            f"observations {str(path)!r}",
            expected="plain arrays",
            got="Python objects" if objects else str(error),
            remedy=_WRITE,
        ) from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands out bytes that are no array as they are
            raise OptionError(
                f"array {name!r} of observations {str(path)!r}",
                expected="an array",
                got=f"{len(array)} other bytes",
            )
    count = len(arrays["prompt"]) if arrays["prompt"].ndim == 1 else 0
    for name, array in arrays.items():
        kind, dims = ("U", 1) if name == "prompt" else ("f", 2) if name == "state" else ("u", 4)
        if array.dtype.kind != kind or array.ndim != dims or len(array) != count or not count:
            raise OptionError(
                f"array {name!r} of observations {str(path)!r}",
                expected={
                    "U": "text [n]",
                    "f": f"float32 [{count or 'n'}, d]",
                    "u": f"uint8 [{count or 'n'}, H, W, 3]",
                }[kind],
                got=f"{array.dtype} {list(array.shape)}",
            )
    return arrays
