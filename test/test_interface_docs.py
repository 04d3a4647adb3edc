"""The reference of messages and services says what their files say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import interface_docs  # noqa: E402  (tools/ is no package)
from toolbox import ToolError  # noqa: E402


def test_the_page_is_up_to_date() -> None:
    made = interface_docs.page(ROOT)
    assert (ROOT / interface_docs.PAGE).read_text() == made, "run python tools/interface_docs.py"
    for path in [*(ROOT / "msg").iterdir(), *(ROOT / "srv").iterdir()]:
        assert f"### {path.stem}\n" in made


def test_comments_belong_to_what_stands_behind_them() -> None:
    text = "# About it,\n# in two lines.\n\n# Both.\nuint8 a\nfloat32[] b\n\nbool c  # its own\n"
    text += "---\nuint16 D=3 # why\n"
    request, response = interface_docs.parse(text, "x.srv")
    assert request.doc == "About it, in two lines."
    told = [(each.kind, each.name, each.doc) for each in request.fields]
    assert told == [("uint8", "a", "Both."), ("float32[]", "b", "Both."), ("bool", "c", "its own")]
    assert response == interface_docs.Part("", (interface_docs.Field("uint16", "D", "3", "why"),))


def test_what_is_no_field_is_refused() -> None:
    with pytest.raises(ToolError, match=r"x.msg: expected a field, got 'uint8'"):
        interface_docs.parse("uint8\n", "x.msg")
