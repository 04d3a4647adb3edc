"""The bench of capsules on the CPU device: what it writes, and that a changed bit ends it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from flashrt_core.bench.capsule_command import CapsuleBenchOptions, run_capsule_bench
from flashrt_core.bench.capsules import EPISODE_WAYS, WAYS, StepTables
from flashrt_core.bench.case import Case, default_cases, steps_of
from flashrt_core.capsule.store import CapsuleStore
from flashrt_core.cli.main import USER_ERROR, app, run
from flashrt_core.errors import NumericsError, OptionError
from flashrt_core.load import LoadOptions
from flashrt_core.policies import find_policy

TIMES = (
    *("snapshot_us", "restore_us", "switch_us", "fork_us", "to_host_us", "to_device_us"),
    *("restore_from_host_us", "file_write_ms", "file_read_ms", "rebuild_ms", "restored_ms"),
    *("reuse_ms", "recompute_ms", "prompt_ms", "step_tables_ms"),
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def options(**given: Any) -> CapsuleBenchOptions:
    own = {name: given.pop(name) for name in list(given) if hasattr(LoadOptions, name)}
    plain = {"cases": (Case(1, 48, 4),), "trials": 2}
    return CapsuleBenchOptions(LoadOptions(**own), **(plain | given))


def test_a_result_holds_all_that_is_named(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    output = tmp_path / "made" / "capsule.json"
    result = run_capsule_bench(
        options(output=output, cases=(Case(1, 48, 4), Case(2, 32, 6))), console
    )
    assert json.loads(output.read_text()) == result
    assert (result["device"], result["gpu"]) == ("cpu", "none") and "nothing of a GPU" in result[
        "note"
    ]
    for case in result["cases"]:
        assert case["trials"] == 2 and case["bit_exact"]
        assert case["equal"] == dict.fromkeys(WAYS, 2)
        assert case["file_bytes"] > case["bytes"] > 10_000
        for name in TIMES:
            assert 0 < case[name]["p50"] <= case[name]["p99"], name
        parts = case["prompt_ms"]["p50"] + case["step_tables_ms"]["p50"]
        assert parts < case["recompute_ms"]["p50"]
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "all of 2" in said and "say nothing of a GPU" in said and result["note"]


def test_every_policy_has_all_ways() -> None:
    console = Console(file=io.StringIO(), width=100)
    case = Case(1, 64, 6, steps=2)
    result = run_capsule_bench(options(policy="groot_n17", state_dim=3, cases=(case,)), console)
    (found,) = result["cases"]
    assert found["bit_exact"] and found["equal"] == dict.fromkeys(WAYS, 2)
    assert (found["prompt_tokens"], found["steps"]) == (64, 2)


def test_a_changed_bit_ends_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(CapsuleStore, "fork", lambda store, held, seat: None)
    output = tmp_path / "capsule.json"
    console = Console(file=io.StringIO(), width=100)
    with pytest.raises(NumericsError, match="equal bits in all 2 trials.*restored 2, forked 0,"):
        run_capsule_bench(options(output=output), console)
    case = json.loads(output.read_text())["cases"][0]
    assert not case["bit_exact"] and case["equal"]["forked"] == 0
    assert "NOT all of 2" in console.file.getvalue()  # type: ignore[attr-defined]


def test_tables_that_are_not_made_again_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    filled = []

    def once(tables: StepTables) -> None:
        if not filled:
            fill(tables)
        filled.append(tables)

    fill = StepTables.fill
    monkeypatch.setattr(StepTables, "fill", once)
    with pytest.raises(NumericsError, match="recomputed 0"):
        run_capsule_bench(options(trials=1), Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"policy": "pi0"}, r"option 'policy': expected one of .*'pi05'.*, got 'pi0'"),
        ({"policy": "groot_n17", "cases": (Case(5, 64, 40, 4),)}, "at most 4 views, got 5x64x40"),
        ({"device": "tpu"}, r"'device' of bench capsule: expected one of \['cuda', 'cpu'\]"),
        ({"trials": 0}, "'trials' of bench capsule: expected 1 to 1,000,000, got 0"),
        ({"preset": "huge"}, "preset"),
    ],
)
def test_options_are_checked(given: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        run_capsule_bench(options(**given), Console(file=io.StringIO()))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--help",), 0, "capsule"),
        (("capsule", "--help"), 0, "rebuilt and restored"),
        (("capsule", "--trials", "0"), USER_ERROR, "'trials' of bench capsule"),
        (("capsule", "--device", "tpu"), USER_ERROR, "'device' of bench capsule"),
        (("decision", "--device", "cpu"), USER_ERROR, "'device' of bench: expected"),
        (("pi05", "--device", "cpu"), USER_ERROR, "'device' of bench: expected"),
        (("--device", "cpu"), USER_ERROR, "'device' of bench: expected"),
        (("pi0",), USER_ERROR, "option 'policy': expected one of"),
    ],
)
def test_commands(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert run(lambda: app(["bench", *arguments])) == code
    captured = capsys.readouterr()
    assert said in " ".join((captured.out + captured.err).replace("│", " ").split())


@pytest.mark.parametrize(
    ("policy", "tiny", "base"),
    [
        ("pi05", Case(2, 32, 10, 10), Case(1, 48, 10, 10)),
        ("groot_n17", Case(2, 64, 10, 4), Case(1, 32, 40, 4)),
        ("lingbot_va", Case(2, 32, 8, 3), Case(2, 64, 16, 20)),
    ],
)
def test_a_preset_has_its_own_case_and_steps(policy: str, tiny: Case, base: Case) -> None:
    named = find_policy(policy).measures.cases
    assert default_cases(LoadOptions(policy=policy), named) == (tiny,)
    assert default_cases(LoadOptions(policy=policy, preset="base"), named)[0] == base
    assert steps_of(LoadOptions(policy=policy)) == tiny.steps
    (asked,) = default_cases(LoadOptions(policy=policy, steps=2), named)
    assert asked.steps == steps_of(LoadOptions(policy=policy, precision="fp32,bf16", steps=2)) == 2


def test_an_episode_of_a_policy_that_looks_back() -> None:
    """Every way back to its next decision has the same bits, the whole episode again too."""
    console = Console(file=io.StringIO(), width=100)
    result = run_capsule_bench(options(policy="lingbot_va", cases=(), trials=1, steps=1), console)
    assert "case 2x32x8: 0 of 1 trials" in console.file.getvalue()  # type: ignore[attr-defined]
    (found,) = result["cases"]
    assert found["bit_exact"] and found["equal"] == dict.fromkeys(EPISODE_WAYS, 1)
    assert found["chunks"] == 4 and found["bytes"] > 10_000
    assert found["rebuild_ms"]["p50"] > found["restored_ms"]["p50"]
