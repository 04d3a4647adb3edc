"""One set of buffers, the stages captured over them, and whose state they hold.

An engine has one, which its sessions share, or several, so that sessions need not make room for
each other. Static buffers are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from .capsule.state import RegionCopier
from .capsule.store import Held
from .contract import BufferSpec, Contract, Role, ShapeKey, StageSpec
from .devices import Device, Program
from .devices.base import AuditedLane, Segment
from .errors import ShapeKeyError
from .kernels.op import Lane
from .resident import Resident

StageBody = Callable[[Lane, Mapping[str, Tensor]], None]
#: By shape, stages and, for a policy with a history, their variant.
Programs = dict[tuple[ShapeKey, tuple[str, ...], int], Program]
#: Makes the body of a stage, by name, shape and, for a policy with a history, variant.
MakeBody = Callable[..., StageBody]


@dataclass
class Traffic:
    """What sessions cost that share a set.

    Attributes:
        switches: times that a session had to make room for another.
        nbytes: that were copied to and from parking slots for it.
    """

    switches: int = 0
    nbytes: int = 0


class Member(Resident, Protocol):
    """A session that uses a set.

    Attributes:
        working: the set whose buffers it uses; None once the session is dropped.
    """

    working: WorkingSet | None


class WorkingSet:
    """Buffers and programs of one plan.

    Args:
        device: which they are on.
        contract: of the plan.
        buffers: all that the contract names.
        body: makes the body of a stage.
        slots: all that its state may be copied to and from.
    """

    def __init__(
        self,
        device: Device,
        contract: Contract,
        buffers: dict[str, Tensor],
        body: MakeBody,
        slots: Iterable[Tensor],
    ) -> None:
        self.buffers = buffers
        self.copier = RegionCopier(device, contract, buffers, slots)
        self.resident: Resident | None = None
        self.programs = _capture(device, contract, buffers, body)

    def program(self, shape: ShapeKey, stages: tuple[StageSpec, ...], variant: int = 0) -> Program:
        """That of stages for a shape, in the variant of the last one that there is."""
        names = tuple(stage.name for stage in stages)
        return self.programs[shape, names, min(variant, stages[-1].variants - 1)]

    def captured(self, shape: ShapeKey, stages: tuple[str, ...], variant: int) -> Program:
        """That of stages by their names; ShapeKeyError when there is none."""
        try:
            return self.programs[shape, stages, variant]
        except KeyError:
            raise ShapeKeyError(
                f"stages {list(stages)} for {shape}",
                expected=f"one of {[list(names) for _, names, _ in self.programs]}",
            ) from None

    def admit(
        self,
        session: Resident,
        parking: Mapping[str, Tensor],
        parked: set[str],
        traffic: Traffic,
        capsule: Held | None,
    ) -> None:
        """Make ``session`` the one whose state the buffers hold.

        Args:
            session: one of this set that does not have them.
            parking: slots of the sessions, by name.
            parked: names of those whose state is in their slot; kept up to date.
            traffic: to add to what it costs.
            capsule: brought instead of what is parked, which it replaces.

        Where the device fails nothing that was parked is lost.
        """
        outgoing = self.resident
        if outgoing is not None:
            host = outgoing.host_state()
            if host.shape is not None and host.lineage.made:
                self.copier.save(host.shape, parking[outgoing.name], host.turn)
                traffic.nbytes += self.copier.nbytes(host.shape, host.turn)
                parked.add(outgoing.name)
            traffic.switches += 1
            outgoing.ledger.lose_windows()
            self.resident = None  # should the rest fail, the buffers hold nobody's state
        if capsule is not None and capsule.host.shape is not None:
            self.copier.load(capsule.host.shape, capsule.slot, capsule.host.turn)
        elif session.name in parked and session.shape is not None:
            self.copier.load(session.shape, parking[session.name], session.turn)
            traffic.nbytes += self.copier.nbytes(session.shape, session.turn)
        self.resident = session  # first: should an interrupt come between, the state is in both
        parked.discard(session.name)


def set_specs(contract: Contract, index: int) -> list[BufferSpec]:
    """Buffers to allocate for set ``index``; the first one brings the static ones."""
    if index == 0:
        return list(contract.buffers)
    return [
        replace(spec, name=f"set{index}.{spec.name}")
        for spec in contract.buffers
        if spec.role is not Role.STATIC
    ]


def set_buffers(contract: Contract, memory: Mapping[str, Tensor], index: int) -> dict[str, Tensor]:
    """The buffers of set ``index`` by their names in the contract."""
    return {
        spec.name: memory[
            spec.name if index == 0 or spec.role is Role.STATIC else f"set{index}.{spec.name}"
        ]
        for spec in contract.buffers
    }


def _capture(
    device: Device, contract: Contract, buffers: dict[str, Tensor], body: MakeBody
) -> Programs:
    """Every stage of every shape on its own, and each shape's whole decision as one.

    A decision that has variants is replayed stage by stage: each variant of a stage is captured
    once, however many others it may follow.
    """
    static = {spec.name for spec in contract.buffers if spec.role is Role.STATIC}
    programs: Programs = {}

    def segment(stage: StageSpec, shape: ShapeKey, variant: int) -> Segment:
        allowed = static | set(stage.reads) | set(stage.writes)
        which = () if contract.history is None else (variant,)
        made = body(stage.name, shape, *which)
        return stage.name, lambda lane: made(
            AuditedLane(lane, stage.name, buffers, allowed), buffers
        )

    whole = contract.decision_stages
    groups: list[tuple[tuple[StageSpec, ...], int]]
    groups = [((stage,), 0) for stage in contract.stages]
    if contract.history is not None:
        groups += [((stage,), v) for stage in whole for v in range(1, stage.variants)]
    elif len(whole) > 1:
        groups.append((whole, 0))
    for shape in contract.shapes:
        for group, variant in groups:
            names = tuple(stage.name for stage in group)
            parts = [segment(stage, shape, variant) for stage in group]
            programs[shape, names, variant] = device.capture(parts)
    return programs
