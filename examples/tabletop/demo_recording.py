"""Record what ``flashrt demo`` plays: the expert at one instruction, start after start, in one bag.

python -m tabletop.demo_recording --output examples/tabletop/demo
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from flashrt_core.errors import FlashRTError, OptionError
from flashrt_core.evaluation.rollout import SUBSTEP_S, targets

from .layout import INSTRUCTIONS
from .recording import EpisodeWriter
from .robot import DT_S
from .task import TASK

INSTRUCTION = "push the red block to the left"  # that of config/pi05_tabletop.yaml
FIRST_SEED = 300_000  # trained, calibrated and evaluated on others
_EVERY = 2  # steps of 20 ms from one observation to the next


def record(path: Path, seconds: float, instruction: str = INSTRUCTION) -> int:
    """Record until ``seconds`` are over and the last episode is; the number of episodes.

    Raises:
        OutputError: the file system refuses.
        RenderingError: no OpenGL here.
    """
    seed, episodes, passed_ns = FIRST_SEED, 0, 0
    with EpisodeWriter(path) as writer:
        writer.prompt(instruction)
        while passed_ns < seconds * 1e9:
            episode = TASK.start(seed)
            seed += 1
            if episode.instruction != instruction:
                continue
            from .expert import Expert  # imports MuJoCo, which start() prepares

            expert, begin_ns = Expert(episode), passed_ns
            while not episode.done:
                plan, observation = expert.plan(episode), episode.observation()
                passed_ns = begin_ns + observation.stamp_ns
                writer.moment(replace(observation, stamp_ns=passed_ns), plan)
                for target in targets(plan, DT_S, 1)[0][:_EVERY]:
                    episode.advance(target, SUBSTEP_S)
            passed_ns += round(_EVERY * SUBSTEP_S * 1e9)
            episodes += 1
            episode.close()
    return episodes


def main(arguments: list[str] | None = None) -> None:
    """Record a demo."""
    parser = argparse.ArgumentParser(prog="python -m tabletop.demo_recording", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the bag")
    parser.add_argument("--seconds", type=float, default=12.0, help="least length")
    parser.add_argument("--instruction", choices=INSTRUCTIONS, default=INSTRUCTION)
    options = parser.parse_args(arguments)
    if not 1.0 <= options.seconds <= 600.0:
        raise OptionError("option '--seconds'", expected="1 to 600", got=options.seconds)
    count = record(options.output, options.seconds, options.instruction)
    print(f"{options.output}: {count} episodes of '{options.instruction}'")


if __name__ == "__main__":
    try:
        main()
    except FlashRTError as error:
        sys.exit(str(error))
