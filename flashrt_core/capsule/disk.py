"""Files on the disk: opened without waiting for anybody, written whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from pathlib import Path


def at_once(path: str, flags: int) -> int:
    """Opens a file; a pipe that nobody writes to is not waited for."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def write_whole(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a file beside ``path``, wait until the disk has it, and only then put it there.

    It belongs to whom the one before it did, who may read it as before.
    """
    before = _status(path)
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise OSError(None, f"it is {kind(before.st_mode)}")
    # A name of its own length: that of ``path`` may be as long as a name can be.
    part = path.with_name(f".capsule-{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb", opener=_for_all if before is None else _for_me) as file:
            if before is not None:
                _make_like(file.fileno(), before)
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    _keep_name(path.parent)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _for_all(path: str, flags: int) -> int:
    """Opens a new file as the user's mask says."""
    return os.open(path, flags, 0o666)


def _for_me(path: str, flags: int) -> int:
    """Opens a new file that nobody else reads."""
    return os.open(path, flags, 0o600)


def _make_like(descriptor: int, before: os.stat_result) -> None:
    """Owner, group and mode of a file that another one takes the place of."""
    mode, mine = before.st_mode & 0o777, os.fstat(descriptor)
    if (mine.st_uid, mine.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except OSError:  # somebody else's, in a folder of ours
            mode &= ~0o070  # what its group might do is no right of mine
    os.fchmod(descriptor, mode)


def _keep_name(folder: Path) -> None:
    """Wait until the disk has the names in a folder: they too outlast a loss of power."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError:  # one that may be written to, not listed; the file is there already
        os.sync()
        return
    try:
        os.fsync(descriptor)
    except OSError:  # some file systems keep folders otherwise
        os.sync()
    finally:
        os.close(descriptor)


def kind(mode: int) -> str:
    return "a folder" if stat.S_ISDIR(mode) else "no regular file"
