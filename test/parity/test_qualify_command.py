"""``flashrt qualify`` and ``flashrt inspect`` on checkpoint folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from flashrt_core.cli import qualify as qualify_module
from flashrt_core.cli.main import NOT_LOADABLE, USER_ERROR, app, run
from flashrt_core.policies.pi05.config import PRESETS

from . import case as parity
from .folders import sizes, write_lerobot, write_openpi


@pytest.fixture(autouse=True)
def narrow_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folders hold the golden sizes; give them a preset of their own, as a policy would."""
    narrow = sizes(prompt_buckets=(96, 200))
    monkeypatch.setitem(PRESETS, "base", narrow)  # type: ignore[misc]


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(lambda: app(list(arguments)))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def common(folder: Path) -> list[str]:
    dims = str(parity.STATS_DIM)
    return ["pi05", "--checkpoint", str(folder), "--state-dim", dims, "--action-dim", dims]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("origin", ["openpi", "lerobot"])
def test_a_checkpoint_qualifies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], origin: str, precision: str
) -> None:
    write = {"openpi": write_openpi, "lerobot": write_lerobot}[origin]
    folder = write(tmp_path / origin)
    arguments = ["qualify", *common(folder), "--precision", precision, "--decisions", "1"]
    code, out, err = call(capsys, *arguments, "--threads", "1", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["passed"] is True
    assert {name.split(":")[0] for name in found["stages"]} == {
        "prompt",
        "context",
        "action",
        "decision",
    }
    assert len(found["joints"]) == parity.STATS_DIM
    assert found["origin"] == origin
    arithmetic = {"openpi": "added", "lerobot": "guarded"}[origin]
    assert found["config"]["numerics"]["normalisation"] == arithmetic
    assert found["transforms"]["state"].startswith(f"{parity.STATS_DIM} numbers, range")
    cosines = [gate for gate in found["gates"] if gate["name"] == "least cosine of action rows"]
    assert cosines[0]["found"] > (0.999999 if precision == "fp32" else 0.9999)


def test_a_failed_gate_is_exit_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_openpi(tmp_path / "openpi")
    arguments = ["qualify", *common(folder), "--precision", "bf16", "--decisions", "1"]
    code, out, _ = call(capsys, *arguments, "--threads", "1", "--max-error", "1e-9")
    assert code == qualify_module.FAILED == 1
    assert "FAILED" in out
    assert "largest action error" in out


def test_a_bad_checkpoint_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_openpi(tmp_path / "openpi")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    del tensors["time_mlp_in.weight"]
    save_file(tensors, file)
    code, out, err = call(capsys, "qualify", *common(folder))
    assert (code, out) == (USER_ERROR, "")
    assert err.count("\n") == 1
    assert "1 missing: time_mlp_in.weight" in err


def test_inspect_says_where_the_weights_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = write_lerobot(tmp_path / "lerobot", dtype="bfloat16", horizon=7)
    options = ["inspect", "pi05", "--checkpoint", str(folder)]
    code, out, _ = call(capsys, *options, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["checkpoint"] == {
        "origin": "lerobot",
        "cameras": ["image", "image2"],
        "state_dim": parity.STATS_DIM,
        "action_dim": parity.STATS_DIM,
    }
    assert found["transforms"]["relative actions"] == "none"
    assert found["missing"] is None
    assert found["config"]["horizon"] == 7
    assert found["config"]["numerics"]["embedding_scale"] == "bfloat16"
    _, out, _ = call(capsys, *options)
    assert "origin lerobot" in out
    assert "image, image2" in out


def test_inspect_says_what_is_still_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = write_openpi(tmp_path / "openpi")
    (folder / "paligemma_tokenizer.model").unlink()
    options = ["inspect", "pi05", "--checkpoint", str(folder)]
    code, out, _ = call(capsys, *options, "--json")
    found = json.loads(out)
    assert code == NOT_LOADABLE
    assert found["fingerprint"] is None and found["transforms"] == {}
    assert found["missing"].startswith("option 'tokenizer': expected")
    code, out, _ = call(capsys, *options)
    assert code == NOT_LOADABLE and "not loadable like this: option 'tokenizer'" in out


def test_digest_in_the_fingerprint_follows_the_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_openpi(tmp_path / "openpi")
    options = ["inspect", "pi05", "--preset", "base", "--checkpoint", str(folder), "--json"]
    first = json.loads(call(capsys, *options)[1])["fingerprint"]["parts"]
    again = json.loads(call(capsys, *options)[1])["fingerprint"]["parts"]
    assert first == again
    file = folder / "model.safetensors"
    content = np.fromfile(file, np.uint8)
    content[-4] ^= 1
    content.tofile(file)
    changed = json.loads(call(capsys, *options)[1])["fingerprint"]["parts"]
    assert [name for name in first if first[name] != changed[name]] == ["weights"]
