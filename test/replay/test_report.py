"""The report's numbers on known data, and a figure that shows something."""

from __future__ import annotations

import csv
import json
import math
import threading
import time
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image as mpimage
from matplotlib import pyplot as plt
from rich.console import Console

from flashrt_core.bench.machine import machine
from flashrt_ros.replay.figure import _draw_spread, write_results
from flashrt_ros.replay.records import (
    PARTS,
    ChunkRecord,
    PlayRecord,
    RunRecord,
    TimingRecord,
)
from flashrt_ros.replay.report import (
    chunk_jumps,
    gaps,
    render,
    statistics,
    summarise,
    unique,
    versions,
)
from flashrt_ros.replay.run import Follower

MS = 1_000_000


def chunk(sequence: int, actions: Sequence[Sequence[float]], first_ms: int = 0) -> ChunkRecord:
    return ChunkRecord(
        session="main",
        sequence=sequence,
        stamp_ns=first_ms * MS,
        oldest_ns=first_ms * MS,
        first_action_ns=first_ms * MS,
        dt_ns=20 * MS,
        age_ms=30.0,
        received_ns=sequence * 100 * MS,
        names=("a", "b"),
        policy="pi05",
        fingerprint="f" * 64,
        actions=np.array(actions, np.float32),
    )


def timing(sequence: int, total: float, age: float = 30.0) -> TimingRecord:
    parts = dict(zip(PARTS, (0.1 * total, 0.5 * total, 0.3 * total, 0.05 * total), strict=True))
    return TimingRecord("main", sequence, 0, parts, total, age, sequence * 100 * MS)


def run_of(
    chunks: Sequence[ChunkRecord], timings: Sequence[TimingRecord], **fields: object
) -> RunRecord:
    given = {
        "bag": "bag",
        "parameters": "p.yaml",
        "mode": "timed",
        "rate": 1.0,
        "recorded_seconds": 2.0,
        "play": PlayRecord({"base": 60}, 2.0, [0.1, 0.2, 0.3]),
        **fields,
    }
    return RunRecord(chunks=chunks, timings=timings, **given)


def test_statistics_of_known_values() -> None:
    found = statistics(range(1, 101))
    assert found == pytest.approx(
        {"p50": 50.5, "p95": 95.05, "p99": 99.01, "mean": 50.5, "max": 100.0}
    )
    assert statistics([]) == {}
    assert statistics([4.0])["p99"] == 4.0


def test_a_first_chunk_that_is_shorter_does_not_stand_for_all() -> None:
    chunks = [chunk(0, [[0, 0]]), *(chunk(i, [[i, 0]] * 3) for i in range(1, 4))]
    report = summarise(run_of(chunks, [timing(0, 1.0)]))
    assert (report["chunk_shape"], report["other_chunks"]) == ([3, 2], {"1 x 2": 1})
    console = Console(width=120, file=StringIO())
    console.print(render(report))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "4, chunks of 3 x 2 (1 of 1 x 2), deadline" in shown


def test_summary_of_known_decisions() -> None:
    chunks = [chunk(i, [[i, 0], [i, 0], [i, 0]]) for i in range(20)]
    timings = [timing(i, 10.0 + i, age=2.0 * i) for i in range(20)]
    report = summarise(run_of(chunks, timings))
    assert report["decisions"] == 20
    assert report["chunk_shape"] == [3, 2]
    assert report["latency_ms"]["total"]["p50"] == pytest.approx(19.5)
    assert report["latency_ms"]["total"]["max"] == pytest.approx(29.0)
    assert report["latency_ms"]["context"]["p50"] == pytest.approx(0.5 * 19.5)
    assert report["observation_age_ms"]["max"] == pytest.approx(38.0)
    assert report["decision_interval_ms"]["p99"] == pytest.approx(100.0)
    assert set(report["latency_ms"]) == {*PARTS, "total"}
    assert (report["dropped"], report["refused"]) == (0, 0)
    json.dumps(report)


def test_lost_chunks_are_counted_and_repeated_ones_are_not() -> None:
    chunks = [chunk(i, [[0, 0]]) for i in (3, 4, 4, 7, 9)]
    assert gaps(unique(chunks)) == 3  # 5, 6 and 8
    report = summarise(run_of(chunks, []))
    assert report["decisions"] == 4
    assert report["dropped"] == 3
    assert report["dropped_by_input"] == {"action_chunk": 3}


def test_jump_between_chunks_is_measured_at_the_same_moment() -> None:
    # The old chunk ramps 0, 1, 2, 3 at 20 ms; at 30 ms it stands at 1.5.
    old = chunk(0, [[0, 5], [1, 5], [2, 5], [3, 5]], first_ms=0)
    new = chunk(1, [[1.75, 4], [0, 0], [0, 0], [0, 0]], first_ms=30)
    jumps = chunk_jumps([old, new])
    assert jumps["a"]["max"] == pytest.approx(0.25)
    assert jumps["b"]["max"] == pytest.approx(1.0)
    late = chunk(2, [[9, 9]] * 4, first_ms=500)
    assert chunk_jumps([old, late]) == {}, "chunks that do not overlap have no common moment"


def test_terminal_table_and_versions() -> None:
    report = summarise(run_of([chunk(0, [[1, 2]])], [timing(0, 12.5)]))
    text = StringIO()
    checks = {"full_equals_split": True, "capsule_bit_exact": False}
    Console(file=text, width=100).print(render(report, checks))
    for part in (*PARTS, "total", "12.50", "observation age", "1 x 2", "yes", "NO"):
        assert part in text.getvalue()
    assert {"python", "numpy", "torch"} <= set(versions())
    assert machine()["cores"] >= 1


def test_a_run_without_decisions_still_reports(tmp_path: Path) -> None:
    report = summarise(run_of([], []))
    Console(file=StringIO()).print(render(report))
    write_results(tmp_path / "r", report, run_of([], []), "nothing")
    assert json.loads((tmp_path / "r.json").read_text())["decisions"] == 0
    assert not (tmp_path / "r.png").exists()


def test_figure_shows_the_data(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    chunks = [chunk(i, [[0, 0]]) for i in range(60)]
    fast = [timing(i, 10.0 + rng.gamma(2, 0.5), 20 + rng.uniform(0, 9)) for i in range(60)]
    slow = [timing(i, 40.0 + rng.gamma(2, 9.0), 20 + rng.uniform(0, 9)) for i in range(60)]
    pictures = []
    for name, timings in (("fast", fast), ("slow", slow)):
        run = run_of(chunks, timings)
        write_results(tmp_path / name, summarise(run), run, "on this machine")
        pictures.append(mpimage.imread(tmp_path / f"{name}.png")[:, :, :3])
    for picture in pictures:
        assert picture.shape == (950, 1400, 3)
        blank = (picture > 0.99).all(axis=2).mean()
        assert 0.3 < blank < 0.9, "neither empty nor full"
        assert len(np.unique((picture * 255).astype(np.uint8).reshape(-1, 3), axis=0)) > 50
    assert (np.abs(pictures[0] - pictures[1]).max(axis=2) > 0.1).mean() > 0.05


@pytest.mark.parametrize("slow", [0, 1, 6])
def test_the_legend_of_the_distribution_covers_nothing(slow: int) -> None:
    rng = np.random.default_rng(slow)
    totals = [10 + rng.gamma(2, 0.5) for _ in range(60)] + [25.0 + i for i in range(slow)]
    timings = [timing(i, total) for i, total in enumerate(totals)]
    report = summarise(run_of([chunk(i, [[0, 0]]) for i in range(len(totals))], timings))
    figure = plt.figure(figsize=(14, 7), dpi=100)
    axes = figure.add_axes((0.72, 0.42, 0.26, 0.43))  # its place and size in the whole figure
    _draw_spread(axes, timings, report)
    figure.canvas.draw()
    legend = axes.get_legend()
    assert legend is not None
    box = legend.get_window_extent()
    shapes = [*axes.patches, *axes.collections]
    assert len(axes.collections) == 3, "p50, p95, p99"
    for shape in shapes:
        assert shape.get_window_extent().y1 < box.y0
    assert box.y1 <= axes.get_window_extent().y1 + 1
    plt.close(figure)


def test_malformed_messages_are_in_report_and_table() -> None:
    play = PlayRecord({"base": 57}, 2.0, malformed={"base": 3})
    report = summarise(run_of([chunk(0, [[1, 2]])], [timing(0, 12.5)], play=play))
    assert report["player"]["malformed"] == {"base": 3}
    text = StringIO()
    Console(file=text, width=100).print(render(report))
    assert "3 (base 3), not played" in text.getvalue()


def test_a_line_a_decision(tmp_path: Path) -> None:
    chunks = [chunk(i, [[i, 5], [i, 5], [i, 5]], first_ms=20 * i) for i in (0, 1, 3)]
    run = run_of(chunks, [timing(i, 10.0 + i, age=31.0) for i in (0, 1, 2)])
    write_results(tmp_path / "r", summarise(run), run, "")
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["sequence"] for row in rows] == ["0", "1", "2", "3"]
    assert (rows[0]["jump.a"], rows[0]["interval_ms"]) == ("", ""), "nothing before it"
    assert float(rows[1]["jump.a"]) == 1.0 and float(rows[1]["jump.b"]) == 0.0
    assert float(rows[1]["interval_ms"]) == 100.0
    assert float(rows[1]["total_ms"]) == 11.0 and float(rows[1]["oldest_input_age_ms"]) == 31.0
    assert float(rows[1]["newest_input_age_ms"]) == 30.0, "its only input is the oldest, too"
    assert rows[2]["total_ms"] and not rows[2]["jump.a"], "its chunk was lost"
    assert not rows[3]["total_ms"] and not rows[3]["jump.a"], "its timing, and the chunk before"


def test_deadlines_and_paces() -> None:
    run = run_of(
        [chunk(0, [[1, 2]])],
        [timing(0, 12.5)],
        rate=math.inf,
        play=PlayRecord({"base": 60}, 0.5),
        diagnostics={"policy: decisions": {"deadline_missed": "7"}},
    )
    report = summarise(run)
    assert (report["deadline_missed"], report["rate"], report["speed"]) == (7, "max", 4.0)
    json.dumps(report, allow_nan=False)
    text = StringIO()
    Console(file=text, width=120).print(render(report))
    assert "deadline missed 7 times" in text.getvalue() and "4.00 x" in text.getvalue()


def test_a_replay_without_a_pace_waits_for_each_chunk_but_not_for_ever() -> None:
    timings: list[TimingRecord] = []
    follow = Follower(timings, 0, 100 * MS)
    begin = time.monotonic()
    for k in range(25):
        follow(4 * k * MS)
    assert time.monotonic() - begin < 0.1, "nothing is due before the first period ends"
    threading.Timer(0.05, lambda: timings.append(timing(0, 10.0))).start()
    follow(100 * MS)
    assert len(timings) == 1, "it came while it waited"
    begin = time.monotonic()
    follow(200 * MS)
    assert 0.2 < time.monotonic() - begin < 2.0, "none came: time is up"
