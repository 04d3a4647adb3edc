"""A host's thread that never called torch before: the bits of every other one."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from flashrt_core.load import LoadOptions, load
from flashrt_core.policies.base import Observation
from flashrt_core.session import noise_for
from test.abi import host as api
from test.abi.host import Host


def test_the_first_replay_of_a_thread(library_path: Path) -> None:
    """Of so many threads as torch was told; a new one would begin with those of the machine."""
    session = load(LoadOptions(prompt="pick up the red block", threads=1))
    images = {view: np.full((48, 64, 3), 9, np.uint8) for view in session.processor.views}
    session.decide(Observation(images, np.full(session.processor.state_dim, 0.1, np.float32)))
    session.snapshot("mark")
    shape = session.contract.input("noise").shape
    expected = [session.act().raw.tobytes() for _ in range(2)]
    found: list[list[bytes]] = []
    with session.export() as export:
        host = Host(export)

        def go_on() -> None:
            assert host.call("restore", b"mark") == api.OK
            chunks = []
            for index in (1, 2):
                assert host.write("noise", noise_for(0, index, shape)) == host.act() == api.OK
                chunks.append(host.read(shape).tobytes())
            found.append(chunks)

        for _ in range(2):
            thread = threading.Thread(target=go_on)
            thread.start()
            thread.join()
        go_on()
    session.engine.close()
    assert found == [expected] * 3
