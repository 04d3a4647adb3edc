"""A decider of LingBot-VA with a camera, on a clock that is set by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from flashrt_core.load import LoadOptions
from flashrt_core.policies.base import Observation
from flashrt_core.session import Session
from flashrt_ros.decider import Decider
from flashrt_ros.episode import Episode
from flashrt_ros.errors import StaleInputError
from flashrt_ros.ingest import Gathered, Ingest
from flashrt_ros.outlet import Outlet
from flashrt_ros.parameters import build_config
from flashrt_ros.statistics import Statistics

MS = 1_000_000
DT = 20 * MS
OPTIONS = LoadOptions(
    policy="lingbot_va",
    preset="tiny",
    device="cpu",
    views=("view_0",),
    state_dim=0,
    action_dim=3,
    max_sessions=2,
    prompt="wave",
    threads=1,
    steps=1,
    precision="fp32",
    capsule_slots=2,
    extra={"action_steps": 1},
)


def picture(stamp_ns: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(stamp_ns // MS).integers(0, 256, (32, 32, 3), dtype=np.uint8)


@dataclass
class Camera:
    """An ingest with one camera that has a picture every ``every_ns``, unless it is dead; one of
    1.2 s is not too old.
    """

    every_ns: int = 5 * MS
    late_ns: int = 0
    tells: bool = True
    dead: bool = False
    asked: list[int] = field(default_factory=list)
    cameras: tuple[Any, ...] = (SimpleNamespace(name="front"),)

    def gather(
        self,
        now_ns: int,
        not_before: Mapping[str, int] | None = None,
        made: Mapping[Any, Any] | None = None,
    ) -> Gathered:
        if self.dead:
            raise StaleInputError("input 'front'", expected="a picture", got="none")
        stamp = now_ns - now_ns % self.every_ns
        self.asked.append((not_before or {}).get("front", 0))
        told = {"front": stamp - self.late_ns} if self.tells else {}
        seen = Observation({"view_0": picture(stamp)}, None, stamp, told)
        return Gathered(seen, stamp - self.late_ns, stamp)

    def require_current(self, stamps_ns: Mapping[str, int], now_ns: int) -> None:
        values = {
            "cameras": ["front"],
            "camera.front.topic": "image",
            "camera.front.max_age_s": 1.2,
            "action.names": ["a"],
        }
        Ingest(build_config(values), lambda *_: None).require_current(stamps_ns, now_ns)


class Bench:
    """A decider on a clock that is set by hand."""

    def __init__(self, session: Session) -> None:
        self.now_ns, self.chunks = 1_000 * MS, []  # type: ignore[var-annotated]
        outlet = Outlet(lambda: True, lambda: self.now_ns, self.chunks.append, lambda _timing: None)
        config: Any = SimpleNamespace(
            policy="lingbot_va",
            action_names=("a", "b", "c"),
            action_kind="absolute",
            action_dt_s=0.02,
        )
        self.camera, self.statistics = Camera(), Statistics()
        self.decider = Decider(session, self.camera, config, outlet, self.statistics)  # type: ignore[arg-type]
        self.session = session

    @property
    def episode(self) -> Episode:
        assert self.decider.episode is not None
        return self.decider.episode

    def through(self, look: bool = True) -> None:
        """To the end of the chunk, looking whenever a picture is due."""
        end_ns = self.episode.end_ns
        while look and (wanted_ns := self.episode.wanted_ns()) is not None:
            self.now_ns = -(-wanted_ns // self.camera.every_ns) * self.camera.every_ns
            if self.now_ns > end_ns:
                break
            self.decider.look()
        self.now_ns = end_ns
