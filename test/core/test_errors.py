"""Messages of errors: one line, of bounded length, with what counts still in them."""

from __future__ import annotations

import pytest

from flashrt_core.errors import InputError, OptionError, shorten
from flashrt_core.text import check_text, is_visible


def test_a_command_in_a_remedy_is_whole() -> None:
    command = "run flashrt calibrate --output '" + "/long" * 100 + "/my scales.json' --npz FILE"
    assert str(OptionError("option 'x'", remedy=command)).endswith(f"; {command}")


def test_short_values_stay_as_they_are() -> None:
    assert shorten("a\n b") == "a b"
    assert shorten(["a", 1]) == "['a', 1]"
    assert shorten("x" * 200) == "x" * 200


def test_of_a_long_text_both_ends_stay() -> None:
    text = shorten("begin " + "x" * 10**6 + " end")
    assert len(text) <= 200 and text.startswith("begin x") and text.endswith("x end")
    assert " ... " in text


def test_of_a_long_list_the_first_items_and_the_number_of_the_others_stay() -> None:
    text = shorten([f"joint_{k}" for k in range(500)])
    assert text.startswith("['joint_0', 'joint_1', ") and len(text) <= 220
    shown = text.count("joint_")
    assert text.endswith(f", ... {500 - shown} more]") and shown > 10
    giant = shorten(["x" * 10**6, "y"] * 3)
    assert len(giant) <= 220 and giant.endswith(" more]")


def test_every_field_of_an_error_is_bounded() -> None:
    error = InputError("w" * 9999, expected=["e"] * 9999, got="g" * 9999, remedy="r" * 9999)
    assert len(str(error)) < 3100
    assert error.got == "g" * 9999, "what was given stays for the program"


def test_rewording_keeps_kind_and_values() -> None:
    error = OptionError("option 'x'", expected=1, got=2, remedy="set it")
    other = error.reworded(what="parameter 'x'")
    assert type(other) is OptionError and other.code == OptionError.code
    assert str(other) == "parameter 'x': expected 1, got 2; set it"
    assert str(error) == "option 'x': expected 1, got 2; set it"
    assert str(error.reworded(remedy="no")).endswith("; no")


@pytest.mark.parametrize("text", ["a", "7", "?", "🙂", "拿", " x\t", "\u200bx"])
def test_visible(text: str) -> None:
    assert is_visible(text)


@pytest.mark.parametrize(
    "text", ["", " \n\t", "\u202e\u200b", "\u00ad\ufeff", "\x00\x01", "\u0301", "\u3164\u2800"]
)
def test_invisible(text: str) -> None:
    assert not is_visible(text)
    with pytest.raises(InputError, match="at least one visible character"):
        check_text("prompt", text, error=InputError)


@pytest.mark.parametrize("text", ["a\0", "a\rb", "\x1b[2Ja", "a\x7f", "a\x85"])
def test_control_characters(text: str) -> None:
    with pytest.raises(InputError, match="no control characters but newline and tab, got U"):
        check_text("prompt", text, error=InputError, controls="\n\t")
    check_text("prompt", "a\n\tb", error=InputError, controls="\n\t")
    with pytest.raises(InputError, match=r"no control characters, got U\+000A at character 1"):
        check_text("name", "a\n", error=InputError)
