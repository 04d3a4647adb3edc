"""PEP 517 backend: setuptools, plus the ROS 2 wheels where the build needs them.

A sourced ROS 2 installation (AMENT_PREFIX_PATH is set) already brings the interface generators, so
nothing is fetched for it. FLASHRT_CORE_ONLY=1 builds no interfaces and needs no ROS at all.
"""

from __future__ import annotations

import os

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (the hooks that stay as they are)

# The wheels' metadata leaves out what their CMake files look for at build time.
_GENERATORS = (
    "ament-cmake",
    "ament-cmake-include-directories",
    "ament-cmake-python",
    "ament-cmake-ros-core",
    "ament-package",
    "rosidl-core-generators",
    "rosidl-default-generators",
    "std-msgs",
)
_JAZZY_GENERATORS = (
    *(name for name in _GENERATORS if name != "ament-cmake-ros-core"),
    "ament-cmake-gmock",
    "ament-cmake-gtest",
    "ament-cmake-pytest",
    "ament-cmake-ros",
    "fastrtps-cmake-module",
    "python-cmake-module",
)
GENERATORS = {"kilted": _GENERATORS, "jazzy": _JAZZY_GENERATORS}


def _interface_requirements() -> list[str]:
    if os.environ.get("FLASHRT_CORE_ONLY") == "1" or os.environ.get("AMENT_PREFIX_PATH"):
        return []
    distro = os.environ.get("FLASHRT_ROS_DISTRO", "kilted")
    names = GENERATORS.get(distro)
    if names is None:
        raise SystemExit(f"FLASHRT_ROS_DISTRO: expected kilted or jazzy, got {distro}")
    return ["cmake>=3.20", "ninja", "catkin-pkg", "numpy", *(f"ros-{distro}-{n}" for n in names)]


def get_requires_for_build_wheel(config_settings: dict | None = None) -> list[str]:
    """What an isolated build of a wheel installs first."""
    return build_meta.get_requires_for_build_wheel(config_settings) + _interface_requirements()


def get_requires_for_build_editable(config_settings: dict | None = None) -> list[str]:
    """What an isolated editable install installs first: it never builds interfaces."""
    return build_meta.get_requires_for_build_editable(config_settings)
