"""Bags recorded elsewhere: every version, storage, compression and split, the same messages."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flashrt_ros.replay.bag import Bag

from .foreign import Style, foreign_bag
from .test_node_runs import run_replay

STYLES = [
    *(Style(version, storage) for version in range(4, 10) for storage in ("sqlite3", "mcap")),
    *(
        Style(version, storage, compression, 3)
        for version in (5, 9)
        for storage in ("sqlite3", "mcap")
        for compression in ("file", "message")
    ),
    Style(9, "mcap", "chunk", 3),
    Style(8, "mcap", "chunk", 2),
    Style(5, "sqlite3", stored_qos=False),
    Style(9, "sqlite3", "file", 2, stored_qos=False),
    Style(9, "mcap", "chunk", 2, stored_qos=False),
]


@pytest.mark.parametrize("style", STYLES, ids=str)
def test_the_same_messages(recording: Path, tmp_path: Path, style: Style) -> None:
    path = foreign_bag(tmp_path / "elsewhere", recording, style)
    with Bag(recording) as original, Bag(path) as bag:
        assert {t: (k.msgtype, k.count) for t, k in bag.topics.items()} == {
            t: (k.msgtype, k.count) for t, k in original.topics.items()
        }
        assert bag.seconds == pytest.approx(original.seconds, abs=1e-6)
        wanted = list(original.messages(list(original.topics)))
        assert len(wanted) == original.message_count > 100
        assert list(bag.messages(list(bag.topics))) == wanted
        (one, *_) = bag.topics
        assert list(bag.messages([one])) == [m for m in wanted if m.topic == one]


@pytest.mark.ros
@pytest.mark.timeout(240)
def test_step_replays_of_any_of_them_are_identical_to_the_bit(
    record: Callable[..., Path],
    parameter_path: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two that differ in everything: that each has the messages of the source is shown above."""
    source = record(seconds=1.5)
    styles = [Style(5, "sqlite3", "file", 3), Style(9, "mcap", "chunk", 2)]
    bags = [source, *(foreign_bag(tmp_path / str(s), source, s) for s in styles)]
    reports = []
    for index, bag in enumerate(bags):
        out = tmp_path / f"out{index}"
        code, _, err = run_replay(
            capfd, monkeypatch, bag, "--params", parameter_path, "--step", "--out", out
        )
        assert code == 0, err
        reports.append(json.loads((out / "replay.json").read_text()))
    assert {report["decisions"] for report in reports} == {reports[0]["decisions"]}
    assert reports[0]["decisions"] >= 12
    assert len({report["chunks_sha256"] for report in reports}) == 1
