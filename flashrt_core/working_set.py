"""One set of buffers, the stages captured over them, and whose state they hold.

An engine has one, which its sessions share, or several, so that sessions need not make room for
each other. Static buffers are the same in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from .capsule.state import RegionCopier
from .contract import BufferSpec, Contract, Role, ShapeKey, StageSpec
from .devices import Device, Program
from .devices.base import AuditedLane
from .kernels.op import Lane

if TYPE_CHECKING:
    from .session import Session

StageBody = Callable[[Lane, Mapping[str, Tensor]], None]
Programs = dict[tuple[ShapeKey, tuple[str, ...]], Program]


@dataclass
class Traffic:
    """What sessions cost that share a set.

    Attributes:
        switches: times that a session had to make room for another.
        nbytes: that were copied to and from parking slots for it.
    """

    switches: int = 0
    nbytes: int = 0


class WorkingSet:
    """Buffers and programs of one plan.

    Args:
        device: which they are on.
        contract: of the plan.
        buffers: all that the contract names.
        body: makes the body of a stage, by name and shape.
        slots: all that its state may be copied to and from.
    """

    def __init__(
        self,
        device: Device,
        contract: Contract,
        buffers: dict[str, Tensor],
        body: Callable[[str, ShapeKey], StageBody],
        slots: Iterable[Tensor],
    ) -> None:
        self.buffers = buffers
        self.copier = RegionCopier(device, contract, buffers, slots)
        self.resident: Session | None = None
        self.programs = _capture(device, contract, buffers, body)

    def admit(self, session: Session, parking: Mapping[str, Tensor], parked: set[str]) -> Traffic:
        """Make ``session`` the one whose state the buffers hold.

        Args:
            session: one of this set.
            parking: slots of the sessions, by name.
            parked: names of those whose state is in their slot; kept up to date.
        """
        traffic = Traffic()
        outgoing, self.resident = self.resident, session
        if outgoing is not None:
            traffic.switches = 1
            shape = outgoing.shape
            if shape is not None and outgoing.host_state().lineage.made:
                self.copier.save(shape, parking[outgoing.name])
                traffic.nbytes += self.copier.nbytes(shape)
                parked.add(outgoing.name)
            outgoing.ledger.lose_windows()
        if session.name in parked and session.shape is not None:
            self.copier.load(session.shape, parking[session.name])
            traffic.nbytes += self.copier.nbytes(session.shape)
            parked.discard(session.name)
        return traffic


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
    device: Device,
    contract: Contract,
    buffers: dict[str, Tensor],
    body: Callable[[str, ShapeKey], StageBody],
) -> Programs:
    """Every stage of every shape on its own, and each shape's whole decision as one."""
    static = {spec.name for spec in contract.buffers if spec.role is Role.STATIC}
    programs: Programs = {}

    def segment(stage: StageSpec, shape: ShapeKey) -> tuple[str, Callable[[Lane], None]]:
        allowed = static | set(stage.reads) | set(stage.writes)
        made = body(stage.name, shape)
        return stage.name, lambda lane: made(
            AuditedLane(lane, stage.name, buffers, allowed), buffers
        )

    whole = contract.decision_stages
    groups = [(stage,) for stage in contract.stages] + ([whole] if len(whole) > 1 else [])
    for shape in contract.shapes:
        for group in groups:
            names = tuple(stage.name for stage in group)
            programs[shape, names] = device.capture([segment(stage, shape) for stage in group])
    return programs
