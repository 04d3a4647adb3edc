"""Where matplotlib keeps what it must write: its own folder, or one that stays."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from flashrt_core.plotting import ensure_folder

NOWHERE = "/proc/none"  # where root, too, can write nothing


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setenv("HOME", NOWHERE)
    return tmp_path / "tmp"


def test_its_own_folders_stay_where_they_can_be_written(tmp_path: Path) -> None:
    given = {"XDG_CONFIG_HOME": str(tmp_path / "a"), "XDG_CACHE_HOME": str(tmp_path / "b")}
    before = dict(given)
    ensure_folder(given)
    assert given == before


@pytest.mark.parametrize("one", ["XDG_CONFIG_HOME", "XDG_CACHE_HOME"])
def test_another_is_chosen_where_one_cannot_be_written(temporary: Path, one: str) -> None:
    given = {one: str(temporary.parent)}
    ensure_folder(given)
    chosen = Path(given["MPLCONFIGDIR"])
    assert chosen.parent == temporary and chosen.stat().st_mode & 0o077 == 0


def test_a_folder_that_was_named_stays() -> None:
    given = {"MPLCONFIGDIR": NOWHERE}
    ensure_folder(given)
    assert given == {"MPLCONFIGDIR": NOWHERE}


def test_a_folder_of_somebody_else_is_not_taken(temporary: Path) -> None:
    ensure_folder(given := {})
    chosen = Path(given["MPLCONFIGDIR"])
    chosen.rmdir()
    chosen.symlink_to(temporary)
    ensure_folder(given := {})
    assert given == {}
