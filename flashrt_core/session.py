"""A session: one robot's (or one branch's) use of the engine, with its prompt, epochs and noise.

Sessions of an engine share its buffers and captured stages; the engine brings a session's state
back before it acts (see engine.py). A session holds no device memory of its own. Not thread safe:
one thread drives an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from .c_interface.export import Export, lend
from .capsule.state import CapsuleInfo, HostState, frozen
from .contract import Contract, InputSpec, Rate, ShapeKey, StageSpec
from .decision import Decision, check_finite, missing
from .drawing import NOISE, SEEDS, Noise, by_transform, checked_values, noise_for, stamps_of
from .engine import Engine
from .errors import InputError, ShapeKeyError
from .fingerprint import Fingerprint
from .freshness import Ledger, Page
from .guidance import Previous
from .images import Frame
from .past import Past
from .policies.base import Observation, Prepared, Processor
from .snapshots import meanwhile, save
from .text import check_instruction
from .working_set import WorkingSet

__all__ = ["ACTIONS", "NOISE", "SEEDS", "Decision", "Noise", "Session", "noise_for"]

Array = np.ndarray[Any, Any]

#: The output that a generative policy's contract must have.
ACTIONS = "actions"


class Session:
    """Created by :class:`~flashrt_core.engine.Engine`, never directly."""

    def __init__(self, engine: Engine[Session], name: str, host: HostState) -> None:
        self.name = name
        self.engine = engine
        self.ledger = Ledger(engine.contract, host.lineage)
        self.working: WorkingSet | None = None  # whose buffers it uses; None once it is dropped
        self._host = host
        self.past = Past(engine.contract, engine.processor)

    @property
    def contract(self) -> Contract:
        """The plan's contract."""
        return self.engine.contract

    @property
    def fingerprint(self) -> Fingerprint:
        """The plan's identity."""
        return self.engine.fingerprint

    @property
    def buffers(self) -> Mapping[str, Tensor]:
        """The buffers that this session works on, by their names in the contract."""
        return self.engine.set_of(self).buffers

    @property
    def processor(self) -> Processor:
        """The policy's host-side transforms."""
        return self.engine.processor

    @property
    def prompt(self) -> str:
        """The current instruction; empty until one is set."""
        return self._host.prompt

    @property
    def decisions(self) -> int:
        """How many decisions were made; the index of the next."""
        return self._host.decisions

    @property
    def turn(self) -> int:
        """Decisions of the episode, where they build on each other; else 0."""
        return self._host.turn

    @property
    def shape(self) -> ShapeKey | None:
        """The captured shape in use; None before the first observation."""
        return self._host.shape

    def set_prompt(self, text: str) -> None:
        """Use ``text`` from the next observation on; retained context is stale from now on.

        InputError when it is no text, is empty, shows nothing, holds control characters other than
        newline and tab, or is too long for the captured buckets; the old prompt stays.
        """
        self.engine.check_here(f"session {self.name!r}")
        check_instruction(text)
        self.processor.check_prompt(text)
        if text != self._host.prompt:
            self.host_state()  # of what the context was made, while that can be told
            self.ledger.announce(Rate.PROMPT)  # first: an interrupt between leaves the old prompt
            self._host = replace(self._host, prompt=text)

    @property
    def intact(self) -> bool:
        """Whether what the last decision left can be trusted; not so after a failure."""
        return self.ledger.is_made(self.contract.decision_stages[-1].name)

    def restart(self) -> None:
        """A new episode: nothing is remembered of what was seen and done. Prompt and seed stay."""
        self.engine.check_here(f"session {self.name!r}")
        self.past.clear()
        self._host = replace(self._host, turn=0, raw=None)

    def record(self, images: Mapping[str, Array | Frame | Prepared]) -> None:
        """Keep what cameras see while a chunk is executed, one picture every so many rows.

        The last one of a chunk is part of the observation. InputError where none is expected.
        """
        self.past.record(images, self._host.turn, self.name)

    def chunk(self) -> Array | None:
        """Rows [rows, action_dim] that are to be executed before the next decision, in a policy
        with a history: those of the last decision, be it made here or restored. None before one.
        """
        return self.past.chunk(self._host)

    def observe(self, observation: Observation, *, executed: Array | None = None) -> None:
        """Encode an observation and write every window of it.

        All values are checked before any window changes, and none of its arrays is kept. InputError
        names the input that is wrong. Once the first one changes, none of them counts until all
        have: who is interrupted observes again. ``executed``: as of :meth:`decide`.
        """
        if not self._host.prompt:
            raise missing(self.name, "a prompt", "none", "set_prompt() first")
        seen = stamps_of(observation)
        values = self.processor.encode(observation, self._host.prompt)
        values = self.past.windows(values, self._host, executed)
        tokens = self.processor.prompt_tokens(values)
        shape = self.engine.shape_for(tokens, len(observation.images))
        state = observation.state  # the host's own array: it may hold the next state by act()
        seen["seen_state"] = None if state is None else frozen(state)
        self._write(self._checked(values, shape), shape, seen)
        self.past.observed = True

    def write(self, values: Mapping[str, Array]) -> None:
        """Write input windows directly; for hosts that encode on their own.

        A shape must be in use already (``observe`` or :meth:`select_shape`). ContractError on an
        unknown name; InputError on a wrong shape, dtype, a non-finite float, a token or length out
        of range, and values that contradict each other: bytes of a camera come with their
        description. Of a context made from them, noise and guidance apart, the robot's state and
        the stamps are unknown: relative actions are refused (InputError), stamps are 0 and none.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                "values", expected="a mapping of inputs to arrays", got=type(values).__name__
            )
        checked = self._checked(values, self._host.shape)
        self.processor.check_windows(checked)
        self._write(checked, self._shape(), self._host.seen_in(checked, self.contract))

    def select_shape(self, shape: ShapeKey) -> None:
        """Use a captured shape; retained values of another shape, no history, are forgotten, and
        inputs that have other bounds in this one count as unwritten.
        """
        if shape not in self.contract.shapes:
            known = [str(key) for key in self.contract.shapes]
            raise ShapeKeyError("shape", expected=f"one of {known}", got=shape)
        self.engine.admit(self)
        if shape != self._host.shape:
            self.ledger.reshape(self._host.shape, shape)
            self._host = replace(self._host, shape=shape, staged={})

    def run(self, stage: str, *, allow_stale: bool = False) -> dict[str, float]:
        """Replay one stage; its milliseconds by name.

        StaleStateError when a window it reads was not written, or a prerequisite is missing or
        (unless ``allow_stale``) older than the inputs. Of what is then made of old and new, the
        robot's state and the stamps are unknown.
        """
        spec = self.contract.stage(stage)
        self.past.check_alone(f"stage {stage!r} by itself", harmless=spec.transform)
        self.engine.admit(self)
        self.ledger.check(spec, allow_stale=allow_stale)
        self._host = self.host_state().before(spec, self.contract)
        return self.engine.replay(self, (spec,), self._shape())

    def decide(
        self,
        observation: Observation | None = None,
        *,
        noise: Noise | None = None,
        previous: Previous | None = None,
        executed: Array | None = None,
        split: bool = False,
    ) -> Decision:
        """One decision: windows in, stages in contract order, actions out.

        Args:
            observation: what to act on; None keeps the windows as they are.
            noise: [horizon, padded action dim] float32, or arrays by input where there are several;
                what is not given is drawn from (seed, index).
            previous: the chunk that the robot goes on with, to be continued, in a plan that was
                loaded with ``real_time_chunking``. Kept rows come back, rounded to float32.
            executed: [rows, action_dim], for a policy with a history: what was done with the last
                chunk, in robot units; None: what was decided. Only with an observation.
            split: replay stage by stage instead of the whole decision at once; equal bits.
        """
        previous = self.engine.guide.checked(previous)
        self.past.check_decide(observation, executed, self._host, self.intact, self.name)
        if observation is not None:
            self.observe(observation, executed=executed)
        self.engine.admit(self)
        self._write_noise(noise)
        self._write_guidance(previous, self._host.seen_state)
        stages = self.contract.decision_stages
        names = tuple(stage.name for stage in stages)
        for stage in stages:
            self.ledger.check(stage, ran=names)
        history = self.contract.history is not None  # then each stage has a program of its own
        try:
            return self._finish(self._replay(stages, split or history))
        except BaseException:
            if history:  # what is remembered is of a decision that does not count
                self.ledger.forget()
            raise

    def act(
        self,
        *,
        noise: Noise | None = None,
        previous: Previous | None = None,
        allow_stale: bool = False,
    ) -> Decision:
        """The last stage alone, on the retained results of those before it; else as `decide`. Its
        actions are relative to the state that those were made with, whatever was seen since.

        SessionError in a policy with a history, whose stages change what they read.
        """
        self.past.check_alone("the last stage alone")
        previous = self.engine.guide.checked(previous)
        self.engine.admit(self)
        context = self.host_state()
        self._write_noise(noise)
        self._write_guidance(previous, context.robot_state)
        stage = self.contract.decision_stages[-1]
        self.ledger.check(stage, allow_stale=allow_stale)
        self._host = context.before(stage, self.contract)
        return self._finish(self._replay((stage,)))

    def read(self, output: str, *, allow_stale: bool = False) -> Array:
        """A host copy of an output window: the result of this session's last replay that made it.

        StaleStateError where there is none, or not any more (a restore, a failure, another session
        on the same buffers), and, unless ``allow_stale``, where an input has changed since.
        """
        spec = self.contract.output(output)
        self.engine.check_here(f"session {self.name!r}")
        window = self.buffers[spec.buffer]
        self.ledger.check_output(spec, allow_stale=allow_stale)
        return self.engine.device.read(window)

    def snapshot(self, name: str, *, midway: bool = False) -> CapsuleInfo:
        """Save the retained state under ``name``; see :meth:`CapsuleStore.save` for errors. On the
        way through a chunk CapsuleError, unless ``midway``: it holds the chunk's beginning.
        """
        return save(self.engine, self, self.engine.capsules, name, self.name, midway)

    def restore(self, name: str) -> CapsuleInfo:
        """Resume from a capsule of this session: state, prompt, decision index.

        The input windows count as unwritten afterwards: ``act`` may follow at once, a new context
        needs a new observation. CapsuleError when unknown or foreign; nothing changes then.
        """
        engine = self.engine
        held = engine.store.find(name, self.name)
        engine.restore(self, held)
        return held.info()

    def export(self) -> Export:
        """Let a host of this process drive this session through the C interface.

        Until the export is closed, all sessions of the engine are the C interface's: whatever would
        use or change their state here raises SessionError. ContractError or DeviceError where the
        plan or this installation cannot be exported; nothing changes then.
        """
        return lend(self.engine, self).open(self)

    def host_state(self) -> HostState:
        """The host's part of the state, with the lineage of what is retained."""
        if self.ledger.told is not self._host.lineage:
            self._host = self._host.made_of(self.ledger.lineage(), self.contract)
        return self._host

    def resume(self, host: HostState) -> None:
        """Take over ``host``; the engine has put the matching regions in place."""
        if self.engine.lent is not None:
            self.engine.check_here(f"session {self.name!r}")
        self._host = host
        self.past.clear()
        self.ledger.restore(host.lineage)

    def take_over(self, host: HostState, page: Page) -> None:
        """Go on from what the C interface left; the engine knows where the regions are."""
        self._host = host
        self.ledger.turn_to(page)

    def _shape(self) -> ShapeKey:
        if self._host.shape is None:
            raise missing(self.name, "an observation", "none yet", "observe() first")
        return self._host.shape

    def _checked(self, values: Mapping[str, Array], shape: ShapeKey | None) -> dict[str, Array]:
        known = {**self._host.staged, **self.past.joined}  # were checked when they came
        return checked_values(self.contract, values, known, shape)

    def _write(self, values: Mapping[str, Array], shape: ShapeKey, seen: Mapping[str, Any]) -> None:
        """Write windows, all or none of which count; ``seen``: of the host state with them."""
        self.host_state()  # which is still of the last observation, if that was used
        self.select_shape(shape)
        swapped, staged = by_transform(self.contract, values)
        self.ledger.tear(swapped)
        if seen:
            self._host = replace(self._host, **seen)
        for name, spec in swapped.items():
            self.engine.device.write(self.buffers[spec.buffer], values[name])
        for transform, names in staged.items():
            self._stage(self.contract.stage(transform), names, values)
        self.ledger.mend(swapped)

    def _stage(self, transform: StageSpec, names: list[str], values: Mapping[str, Array]) -> None:
        kept = self._host.has_staged(names, values) and self.ledger.is_made(transform.name)
        if kept and not self.ledger.announced(names):
            return  # the retained product is already that of these values
        # Until the transform has run, the retained product is that of neither value.
        others = {name: value for name, value in self._host.staged.items() if name not in names}
        self._host = replace(self._host, staged=others)
        for name in names:
            self._fill(self.contract.input(name), values[name])
        self.ledger.check(transform)
        # Not waited for: whatever reads the product comes behind it.
        self.engine.replay(self, (transform,), self._shape(), wait=False)
        now = {name: frozen(values[name]) for name in names}
        self._host = replace(self._host, staged={**others, **now})

    def _replay(self, stages: tuple[StageSpec, ...], apart: bool = False) -> dict[str, float]:
        """Replay the stages that end in actions."""
        return self.engine.replay(
            self,
            stages,
            self._shape(),
            variant=self.contract.variant(self._host.turn),
            apart=apart,
            outputs=(self.contract.output(ACTIONS).buffer,),
            meanwhile=partial(meanwhile, self.engine, self),
        )

    def _write_noise(self, noise: Noise | None) -> None:
        for spec, value in self.engine.noise.values(noise, self._host.seed, self._host.decisions):
            self._fill(spec, value)

    def _write_guidance(self, previous: Previous | None, state: Array | None) -> None:
        """Every decision says anew what guides it: what guided the last one is past."""
        for name, value in self.engine.guide.windows(previous, state).items():
            self._fill(self.contract.input(name), value)

    def _finish(self, timings: dict[str, float]) -> Decision:
        raw = self.engine.device.read(self.buffers[self.contract.output(ACTIONS).buffer])
        host, history = self._host, self.contract.history
        check_finite(raw, self.name, self.ledger.lose_outputs)
        # With its lineage: a snapshot that follows has nothing left to put together.
        made = host.made_of(self.ledger.lineage(), self.contract, host.decisions + 1)
        actions = self.processor.decode(raw, made.robot_state)
        self._host = made
        if history is not None:
            self.past.clear()
            self._host = replace(self._host, turn=host.turn + 1, raw=frozen(raw))
            actions = actions[-history.rows[history.variant(host.turn)] :]
        return Decision(
            index=host.decisions,
            actions=actions,
            raw=raw,
            stage_ms=timings,
            stamp_ns=self._host.stamp_ns,
            stamps_ns=self._host.stamps_ns,
        )

    def _fill(self, spec: InputSpec, value: Array) -> None:
        try:
            self.engine.device.write(self.buffers[spec.buffer], value)
            self.ledger.written([spec.name])
        except BaseException:
            self.ledger.tear([spec.name])
            raise
