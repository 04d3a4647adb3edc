"""A session of the toy policy that holds a capsule, and the capsule's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flashrt_core.policies.base import Observation
from flashrt_core.session import Session

from . import toy


@pytest.fixture
def holder() -> Session:
    """A session that has decided, and saved "mark"."""
    holder = toy.engine().create_session("main", seed=7, prompt="ab")
    state = np.array([0.5, -1.0, 2.0], np.float32)
    holder.decide(Observation(toy.see(3).images, state, stamp_ns=3))
    holder.snapshot("mark")
    return holder


@pytest.fixture
def written(holder: Session, tmp_path: Path) -> Path:
    """The file of "mark"."""
    holder.engine.store.write_file("mark", tmp_path / "mark.capsule")
    return tmp_path / "mark.capsule"
