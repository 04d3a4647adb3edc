"""Record what ``flashrt demo`` plays: the expert at one instruction, start after start, in one bag.

python -m tabletop.demo_recording --output examples/tabletop/demo
"""

from __future__ import annotations

from flashrt_core.signals import leave_at_once

if __name__ == "__main__":
    leave_at_once("python -m tabletop.demo_recording")  # before the imports

import sys
from dataclasses import replace
from pathlib import Path

from flashrt_core.outputs import check_folder
from flashrt_core.terminal import Ended, run_command

from .layout import INSTRUCTIONS
from .options import Parser
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
    # Here, for it takes seconds: within reach of what tells of Ctrl-C.
    from flashrt_core.evaluation.rollout import SUBSTEP_S, targets

    from .recording import EpisodeWriter

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
    parser = Parser("demo_recording", __doc__)
    parser.path("--output", help="folder of the bag, which must not be there yet")
    parser.number(
        "--seconds", "in 1..600", lambda value: 1.0 <= value <= 600.0, default=12.0,
        help="least length",
    )  # fmt: skip
    parser.add_argument("--instruction", choices=INSTRUCTIONS, default=INSTRUCTION)
    options = parser.parse_args(arguments)
    output = check_folder("--output", options.output, new=True)
    try:
        count = record(output, options.seconds, options.instruction)
    except Ended as end:
        end.add_note("nothing was saved")
        raise
    print(f"{output}: {count} episodes of '{options.instruction}'")


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m tabletop.demo_recording"))
