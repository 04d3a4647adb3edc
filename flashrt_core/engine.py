"""The engine: one plan's buffers, captured stages, sessions and capsules.

It allocates and captures once, at construction, and checks each stage against its declaration while
capturing. Sessions share the buffers; when another session is about to act, the outgoing one's
regions go to its parking slot and the incoming one's come back. Not thread safe: one thread drives
an engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from .capsule.state import HostState, RegionCopier, slot_specs
from .capsule.store import CapsuleStore
from .contract import Contract, Role, ShapeKey, StageSpec
from .devices import Device, Program
from .devices.base import AuditedLane
from .errors import (
    DeviceError,
    FlashRTError,
    InputError,
    SessionError,
    SessionLimitError,
    ShapeKeyError,
)
from .fingerprint import Fingerprint
from .kernels.op import Lane
from .policies.base import Processor
from .session import SEEDS, Session
from .text import check_text
from .whole_numbers import whole_number

StageBody = Callable[[Lane, Mapping[str, Tensor]], None]


@dataclass(frozen=True)
class Plan:
    """What a policy contributes to an engine."""

    contract: Contract
    fingerprint: Fingerprint
    processor: Processor
    body: Callable[[str, ShapeKey], StageBody]  # stage name, shape -> its body over ops
    pack: Callable[[dict[str, Tensor]], None]  # fills the static buffers


class Engine:
    """Owns everything a plan needs on a device.

    Args:
        plan: contract, stage bodies, weights.
        device: where it runs; closed by :meth:`close`.
        max_sessions: sessions that may exist at once, each with a parking slot.
        capsule_slots: capsules that may be held in the device's memory at once.
        host_slots: capsules that may be held in the host's.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        *,
        max_sessions: int = 4,
        capsule_slots: int = 4,
        host_slots: int = 0,
    ) -> None:
        self.contract = plan.contract
        self.fingerprint = plan.fingerprint
        self.processor = plan.processor
        self.device = device
        self.max_sessions = max_sessions
        self.switches = 0
        self.sessions: dict[str, Session] = {}
        self._resident: Session | None = None
        self._parked: set[str] = set()
        parking = slot_specs(plan.contract, "parking", max_sessions)
        slots = slot_specs(plan.contract, "capsule", capsule_slots)
        hosted = slot_specs(plan.contract, "host", host_slots)
        try:
            memory = device.allocate([*plan.contract.buffers, *parking, *slots])
            on_host = device.allocate_host(hosted) if hosted else {}
            self.buffers = {spec.name: memory[spec.name] for spec in plan.contract.buffers}
            self._copier = RegionCopier(device, plan.contract, self.buffers)
            self._free_parking = [memory[spec.name] for spec in parking]
            self._parking: dict[str, Tensor] = {}
            self.store = CapsuleStore(
                device,
                self._copier,
                plan.fingerprint,
                [memory[spec.name] for spec in slots],
                [on_host[spec.name] for spec in hosted],
            )
            _pack(plan, device, self.buffers)
            self._programs = _capture(plan, device, self.buffers)
            self._warm_up()
        except BaseException:
            device.close()
            raise

    def shape_for(self, prompt_tokens: int) -> ShapeKey:
        """The captured shape for a prompt of that many tokens; ShapeKeyError when none fits."""
        first = self.contract.shapes[0]
        return self.contract.shape_for(
            views=first.views, prompt_tokens=prompt_tokens, horizon=first.horizon, steps=first.steps
        )

    def session(self, name: str) -> Session:
        """The session called ``name``; SessionError with the known names otherwise."""
        session = self.sessions.get(name) if isinstance(name, str) else None
        if session is None:
            raise SessionError(
                f"session {name!r}",
                expected=f"one of {sorted(self.sessions)}",
                got="no such session",
            )
        return session

    def create_session(self, name: str, *, seed: int = 0, prompt: str = "") -> Session:
        """A new session with nothing observed yet.

        SessionError on a taken or empty name, SessionLimitError beyond ``max_sessions``, InputError
        on a seed that is no whole number of 64 bits, or on the prompt.
        """
        self._claim(name)
        session = Session(self, name, HostState(seed=_checked_seed(seed)))
        if prompt != "":
            session.set_prompt(prompt)
        self._register(session)
        return session

    def fork(self, name: str, *, capsule: str | None = None, source: str | None = None) -> Session:
        """A new session that starts from a capsule, or from the live state of session ``source``.

        It inherits prompt, seed and decision index, so its next action equals what the source's
        would have been. Errors as :meth:`create_session`, and CapsuleError for an unknown capsule.
        """
        if (capsule is None) == (source is None):
            raise SessionError(
                f"fork into {name!r}", expected="a capsule or a source session", got="both or none"
            )
        # What is unknown is said first: dropping a session would not mend it.
        parent = None if source is None else self.session(source)
        if capsule is not None:
            self.store.info(capsule)
        self._claim(name)
        slot = self._free_parking[-1]
        if parent is None:
            host = self.store.copy_to(str(capsule), slot)
        else:
            self.admit(parent)
            host = parent.host_state()
            if host.shape is not None:
                self._copier.save(host.shape, slot)
        session = Session(self, name, host)
        session.resume(host)
        self._register(session)
        if host.lineage.made:
            self._parked.add(name)
        return session

    def drop_session(self, name: str) -> None:
        """Forget a session and free its parking slot; its capsules stay."""
        session = self.session(name)
        if self._resident is session:
            self._resident = None
        self._free_parking.append(self._parking.pop(name))
        self._parked.discard(name)
        del self.sessions[name]

    def admit(self, session: Session) -> None:
        """Make ``session`` the one whose state the buffers hold. Called before every use."""
        if self._resident is session:
            return
        if self.sessions.get(session.name) is not session:
            raise SessionError(
                f"session {session.name!r}", expected="a live session", got="one that was dropped"
            )
        outgoing, self._resident = self._resident, session
        if outgoing is not None:
            self.switches += 1
            self._park(outgoing)
        if session.name in self._parked and session.shape is not None:
            self._copier.load(session.shape, self._parking[session.name])
            self._parked.discard(session.name)

    def replay(
        self,
        session: Session,
        stages: tuple[StageSpec, ...],
        shape: ShapeKey,
        *,
        outputs: tuple[str, ...] = (),
        meanwhile: Callable[[], object] | None = None,
    ) -> dict[str, float]:
        """Replay captured stages as one; milliseconds of each. An error voids retained state.

        Args:
            session: whose state it is.
            stages, shape: what to replay.
            outputs: buffers that are read next.
            meanwhile: host work to do while the device is busy.
        """
        program = self._programs[shape, tuple(stage.name for stage in stages)]
        read_next = [self.buffers[name] for name in outputs]
        try:
            self.device.replay(program, outputs=read_next, meanwhile=meanwhile)
        except FlashRTError:
            session.ledger.forget()
            raise
        except Exception as error:
            session.ledger.forget()
            raise DeviceError(
                f"replay of {[stage.name for stage in stages]} on device {self.device.name!r}",
                got=repr(error),
            ) from error
        for stage in stages:
            session.ledger.ran(stage)
        return self.device.elapsed_ms(program)

    def program(self, shape: ShapeKey, stages: tuple[str, ...]) -> Program:
        """The captured program of ``stages`` for ``shape``; ShapeKeyError when there is none."""
        try:
            return self._programs[shape, stages]
        except KeyError:
            raise ShapeKeyError(
                f"stages {list(stages)} for {shape}",
                expected=f"one of {[list(names) for _, names in self._programs]}",
            ) from None

    def close(self) -> None:
        """Release the device's memory. Sessions must not be used afterwards."""
        self.sessions.clear()
        self._resident = None
        self.device.close()

    def _warm_up(self) -> None:
        """Replay the largest shape once: libraries set up lazily, and a robot must not wait.

        The windows hold zeros, so the values mean nothing; no session has any, so none is lost.
        """
        shape = max(self.contract.shapes)
        transforms = [stage.name for stage in self.contract.stages if stage.transform]
        whole = tuple(stage.name for stage in self.contract.decision_stages)
        for names in [*((name,) for name in transforms), whole]:
            self.device.replay(self._programs[shape, names])

    def _claim(self, name: str) -> None:
        check_text("session name", name, error=SessionError)
        if name in self.sessions:
            raise SessionError(
                f"session {name!r}",
                expected="a name that is not taken",
                got=sorted(self.sessions),
                remedy="choose another name or drop that session",
            )
        if not self._free_parking:
            raise SessionLimitError(
                f"session {name!r}",
                expected=f"at most {self.max_sessions} sessions",
                got=f"{sorted(self.sessions)} already",
                remedy="drop a session or raise max_sessions",
            )

    def _register(self, session: Session) -> None:
        self._parking[session.name] = self._free_parking.pop()
        self.sessions[session.name] = session

    def _park(self, session: Session) -> None:
        shape = session.shape
        if shape is not None and session.host_state().lineage.made:
            self._copier.save(shape, self._parking[session.name])
            self._parked.add(session.name)
        session.ledger.lose_windows()


def _checked_seed(seed: object) -> int:
    number = whole_number("seed", seed, InputError)
    if number not in SEEDS:
        raise InputError("seed", expected=f"a number of 0..{SEEDS[-1]}", got=number)
    return number


def _pack(plan: Plan, device: Device, buffers: dict[str, Tensor]) -> None:
    try:
        plan.pack(buffers)
    except torch.OutOfMemoryError as error:  # tensors that packing needs for a while
        raise DeviceError(
            f"memory of device {device.name!r} while weights are packed",
            got=str(error),
            remedy="stop other programs on it, or choose a smaller preset",
        ) from error


def _capture(
    plan: Plan, device: Device, buffers: dict[str, Tensor]
) -> dict[tuple[ShapeKey, tuple[str, ...]], Program]:
    """Every stage of every shape on its own, and each shape's whole decision as one."""
    contract = plan.contract
    static = {spec.name for spec in contract.buffers if spec.role is Role.STATIC}
    programs: dict[tuple[ShapeKey, tuple[str, ...]], Program] = {}

    def segment(stage: StageSpec, shape: ShapeKey) -> tuple[str, Callable[[Lane], None]]:
        allowed = static | set(stage.reads) | set(stage.writes)
        body = plan.body(stage.name, shape)
        return stage.name, lambda lane: body(
            AuditedLane(lane, stage.name, buffers, allowed), buffers
        )

    whole = contract.decision_stages
    groups = [(stage,) for stage in contract.stages] + ([whole] if len(whole) > 1 else [])
    for shape in contract.shapes:
        for group in groups:
            names = tuple(stage.name for stage in group)
            programs[shape, names] = device.capture([segment(stage, shape) for stage in group])
    return programs


def describe(engine: Engine) -> dict[str, object]:
    """Numbers for diagnostics: sessions, switches, capsules, bytes."""
    return {
        "sessions": sorted(engine.sessions),
        "session_switches": engine.switches,
        "capsules": len(engine.store),
        "capsule_slots": engine.store.capacity,
        "buffer_bytes": sum(buffer.nbytes for buffer in engine.buffers.values()),
    }
