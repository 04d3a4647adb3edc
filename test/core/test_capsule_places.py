"""Where a capsule file may stand, and who may read it."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flashrt_core.capsule import file as capsule_file
from flashrt_core.capsule.file import read_capsule
from flashrt_core.errors import CapsuleError
from flashrt_core.session import Session

from .capsules import refused

NOBODY = 65534


@pytest.fixture
def unlisted() -> Iterator[Path]:
    """A folder that may be written to and not listed, seen by a user whom that binds."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o333)
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        os.seteuid(me)
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_folder_that_is_not_listed(holder: Session, unlisted: Path) -> None:
    store, place = holder.engine.store, unlisted / "mark"
    with pytest.raises(PermissionError):
        os.listdir(unlisted)
    size = store.write_file("mark", place)
    assert place.stat().st_size == size and read_capsule(place).info == store.info("mark")
    holder.act()
    holder.snapshot("mark")
    store.write_file("mark", place)
    assert read_capsule(place).info.decision == 2


@pytest.mark.parametrize("reason", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_whose_folders_have_nothing_to_wait_for(
    holder: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    wait, waited = os.fsync, []

    def of_files(descriptor: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(reason, os.strerror(reason))
        wait(descriptor)

    monkeypatch.setattr(capsule_file.os, "fsync", of_files)
    monkeypatch.setattr(capsule_file.os, "sync", lambda: waited.append("all"))
    holder.engine.store.write_file("mark", tmp_path / "mark")
    assert read_capsule(tmp_path / "mark").info.name == "mark" and waited == ["all"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o400, 0o666])
def test_who_might_read_the_old_file_may_read_the_new_one(
    holder: Session, written: Path, tmp_path: Path, mode: int
) -> None:
    written.chmod(mode)
    (tmp_path / "link").symlink_to(written)
    for place in (written, tmp_path / "link"):
        holder.act()
        holder.snapshot("mark")
        holder.engine.store.write_file("mark", place)
        assert written.stat().st_mode & 0o777 == mode
    mask = os.umask(0o027)
    try:
        holder.engine.store.write_file("mark", tmp_path / "new")
    finally:
        os.umask(mask)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640


def test_nobody_else_reads_it_while_it_is_written(
    holder: Session, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.chmod(0o600)
    wait, seen = os.fsync, []

    def look(descriptor: int) -> None:
        seen.append(os.fstat(descriptor).st_mode & 0o777)
        wait(descriptor)

    monkeypatch.setattr(capsule_file.os, "fsync", look)
    holder.engine.store.write_file("mark", written)
    assert seen[0] == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
def test_it_stays_its_owners(holder: Session, written: Path) -> None:
    os.chown(written, NOBODY, NOBODY)
    holder.engine.store.write_file("mark", written)
    status = written.stat()
    assert (status.st_uid, status.st_gid) == (NOBODY, NOBODY)


@pytest.mark.parametrize("end", ["/", "/.", "//"])
@pytest.mark.parametrize("name", ["mark.capsule", "new"])
def test_a_slash_at_the_end_names_no_file(
    holder: Session, written: Path, tmp_path: Path, name: str, end: str
) -> None:
    given: Any = f"{tmp_path}/{name}{end}"
    before = written.read_bytes()
    holder.act()
    holder.snapshot("mark")
    with pytest.raises(CapsuleError, match="expected the path of a file, got that of a folder"):
        holder.engine.store.write_file("mark", given)
    assert "the path of a file, got that of a folder" in refused(holder, given)
    assert os.listdir(tmp_path) == ["mark.capsule"] and written.read_bytes() == before
