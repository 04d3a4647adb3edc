"""MuJoCo, imported once it is known how it can draw without a display.

It reads MUJOCO_GL when it is imported, so the rest of the package takes ``mujoco`` from here.

Raises:
    OptionError: MuJoCo is not installed.
    RenderingError: MUJOCO_GL names an OpenGL that is not installed. Where it is not set and none
        is there, only pictures fail.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import cache

from flashrt_core.errors import DeviceError, OptionError

# Value of MUJOCO_GL -> the library behind it. glfw wants a display, so it is never chosen here.
_LIBRARIES = {"egl": "libEGL.so.1", "osmesa": "libOSMesa.so.8"}
_NONE = "disable"


class RenderingError(DeviceError):
    """There is no OpenGL to draw pictures with."""


def choose() -> str:
    """The user's MUJOCO_GL, else the first whose library is installed, else that for none."""
    chosen = os.environ.get("MUJOCO_GL", "").strip().lower()
    if chosen:
        return chosen
    for backend, library in _LIBRARIES.items():
        try:
            ctypes.CDLL(library)
        except OSError:
            continue
        return backend
    return _NONE


_GIVEN = os.environ.get("MUJOCO_GL", "").strip()
BACKEND = os.environ["MUJOCO_GL"] = choose()
# Software OpenGL starts a thread a core; pictures of a few thousand pixels are done before that.
os.environ.setdefault("LP_NUM_THREADS", "1")


def _refused(got: object) -> RenderingError:
    ours = BACKEND in (*_LIBRARIES, _NONE)
    asked = f" (MUJOCO_GL={BACKEND})" if _GIVEN else "" if BACKEND == _NONE else f" ({BACKEND})"
    return RenderingError(
        f"OpenGL for the simulated cameras{asked}",
        expected=f"one that needs no display: {' or '.join(_LIBRARIES.values())}",
        got=f"{type(got).__name__}: {got}" if isinstance(got, Exception) else got,
        remedy="run: apt-get update && apt-get install -y libegl1 libopengl0 libgl1-mesa-dri; or "
        "install libosmesa6 and set MUJOCO_GL=osmesa"
        if ours
        else f"unset it, or set {' or '.join(_LIBRARIES)}",
    )


try:
    import mujoco
except ModuleNotFoundError as _error:
    if _error.name != "mujoco":
        raise
    raise OptionError(
        "task 'tabletop'",
        expected="MuJoCo",
        got="no module of that name",
        remedy="install the extra 'sim': pip install 'flashrt-ros[sim]'",
    ) from _error
except (ImportError, AttributeError, RuntimeError) as _error:  # of PyOpenGL, by the way it looked
    raise _refused(_error) from _error


if not _GIVEN:  # MuJoCo has read it; what this process starts must not take it for the user's
    del os.environ["MUJOCO_GL"]


@cache
def check_opengl() -> None:
    """Open and close a context; RenderingError where that is not possible."""
    if BACKEND == _NONE:
        raise _refused("none")
    # One that cannot be made is deleted all the same, and would stumble over what it never got.
    mujoco.GLContext._context = None
    mujoco.Renderer._gl_context = mujoco.Renderer._mjr_context = None
    try:
        with warnings.catch_warnings(record=True) as said:  # what GLFW has in place of exceptions
            warnings.simplefilter("always")
            context = mujoco.GLContext(8, 8)
        if not context._context:
            reasons = [str(each.message) for each in said] or ["no window could be opened"]
            raise RuntimeError(reasons[0])
        context.free()
    except Exception as error:  # EGL, OSMesa, PyOpenGL and GLFW each have their own kinds
        raise _refused(error) from error


__all__ = ["RenderingError", "check_opengl", "mujoco"]
