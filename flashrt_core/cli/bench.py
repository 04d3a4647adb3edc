"""``flashrt bench``: how fast a policy decides on this machine's GPU, and what capsules cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ..devices.overlap import DEFAULT
from ..load import LoadOptions, plans_of
from ..terminal import terminal_or_file
from .options import Plans, option, refuse_idle_calibration, takes_plan

Sizes = Annotated[str, option("Sizes: base, tiny, or what else the policy has.")]
StateDim = Annotated[int | None, option("Numbers of the robot; the checkpoint's, else 1.", 0)]
OnGpu = Annotated[str, option("cuda.")]
OnEither = Annotated[str, option("cuda, or cpu for its checks of bits.")]
Cases = Annotated[str, option("views x tokens x horizon, separated by commas: 2x48x10,3x200x50.")]
Output = Annotated[Path | None, option("JSON file.")]
_DECISION, _HELP = "decision", ("--help",)
_OF_CASES = ("views", "horizon", "prompt_buckets")  # a case says these


class _Bench(TyperGroup):
    """Measures decisions where no command of its own is named."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *_HELP):
            args = [_DECISION, *args]
        return super().parse_args(context, args)


bench_app = typer.Typer(
    cls=_Bench,
    help="Measure a policy on this machine: whole decisions, or capsules.",
    add_completion=False,
)


@bench_app.command(_DECISION)
@takes_plan(
    without=(*_OF_CASES, "threads"),
    preset={"default": "base", "annotation": Sizes},
    device={"default": "cuda", "annotation": OnGpu},
    precision={"default": "bf16", "annotation": Plans},
    state_dim={"annotation": StateDim},
)
def bench_command(
    plan: LoadOptions,
    cases: Cases = "",
    samples: Annotated[int, typer.Option(help="Timed decisions a case.")] = 200,
    overlap: Annotated[
        str,
        typer.Option(
            help="Where kernels overlap: on, off, or classes of boundaries joined by + and ,: the "
            "policy's stages, kernel, product. both: as plans run, then off. each: on and every "
            "class alone too. both and each check that all ways give equal bits."
        ),
    ] = DEFAULT,
    overlap_cases: Annotated[
        str,
        typer.Option(
            help="Of both or each: cases that are measured in the other ways; empty: all."
        ),
    ] = "",
    trace: Annotated[bool, typer.Option(help="Add each kernel's time.")] = False,
    peer: Annotated[str, typer.Option(help="lerobot: run its code too, for the ratio.")] = "",
    peer_cases: Annotated[str, typer.Option(help="Those that the peer runs; empty: all.")] = "",
    peer_paths: Annotated[
        str,
        typer.Option(help="eager, compiled_graph (minutes of compiling a case); empty: both."),
    ] = "",
    fidelity: Annotated[
        Path | None, option("JSON of flashrt qualify, to stand beside the times of its plan.")
    ] = None,
    output: Output = None,
    figure: Annotated[Path | None, typer.Option(help="File: .png, .pdf, .svg, ...")] = None,
) -> None:
    """Whole decisions, the default: graph replay, call from images to actions, kernels."""
    # Only here: no other command needs what measuring needs.
    from ..bench.case import parse_cases, steps_of
    from ..bench.command import BenchOptions, run_bench

    refuse_idle_calibration(plan, plans_of(plan))
    steps = steps_of(plan)
    options = BenchOptions(
        plan=plan,
        cases=parse_cases(cases, steps),
        samples=samples,
        overlap=overlap,
        overlap_cases=parse_cases(overlap_cases, steps),
        trace=trace,
        peer=peer,
        peer_cases=parse_cases(peer_cases, steps),
        peer_paths=tuple(map(str.strip, peer_paths.split(","))) if peer_paths.strip() else (),
        fidelity=fidelity,
        output=output,
        figure=figure,
    )
    run_bench(options, terminal_or_file())


@bench_app.command("capsule")
@takes_plan(
    without=_OF_CASES,
    preset={"default": "base", "annotation": Sizes},
    device={"default": "cuda", "annotation": OnEither},
    precision={"default": "bf16"},
    state_dim={"annotation": StateDim},
)
def capsule_command(
    plan: LoadOptions,
    cases: Cases = "",
    trials: Annotated[
        int | None,
        typer.Option(help="How often each is timed and compared; else 64, on the CPU 3."),
    ] = None,
    output: Output = None,
) -> None:
    """Capsules: snapshot, restore, fork, host, files; the next action rebuilt and restored.

    Every way to the next action must give equal bits, after another session used the buffers.
    """
    from ..bench.capsule_command import CapsuleBenchOptions, run_capsule_bench
    from ..bench.case import parse_cases, steps_of

    refuse_idle_calibration(plan, [plan])
    options = CapsuleBenchOptions(
        plan=plan,
        cases=parse_cases(cases, steps_of(plan)),
        trials=trials,
        output=output,
    )
    run_capsule_bench(options, terminal_or_file())
