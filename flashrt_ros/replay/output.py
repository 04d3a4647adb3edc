"""The folder for results: created, checked and kept to one run before any work is done."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from flashrt_core.errors import OptionError
from flashrt_core.outputs import OutputError, writing

__all__ = ["LOCK", "OutputError", "results_folder", "writing"]

LOCK = ".flashrt.lock"


@contextmanager
def results_folder(path: Path, files: Sequence[str]) -> Iterator[Path]:
    """Create ``path`` and hold it for this process; yields ``path``.

    The lock is the kernel's, on the file ``.flashrt.lock`` in the folder: it ends with the process,
    however that ends. The file itself stays, since removing it would let two runs in.

    Args:
        path: folder; missing parents are made.
        files: names of the files that will be written there.

    Raises:
        OptionError: ``path`` cannot be such a folder, or another run holds it.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _unusable(path, error) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OptionError(
                f"another run is using '{path}'",
                remedy="wait until it has ended, or give another folder with --out",
            ) from None
        except OSError as error:
            raise _unusable(path, error) from None
        for name in files:
            _check_file(path / name)
        yield path
    finally:
        os.close(lock)


def _check_file(path: Path) -> None:
    """A file that is there must be one that can be replaced; OptionError otherwise."""
    if path.exists() and not (path.is_file() and os.access(path, os.W_OK)):
        raise OptionError(
            f"result '{path}'",
            expected="nothing there, or a file that can be written",
            got="a file that cannot" if path.is_file() else "something else",
            remedy="remove it, or give another folder with --out",
        )


def _unusable(path: Path, error: OSError) -> OptionError:
    return OptionError(
        f"option '--out': results cannot go into '{path}' ({error.strerror or error})",
        remedy="give a folder, new or old, that can be written",
    )
