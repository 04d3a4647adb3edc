"""Where the launch and parameter files of this package lie: in a checkout, or installed."""

from __future__ import annotations

import sys
from pathlib import Path

from flashrt_core.errors import OptionError

_PACKAGE = "flashrt_ros"
_URI = "package://"


def share_directory() -> Path:
    """Folder that holds ``launch/`` and ``config/``.

    The checkout that this module lies in comes first, so that an edited file counts without an
    install; then the ament index (a sourced workspace); then the Python prefix (a pip install sets
    no AMENT_PREFIX_PATH).

    Raises:
        OptionError: none of them holds the files.
    """
    tried = [Path(__file__).resolve().parents[1]]
    if (tried[0] / "package.xml").is_file() and (tried[0] / "config").is_dir():
        return tried[0]
    try:
        from ament_index_python.packages import get_package_share_directory

        return Path(get_package_share_directory(_PACKAGE))
    except (ImportError, LookupError, OSError):
        # No ament index, or not in it: PackageNotFoundError is a LookupError, an unset
        # AMENT_PREFIX_PATH an OSError.
        pass
    tried.append(Path(sys.prefix) / "share" / _PACKAGE)
    if tried[-1].is_dir():
        return tried[-1]
    raise OptionError(
        "launch and config files of flashrt_ros",
        expected="in one of " + ", ".join(map(str, tried)) + " or in AMENT_PREFIX_PATH",
        got="none",
        remedy="source the workspace's setup file, or install the package with pip",
    )


def local_place(text: str) -> str:
    """``package://PACKAGE/REST``, ROS's way to name a file of a package, as a path; any other text
    as it is.

    Raises:
        OptionError: there is no such package.
    """
    if not text.startswith(_URI):
        return text
    package, _, rest = text.removeprefix(_URI).partition("/")
    if package == _PACKAGE:
        return str(share_directory() / rest)
    try:
        from ament_index_python.packages import get_package_share_directory

        return str(Path(get_package_share_directory(package)) / rest)
    except (
        ImportError,
        LookupError,
        OSError,
        ValueError,
    ) as error:  # as above; a name that is none
        raise OptionError(
            f"'{text}'", expected="an installed ROS package", got=f"no '{package}'",
            remedy="source its workspace, or give a path",
        ) from error  # fmt: skip


def shipped_folder(*parts: str) -> Path | None:
    """A folder of this package's share, None where it does not ship or holds nothing."""
    folder = share_directory().joinpath(*parts)
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def config_file(name: str) -> Path:
    """Parameter file ``config/<name>`` of this package; OptionError when there is none."""
    folder = share_directory() / "config"
    path = folder / name
    if not path.is_file():
        known = ", ".join(sorted(p.name for p in folder.glob("*.yaml"))) or "none"
        raise OptionError(f"parameter file '{name}'", expected=f"one of {known}", got=f"no {path}")
    return path
