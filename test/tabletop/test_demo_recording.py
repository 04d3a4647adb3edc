"""What ``flashrt demo`` plays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rosbags.highlevel import AnyReader
from rosbags.typesys import Stores, get_typestore

from flashrt_core.errors import OptionError


@pytest.mark.usefixtures("opengl")
def test_episodes_of_one_instruction_follow_each_other_in_time(tmp_path: Path) -> None:
    from tabletop.demo_recording import main, record
    from tabletop.recording import PLANS, STATES

    instruction = "push the blue block to the right"
    count = record(tmp_path / "demo", 5.0, instruction)
    stamps: dict[str, list[int]] = {}
    starts = []
    with AnyReader([tmp_path / "demo"], default_typestore=get_typestore(Stores.ROS2_JAZZY)) as bag:
        for connection, time_ns, data in bag.messages():
            stamps.setdefault(connection.topic, []).append(time_ns)
            message = bag.deserialize(data, connection.msgtype)
            if connection.topic == "/prompt":
                assert message.data == instruction
            elif connection.topic == STATES:
                starts.append(message.position)
    seen = np.array(stamps[STATES])
    assert (np.diff(seen) == 40_000_000).all() and seen[-1] - seen[0] > 4.9e9
    assert stamps[PLANS] == stamps[STATES] and len(stamps) == 5
    # Where an episode ends and the next begins, the arm is somewhere else at once.
    leaps = np.abs(np.diff(np.stack(starts), axis=0)).max(axis=1) > 0.08
    assert leaps.sum() == count - 1
    with pytest.raises(OptionError, match="--seconds"):
        main(["--output", str(tmp_path / "other"), "--seconds", "0"])
    with pytest.raises(OptionError, match="expected a new folder, got .*it is there already"):
        main(["--output", str(tmp_path / "demo")])
