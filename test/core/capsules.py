"""What tests of capsule files share: a file taken apart, and a refusal."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest

from flashrt_core.capsule.file import MAGIC, VERSION
from flashrt_core.errors import CapsuleError
from flashrt_core.session import Session

PREFIX = struct.Struct("<8sIIQ")


def refused(store_of: Session, written: Any, name: str | None = None) -> str:
    """Why a file is not taken in; one line, and the store is as before."""
    store = store_of.engine.store
    before = store.list()
    with pytest.raises(CapsuleError) as caught:
        store.read_file(written, name)
    assert store.list() == before
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def taken_apart(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and payload of a file."""
    header_bytes = PREFIX.unpack(data[: PREFIX.size])[2]
    end = PREFIX.size + header_bytes
    return json.loads(data[PREFIX.size : end]), data[end:-32]


def signed(document: Any, payload: bytes) -> bytes:
    """A file with that header, whose checksum fits."""
    header = document if isinstance(document, bytes) else json.dumps(document).encode()
    size = PREFIX.size + len(header) + len(payload) + 32
    content = PREFIX.pack(MAGIC, VERSION, len(header), size) + header + payload
    return content + hashlib.sha256(content).digest()
