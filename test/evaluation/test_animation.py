"""Films of episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flashrt_core.outputs import OutputError
from flashrt_ros.evaluation.animation import captioned, write_animation


def film(colour: tuple[int, int, int], done: bool) -> list[Image.Image]:
    frames = np.full((5, 60, 160, 3), 30, np.uint8)
    for index in range(5):
        frames[index, 20:30, 20 * index : 20 * index + 10] = colour
    return captioned(frames, "push it", done)


def test_a_film_shows_every_frame_what_was_asked_and_how_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "film.gif"
    write_animation([film((250, 40, 40), True), film((40, 40, 250), False)], 10.0, file)
    with Image.open(file) as found:
        assert (found.n_frames, found.info["loop"]) == (10, 0)
        times, ends = [], []
        for index in range(10):
            found.seek(index)
            times.append(found.info["duration"])
            pixels = np.asarray(found.convert("RGB")).astype(int)
            ends.append(pixels[60:, 100:].reshape(-1, 3))
            wanted = (250, 40, 40) if index < 5 else (40, 40, 250)
            at = pixels[25, 20 * (index % 5) + 5]
            assert np.abs(at - wanted).max() < 24
        assert times[:4] == [100] * 4 and times[4] > 500 and times[9] > 500
    # Green where it was done, red where it was not, neither before.
    lead = [int((part[:, 1] - part[:, 0]).max()) for part in ends]
    assert lead[4] > 60 and max(lead[:4]) < 10
    behind = [int((part[:, 0] - part[:, 1]).max()) for part in ends]
    assert behind[9] > 60 and max(behind[5:9]) < 10


def test_a_place_that_takes_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "film.gif").mkdir()
    with pytest.raises(OutputError, match="film.gif"):
        write_animation([film((1, 2, 3), True)], 10.0, tmp_path / "film.gif")
