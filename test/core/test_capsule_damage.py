"""What is not a whole capsule file as it was written is refused; the store stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashrt_core.capsule import file as capsule_file
from flashrt_core.capsule.file import MAGIC, VERSION, parse
from flashrt_core.errors import CapsuleError
from flashrt_core.session import Session

from .capsules import PREFIX, refused, signed, taken_apart

#: What a file of the toy policy may have: prefix, header, the regions of the large bucket, tokens
#: and a state of three numbers, checksum.
MOST = 24 + (1 << 20) + (2 * 4 * 4 + 16 + 4) + 4 * 4 + 3 * 8 + 32


class TestDamage:
    def test_every_flipped_bit(self, written: Path) -> None:
        data = written.read_bytes()
        parse(data)
        for place in range(len(data)):
            for bit in range(8):
                damaged = bytearray(data)
                damaged[place] ^= 1 << bit
                with pytest.raises(CapsuleError, match="capsule file: expected .*, got "):
                    parse(damaged)

    def test_every_byte_and_length_through_the_store(
        self, holder: Session, written: Path, tmp_path: Path
    ) -> None:
        data, place = written.read_bytes(), tmp_path / "damaged"
        for length in range(len(data)):
            place.write_bytes(data[:length])
            said = refused(holder, place)
            assert ("cut off" if length else "an empty file") in said
        for at in range(len(data)):
            place.write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
            refused(holder, place)
        place.write_bytes(data + b"x")
        assert "1 bytes behind it" in refused(holder, place)

    @pytest.mark.parametrize(
        ("start", "said"),
        [
            (b"PK\x03\x04 an archive of something", "a capsule, got another kind of file"),
            (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
            (b"\x80\x04\x95cposix\nsystem\n", "another kind of file"),
            (MAGIC[:5], "cut off at 5 bytes"),
            (PREFIX.pack(MAGIC, 3, 9, 99), "was, got version 3, a newer one; load it with"),
            (PREFIX.pack(MAGIC, 1, 9, 99), "how old each input was, got version 1, an older one"),
            (PREFIX.pack(MAGIC, 0, 9, 99), "version 2, which says how old each input was"),
            (PREFIX.pack(MAGIC, VERSION, 9, 99), "99 bytes, got one cut off at 24"),
            (
                PREFIX.pack(MAGIC, VERSION, 9, 1 << 63),
                f"at most {MOST} bytes, got {1 << 63} bytes; load",
            ),
            (
                PREFIX.pack(MAGIC, VERSION, 9, MOST + 1),
                f"at most {MOST} bytes, got {MOST + 1} bytes",
            ),
            (
                PREFIX.pack(MAGIC, VERSION, 9, MOST),
                f"a whole capsule of {MOST} bytes, got one cut off",
            ),
            (
                PREFIX.pack(MAGIC, VERSION, 1 << 31, 24),
                "got one of 2147483648 bytes in a file of 24",
            ),
        ],
    )
    def test_what_is_no_capsule_of_this_version(
        self, holder: Session, tmp_path: Path, start: bytes, said: str
    ) -> None:
        (tmp_path / "file").write_bytes(start)
        assert said in refused(holder, tmp_path / "file")

    @pytest.mark.parametrize("size", [1 << 42, 1 << 31, MOST + 1])
    def test_a_file_larger_than_the_plan_has_is_not_read(
        self, holder: Session, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Sparse: as large as it says, without a byte on the disk."""
        huge = tmp_path / "huge"
        with huge.open("wb") as file:
            file.write(PREFIX.pack(MAGIC, VERSION, 100, size))
            file.truncate(size)
        monkeypatch.setattr(capsule_file, "bytearray", None, raising=False)
        assert f"at most {MOST} bytes, got {size}" in refused(holder, huge)

    def test_no_memory_for_a_file(
        self, holder: Session, written: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def none_left(*args: Any) -> Any:
            raise MemoryError

        before = written.read_bytes()
        monkeypatch.setattr(capsule_file, "bytearray", none_left, raising=False)
        assert "memory for all of it, got too little" in refused(holder, written)
        monkeypatch.setattr(capsule_file, "_pieces", none_left)
        with pytest.raises(CapsuleError, match="memory for all of it, got too little"):
            holder.engine.store.write_file("mark", written)
        assert written.read_bytes() == before


Change = Callable[[dict[str, Any]], Any]
LARGE = 1 << 29


def put(*where: Any) -> Change:
    """Sets a place in a document; the last of ``where`` is the value."""
    *way, last, value = where

    def change(document: dict[str, Any]) -> None:
        inner: Any = document
        for step in way:
            inner = inner[step]
        inner[last] = value

    return change


FIELDS = (
    *("name", "session", "created_ns", "shape", "prompt", "seed", "decisions", "stamp_ns"),
    *("lineage", "fingerprint", "regions", "arrays"),
)


#: Values by their JSON that some fields may have.
FINE = {
    '""': ("prompt",),
    '"x"': ("name", "session", "prompt"),
    "-1": ("stamp_ns", "created_ns"),
}
WRONG = [
    (field, value)
    for value in (None, True, 1.5, -1, 1 << 64, "x", "", [], [1], {}, {"a": 1})
    for field in FIELDS
    if field not in FINE.get(json.dumps(value), ())
]


class TestHeader:
    def check(self, holder: Session, written: Path, change: Change) -> str:
        document, payload = taken_apart(written.read_bytes())
        change(document)
        written.write_bytes(signed(document, payload))
        return refused(holder, written)

    @pytest.mark.parametrize(("field", "value"), WRONG)
    def test_every_field_with_a_value_of_another_kind(
        self, holder: Session, written: Path, field: str, value: Any
    ) -> None:
        self.check(holder, written, put(field, value))

    @pytest.mark.parametrize("field", FIELDS)
    def test_every_field_missing(self, holder: Session, written: Path, field: str) -> None:
        said = self.check(holder, written, lambda document: document.pop(field))
        assert f"header has no {field!r}" in said

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (put("more", 1), "unknown fields ['more']"),
            (put("shape", "views", 0), "'views' of 'shape' of header is not a whole number"),
            (put("shape", "views", 2), "expected a captured shape"),
            (put("shape", "more", 2), "unknown fields ['more']"),
            (put("name", "\ud800"), "is no Unicode"),
            (put("name", "a\nb"), "control characters"),
            (put("session", "\t"), "session name: expected"),
            (put("fingerprint", "weights", 3), "'weights' of 'fingerprint' of header is not text"),
            (put("fingerprint", "weights", "v"), "which differs in ['weights']"),
            (put("fingerprint", "more", "v"), "which differs in ['more']"),
            (put("lineage", "context", "image", 0), "is not a whole number from 1"),
            (put("lineage", {}), "expected a completed stage that was saved, got none"),
            (put("lineage", "nothing", {}), "a lineage of this contract's stages"),
            (put("lineage", "context", "nothing", 1), "a lineage of this contract's stages"),
            (put("lineage", {"context": {}}), "all that 'context' was made from, got none of ['p"),
            (put("lineage", "context", {}), "'context' made from ['image', 'tokens'], got nothing"),
            (put("lineage", "prompt", {}), "'prompt' made from ['tokens'], got nothing"),
            (put("lineage", "context", {"tokens": 1}), "['image', 'tokens'], got ['tokens']"),
            (
                put("lineage", "action", {"image": 2, "noise": 3}),
                "'action' made from ['image', 'noise', 'tokens'], got ['image', 'noise']",
            ),
            (put("lineage", "prompt", {"tokens": 1, "image": 2}), "got ['image', 'tokens']"),
            (put("lineage", "prompt", "tokens", 90), "made from several values of ['tokens']"),
            (put("lineage", "action", "image", 90), "made from several values of ['image']"),
            (put("newer", {"image": 1}), "made from several values of ['image']"),
            (put("regions", 0, "dtype", "object"), "is not one of 'float32'"),
            (put("regions", 0, "dtype", "int32"), "expected regions"),
            (put("regions", 0, "name", "vk"), "expected regions"),
            (put("regions", 0, "offset", 4), "regions[0] stands at 4, not at 0"),
            (put("regions", 0, "nbytes", 12), "regions[1] stands at 16, not at 12"),
            (put("regions", 2, "nbytes", LARGE), "arrays[0] stands at 36, not at"),
            (put("arrays", 1, "nbytes", LARGE), "bytes and a shape of (3,)"),
            (put("arrays", 0, "shape", [1 << 30] * 8), "bytes and a shape of"),
            (put("arrays", 0, "shape", [4, 1]), "of [4] int32, got [4, 1] int32"),
            (put("arrays", 0, "dtype", "<f4"), "of [4] int32, got [4] float32"),
            (put("arrays", 0, "dtype", "|O"), "is not one of '<f2'"),
            (put("arrays", 0, "name", "noise"), "values of staged inputs, of ['tokens']"),
            (put("arrays", 0, "role", "code"), "is not one of 'robot_state', 'raw', 'staged'"),
            (
                put("arrays", 1, "shape", [3, 1]),
                "state in capsule 'mark': expected up to 3 finite numbers",
            ),
            (put("arrays", 1, "name", "x"), "is not one of ''"),
            (put("arrays", []), "the table has 36 bytes and the file"),
        ],
    )
    def test_what_is_wrong_is_said(
        self, holder: Session, written: Path, change: Change, said: str
    ) -> None:
        assert said in self.check(holder, written, change)

    def test_an_array_that_comes_twice(self, holder: Session, written: Path) -> None:
        document, payload = taken_apart(written.read_bytes())
        first = document["arrays"][0]
        second = first | {"offset": first["offset"] + first["nbytes"]}
        document["arrays"] = [first, second]
        written.write_bytes(signed(document, payload + payload[-4:]))
        assert "arrays[1] comes twice" in refused(holder, written)

    def test_a_state_that_is_no_number(self, holder: Session, written: Path) -> None:
        document, payload = taken_apart(written.read_bytes())
        written.write_bytes(signed(document, payload[:-4] + np.float32("nan").tobytes()))
        assert "state in capsule 'mark': expected up to 3 finite numbers" in refused(
            holder, written
        )

    @pytest.mark.parametrize(
        "header",
        [b"[]", b"3", b"{", b"\xff\xfe", b'{"seed": NaN}', b"[" * 100_000, b"9" * 100_000],
        ids=["list", "number", "cut", "bytes", "nan", "deep", "long"],
    )
    def test_a_header_that_is_none(self, holder: Session, written: Path, header: bytes) -> None:
        written.write_bytes(signed(header, b""))
        assert "a malformed one" in refused(holder, written)
