"""Text, state bins and the tokenizer that ships."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from flashrt_core.errors import InputError, OptionError
from flashrt_core.policies.pi05.prompt import PromptEncoder, clean, discretise
from flashrt_core.policies.sentencepieces import Tokenizer

ROOT = Path(__file__).resolve().parents[3]
MODEL = ROOT / "flashrt_core/policies/pi05/tiny_tokenizer.model"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer()


@pytest.fixture(scope="module")
def pieces() -> sentencepiece.SentencePieceProcessor:
    return sentencepiece.SentencePieceProcessor(model_file=str(MODEL))


@pytest.mark.parametrize(
    ("value", "bin_"),
    [
        (-1.0, 0),
        (np.nextafter(-1.0, -2.0), -1),
        (-7.0, -1),
        (-1e30, -1),
        (-1.0 + 2 / 256, 1),
        (np.nextafter(-1.0 + 2 / 256, -1.0), 0),
        (0.0, 128),
        (np.nextafter(0.0, -1.0), 127),
        (0.5, 192),
        (0.9921875, 255),
        (np.nextafter(0.9921875, 0.0), 254),
        (1.0, 255),
        (40.0, 255),
    ],
)
def test_bins(value: float, bin_: int) -> None:
    assert discretise(np.array([value])) == [bin_]


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("pick up the cup", "pick up the cup"),
        ("  Pick UP\tthe cup \n", "Pick UP\tthe cup"),
        ("pick_up_the\ncup", "pick up the cup"),
        ("_pick_", " pick "),
        ("déjà vu — 茶", "déjà vu — 茶"),
    ],
)
def test_clean(text: str, cleaned: str) -> None:
    assert clean(text) == cleaned


@pytest.mark.parametrize(
    ("text", "bins", "full"),
    [
        ("pick up the cup", [0, 128, 255], "Task: pick up the cup, State: 0 128 255;\nAction: "),
        (" fold_the\ntowel ", [-1], "Task: fold the towel, State: -1;\nAction: "),
        ("放下 Ärmel", [7, -1], "Task: 放下 Ärmel, State: 7 -1;\nAction: "),
    ],
)
def test_text_with_state(
    tokenizer: Tokenizer,
    pieces: sentencepiece.SentencePieceProcessor,
    text: str,
    bins: list[int],
    full: str,
) -> None:
    ids = PromptEncoder(tokenizer, len(bins), 128).encode(text, bins)
    assert ids == [2, *pieces.encode(full)]
    assert pieces.decode(ids) == full


def test_text_without_state(
    tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor
) -> None:
    ids = PromptEncoder(tokenizer, None, 128).encode("_pick up\nthe cup", None)
    assert ids == [2, *pieces.encode(" pick up the cup"), *pieces.encode("\n")]
    assert pieces.decode(ids) == " pick up the cup\n"


def test_special_pieces_of_the_model_that_ships(
    tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor
) -> None:
    assert MODEL.stat().st_size < 60_000
    special = (pieces.pad_id(), pieces.eos_id(), pieces.bos_id(), pieces.unk_id())
    assert special == (0, 1, 2, 3)
    assert tokenizer.bos == 2
    assert sum(pieces.is_byte(index) for index in range(pieces.vocab_size())) == 256


def test_states_and_frame_take_few_tokens(tokenizer: Tokenizer) -> None:
    for index in range(-1, 256):
        assert len(tokenizer.encode(f" {index}")) == 1
    for text, most in (("Task:", 1), (" State:", 1), (";\nAction: ", 4)):
        assert len(tokenizer.encode(text)) <= most


@pytest.mark.parametrize("text", ["日本語 ü", "tab\tand  spaces ", "\x00\x7f", "😀", "a\nb"])
def test_any_text_survives_without_unknown_pieces(
    tokenizer: Tokenizer, pieces: sentencepiece.SentencePieceProcessor, text: str
) -> None:
    ids = tokenizer.encode(text)
    assert 3 not in ids
    assert pieces.decode(ids) == text


def test_the_model_is_what_its_script_trains(
    pieces: sentencepiece.SentencePieceProcessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import train_tiny_tokenizer

    monkeypatch.delitem(sys.modules, "train_tiny_tokenizer")
    trained = sentencepiece.SentencePieceProcessor(model_proto=train_tiny_tokenizer.train())
    assert trained.vocab_size() == pieces.vocab_size()
    for index in range(pieces.vocab_size()):
        assert trained.id_to_piece(index) == pieces.id_to_piece(index)


@pytest.mark.parametrize("text", ["", "   ", "\n", "___", " _\n_ "])
@pytest.mark.parametrize("state_dim", [None, 3])
def test_empty(tokenizer: Tokenizer, text: str, state_dim: int | None) -> None:
    encoder = PromptEncoder(tokenizer, state_dim, 128)
    with pytest.raises(InputError, match="prompt: expected an instruction, got .* which is empty"):
        encoder.check(text)
    with pytest.raises(InputError, match="prompt: expected an instruction"):
        encoder.encode(text, None if state_dim is None else [1, 2, 3])


class Characters(Tokenizer):
    """One token a character, but three for a nine: numbers differ in length, as with Gemma."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) for character in text.replace("9", "9**")]


def test_check_counts_the_longest_state() -> None:
    text, tokenizer = "pick up the cup", Characters()
    worst = len(PromptEncoder(tokenizer, 8, 999).encode(text, [199] * 8))
    usual = len(PromptEncoder(tokenizer, 8, 999).encode(text, [0] * 8))
    assert worst == usual + 8 * 6
    PromptEncoder(tokenizer, 8, worst).check(text)
    tight = PromptEncoder(tokenizer, 8, worst - 1)
    message = f"at most {worst - 1} tokens with up to 64 for the robot's state, got {worst}; short"
    with pytest.raises(InputError, match=message):
        tight.check(text)
    assert len(tight.encode(text, [0] * 8)) == usual  # a shorter state fits all the same
    with pytest.raises(InputError, match=f"prompt: expected at most {worst - 1} tokens"):
        tight.encode(text, [199] * 8)


@pytest.mark.parametrize("fill", ["a", "zq", "ü", "pick up the red cup and "])
@pytest.mark.parametrize("kind", [Tokenizer, Characters])
def test_no_state_exceeds_what_check_allows(kind: type[Tokenizer], fill: str) -> None:
    draw = np.random.default_rng(0)
    encoder = PromptEncoder(kind(), 7, 120)
    text = fill
    while True:
        try:
            encoder.check(text + fill)
        except InputError:
            break
        text += fill
    for _ in range(200):
        assert len(encoder.encode(text, draw.integers(-1, 256, 7).tolist())) <= 120
    for index in range(-1, 256):
        assert len(encoder.encode(text, [index] * 7)) <= 120


def test_no_text(tokenizer: Tokenizer) -> None:
    encoder = PromptEncoder(tokenizer, None, 64)
    with pytest.raises(InputError, match="prompt: expected text, got bytes"):
        encoder.check(b"pick")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="valid Unicode text, got a lone surrogate at character 4"):
        encoder.check("pick\ud800up")


def test_tokenizer_files(tmp_path: Path) -> None:
    copy = tmp_path / "copy.model"
    copy.write_bytes(MODEL.read_bytes())
    assert Tokenizer(copy).encode("pick up") == Tokenizer().encode("pick up")
    with pytest.raises(OptionError, match=r"'tokenizer': .*missing.model.*No such file"):
        Tokenizer(tmp_path / "missing.model")
    broken = tmp_path / "broken.model"
    broken.write_bytes(b"this is no model")
    pointer = tmp_path / "pointer.model"
    pointer.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 4264023\n")
    with pytest.raises(OptionError, match="'tokenizer': .* a git-lfs pointer to it; run git lfs"):
        Tokenizer(pointer)
    with pytest.raises(OptionError, match="'tokenizer': .*16 bytes that do not parse"):
        Tokenizer(broken)


def test_a_trained_length_below_the_limit_is_the_limit_where_nothing_is_cut(
    tokenizer: Tokenizer,
) -> None:
    encoder = PromptEncoder(tokenizer, None, 64, trained=20)
    for call in (encoder.check, lambda text: encoder.encode(text, None)):
        with pytest.raises(InputError, match="at most 20 tokens, got .*; shorten the text$"):
            call("cup " * 40)
