"""``flashrt bench capsule``: what it takes, prints and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ..errors import NumericsError, OptionError
from ..load import LoadOptions
from ..outputs import check_output
from ..policies import find_policy
from .capsules import CapsuleResult, measure
from .case import Case, check_views, default_cases
from .latency import PLAN, check_options
from .machine import gpu_state, require_idle_gpu
from .report import CAPSULE_ROWS, describe_run, write_json

_CPU = "the CPU device: torch's references in this process; these times say nothing of a GPU"
_MOST_TRIALS = 1_000_000
_DEVICES = ("cuda", "cpu")
#: Where none are asked for. On the CPU they check bits, and take seconds each.
_TRIALS = {"cuda": 64, "cpu": 3}
_SAID_EVERY_S = 3.0


@dataclass(frozen=True)
class CapsuleBenchOptions:
    """What to measure.

    Attributes:
        plan: what is measured, but for the sizes that a case has.
        cases: shapes; empty means the policy's own.
        trials: how often each is timed and compared; None: as often as the device is quick.
        output: JSON file; None writes none.
    """

    plan: LoadOptions = PLAN
    cases: tuple[Case, ...] = ()
    trials: int | None = None
    output: Path | None = None


def run_capsule_bench(options: CapsuleBenchOptions, console: Console) -> dict[str, Any]:
    """Measures, prints and writes; the result as it goes into the JSON file.

    Raises:
        OptionError: an option that is unknown or out of range.
        WeightsError: no such checkpoint.
        DeviceError: no usable GPU, or a busy one.
        NumericsError: some way to the next action changed a bit; the file tells which.
        OutputError: a file could not be written although that was tried before.
    """
    options = _checked(options)
    plan = options.plan
    if plan.device == "cuda":
        require_idle_gpu()
    found, state = [], {}
    trials = options.trials or _TRIALS[plan.device]
    for case in options.cases:
        found.append(measure(case, plan, trials, _Told(console, case)))
        if plan.device == "cuda":
            state = gpu_state()  # right behind what was timed
    result = described(found, state)
    console.print(table(result))
    if "note" in result:
        console.print(f"On {result['note']}.")
    if options.output is not None:
        write_json(result, options.output)
    for each in found:
        if not each.bit_exact:
            raise NumericsError(
                f"actions of case {each.case}",
                expected=f"equal bits in all {each.trials} trials, whichever way they come from",
                got=", ".join(f"{way} {count}" for way, count in each.equal.items()),
            )
    return result


class _Told:
    """Says how far a case is, every few seconds; of the last trial the table tells."""

    def __init__(self, console: Console, case: Case) -> None:
        self._console, self._case = console, case
        self._said_s = float("-inf")

    def __call__(self, done: int, trials: int) -> None:
        if done < trials and monotonic() - self._said_s >= _SAID_EVERY_S:
            self._said_s = monotonic()
            self._console.print(f"case {self._case}: {done} of {trials} trials", style="dim")


def described(found: Sequence[CapsuleResult], state: dict[str, str]) -> dict[str, Any]:
    """The result file of some cases on one device."""
    lines = [each.to_json() for each in found]
    result = describe_run(found[0].library, state, lines)
    device = found[0].device
    told: dict[str, Any] = {"device": device}
    if device != "cuda":
        told["note"] = _CPU
        result["gpu"] = "none"
    return told | result


def table(result: dict[str, Any]) -> Table:
    """A line a number, a column a case; medians."""
    gpu = result["gpu"] if result["device"] == "cuda" else f"device {result['device']}"
    view = Table(box=SIMPLE_HEAD, title=f"Capsules, {gpu}")
    view.add_column("median")
    cases = result["cases"]
    for case in cases:
        name = "{views}x{prompt_tokens}x{horizon}".format(**case)
        view.add_column(f"{name} {case['precision']}", justify="right")
    view.add_row("bytes", *(f"{case['bytes']:,}" for case in cases))
    for told, name in CAPSULE_ROWS.items():
        if all(name in case for case in cases):
            view.add_row(told, *(f"{case[name]['p50']:,.1f}" for case in cases))
    view.add_row("rebuilt over restored", *(f"{case['restored_speedup']:.2f}" for case in cases))
    if all("recompute_ratio" in case for case in cases):
        again = (f"{case['recompute_ratio']:.3f}" for case in cases)
        view.add_row("made again over kept", *again)
    exact = (f"{'all' if case['bit_exact'] else 'NOT all'} of {case['trials']}" for case in cases)
    view.add_row("trials with equal bits", *exact)
    return view


def _checked(options: CapsuleBenchOptions) -> CapsuleBenchOptions:
    """The options with what they leave open filled in; what is wrong with them is said now."""
    policy = find_policy(options.plan.policy)
    if (device := options.plan.device) not in _DEVICES:
        raise OptionError(
            "option 'device' of bench capsule",
            expected=f"one of {list(_DEVICES)}",
            got=repr(device),
        )
    if options.trials is not None and not 1 <= options.trials <= _MOST_TRIALS:
        raise OptionError(
            "option 'trials' of bench capsule",
            expected=f"1 to {_MOST_TRIALS:,}",
            got=options.trials,
        )
    own = (policy.measures.capsule_case,)
    cases = tuple(dict.fromkeys(options.cases or default_cases(options.plan, own)))
    check_views(cases, policy)
    for case in cases:
        check_options(case, options.plan)
    output = options.output and check_output("--output", options.output)
    return replace(options, cases=cases, output=output)
