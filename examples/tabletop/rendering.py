"""Pictures without a display: which OpenGL is there, and one renderer a size, shared.

A renderer belongs to the thread that opened it.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import numpy as np

from flashrt_core.errors import FlashRTError

# Backend of MuJoCo -> the library that it needs. glfw wants a display, so it is never chosen here.
_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
_REMEDY = (
    "run: apt-get update && apt-get install -y libegl1 libgl1 libgl1-mesa-dri (EGL), or "
    "libosmesa6 and set MUJOCO_GL=osmesa"
)
# Software OpenGL starts a thread a core; pictures of a few thousand pixels are done before that.
os.environ.setdefault("LP_NUM_THREADS", "1")


class RenderingError(FlashRTError):
    """There is no OpenGL to draw pictures with."""

    code = 96


@cache
def choose_backend() -> str:
    """The value of MUJOCO_GL in force: the user's, else the first whose library loads.

    Must be asked before MuJoCo is imported, which reads it then.

    Raises:
        RenderingError: neither EGL nor OSMesa is installed.
    """
    chosen = os.environ.get("MUJOCO_GL", "").strip().lower()
    if chosen:
        return chosen
    for backend, library in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        os.environ["MUJOCO_GL"] = backend
        return backend
    raise RenderingError(
        "OpenGL for the simulated cameras",
        expected=" or ".join(_LIBRARIES.values()),
        got="neither",
        remedy=_REMEDY,
    )


@cache
def missing() -> str:
    """Why no picture can be drawn here, in one line; empty where one can. For tests to skip with."""
    try:
        from .scene import shared_scene

        shared_renderer(8, 8)
        del shared_scene
    except ImportError as error:
        return f"mujoco: {error}; install the extra 'sim': pip install 'flashrt-ros[sim]'"
    except RenderingError as error:
        return str(error)
    return ""


@cache
def shared_renderer(width: int, height: int) -> Any:
    """MuJoCo's renderer of one picture size for the shared scene, opened once.

    Raises:
        RenderingError: no OpenGL, or one that opens no picture of this size.
    """
    backend = choose_backend()
    import mujoco

    from .scene import shared_scene

    model = shared_scene().model
    # The renderer's buffer has the size that the model names; a larger one costs time to clear.
    model.vis.global_.offwidth, model.vis.global_.offheight = width, height
    try:
        return mujoco.Renderer(model, height, width)
    except Exception as error:  # EGL, OSMesa, PyOpenGL and MuJoCo each have their own kinds
        raise RenderingError(
            f"OpenGL for pictures of {width} x {height} (MUJOCO_GL={backend})",
            expected="a context without a display",
            got=f"{type(error).__name__}: {error}",
            remedy=_REMEDY,
        ) from error


def draw(data: Any, camera: str, width: int, height: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """What ``camera`` sees of MuJoCo's ``data``: [height, width, 3] uint8 RGB; RenderingError."""
    renderer = shared_renderer(width, height)
    renderer.update_scene(data, camera=camera)
    return np.array(renderer.render())
