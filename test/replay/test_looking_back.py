"""A policy that looks back, in a replay: whole chunks, pictures on the way, the same every time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from std_srvs.srv import Trigger

from flashrt_ros.replay import run as module
from flashrt_ros.replay.bag import Bag
from flashrt_ros.replay.messages import sound_messages
from flashrt_ros.replay.parameter_file import read_parameters
from flashrt_ros.replay.run import ChunkFollower, Settings, live_node, looks_back
from flashrt_ros.replay.step import Stepper
from flashrt_ros.replay.verify import bit_identical

from .conftest import PARAMETERS

pytestmark = [pytest.mark.ros, pytest.mark.timeout(240)]
MS = 1_000_000


def test_steps_are_chunks_and_repeat_exactly(record: Callable[..., Path], tmp_path: Path) -> None:
    path = tmp_path / "robot.yaml"
    text = PARAMETERS.replace("pi05", "lingbot_va").replace("dt_s: 0.02", "dt_s: 0.04")
    path.write_text(text.replace("base_0_rgb", "view_0").replace("left_wrist_0_rgb", "view_1"))
    settings = Settings(read_parameters(path), tmp_path / "node.log")
    assert looks_back(settings)
    told: list[int] = []
    with (
        Bag(record(seconds=1.0)) as bag,
        live_node(bag, settings, rate_hz=0.0, steps=1) as live,
    ):

        def walk(limit: int | None = None) -> list[Any]:
            stepper = Stepper(live.client, live.player)
            messages = sound_messages(bag, live.routes)
            return stepper.walk(messages, limit, lambda count, _: told.append(count))

        once = walk()
        assert told == [1, 2, 3, 4]
        # 4 rows, then 8 each: 0.16 s, 0.48 s, 0.8 s behind the first.
        assert [len(chunk.actions) for chunk in once] == [4, 8, 8, 8]
        starts = [chunk.first_action_ns - once[0].first_action_ns for chunk in once]
        assert starts == [0, 160 * MS, 480 * MS, 800 * MS]
        live.player.start_clock(bag.start_ns)
        assert live.client.call(Trigger, "restart", Trigger.Request()).success
        again = walk(3)
        assert bit_identical(once[:3], again)
        live.client.wait_for_diagnostics(2)
        counts = live.client.diagnostics["policy: decisions"]
        assert counts["late_pictures"] == "0" and counts["deadline_missed"] == "0"


def test_the_fastest_replay_waits_for_chunks_and_not_for_periods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_CHUNK_S", 0.2)
    chunks: list[Any] = []
    first: list[int] = []
    follow = ChunkFollower(chunks, first.append, 20 * MS)
    follow(0)
    assert first == [0]
    chunks.append(SimpleNamespace(end_ns=100 * MS))
    begun = time.monotonic()
    for time_ns in range(4 * MS, 120 * MS, 4 * MS):
        follow(time_ns)
    assert time.monotonic() - begun < 0.15, "nothing was due"
    threading.Timer(0.05, lambda: chunks.append(SimpleNamespace(end_ns=200 * MS))).start()
    follow(120 * MS)
    assert len(chunks) == 2
    begun = time.monotonic()
    follow(220 * MS)  # none comes: its time is up, once
    follow(224 * MS)
    assert 0.2 <= time.monotonic() - begun < 0.39
