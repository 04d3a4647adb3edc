"""Pictures of an episode as one animated GIF, with what was asked for written below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from flashrt_core.outputs import whole_file

Array = np.ndarray[Any, Any]
_BAR, _MARGIN, _COLOURS = 26, 8, 96
_LAST_MS = 900  # that the end of an episode is shown


def captioned(frames: Array, text: str, mark: bool | None = None) -> list[Image.Image]:
    """Frames [n, H, W, 3] uint8 with a bar below that says ``text``; the last one also whether it
    was done.
    """
    font = ImageFont.load_default(15)
    found = []
    for index, frame in enumerate(frames):
        height, width = frame.shape[:2]
        image = Image.new("RGB", (width, height + _BAR), (24, 26, 30))
        image.paste(Image.fromarray(frame))
        draw = ImageDraw.Draw(image)
        draw.text((_MARGIN, height + 4), text, font=font, fill=(235, 235, 235))
        if mark is not None and index == len(frames) - 1:
            word, colour = ("done", (110, 220, 130)) if mark else ("not done", (240, 120, 100))
            left = width - _MARGIN - draw.textlength(word, font)
            draw.text((left, height + 4), word, font=font, fill=colour)
        found.append(image)
    return found


def write_animation(
    episodes: Sequence[Sequence[Image.Image]], frames_hz: float, path: Path
) -> None:
    """Write a GIF that repeats for ever.

    One palette serves all frames, so that what stands still is the same in each and costs nothing.

    Args:
        episodes: frames of each, of one size.
        frames_hz: frames a second; the last one of an episode stays longer.
        path: file; OutputError where it cannot be written.
    """
    frames = [frame for episode in episodes for frame in episode]
    ends = [episode[-1] for episode in episodes]
    palette = _montage(frames, ends).quantize(_COLOURS, method=Image.Quantize.MEDIANCUT)
    drawn = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame in frames]
    times = [round(1e3 / frames_hz)] * len(frames)
    for end in np.cumsum([len(episode) for episode in episodes]):
        times[end - 1] = _LAST_MS
    with whole_file("animation", path) as part:
        drawn[0].save(
            part,
            format="GIF",
            save_all=True,
            append_images=drawn[1:],
            duration=times,
            loop=0,
            optimize=True,
        )


def _montage(frames: Sequence[Image.Image], further: Sequence[Image.Image]) -> Image.Image:
    """Some frames side by side: the colours that all of them need."""
    chosen = [*frames[:: max(1, len(frames) // 8)], *further]
    width, height = frames[0].size
    montage = Image.new("RGB", (width * len(chosen), height))
    for index, frame in enumerate(chosen):
        montage.paste(frame, (index * width, 0))
    return montage
