"""The ``flashrt`` command: the core's commands, plus ``demo`` and ``replay``, which need ROS."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from flashrt_core.cli import app, run
from flashrt_core.errors import OptionError

Domain = Annotated[
    int | None,
    typer.Option(
        help="DDS domain, discovered as your environment says. Without it a domain that nothing on"
        " this host uses, discovered on this host only.",
    ),
]


@app.command()
def demo(
    seconds: Annotated[float, typer.Option(help="Length of the recording.")] = 10.0,
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("out"),
    seed: Annotated[int, typer.Option(help="Seed of the scene and of the noise.")] = 0,
    domain: Domain = None,
) -> None:
    """Play a synthetic recording into the policy node over DDS; measure and verify.

    Exit status 1 where a check fails or fewer than 50 decisions were made.
    """
    if not 0 < seconds <= 600:
        raise OptionError("option '--seconds'", expected="more than 0, at most 600", got=seconds)
    from flashrt_ros.replay.demo import DemoOptions, run_demo
    from flashrt_ros.replay.progress import Reporter

    raise typer.Exit(run_demo(DemoOptions(seconds, out, seed, domain), Reporter()))


@app.command()
def replay(
    bag: Annotated[Path, typer.Argument(help="A rosbag2: folder, .mcap or .db3.")],
    params: Annotated[Path, typer.Option(help="Parameter file of the node.")],
    rate: Annotated[float, typer.Option(help="Times the recorded timing.")] = 1.0,
    step: Annotated[
        bool, typer.Option("--step", help="One decision after the other; results repeat exactly.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Step mode: at most so many decisions.")] = None,
    remap: Annotated[
        list[str] | None, typer.Option(help="BAG_TOPIC:=NODE_TOPIC; may be repeated.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for results.")] = Path("out"),
    seed: Annotated[int | None, typer.Option(help="Instead of the file's seed.")] = None,
    domain: Domain = None,
) -> None:
    """Play a recording into the policy node and report latency, ages, drops and refusals."""
    if not rate > 0:
        raise OptionError("option '--rate'", expected="> 0", got=rate)
    if limit is not None and limit < 1:
        raise OptionError("option '--limit'", expected=">= 1", got=limit)
    from flashrt_ros.replay.command import ReplayOptions, run_replay
    from flashrt_ros.replay.progress import Reporter

    options = ReplayOptions(
        bag=bag,
        parameters=params,
        rate=rate,
        step=step,
        limit=limit,
        remaps=dict(_remap(text) for text in remap or ()),
        out=out,
        seed=seed,
        domain=domain,
    )
    raise typer.Exit(run_replay(options, Reporter()))


def _remap(text: str) -> tuple[str, str]:
    source, mark, target = text.partition(":=")
    if not (mark and source and target):
        raise OptionError("option '--remap'", expected="BAG_TOPIC:=NODE_TOPIC", got=f"'{text}'")
    return source, "/" + target.lstrip("/")


@contextmanager
def _unwinding_on(*numbers: signal.Signals) -> Iterator[None]:
    """Leave by an exception on these signals, so that a node that was started is stopped too."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def main() -> int:
    """Entry point of the ``flashrt`` command; the exit status."""
    with _unwinding_on(signal.SIGTERM, signal.SIGHUP):
        return run(app)


if __name__ == "__main__":
    sys.exit(main())
