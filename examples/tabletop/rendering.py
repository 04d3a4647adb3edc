"""Renderers of the shared scene, one a picture size. Each belongs to the thread that opened it."""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

import numpy as np

from .backend import check_opengl, mujoco
from .scene import shared_scene


@cache
def _renderer(width: int, height: int) -> Any:
    check_opengl()
    model = shared_scene().model
    # The renderer's buffer has the size that the model names; a larger one costs time to clear.
    model.vis.global_.offwidth, model.vis.global_.offheight = width, height
    renderer = mujoco.Renderer(model, height, width)
    atexit.register(renderer.close)  # before EGL ends, which was to be told at its beginning
    return renderer


def draw(data: Any, camera: str, width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What ``camera`` sees of MuJoCo's ``data``: [height, width, 3] uint8 RGB.

    Raises:
        RenderingError: no OpenGL here.
    """
    renderer = _renderer(width, height)
    renderer.update_scene(data, camera=camera)
    return np.array(renderer.render())
