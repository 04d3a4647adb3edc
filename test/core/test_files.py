"""Paths as people type them, and JSON that others wrote: one error, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flashrt_core.errors import FlashRTError, InputError, OptionError, WeightsError
from flashrt_core.files import local_path, read_json
from flashrt_core.load import LoadOptions, describe, load
from flashrt_core.policies.pi05 import POLICY
from flashrt_core.weights import open_weights

MODEL = Path(__file__).parents[2] / "flashrt_core/policies/pi05/tiny_tokenizer.model"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("~nosuchuser/x", "'~nosuchuser/x', whose home folder is not known; write the path from /"),
        ("x" * 300, "got File name too long"),
        ("/tmp/" + "x" * 5000, "got File name too long"),
        ("a\0b", "got .*null"),
        ("a\ud800", "surrogates"),
        ("", "got ''"),
        (5, r"got 5 \(int\)"),
        (b"x", r"got b'x' \(bytes\)"),
    ],
)
def test_paths_that_none_can_be(value: Any, said: str) -> None:
    with pytest.raises(OptionError, match=f"option 'x': expected a path.*{said}"):
        local_path("option 'x'", value, OptionError)
    for options in (LoadOptions(norm_stats=value), LoadOptions(tokenizer=value)):
        with pytest.raises(OptionError):
            load(options)
    with pytest.raises(WeightsError) as caught:
        describe(LoadOptions(checkpoint=value))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "place",
    [
        "hf://lerobot/pi05_base",
        "https://huggingface.co/lerobot/pi05_base",
        "gs://openpi-assets/checkpoints/pi05_base",
        "s3://bucket/x",
        "file://elsewhere/x",
        "HF://lerobot/pi05_base",
    ],
)
def test_only_local_paths(place: str) -> None:
    said = "expected a path on this machine, got .*download it first .hf download OWNER/NAME"
    for value in (place, Path(place)) if place.islower() and "file" not in place else (place,):
        with pytest.raises(WeightsError, match=f"^checkpoint: {said}") as caught:
            load(LoadOptions(checkpoint=value))
        assert "\n" not in str(caught.value)
        for name in ("norm_stats", "tokenizer"):
            with pytest.raises(OptionError, match=f"^option '{name}': {said}"):
                load(LoadOptions(**{name: value}))


def test_file_uris_are_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "a b.model"
    model.write_bytes(MODEL.read_bytes())
    for uri in (model.as_uri(), Path(model.as_uri()), f"FILE://{model}"):
        assert local_path("x", uri, OptionError) == model
    load(LoadOptions(tokenizer=model.as_uri(), threads=1)).engine.close()
    # What is there under that name is meant.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf:" / "x").mkdir(parents=True)
    assert local_path("x", "hf://x", OptionError) == Path("hf:/x")
    assert local_path("x", "C:/x", OptionError) == Path("C:/x")


def test_home_folder_in_every_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "t.model").write_bytes(MODEL.read_bytes())
    part = {"q01": [0.0] * 7, "q99": [2.0] * 7}
    (tmp_path / "n.json").write_text(json.dumps({"norm_stats": {"state": part, "actions": part}}))
    for home in ("~", Path("~"), tmp_path, str(tmp_path)):
        kind = type(home)
        norm_stats, tokenizer = (kind(f"{home}/{name}") for name in ("n.json", "t.model"))
        session = load(LoadOptions(norm_stats=norm_stats, tokenizer=tokenizer, threads=1))
        session.engine.close()
    for home in ("~", Path("~")):
        with pytest.raises(WeightsError, match=f"{str(tmp_path)!r}: .* got a folder without it"):
            open_weights(home, {})


def test_an_empty_checkpoint_is_called_so() -> None:
    with pytest.raises(WeightsError, match="^checkpoint '': expected a folder with model"):
        describe(LoadOptions(checkpoint=""))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b"\xff\xfe\xfd", "expected JSON"),
        (b"1" * 5000, "expected JSON"),
        (b"", "expected JSON"),
        (b"version https://git-lfs.github.com/spec/v1\n", "run git lfs pull"),
    ],
)
def test_json_that_is_none(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"file x: .*{said}"):
        read_json(path, "file x", InputError)


@pytest.mark.parametrize("content", ["[" * 100_000, '{"type": "pi05", "dtype": []}'])
def test_nothing_in_a_folder_escapes(tmp_path: Path, content: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(FlashRTError):
        load(LoadOptions(checkpoint=tmp_path))


@pytest.mark.parametrize("kind", [KeyError, TypeError, AttributeError, RecursionError])
def test_what_a_policy_did_not_foresee_is_one_line(
    monkeypatch: pytest.MonkeyPatch, kind: type[Exception]
) -> None:
    def deployment(*_: object) -> None:
        raise kind("bfloat16")

    monkeypatch.setattr(type(POLICY), "deployment", deployment)
    with pytest.raises(
        WeightsError, match=f"beside the weights, got {kind.__name__}: '?bfloat16'?; copy"
    ):
        load(LoadOptions(checkpoint="/x"))


def test_prompts_that_are_no_text() -> None:
    session = load(LoadOptions(threads=1))
    try:
        for value in (5, None, b"x", ["x"]):
            with pytest.raises(
                InputError, match="prompt: expected text, got .*" + type(value).__name__
            ):
                session.set_prompt(value)  # type: ignore[arg-type]
        assert session.prompt == ""
    finally:
        session.engine.close()
