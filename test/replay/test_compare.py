"""Two runs side by side: numbers, what is not alike, figure, files that are no report."""

from __future__ import annotations

import copy
import json
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image as mpimage
from rich.console import Console

from flashrt_core.errors import OptionError
from flashrt_ros.cli import main
from flashrt_ros.replay.compare import differences, draw, read_report, render, same_chunks, unlike
from flashrt_ros.replay.report import summarise

from .test_report import chunk, run_of, timing


def report(speed: float = 1.0, jump: float = 0.1, **changes: Any) -> dict[str, Any]:
    chunks = [chunk(i, [[i % 2 * jump, 1.0]] * 9, first_ms=100 * i) for i in range(20)]
    timings = [timing(i, (10.0 + i) * speed) for i in range(20)]
    made = summarise(run_of(chunks, timings)) | {"seed": 0}
    return made | changes


def test_differences_are_those_of_the_numbers() -> None:
    found = {each.name: each for each in differences(report(), report(2.0, 0.3))}
    total = found["total p50"]
    assert (total.first, total.second, total.change) == (19.5, 39.0, 1.0)
    assert found["jump of a p50"].first == pytest.approx(0.1)
    assert found["jump of a p50"].change == pytest.approx(2.0)
    assert found["jump of b p99"].change is None, "of nothing there is no part"
    assert (found["decisions"].first, found["decisions"].change) == (20, 0.0)
    assert found["deadline missed"].change is None
    empty = {each.name: each for each in differences(summarise(run_of([], [])), report())}
    assert empty["total p50"].first is None and empty["total p50"].change is None
    assert empty["jump of a p50"].second == pytest.approx(0.1)


def test_what_is_not_alike_is_said() -> None:
    one, other = report(chunks_sha256="a"), report(chunks_sha256="b", seed=4, rate="max")
    assert unlike(one, other) == ["rate", "seed"]
    assert same_chunks(one, one) is True and same_chunks(one, other) is False
    assert same_chunks(one, report()) is None
    text = StringIO()
    Console(file=text, width=120).print(render(one, other))
    for part in ("total p50, ms", "19.5", "+0.0 %", "other rate", "1.0  |  max", "not the same"):
        assert part in text.getvalue()


def test_the_command_writes_table_figure_and_json(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for name, made in (("slow", report(3.0)), ("fast", report())):
        (tmp_path / name).mkdir()
        paths.append(tmp_path / name / "replay.json")
        paths[-1].write_text(json.dumps(made))
    arguments = ["compare", *map(str, paths), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", ["flashrt", *arguments])
    monkeypatch.setenv("COLUMNS", "140")
    assert main() == 0
    assert "-66.7 %" in capfd.readouterr().out
    document = json.loads((tmp_path / "out" / "compare.json").read_text())
    (total,) = [each for each in document["differences"] if each["name"] == "total p99"]
    assert total["second"] < total["first"] and total["change"] == pytest.approx(-2 / 3)
    assert document["unlike"] == [] and document["chunks_identical"] is None
    picture = mpimage.imread(tmp_path / "out" / "compare.png")[:, :, :3]
    assert picture.shape == (900, 1400, 3)
    assert 0.3 < (picture > 0.99).all(axis=2).mean() < 0.95


def test_the_figure_follows_the_data(tmp_path: Path) -> None:
    pictures = []
    for name, other in (("same", report()), ("slower", report(4.0, 0.9))):
        draw(tmp_path / f"{name}.png", (report(), other), ("a/replay.json", "b/replay.json"))
        pictures.append(mpimage.imread(tmp_path / f"{name}.png")[:, :, :3])
    assert (np.abs(pictures[0] - pictures[1]).max(axis=2) > 0.1).mean() > 0.02


def test_runs_without_decisions_can_be_drawn(tmp_path: Path) -> None:
    nothing = summarise(run_of([], [])) | {"seed": 0}
    draw(tmp_path / "nothing.png", (nothing, nothing), ("a", "b"))
    assert (tmp_path / "nothing.png").stat().st_size > 10_000


def without(*path: str) -> dict[str, Any]:
    made = copy.deepcopy(report())
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return made


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "expected a readable file"),
        (b"\xff\xfe", "UTF-8"),
        (b"not json", "expected JSON"),
        (b"[]", "what 'flashrt replay'"),
        (json.dumps(without("latency_ms", "total")), "what 'flashrt replay'"),
        (json.dumps(without("latency_ms", "total", "p50")), "what 'flashrt replay'"),
        (json.dumps(without("deadline_missed")), "what 'flashrt replay'"),
        (json.dumps(report(decision_interval_ms={"p50": "x"})), "what 'flashrt replay'"),
        (json.dumps(report(chunk_jump=[])), "what 'flashrt replay'"),
    ],
)
def test_what_is_no_report_is_one_line(
    tmp_path: Path, content: bytes | str | None, expected: str
) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(OptionError, match=expected) as error:
        read_report(path)
    assert "\n" not in str(error.value)
