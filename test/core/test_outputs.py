"""Files that commands write: refused before the work, whole behind it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flashrt_core import outputs
from flashrt_core.errors import OptionError
from flashrt_core.outputs import (
    FIGURES,
    OutputError,
    check_figure,
    check_folder,
    check_output,
    whole_file,
    write_text,
)


def test_a_check_makes_the_folder_and_leaves_the_rest(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("kept")
    assert check_output("--output", old) == old and old.read_text() == "kept"
    new = tmp_path / "a" / "b" / "new.json"
    assert check_output("--output", new) == new
    assert new.parent.is_dir() and not list(new.parent.iterdir())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "old.json"]


def test_a_folder_is_tried_and_left_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("kept")
    assert check_folder("--output", tmp_path) == tmp_path
    assert check_folder("--output", tmp_path / "new", new=True) == tmp_path / "new"
    assert list(tmp_path.iterdir()) == [file]
    for path, new, told in (
        (file, False, "a folder that can be written, got .*: it is no folder; name a folder"),
        (Path("/proc/x"), False, "a folder that can be written, got '/proc/x': No such file"),
        (tmp_path, True, "a new folder, got .*: it is there already; name another"),
    ):
        with pytest.raises(OptionError, match=rf"\Aoption '--output': expected {told}"):
            check_folder("--output", path, new=new)


def test_a_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_output("--output", Path("~/r.json")) == tmp_path / "r.json"


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (".", "it is a folder"),
        ("file/r.json", "File exists|Not a directory"),
        ("file/deeper/r.json", "Not a directory"),
        ("/proc/none/r.json", "No such file"),
        ("n" * 300, "File name too long"),
        ("nul\0.json", "null"),
        ("~nobody-of-that-name/r.json", "home"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    given: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(OptionError, match=reason) as raised:
        check_output("--output", Path(given))
    line = str(raised.value)
    assert line.startswith("option '--output': expected a file that can be written, got ")
    assert "\n" not in line and line.endswith("; name a file in a folder of yours")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_rights_are_respected(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OptionError, match="Permission denied"):
        check_output("--output", tmp_path / "r.json")


def test_a_figure_needs_a_kind_that_can_be_drawn(tmp_path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for suffix in FIGURES:
        path = check_figure("--figure", tmp_path / f"figure{suffix}")
        figure = pyplot.figure()
        with whole_file("figure", path) as part:
            figure.savefig(part)
        pyplot.close(figure)
        assert path.stat().st_size > 0
    for name in ("figure", "figure.json", "figure.xyz", ".png"):
        with pytest.raises(OptionError, match="option '--figure': expected a name that ends in"):
            check_figure("--figure", tmp_path / name)


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path, link = tmp_path / "r.json", tmp_path / "link.json"
    write_text("one", path)
    link.symlink_to(path)
    write_text("two", link)
    assert path.read_text() == "two" and link.is_symlink()
    with pytest.raises(KeyboardInterrupt), whole_file("result", path) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "two"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link.json", "r.json"]


def test_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    null = Path(os.devnull)
    assert check_output("--output", null) == null
    write_text("gone", null)
    assert null.is_char_device()


def test_a_disk_that_fills_up_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(outputs.Path, "write_text", full)
    with pytest.raises(OutputError, match=r"\Aresult '.*r.json' cannot be written: got No space"):
        write_text("text", tmp_path / "r.json")
    assert not list(tmp_path.iterdir())


def test_who_might_read_the_old_file_may_read_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("old")
    (tmp_path / "r.json").chmod(0o600)
    write_text("new", tmp_path / "r.json")
    assert (tmp_path / "r.json").read_text() == "new"
    assert (tmp_path / "r.json").stat().st_mode & 0o777 == 0o600
