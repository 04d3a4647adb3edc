"""Train π0.5 on recordings of the task, by flow matching, from nothing.

    python -m tabletop.train --data recordings --output policy --minutes 30

Writes a folder that the engine loads (LeRobot's layout), its log and the figure of the loss; and
beside it what a later call with ``--resume`` goes on from.
"""

from __future__ import annotations

from flashrt_core.signals import leave_at_once

if __name__ == "__main__":
    leave_at_once("python -m tabletop.train")  # before the imports

import argparse
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

from flashrt_core.errors import OptionError
from flashrt_core.outputs import check_folder, check_output
from flashrt_core.terminal import Ended, run_command

from .options import Parser

_MOST_MINUTES = 10_080.0  # a week
_MOST_STEPS = 1 << 30


def main(arguments: list[str] | None = None) -> None:
    """Train, and save now and then.

    Raises:
        OptionError: an option that cannot be used; nothing is written then.
        NumericsError: a loss that is not finite; the last checkpoint stays.
        OutputError: a checkpoint cannot be written.
    """
    words = sys.argv[1:] if arguments is None else arguments
    training = None
    try:
        options = _parser().parse_args(words)
        _check(options)
        # Here, for it takes seconds: within reach of what tells of Ctrl-C.
        import torch

        from .training import Training

        torch.manual_seed(options.seed)
        if options.threads:
            torch.set_num_threads(options.threads)
        training = Training(options, _command(words))
        training.run()
    except Ended as end:
        end.add_note(training.saved if training else "this run saved nothing")
        raise


def _parser() -> Parser:
    from flashrt_core.policies.pi05.config import PRESETS

    parser = Parser("train", __doc__)
    add, whole, number = parser.add_argument, parser.whole, parser.number
    parser.path("--data", help="folder of recordings, or a cache file (.npz)")
    parser.path("--output", help="folder of the policy")
    add("--preset", choices=sorted(PRESETS), default="small", help="sizes of the network")
    time = f"more than 0 and at most {_MOST_MINUTES:g}"
    number("--minutes", time, _is_time, default=30.0, help="how long to train")
    whole("--steps", 1, _MOST_STEPS, default=_MOST_STEPS, help="most steps")
    _add_learning(parser)
    add("--device", choices=("cpu", "cuda"), default="cpu", help="where to train")
    add("--float32", action="store_true", help="no bfloat16 in products")
    add("--compile", action="store_true", help="compile the network (CUDA)")
    whole("--workers", 1, 256, default=1, help="parts of a batch that are computed side by side")
    whole("--threads", 0, 1024, default=0, help="of each worker on a CPU; 0: torch's choice")
    number("--save-every", time, _is_time, default=5.0, help="minutes between checkpoints")
    add("--no-figure", action="store_true", help="draw none, where matplotlib is not installed")
    add("--resume", action="store_true", help="go on from the state beside the output")
    add("--overwrite", action="store_true", help="replace the policy that is in the output")
    whole("--seed", 0, (1 << 63) - 1, default=0, help="of weights, noise and order")
    return parser


def _add_learning(parser: Parser) -> None:
    whole, number = parser.whole, parser.number
    whole("--batch", 1, 65536, default=32, help="decisions a step")
    whole("--samples", 1, 1024, default=4, help="noisy samples of each decision a step")
    number(
        "--rate",
        "more than 0 and at most 1",
        lambda value: 0.0 < value <= 1.0,
        default=1e-3,
        help="highest learning rate",
    )
    number(
        "--decay",
        "in 0..100",
        lambda value: 0.0 <= value <= 100.0,
        default=0.02,
        help="weight decay",
    )
    number(
        "--average",
        "from 0 to below 1",
        _is_share,
        default=0.999,
        help="share that the averaged weights keep a step",
    )
    number(
        "--held-out",
        "from 0 to below 1",
        _is_share,
        default=0.03,
        help="share of the episodes not trained on, at least one",
    )


def _is_time(minutes: float) -> bool:
    return 0.0 < minutes <= _MOST_MINUTES


def _is_share(value: float) -> bool:
    return 0.0 <= value < 1.0


def _check(options: argparse.Namespace) -> None:
    """OptionError where options do not fit each other, or what is on the disk."""
    if options.workers > options.batch:
        raise OptionError(
            "option '--workers'", expected=f"at most --batch, {options.batch}", got=options.workers
        )
    if options.resume and options.overwrite:
        raise OptionError("options '--resume' and '--overwrite'", expected="one of them")
    if not options.no_figure and find_spec("matplotlib") is None:
        raise OptionError(
            "figure of the loss",
            expected="matplotlib",
            got="no module of that name",
            remedy="install it, or give --no-figure",
        )
    if not options.data.exists():
        raise OptionError(
            "option '--data'",
            expected="a folder of recordings, or a cache of them (.npz)",
            got=f"'{options.data}', which is not there",
            remedy="record some: python -m tabletop.generate --help",
        )
    _check_output(options)


def _check_output(options: argparse.Namespace) -> None:
    from .training import state_of

    output: Path = check_folder("--output", options.output)
    if not output.resolve().name:
        raise OptionError("option '--output'", expected="a folder with a name", got=f"'{output}'")
    state = check_output("--output", state_of(output))
    if options.resume and not state.is_file():
        raise OptionError(
            "option '--resume'",
            expected=f"the state of a run, '{state}'",
            got="none",
            remedy="name the --output of that run, or leave --resume out to begin anew",
        )
    there = output.is_dir() and any(output.iterdir())
    if (there or state.exists()) and not (options.resume or options.overwrite):
        raise OptionError(
            "option '--output'",
            expected="a new or an empty folder",
            got=f"'{output}', which holds files" if there else f"'{state}', the state of a run",
            remedy="name another, go on with --resume, or replace it with --overwrite",
        )


def _command(words: list[str]) -> str:
    """How the run was called, for the log; of paths from the root the last part."""
    short = (Path(word).name if word.startswith("/") else word for word in words)
    return shlex.join(["python", "-m", "tabletop.train", *short])


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m tabletop.train"))
