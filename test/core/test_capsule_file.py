"""Capsule files: equal bits in another engine; written whole or not at all, anywhere."""

from __future__ import annotations

import errno
import os
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.capsule import disk
from flashrt_core.capsule import file as capsule_file
from flashrt_core.capsule.file import read_capsule, write_capsule
from flashrt_core.errors import CapsuleError, CapsuleStoreFullError
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

from . import toy
from .capsules import refused, taken_apart


def session(**options: Any) -> Session:
    return toy.engine(**options).create_session("main", seed=7, prompt="ab")


class TestRoundTrip:
    def test_another_engine_continues_with_equal_bits(self, holder: Session, written: Path) -> None:
        twin = toy.engine().create_session("main", seed=1, prompt="xyz")
        twin.decide(toy.see(200))
        info = twin.engine.store.read_file(written)
        kept = holder.engine.store.info("mark")
        assert info == kept and info.created_ns == kept.created_ns
        twin.restore("mark")
        fork = twin.engine.fork("branch", capsule="mark")
        found = [holder.act(), twin.act(), fork.act()]
        assert len({decision.raw.tobytes() for decision in found}) == 1
        assert [decision.index for decision in found] == [1, 1, 1]
        # What was staged is known: the same prompt needs no transform, and the bits go on.
        after = [each.decide(toy.see(5)).raw.tobytes() for each in (holder, twin, fork)]
        assert len(set(after)) == 1

    def test_everything_of_it_comes_back(self, holder: Session, written: Path) -> None:
        sent, found = holder.engine.store.export("mark"), read_capsule(written)
        assert found.info == sent.info and found.fingerprint == sent.fingerprint
        assert found.regions == sent.regions
        assert found.payload.tobytes() == sent.payload.tobytes()
        plain = {"robot_state": None, "seen_state": None, "staged": {}}
        assert replace(found.host, **plain) == replace(sent.host, **plain)
        assert found.host.robot_state is not None and sent.host.robot_state is not None
        assert found.host.robot_state.dtype == np.float32
        assert found.host.robot_state.tobytes() == sent.host.robot_state.tobytes()
        assert list(found.host.staged) == ["tokens"]
        assert found.host.staged["tokens"].tobytes() == sent.host.staged["tokens"].tobytes()
        assert not found.payload.flags.writeable

    def test_the_header_can_be_read_by_people(self, written: Path) -> None:
        document, payload = taken_apart(written.read_bytes())
        assert document["fingerprint"]["policy"] == "toy" and document["prompt"] == "ab"
        assert document["regions"][0] == {
            "name": "kv", "dtype": "float32", "offset": 0, "nbytes": 16,
        }  # fmt: skip
        assert [row["name"] for row in document["arrays"]] == ["tokens", ""]
        last = document["arrays"][-1]
        assert last["offset"] + last["nbytes"] == len(payload)

    def test_names(self, holder: Session, written: Path) -> None:
        assert holder.engine.store.read_file(written, "copy").name == "copy"
        holder.restore("copy")
        for name in (None, "copy"):  # that of a file is any, and somebody made the one that is here
            said = refused(holder, written, name)
            assert "a name that is free, got one that a capsule here has; choose another" in said
        holder.act()
        holder.snapshot("copy")
        assert holder.engine.store.read_file(written, "copy", replace=True).decision == 1
        assert "visible character" in refused(holder, written, " ")
        with pytest.raises(CapsuleStoreFullError, match="2 of 2 in use"):
            holder.engine.store.read_file(written, "third")
        other = holder.engine.create_session("other", prompt="q")
        holder.engine.store.drop("copy")
        other.decide(toy.see(1))
        other.snapshot("copy")
        assert "one that session 'other' uses" in refused(holder, written, "copy")

    def test_from_and_to_the_memory_of_the_host(self, tmp_path: Path) -> None:
        holder = session(host_slots=1)
        holder.decide(toy.see(4))
        holder.snapshot("mark")
        holder.engine.store.write_file("mark", tmp_path / "first")
        holder.engine.store.to_host("mark")
        holder.engine.store.write_file("mark", tmp_path / "second")
        assert (tmp_path / "first").read_bytes() == (tmp_path / "second").read_bytes()
        expected = holder.act().raw.tobytes()
        holder.engine.store.read_file(tmp_path / "first", replace=True)  # where it is
        assert holder.engine.store.info("mark").place == "host"
        holder.restore("mark")
        assert holder.act().raw.tobytes() == expected

    def test_a_large_bucket_and_an_empty_state(self, tmp_path: Path) -> None:
        holder = session()
        holder.set_prompt("wxyz")
        holder.decide(Observation(toy.see(3).images, np.zeros(0, np.float32)))
        holder.snapshot("mark")
        holder.engine.store.write_file("mark", tmp_path / "file")
        twin = session()
        twin.engine.store.read_file(tmp_path / "file")
        twin.restore("mark")
        assert (twin.shape, twin.prompt) == (toy.LARGE, "wxyz")
        assert twin.act().raw.tobytes() == holder.act().raw.tobytes()


def test_a_file_of_another_plan_names_what_differs(written: Path) -> None:
    other = toy.engine(weights="others").create_session("main")
    said = refused(other, written)
    assert "which differs in ['weights']; restore it where it was made" in said


class TestPlaces:
    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("", "a path, got ''"),
            (3, "a path, got 3 (int)"),
            ("\0", "a path that can be read"),
            ("{}", "a file that can be read, got Is a directory"),
            ("{}/missing", "a file that can be read, got No such file"),
            ("{}/mark.capsule/under", "a file that can be read, got Not a directory"),
            ("/dev/null", "a file, got no regular file"),
            ("{}/pipe", "a file, got no regular file"),
        ],
    )
    def test_reading(
        self, holder: Session, written: Path, tmp_path: Path, given: Any, said: str
    ) -> None:
        os.mkfifo(tmp_path / "pipe")
        assert said in refused(holder, given.format(tmp_path) if isinstance(given, str) else given)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ("{}", "it is a folder"),
            ("/dev/null", "it is no regular file"),
            ("{}/missing/file", "No such file"),
            ("{}/mark.capsule/under", "Not a directory"),
            ("{}/" + "n" * 300, "File name too long"),
        ],
    )
    def test_writing(
        self, holder: Session, written: Path, tmp_path: Path, given: str, said: str
    ) -> None:
        before = written.read_bytes()
        with pytest.raises(CapsuleError, match=said) as caught:
            holder.engine.store.write_file("mark", given.format(tmp_path))
        assert len(str(caught.value).splitlines()) == 1
        assert os.listdir(tmp_path) == ["mark.capsule"] and written.read_bytes() == before
        assert not os.path.isfile("/dev/null")

    def test_a_long_name_and_a_link(self, holder: Session, tmp_path: Path) -> None:
        long = tmp_path / ("n" * 255)
        size = holder.engine.store.write_file("mark", long)
        assert long.stat().st_size == size
        (tmp_path / "link").symlink_to(long)
        holder.act()
        holder.snapshot("mark")
        holder.engine.store.write_file("mark", tmp_path / "link")
        assert (tmp_path / "link").is_symlink()
        assert read_capsule(long).info.decision == 2

    def test_an_unknown_capsule_writes_nothing(self, holder: Session, tmp_path: Path) -> None:
        with pytest.raises(CapsuleError, match="no such capsule"):
            holder.engine.store.write_file("nothing", tmp_path / "file")
        assert not list(tmp_path.iterdir())

    def test_a_full_disk_leaves_the_old_file(
        self, holder: Session, written: Path, tmp_path: Path
    ) -> None:
        """The kernel refuses to let a file grow beyond 500 bytes."""
        before = written.read_bytes()
        holder.act()
        holder.snapshot("mark")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
        try:
            with pytest.raises(CapsuleError, match="can be written, got File too large"):
                holder.engine.store.write_file("mark", written)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert os.listdir(tmp_path) == ["mark.capsule"] and written.read_bytes() == before

    @pytest.mark.parametrize(
        ("call", "reason"),
        [
            ("fsync", errno.ENOSPC),
            ("fsync", errno.EIO),
            ("open", errno.EACCES),
            ("open", errno.EROFS),
            ("replace", errno.EPERM),
        ],
    )
    def test_whatever_the_system_refuses(
        self,
        holder: Session,
        written: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        reason: int,
    ) -> None:
        before = written.read_bytes()
        holder.act()
        holder.snapshot("mark")

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise OSError(reason, os.strerror(reason))

        with monkeypatch.context() as broken:
            for place in (capsule_file, disk) if call == "open" else (os,):
                broken.setattr(place, call, refuse, raising=call != "open")
            with pytest.raises(CapsuleError, match=os.strerror(reason)):
                holder.engine.store.write_file("mark", written)
            if call == "open":
                assert os.strerror(reason) in refused(holder, written)
        assert os.listdir(tmp_path) == ["mark.capsule"] and written.read_bytes() == before

    def test_an_end_in_the_middle_leaves_nothing(
        self, holder: Session, written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def end(*args: Any) -> Any:
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "fsync", end)
        with pytest.raises(KeyboardInterrupt):
            holder.engine.store.write_file("mark", tmp_path / "new")
        assert os.listdir(tmp_path) == ["mark.capsule"]


class TestWhatNoFileHolds:
    def test_text_that_is_no_unicode(self, holder: Session, tmp_path: Path) -> None:
        image = holder.engine.store.export("mark")
        odd = replace(image, host=replace(image.host, prompt="\ud800"))
        with pytest.raises(CapsuleError, match="a capsule that a file can hold"):
            write_capsule(odd, tmp_path / "file")

    def test_a_payload_shorter_than_its_regions(self, holder: Session, tmp_path: Path) -> None:
        image = holder.engine.store.export("mark")
        with pytest.raises(CapsuleError, match="a capsule that a file can hold"):
            write_capsule(replace(image, payload=image.payload[:-1]), tmp_path / "file")
        assert not list(tmp_path.iterdir())

    def test_a_prompt_longer_than_a_header(self, holder: Session, tmp_path: Path) -> None:
        image = holder.engine.store.export("mark")
        long = replace(image, host=replace(image.host, prompt="x" * (1 << 20)))
        with pytest.raises(CapsuleError, match="a header of at most 1048576 bytes, got 1049"):
            write_capsule(long, tmp_path / "file")
        assert not list(tmp_path.iterdir())
