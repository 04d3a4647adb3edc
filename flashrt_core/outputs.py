"""Files that a command writes: whether that will work, asked before there is anything to lose.

``check_output``, ``check_folder`` and ``check_figure`` come before the work, the others behind it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import FlashRTError, OptionError

#: Endings of figures: what matplotlib writes with no other program's help.
FIGURES = (".png", ".pdf", ".svg", ".jpg", ".jpeg", ".webp")


class OutputError(FlashRTError):
    """A result could not be written: the disk is full, or the folder went away."""

    code = 93


def check_output(option: str, path: Path) -> Path:
    """``path`` with ``~`` expanded, once it is known that a file can be written there.

    Missing folders are made. A file that is there stays as it is.

    Args:
        option: that named the path, for the message (``--output``).
        path: as it was given.

    Raises:
        OptionError: a folder, or a place where nothing can be written.
    """
    try:
        path = path.expanduser()
        if path.is_dir():
            raise IsADirectoryError(None, "it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        _try_to_write(path)
    except (OSError, RuntimeError, ValueError) as error:  # no home; NUL, or what is no Unicode
        raise OptionError(
            f"option '{option}'",
            expected="a file that can be written",
            got=f"'{path}': {getattr(error, 'strerror', None) or error}",
            remedy="name a file in a folder of yours",
        ) from error
    return path


def check_folder(option: str, path: Path, *, new: bool = False) -> Path:
    """``path`` with ``~`` expanded, once it is known that files can be written in that folder.

    Folders above it are made where they are missing. What lies in it stays as it is.

    Args:
        option: that named the path, for the message.
        path: as it was given.
        new: nothing may be there yet.

    Raises:
        OptionError: a file, or a place where nothing can be written.
    """
    try:
        path = path.expanduser()
        there = path.exists()
        if there and new:
            raise FileExistsError(None, "it is there already")
        if there and not path.is_dir():
            raise NotADirectoryError(None, "it is no folder")
        path.mkdir(parents=True, exist_ok=True)
        try:
            part = _part(path / "any")
            with part.open("xb"):
                pass
            part.unlink()
        finally:
            if not there:
                path.rmdir()
    except (OSError, RuntimeError, ValueError) as error:  # no home; NUL, or what is no Unicode
        raise OptionError(
            f"option '{option}'",
            expected="a new folder" if new else "a folder that can be written",
            got=f"'{path}': {getattr(error, 'strerror', None) or error}",
            remedy="name another" if new else "name a folder of yours",
        ) from error
    return path


def folder_problem(folder: Path, *, private: bool = False) -> str | None:
    """Why no file can be written in a folder, None where one can; the folder is made.

    ``private``: it must be this user's, as in a place where everybody may make folders.
    """
    try:
        folder.mkdir(0o700 if private else 0o777, parents=True, exist_ok=True)
        if private and (folder.is_symlink() or folder.stat().st_uid != os.geteuid()):
            return "it belongs to somebody else"
        with tempfile.TemporaryFile(dir=folder):
            return None
    except (OSError, ValueError) as error:  # ValueError: what is no path
        return getattr(error, "strerror", None) or str(error)


def check_figure(option: str, path: Path) -> Path:
    """As :func:`check_output`, of a figure, whose kind the name ends in."""
    if path.suffix.lower() not in FIGURES:
        raise OptionError(
            f"option '{option}'",
            expected=f"a name that ends in {', '.join(FIGURES[:-1])} or {FIGURES[-1]}",
            got=f"'{path}'",
        )
    return check_output(option, path)


def _try_to_write(path: Path) -> None:
    if path.exists():
        with path.open("ab"):
            pass
    else:
        with path.open("xb"):
            pass
        path.unlink()
    if not path.exists() or path.is_file():
        part = _part(path)
        with part.open("xb"):
            pass
        part.unlink()


def _part(path: Path) -> Path:
    """Where a file is written until it is whole."""
    return path.resolve().with_name(f".{os.getpid()}.part")


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Turn a failure of the file system into one line; OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"{what} '{path}' cannot be written",
            got=error.strerror or error,
            remedy="make room there, or give another path",
        ) from error


@contextmanager
def whole_file(what: str, path: Path) -> Iterator[Path]:
    """A path to write to; what was written there then stands at ``path``, or nothing of it does.

    It ends as ``path`` does, and who might read the file that was there may read this one. What is
    no file, such as a pipe, is written to as it is.

    Raises:
        OutputError: the file system refuses.
    """
    with writing(what, path):
        if path.exists() and not path.is_file():
            yield path
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        part = _part(path).with_suffix(f".part{path.suffix}")
        try:
            yield part
            if path.exists():
                shutil.copymode(path, part)
            part.replace(path.resolve())
        finally:
            part.unlink(missing_ok=True)


def write_text(text: str, path: Path, what: str = "result") -> None:
    """Write a file, whole or not at all; OutputError."""
    with whole_file(what, path) as part:
        part.write_text(text, encoding="utf-8")
