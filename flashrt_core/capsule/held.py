"""What a store holds: a capsule in a slot."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..devices.transfer import Transfer
from .state import CapsuleInfo, HostState, Place, RegionCopier


@dataclass(slots=True)
class Held:
    """A capsule and the slot that it fills.

    A snapshot over an older one changes it, which takes less than to make another: a robot waits
    for both. Meanwhile the store does not have it.
    """

    name: str
    session: str
    fingerprint: str
    place: Place
    slot: Tensor
    host: HostState
    nbytes: int
    created_ns: int
    told: CapsuleInfo | None = None  # as long as it is true
    copier: RegionCopier | None = None  # that saved it last, and
    saving: Transfer | None = None  # how; None where the next time may be another

    def info(self) -> CapsuleInfo:
        """What is told of it."""
        if self.told is None:
            host = self.host
            self.told = CapsuleInfo(
                self.name,
                self.session,
                self.fingerprint,
                self.nbytes,
                self.created_ns,
                host.decisions,
                host.prompt,
                host.stamp_ns,
                self.place,
            )
        return self.told


#: Where it is, its memory, and the capsule in it.
Slot = tuple[Place, Tensor, Held | None]
