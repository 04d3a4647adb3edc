"""Record episodes of the expert, with disturbances that it recovers from.

    python -m tabletop.generate --episodes 1200 --output recordings

Each seed gives one bag, ``episode_<seed>``; those that are there already are kept. What disturbs an
episode moves the arm, never the labels: each is the expert's plan for the state that was reached.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flashrt_core.errors import FlashRTError, OptionError
from flashrt_core.evaluation.rollout import execute

from .layout import Array
from .recording import STORAGES, EpisodeWriter
from .robot import ARM, DT_S, HORIZON
from .task import TASK

ROWS = 2  # of each plan that are executed: a moment is recorded every 0.2 s


class Disturbance:
    """Bursts that carry the hand off, tilt it or open the gripper, now and then."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng([seed, 21])
        self._left = 0
        self._drift = np.zeros(7)  # m/s of the tool, rad/s of the hand, m/s of the gripper
        if self._rng.random() < 0.4:  # a start far from where episodes start
            self._begin(1.6)

    def _begin(self, strength: float) -> None:
        rng = self._rng
        self._left = int(rng.integers(1, 5))
        drift = rng.normal(0.0, strength, 7) * (0.09, 0.11, 0.06, 0.15, 0.15, 0.15, 0.01)
        if rng.random() < 0.5:
            drift[3:] = 0.0
        self._drift = drift

    def apply(self, plan: Array, shift: Callable[[Array, Array, Array], Array]) -> Array:
        """The targets [10, 7] that are executed in place of ``plan``.

        Args:
            plan: of the expert.
            shift: joints [6] after the tool was moved and turned, as ``Kinematics.shifted``.
        """
        if not self._left:
            if self._rng.random() >= 0.16:
                return plan
            self._begin(1.0)
        self._left -= 1
        disturbed = plan.copy()
        for row in range(HORIZON):
            change = self._drift * DT_S * row
            disturbed[row, :ARM] = shift(plan[row, :ARM], change[:3], change[3:6])
            disturbed[row, ARM] += change[6]
        return disturbed


def record(seed: int, path: Path, storage: str = "mcap", *, disturbed: bool = True) -> bool:
    """Record the episode of a seed; returns whether the expert succeeded.

    Args:
        seed: of the episode and of its disturbances.
        path: folder of the bag.
        storage: "mcap" or "sqlite3".
        disturbed: with disturbances.

    Raises:
        OutputError: the file system refuses.
        RenderingError: no OpenGL here.
    """
    episode = TASK.start(seed)
    from .expert import Expert  # imports MuJoCo, which start() prepares

    expert, disturbance = Expert(episode), Disturbance(seed)
    with EpisodeWriter(path, storage) as writer:
        writer.prompt(episode.instruction)
        while not episode.done:
            plan = expert.plan(episode)
            writer.moment(episode.observation(), plan)
            moved = disturbance.apply(plan, expert.shifted) if disturbed else plan
            execute(episode, moved, DT_S, ROWS)
    episode.close()
    return episode.success


def main(arguments: list[str] | None = None) -> None:
    """Record episodes of consecutive seeds."""
    parser = argparse.ArgumentParser(prog="python -m tabletop.generate", description=main.__doc__)
    parser.add_argument("--episodes", type=int, required=True, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, help="0 to 99999 are for training")
    parser.add_argument("--output", type=Path, required=True, help="folder of the bags")
    parser.add_argument("--storage", choices=STORAGES, default="mcap", help="kind of bag")
    parser.add_argument("--undisturbed", action="store_true", help="the expert alone")
    options = parser.parse_args(arguments)
    if options.episodes < 1 or options.first_seed < 0:
        raise OptionError(
            "options '--episodes' and '--first-seed'",
            expected="at least 1, and at least 0",
            got=(options.episodes, options.first_seed),
        )
    began, made, succeeded = time.monotonic(), 0, 0
    for seed in range(options.first_seed, options.first_seed + options.episodes):
        path = options.output / f"episode_{seed:06d}"
        if path.exists():
            continue
        succeeded += record(seed, path, options.storage, disturbed=not options.undisturbed)
        made += 1
        if made % 50 == 0:
            print(f"{made} recorded, {time.monotonic() - began:.0f} s", flush=True)
    print(
        f"{options.output}: {made} recorded ({succeeded} with success), "
        f"{options.episodes - made} were there, {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    try:
        main()
    except FlashRTError as error:
        sys.exit(str(error))
