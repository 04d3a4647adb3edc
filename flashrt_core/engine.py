"""The engine: one plan's buffers, captured stages, sessions and capsules.

It allocates and captures once, at construction, and checks each stage against its declaration while
capturing. Sessions share a set of buffers, or have several sets between them; when another session
of a set is about to act, the outgoing one's regions go to its parking slot and the incoming one's
come back. Not thread safe: one thread drives an engine. While its sessions are exported, the C
interface drives it, and everything here that would touch their state is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Generic

from torch import Tensor

from .capsule.state import HostState, slot_specs
from .capsule.store import CapsuleStore, Held
from .contract import ShapeKey, StageSpec
from .devices import Device, Program
from .drawing import NoiseInputs, checked_seed
from .errors import DeviceError, FlashRTError, SessionError, SessionLimitError
from .guidance import Guide
from .plan import Plan
from .resident import Returned, Tenant
from .seats import CLOSED, SessionT, elsewhere, seated, vacate
from .text import check_text
from .working_set import Member, Traffic, WorkingSet, set_buffers, set_specs


class Engine(Generic[SessionT]):
    """Owns everything a plan needs on a device.

    Args:
        plan: contract, stage bodies, weights.
        device: where it runs; closed by :meth:`close`.
        make_session: makes a session of this engine, of a name and a state.
        max_sessions: sessions that may exist at once, each with a parking slot.
        capsule_slots: capsules that may be held in the device's memory at once.
        host_slots: capsules that may be held in the host's.
        working_sets: sets of buffers. Sessions of one set make room for each other; with as many
            sets as sessions, each has buffers of its own.
    """

    def __init__(
        self,
        plan: Plan,
        device: Device,
        make_session: Callable[[Engine[SessionT], str, HostState], SessionT],
        *,
        max_sessions: int = 4,
        capsule_slots: int = 4,
        host_slots: int = 0,
        working_sets: int = 1,
    ) -> None:
        self.contract = plan.contract
        self.fingerprint = plan.fingerprint
        self.processor = plan.processor
        self.calibration = plan.calibration
        self.guide = Guide(plan.contract, plan.processor)
        self.noise = NoiseInputs(plan.contract)
        self.device = device
        self.max_sessions = max_sessions
        self.traffic = Traffic()
        self._make_session = make_session
        self.lent: Tenant | None = None
        self.parked: set[str] = set()  # likewise
        self._fleeting: SessionT | None = None  # the last that was to be dropped at once
        # Which slots are free follows from these two. An interrupt may come with any statement: a
        # slot is taken by the one that adds a session, and given up by the one that forgets it.
        self.sessions: dict[str, SessionT] = {}
        self._owned: dict[str, Tensor] = {}  # and perhaps what those had that are no sessions
        self._spare: list[Tensor] = []  # free, not all
        contract = plan.contract
        parking = slot_specs(contract, "parking", max_sessions)
        slots = slot_specs(contract, "capsule", capsule_slots)
        hosted = slot_specs(contract, "host", host_slots)
        sets = range(working_sets)
        try:
            specs = [spec for index in sets for spec in set_specs(contract, index)]
            memory = device.allocate([*specs, *parking, *slots])
            on_host = device.allocate_host(hosted) if hosted else {}
            buffers = [set_buffers(contract, memory, index) for index in sets]
            self.buffer_bytes = sum(memory[spec.name].nbytes for spec in specs)
            self._seats = [memory[spec.name] for spec in parking]
            self.capsules = CapsuleStore(
                device,
                contract,
                plan.fingerprint,
                plan.processor,
                [memory[spec.name] for spec in slots],
                [on_host[spec.name] for spec in hosted],
                self._seats,
                self.check_here,
            )
            self.rehearsal = self.capsules.without_bytes()
            plan.pack_on(device, buffers[0])
            every = [*(memory[spec.name] for spec in (*parking, *slots)), *on_host.values()]
            self.sets = [WorkingSet(device, contract, each, plan.body, every) for each in buffers]
            self._warm_up()
        except BaseException:
            device.close()
            raise

    @property
    def parking(self) -> Mapping[str, Tensor]:
        """The parking slot of every session, by name."""
        return {name: self._owned[name] for name in self.sessions}

    @property
    def free_parking(self) -> list[Tensor]:
        """Those of none."""
        owned = {id(slot) for slot in self.parking.values()}
        return [slot for slot in self._seats if id(slot) not in owned]

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers of the first set, by their names in the contract."""
        return self.sets[0].buffers

    @property
    def store(self) -> CapsuleStore:
        """The capsules, for a host; SessionError while the sessions are exported."""
        if self.lent is not None:
            self.check_here("capsules")
        return self.capsules

    def set_of(self, session: Member) -> WorkingSet:
        """The set of buffers that a session uses; SessionError when it was dropped."""
        if session.working is None:
            raise SessionError(
                f"session {session.name!r}", expected="a live session", got="one that was dropped"
            )
        return session.working

    def shape_for(self, prompt_tokens: int, views: int | None = None) -> ShapeKey:
        """The captured shape for a prompt of that many tokens; ShapeKeyError when none fits.

        ``views``: cameras of the observation, where a plan may do without some of them.
        """
        first = max(self.contract.shapes)
        masked = views is not None and any(s.views != first.views for s in self.contract.shapes)
        return self.contract.shape_for(
            views=views if masked and views is not None else first.views,
            prompt_tokens=prompt_tokens,
            horizon=first.horizon,
            steps=first.steps,
        )

    def session(self, name: str) -> SessionT:
        """The session called ``name``; SessionError with the known names otherwise."""
        session = self.sessions.get(name) if isinstance(name, str) else None
        if session is None:
            raise SessionError(
                f"session {name!r}",
                expected=f"one of {sorted(self.sessions)}",
                got="no such session",
            )
        return session

    def create_session(self, name: str, *, seed: int = 0, prompt: str = "") -> SessionT:
        """A new session with nothing observed yet.

        SessionError on a taken or empty name, SessionLimitError beyond ``max_sessions``, InputError
        on a seed that is no whole number of 64 bits, or on the prompt.
        """
        self._claim(name)
        session = self._make_session(self, name, HostState(seed=checked_seed(seed)))
        if prompt != "":
            session.set_prompt(prompt)
        self._register(session)
        return session

    def fork(self, name: str, *, capsule: str | None = None, source: str | None = None) -> SessionT:
        """A new session that starts from a capsule, or from the live state of session ``source``.

        It inherits prompt, seed and decision index: its next action is what the source's would have
        been. Errors as :meth:`create_session`, and CapsuleError for an unknown capsule.
        """
        if (capsule is None) == (source is None):
            raise SessionError(
                f"fork into {name!r}", expected="a capsule or a source session", got="both or none"
            )
        # What is unknown is said first: dropping a session would not mend it.
        parent = None if source is None else self.session(source)
        held = None if capsule is None else self.store.find(capsule)
        return self.forked(name, held, parent, self.capsules)

    def forked(
        self,
        name: str,
        held: Held | None,
        parent: SessionT | None,
        store: CapsuleStore,
        *,
        fleeting: bool = False,
    ) -> SessionT:
        """The same, from ``held``, a capsule of ``store``, or else from the session ``parent``.

        ``fleeting``: it is dropped at once, here or by the next call that makes a session.
        """
        self._claim(name)
        slot = self._spare[-1]
        if held is not None:
            host = held.host
            store.fork(held, slot)
        elif parent is not None:
            copier = self.admit(parent).copier
            host = parent.host_state()
            if host.shape is not None:
                copier.save(host.shape, slot, host.turn)
        session = self._make_session(self, name, host)
        if parent is not None:
            session.past.continue_from(parent.past)
        self._register(session, parked=bool(host.lineage.made), fleeting=fleeting)
        return session

    def drop_session(self, name: str) -> None:
        """Forget a session and free its parking slot; its capsules stay."""
        session = self.session(name)
        self.check_here(f"session {name!r}")
        working, sessions = self.set_of(session), {**self.sessions}
        del sessions[name]
        resident = None if working.resident is session else working.resident
        self.sessions, session.working, working.resident = sessions, None, resident
        self._spare.append(self._owned.pop(name))
        self.parked.discard(name)

    def sweep(self) -> None:
        """Drop the session that was to be dropped at once, where an interrupt kept it."""
        last = self._fleeting
        if last is not None and self.sessions.get(last.name) is last:
            self.drop_session(last.name)
        self._fleeting = None

    def admit(self, session: Member, capsule: Held | None = None) -> WorkingSet:
        """Make ``session`` the one whose state its buffers hold, and tell which these are.

        Called before every use. With a ``capsule``, the state is what that holds.

        SessionError when it was dropped, or while the sessions are exported.
        """
        if self.lent is None:
            working = session.working
            if working is not None and working.resident is session:
                if capsule is not None and capsule.host.shape is not None:
                    working.copier.load(capsule.host.shape, capsule.slot, capsule.host.turn)
                return working
        self.check_here(f"session {session.name!r}")
        working = self.set_of(session)
        working.admit(session, self._owned, self.parked, self.traffic, capsule)
        return working

    def restore(self, session: SessionT, held: Held) -> None:
        """Bring what a capsule holds, buffers and host state. An error or an interrupt on the way
        leaves either what was there, or nothing that counts.
        """
        try:
            self.admit(session, held)
            session.resume(held.host)
        except BaseException:
            working = session.working
            if self.lent is None and working is not None and working.resident is session:
                # The buffers may hold half of it, and what is in the windows is not its.
                session.ledger.restore(HostState().lineage)
            raise

    def take_back(self, seats: Sequence[Returned], traffic: Traffic) -> None:
        """Go on from what the C interface left; ``seats``: all parking slots, who has them.

        Until all of it is there nobody drives: an interrupt on the way leaves them lent.
        """
        found = seated(seats, self.sets, self.sessions, partial(self._make_session, self))
        self.parked = {seat.name for seat in seats if seat.name is not None and seat.parked}
        self.traffic = traffic
        (self.sessions, self._owned), self._spare, self.lent = found, [], None

    def replay(
        self,
        session: Member,
        stages: tuple[StageSpec, ...],
        shape: ShapeKey,
        *,
        variant: int = 0,
        apart: bool = False,
        outputs: tuple[str, ...] = (),
        meanwhile: Callable[[], object] | None = None,
        wait: bool = True,
    ) -> dict[str, float]:
        """Replay captured stages; milliseconds of each. Errors and interrupts void what is kept.

        Args:
            session, stages, shape, variant: whose state it is, and what to replay.
            apart: a program a stage, started behind each other, and one wait; else one program.
            outputs: buffers that are read next.
            meanwhile, wait: as of the device; what is not waited for has no times.
        """
        working = self.set_of(session)
        groups = [(stage,) for stage in stages] if apart else [stages]
        programs = [working.program(shape, group, variant) for group in groups]
        read_next = [working.buffers[name] for name in outputs]
        try:
            for program in programs[:-1]:
                self.device.replay(program, wait=False)
            self.device.replay(programs[-1], outputs=read_next, meanwhile=meanwhile, wait=wait)
            for stage in stages:
                session.ledger.ran(stage)
        except BaseException as error:  # also an interrupt: what it cut short is half-written
            session.ledger.forget()
            if isinstance(error, FlashRTError) or not isinstance(error, Exception):
                raise
            what = f"replay of {[s.name for s in stages]} on device {self.device.name!r}"
            raise DeviceError(what, got=repr(error)) from error
        times = map(self.device.elapsed_ms, programs if wait else ())
        return {name: value for each in times for name, value in each.items()}

    def program(self, shape: ShapeKey, stages: tuple[str, ...], variant: int = 0) -> Program:
        """The captured program of ``stages`` for ``shape``, over the first set's buffers.

        ShapeKeyError when there is none.
        """
        return self.sets[0].captured(shape, stages, variant)

    def close(self) -> None:
        """Release the device's memory; what is asked of sessions or capsules then is refused."""
        try:
            if self.lent is not None:
                self.lent.take_back()
        finally:
            self.lent = CLOSED
            vacate(self.sets, self.sessions)
            self.sessions = {}
            self.device.close()

    def _warm_up(self) -> None:
        """Replay the largest shape once: libraries set up lazily, and a robot must not wait.

        The windows hold zeros, so the values mean nothing; no session has any, so none is lost.
        """
        shape = max(self.contract.shapes)
        transforms = [stage.name for stage in self.contract.stages if stage.transform]
        whole = tuple(stage.name for stage in self.contract.decision_stages)
        rest = [whole] if self.contract.history is None else [(name,) for name in whole]
        for names in [*((name,) for name in transforms), *rest]:
            self.device.replay(self.program(shape, names))
        self.device.rehearse(p for working in self.sets for p in working.programs.values())

    def check_here(self, what: str) -> None:
        """SessionError about ``what`` while the sessions are exported, and in a closed engine."""
        if self.lent is not None:
            raise elsewhere(self.lent, what)

    def _claim(self, name: str) -> None:
        if self.lent is not None:
            self.check_here(f"session {name!r}")
        if self._fleeting is not None:
            self.sweep()
        check_text("session name", name, error=SessionError)
        if name in self.sessions:
            raise SessionError(
                f"session {name!r}",
                expected="a name that is not taken",
                got=sorted(self.sessions),
                remedy="choose another name or drop that session",
            )
        self._spare = self._spare or self.free_parking
        if not self._spare:
            raise SessionLimitError(
                f"session {name!r}",
                expected=f"at most {self.max_sessions} sessions",
                got=f"{sorted(self.sessions)} already",
                remedy="drop a session or raise max_sessions",
            )

    def _register(self, session: SessionT, *, parked: bool = False, fleeting: bool = False) -> None:
        working = self.sets[0]
        if len(self.sets) > 1:
            working = min(self.sets, key=[s.working for s in self.sessions.values()].count)
        (self.parked.add if parked else self.parked.discard)(session.name)
        name, last = session.name, session if fleeting else None
        self._owned[name] = self._spare.pop()
        session.working, self._fleeting, self.sessions[name] = working, last, session


def describe(engine: Engine[SessionT]) -> dict[str, object]:
    """What diagnostics shows: scales in use, sessions, cost of their switches, capsules, bytes."""
    store = engine.capsules
    return {
        "calibration": engine.calibration,
        "sessions": sorted(engine.sessions),
        "session_switches": engine.traffic.switches,
        "session_bytes_moved": engine.traffic.nbytes,
        "working_sets": len(engine.sets),
        "exported": engine.lent not in (None, CLOSED),
        "capsules": len(store),
        "capsule_slots": store.capacity,
        "buffer_bytes": engine.buffer_bytes,
    }
