"""What the sources of kernels must hold to, so that they can be emulated."""

from __future__ import annotations

import re

import pytest

from .build import CSRC, HERE

COMMON = sorted((CSRC / "common").glob("*.cuh"))
_FUNCTION = re.compile(r"__device__ __forceinline__ (?:static )?[\w:<> ]+?[ *&](\w+)\(")


def uses_ptx(text: str) -> bool:
    return re.search(r"\basm\b", text) is not None


def test_ops_hold_no_ptx() -> None:
    assert [path.name for path in (CSRC / "ops").glob("*.cu") if uses_ptx(path.read_text())] == []


@pytest.mark.parametrize("name", [p.name for p in COMMON if uses_ptx(p.read_text())])
def test_headers_of_ptx_have_a_twin(name: str) -> None:
    """With everything that they declare."""
    twin = HERE / "common" / name
    assert twin.is_file(), f"{name} has inline PTX; expected test/emulator/common/{name}"
    declared = set(_FUNCTION.findall((CSRC / "common" / name).read_text()))
    assert declared, name
    text = twin.read_text()
    missing = {function for function in declared if not re.search(rf"\b{function}\(", text)}
    assert missing == set(), f"{name}: not in its twin"


def test_twins_stand_for_something() -> None:
    names = {path.name for path in COMMON}
    assert {path.name for path in (HERE / "common").glob("*.cuh")} <= names
