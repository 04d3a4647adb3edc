"""Record episodes of the expert, with disturbances that it recovers from.

    python -m tabletop.generate --episodes 1200 --output recordings

Each seed gives one bag, ``episode_<seed>``; those that are there already are kept. What disturbs an
episode moves the arm, never the labels: each is the expert's plan for the state that was reached.
"""

from __future__ import annotations

from flashrt_core.signals import leave_at_once

if __name__ == "__main__":
    leave_at_once("python -m tabletop.generate")  # before the imports

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flashrt_core.errors import OptionError
from flashrt_core.outputs import check_folder
from flashrt_core.terminal import Ended, run_command

from .layout import Array
from .options import Parser
from .robot import ARM, DT_S, HORIZON
from .task import TASK

SEEDS = 100_000  # for training; those from here on are for calibration and evaluation
ROWS = 2  # of each plan that are executed: a moment is recorded every 0.2 s

_MADE = {True: "disturbed", False: "undisturbed"}


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
    # Here, for it takes seconds: within reach of what tells of Ctrl-C.
    from flashrt_core.evaluation.rollout import execute

    from .recording import EpisodeWriter

    episode = TASK.start(seed)
    from .expert import Expert  # imports MuJoCo, which start() prepares

    expert, disturbance = Expert(episode), Disturbance(seed)
    with EpisodeWriter(path, storage, _MADE[disturbed]) as writer:
        writer.prompt(episode.instruction)
        while not episode.done:
            plan = expert.plan(episode)
            writer.moment(episode.observation(), plan)
            moved = disturbance.apply(plan, expert.shifted) if disturbed else plan
            execute(episode, moved, DT_S, ROWS)
    episode.close()
    return episode.success


def main(arguments: list[str] | None = None) -> None:
    """Record episodes of consecutive seeds.

    Raises:
        OptionError: an option that cannot be used, or bags there that were made otherwise.
        OutputError: the file system refuses.
        RenderingError: no OpenGL here.
    """
    from .recording import STORAGES

    parser = Parser("generate", main.__doc__ and main.__doc__.splitlines()[0])
    parser.whole("--episodes", 1, SEEDS, required=True, help="how many")
    parser.whole("--first-seed", 0, 1 << 32, default=0, help=f"0 to {SEEDS - 1}")
    parser.path("--output", help="folder of the bags")
    parser.add_argument("--storage", choices=STORAGES, default="mcap", help="kind of bag")
    parser.add_argument("--undisturbed", action="store_true", help="the expert alone")
    options = parser.parse_args(arguments)
    seeds = range(options.first_seed, options.first_seed + options.episodes)
    if seeds[-1] >= SEEDS:
        raise OptionError(
            "options '--episodes' and '--first-seed'",
            expected=f"seeds up to {SEEDS - 1}: those behind are for calibration and evaluation",
            got=f"up to {seeds[-1]}",
        )
    output = check_folder("--output", options.output)
    paths = {seed: output / f"episode_{seed:06d}" for seed in seeds}
    kept = [path for path in paths.values() if path.exists()]
    unknown = _check_kept(kept, options.storage, _MADE[not options.undisturbed])
    there = set(kept)
    began, made, succeeded = time.monotonic(), 0, 0
    try:
        for seed, path in paths.items():
            if path in there:
                continue
            succeeded += record(seed, path, options.storage, disturbed=not options.undisturbed)
            made += 1
            if made % 50 == 0:
                print(f"{made} recorded, {time.monotonic() - began:.0f} s", flush=True)
    except Ended as end:
        end.add_note(f"{made} recorded in '{output}', the same command goes on")
        raise
    doubt = f" ({unknown} do not say whether they were disturbed)" if unknown else ""
    print(
        f"{output}: {made} recorded ({succeeded} with success), "
        f"{len(kept)} were there{doubt}, {time.monotonic() - began:.0f} s"
    )


def _check_kept(paths: list[Path], storage: str, made: str) -> int:
    """How many of the bags that are there do not say how they were made.

    OptionError where one was made otherwise.
    """
    from .recording import made_of

    unknown = 0
    for path in paths:
        found = made_of(path)
        unknown += not found[1]
        if found[0] != storage or (found[1] or made) != made:
            raise OptionError(
                f"recording '{path}' that is there",
                expected=f"{storage}, {made}",
                got=", ".join(filter(None, found)),
                remedy="name another --output, or give the options that it was made with",
            )
    return unknown


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m tabletop.generate"))
