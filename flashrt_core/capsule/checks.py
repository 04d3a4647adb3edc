"""What comes from elsewhere, held against the plan: the host's part of a capsule.

A checksum says that a file is as it was written, not that a session could ever have been so. What a
session would refuse as it came is refused here by the same checks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from ..contract import Contract, ShapeKey, Update
from ..devices.base import NUMPY_DTYPES
from ..errors import CapsuleError, InputError
from ..limits import COUNTS, STAMPS
from ..text import check_instruction, check_text
from .state import Array, HostState


class RobotChecks(Protocol):
    """What a policy's processor checks of a prompt and a robot's state."""

    @property
    def state_dim(self) -> int:
        """Most numbers that a state has."""

    @property
    def relative(self) -> tuple[int, ...]:
        """Actions that the state is added to."""

    def check_prompt(self, text: str) -> None:
        """InputError when ``text`` is empty or cannot fit the largest bucket."""

    def checked_state(self, state: Array | None) -> Array | None:
        """InputError on what is no state of the robot, and on None where the network reads it."""


def largest_arrays(contract: Contract, robot: RobotChecks) -> int:
    """Bytes of the host's arrays in a capsule of a plan, at most."""
    specs = [spec for spec in contract.inputs if spec.update is Update.STAGED]
    if contract.history is not None:
        specs.append(contract.input(contract.history.executed))
    state = 8 * robot.state_dim  # of whatever numbers
    return sum(contract.buffer(spec.buffer).nbytes for spec in specs) + state


def check_host(contract: Contract, robot: RobotChecks, name: str, host: HostState) -> None:
    """CapsuleError where the host's part of capsule ``name`` is not one that a session can have."""
    what = f"capsule {name!r}"
    _check_counts(what, host)
    _check_staged(contract, what, host)
    _check_robot(robot, what, host)
    _check_history(contract, what, host)
    _check_lineage(contract, what, host)


def _check_counts(what: str, host: HostState) -> None:
    for each, value, allowed in (
        ("decisions", host.decisions, COUNTS),
        ("a stamp", host.stamp_ns, STAMPS),
        ("an epoch", host.lineage.newest, COUNTS),
    ):
        if value not in allowed:
            raise CapsuleError(what, expected=f"{each} of {allowed[0]}..{allowed[-1]}", got=value)
    for name, stamp_ns in host.stamps_ns.items():
        check_text(f"name of a stamp in {what}", name, error=CapsuleError)
        if stamp_ns not in STAMPS or stamp_ns > host.stamp_ns:
            raise _wrong(
                what,
                f"stamps up to that of the newest part, {host.stamp_ns}",
                f"{stamp_ns} of {name!r}",
            )


def _check_robot(robot: RobotChecks, what: str, host: HostState) -> None:
    """The prompt and the robot's state.

    Who writes windows on his own, as the C interface does, leaves no text, no state and no stamp.
    """
    try:
        if host.prompt:
            check_instruction(host.prompt)
            robot.check_prompt(host.prompt)
        state = host.robot_state
        if state is not None or host.stamp_ns:
            robot.checked_state(state)
        if state is None and host.stamp_ns and robot.relative:
            raise InputError("state", expected="numbers that actions add to", got="none")
    except InputError as error:
        raise CapsuleError(
            f"{error.what} in {what}", expected=error.expected, got=error.got
        ) from error


def _check_staged(contract: Contract, what: str, host: HostState) -> None:
    if host.shape not in contract.shapes:
        known = [str(key) for key in contract.shapes]
        raise _wrong(what, f"a captured shape, one of {known}", host.shape)
    staged = {spec.name: spec for spec in contract.inputs if spec.update is Update.STAGED}
    for each, value in host.staged.items():
        spec = staged.get(each)
        if spec is None:
            raise _wrong(what, f"values of staged inputs, of {sorted(staged)}", repr(each))
        fits = value.shape == spec.shape or (
            spec.shorter and value.ndim == 1 and 0 < value.size <= spec.shape[0]
        )
        if not fits or value.dtype != NUMPY_DTYPES[spec.dtype]:
            expected = f"input {each!r} of {list(spec.shape)} {NUMPY_DTYPES[spec.dtype]}"
            raise _wrong(what, expected, f"{list(value.shape)} {value.dtype}")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise _wrong(what, f"input {each!r} of finite values", "NaN or infinity")
        _check_bounds(contract, what, host.shape, f"input {each!r}", spec.buffer, value)
    if whole_staged(contract, host) is not host:
        raise _wrong(
            what,
            f"all inputs that are staged together, of {sorted(staged)}, or none",
            sorted(host.staged),
        )


def whole_staged(contract: Contract, host: HostState) -> HostState:
    """The same without the values of a transform that has further inputs: what it made is kept,
    and the next observation makes it again. Itself where there are none.
    """
    lacking = {
        spec.transform
        for spec in contract.inputs
        if spec.update is Update.STAGED and spec.name not in host.staged
    }
    kept = {
        name: value
        for name, value in host.staged.items()
        if contract.input(name).transform not in lacking
    }
    return host if len(kept) == len(host.staged) else replace(host, staged=kept)


def check_regions(contract: Contract, name: str, host: HostState, payload: Array) -> None:
    """CapsuleError where numbers of the regions, which ``payload`` has the size of, are none that
    a stage can work with: it takes them for counts and places without looking at them.
    """
    assert host.shape is not None
    end = 0
    for region in contract.regions_at(host.shape, contract.age(host.turn)):
        begin, end = end, end + region.nbytes
        if contract.bound(host.shape, region.buffer) is not None:
            values = payload[begin:end].view(NUMPY_DTYPES[contract.buffer(region.buffer).dtype])
            what = f"region {region.name!r}"
            _check_bounds(contract, f"capsule {name!r}", host.shape, what, region.buffer, values)


def _check_bounds(
    contract: Contract, what: str, shape: ShapeKey, part: str, buffer: str, values: Array
) -> None:
    allowed = contract.bound(shape, buffer)
    if allowed is None:
        return
    for value in (int(values.min()), int(values.max())):
        if value not in allowed:
            raise _wrong(what, f"{part} of {allowed[0]}..{allowed[-1]}", value)


def _check_history(contract: Contract, what: str, host: HostState) -> None:
    if contract.history is None:
        if host.turn > 0 or host.raw is not None:
            raise _wrong(
                what, "a decision that stands alone", f"decision {host.turn} of an episode"
            )
    elif not 0 <= host.turn <= host.decisions:
        raise _wrong(
            what, f"at most the session's {host.decisions} decisions in its episode", f"{host.turn}"
        )
    elif (host.raw is not None) != (host.turn > 0):
        told = "actions" if host.turn else "no actions"
        raise _wrong(
            what, f"{told} of the decision before, of {host.turn} in the episode", "others"
        )
    elif host.raw is not None:
        spec = contract.input(contract.history.executed)
        dtype, shape = NUMPY_DTYPES[spec.dtype], spec.shape
        finite = host.raw.dtype == dtype and np.isfinite(host.raw).all()
        if host.raw.shape != shape or not finite:
            raise _wrong(
                what,
                f"actions of {list(shape)} {dtype}, finite",
                f"{list(host.raw.shape)} {host.raw.dtype}",
            )


def _check_lineage(contract: Contract, what: str, host: HostState) -> None:
    if not host.lineage.made:
        raise _wrong(what, "a completed stage that was saved", "none")
    stages = {spec.name: spec for spec in contract.stages}
    newest: dict[str, int] = {}
    differ = set()
    for stage, epochs in host.lineage.made.items():
        if stage not in stages or not set(epochs) <= set(contract.absent):
            raise _wrong(
                what, "a lineage of this contract's stages and inputs", f"{stage!r} of {epochs}"
            )
        if missing := set(stages[stage].requires) - set(host.lineage.made):
            raise _wrong(what, f"all that {stage!r} was made from", f"none of {sorted(missing)}")
        # An input that is not named would never make it stale.
        reached = contract.reaching(stages[stage])
        if set(epochs) != reached:
            raise _wrong(
                what, f"{stage!r} made from {sorted(reached)}", f"{sorted(epochs) or 'nothing'}"
            )
        for name, epoch in epochs.items():
            if newest.setdefault(name, epoch) != epoch:
                differ.add(name)
            newest[name] = max(newest[name], epoch)
    newer = host.lineage.newer
    if old := sorted(name for name in differ | set(newer) if newer.get(name, 0) < newest[name]):
        raise _wrong(
            what,
            "one value of every input, or a newer one that is named",
            f"stages made from several values of {old}",
        )


def _wrong(what: str, expected: str, got: object) -> CapsuleError:
    return CapsuleError(what, expected=expected, got=got)
