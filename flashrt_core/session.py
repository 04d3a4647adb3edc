"""A session: one robot's (or one branch's) use of the engine, with its prompt, epochs and noise.

Sessions of an engine share its buffers and captured stages; the engine brings a session's state
back before it acts (see engine.py). A session holds no device memory of its own. Not thread safe:
one thread drives an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from .c_interface.export import Export
from .capsule.state import CapsuleInfo, HostState, frozen
from .contract import Contract, InputSpec, Rate, ShapeKey, StageSpec, Update
from .devices.base import NUMPY_DTYPES
from .errors import InputError, NumericsError, ShapeKeyError
from .fingerprint import Fingerprint
from .freshness import Ledger, Page
from .guidance import Previous
from .policies.base import Observation, Processor, as_array
from .text import check_text
from .whole_numbers import whole_number

if TYPE_CHECKING:
    from .engine import Engine

Array = np.ndarray[Any, Any]

# Names that a generative policy's contract must use; the session fills the one and reads the other.
NOISE = "noise"
ACTIONS = "actions"
#: What a session's seed may be.
SEEDS = range(1 << 64)


@dataclass(frozen=True)
class Decision:
    """The result of one action stage.

    Attributes:
        index: number of the decision in its session; with the seed it determines the noise.
        actions: [horizon, action_dim] float32, robot units.
        raw: [horizon, padded action dim] float32, as the network gave it.
        stage_ms: milliseconds of each stage that ran.
        stamp_ns: stamp of the observation the retained context was made from.
    """

    index: int
    actions: Array
    raw: Array
    stage_ms: dict[str, float]
    stamp_ns: int


class Session:
    """Created by :class:`~flashrt_core.engine.Engine`, never directly."""

    def __init__(self, engine: Engine, name: str, host: HostState) -> None:
        self.name = name
        self.engine = engine
        self.ledger = Ledger(engine.contract, host.lineage)
        self._host = host

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
    def shape(self) -> ShapeKey | None:
        """The captured shape in use; None before the first observation."""
        return self._host.shape

    def set_prompt(self, text: str) -> None:
        """Use ``text`` from the next observation on; retained context is stale from now on.

        InputError when it is no text, is empty, shows nothing, holds control characters other than
        newline and tab, or is too long for the captured buckets; the old prompt stays.
        """
        self.engine.check_here(f"session {self.name!r}")
        check_text("prompt", text, error=InputError, controls="\n\t", example="an instruction")
        self.processor.check_prompt(text)
        if text != self._host.prompt:
            self._host = replace(self._host, prompt=text)
            self.ledger.announce(Rate.PROMPT)

    def observe(self, observation: Observation) -> None:
        """Encode an observation and write every window of it.

        All values are checked before any window changes, and none of its arrays is kept. InputError
        names the input that is wrong.
        """
        if not self._host.prompt:
            raise InputError(
                f"session {self.name!r}",
                expected="a prompt",
                got="none",
                remedy="set_prompt() first",
            )
        if not isinstance(observation, Observation):
            raise InputError(
                "observation", expected="an Observation", got=type(observation).__name__
            )
        stamp_ns = whole_number("stamp_ns", observation.stamp_ns, InputError)
        values = self.processor.encode(observation, self._host.prompt)
        tokens = self.processor.prompt_tokens(values)
        shape = self.engine.shape_for(tokens, len(observation.images))
        self._write(self._checked(values), shape)
        state = observation.state  # the host's own array: it may hold the next state by act()
        self._host = replace(
            self._host,
            stamp_ns=stamp_ns,
            robot_state=None if state is None else frozen(state),
        )

    def write(self, values: Mapping[str, Array]) -> None:
        """Write input windows directly; for hosts that encode on their own.

        A shape must be in use already (``observe`` or :meth:`select_shape`). ContractError on an
        unknown name, InputError on a wrong shape, dtype, or a non-finite float, and on values that
        contradict each other: bytes of a camera come with their description.
        """
        if not isinstance(values, Mapping):
            raise InputError(
                "values", expected="a mapping of inputs to arrays", got=type(values).__name__
            )
        checked = self._checked(values)
        self.processor.check_windows(checked)
        self._write(checked, self._shape())

    def select_shape(self, shape: ShapeKey) -> None:
        """Use a captured shape; retained values of another shape are forgotten."""
        if shape not in self.contract.shapes:
            raise ShapeKeyError(
                "shape", expected=f"one of {[str(key) for key in self.contract.shapes]}", got=shape
            )
        self.engine.admit(self)
        if shape != self._host.shape:
            self._host = replace(self._host, shape=shape, staged={})
            self.ledger.forget()

    def run(self, stage: str, *, allow_stale: bool = False) -> dict[str, float]:
        """Replay one stage; its milliseconds by name.

        StaleStateError when a window it reads was not written, or a prerequisite is missing or
        (unless ``allow_stale``) older than the inputs.
        """
        spec = self.contract.stage(stage)
        self.engine.admit(self)
        self.ledger.check(spec, allow_stale=allow_stale)
        return self.engine.replay(self, (spec,), self._shape())

    def decide(
        self,
        observation: Observation | None = None,
        *,
        noise: Array | None = None,
        previous: Previous | None = None,
        split: bool = False,
    ) -> Decision:
        """One decision: windows in, stages in contract order, actions out.

        Args:
            observation: what to act on; None keeps the windows as they are.
            noise: [horizon, padded action dim] float32; None draws it from (seed, index).
            previous: the chunk that the robot goes on with, to be continued, in a plan that was
                loaded with ``real_time_chunking``. Kept rows come back, rounded to float32.
            split: replay stage by stage instead of the whole decision at once; equal bits.
        """
        previous = self.engine.guide.checked(previous)
        if observation is not None:
            self.observe(observation)
        self.engine.admit(self)
        self._write_noise(noise)
        self._write_guidance(previous)
        stages = self.contract.decision_stages
        names = tuple(stage.name for stage in stages)
        for stage in stages:
            self.ledger.check(stage, ran=names)
        timings: dict[str, float] = {}
        for stage in stages[:-1] if split else ():
            timings |= self.engine.replay(self, (stage,), self._shape())
        return self._finish(timings | self._replay_last(stages[-1:] if split else stages))

    def act(
        self,
        *,
        noise: Array | None = None,
        previous: Previous | None = None,
        allow_stale: bool = False,
    ) -> Decision:
        """The last stage alone, on the retained results of those before it; else as `decide`."""
        previous = self.engine.guide.checked(previous)
        self.engine.admit(self)
        self._write_noise(noise)
        self._write_guidance(previous)
        stage = self.contract.decision_stages[-1]
        self.ledger.check(stage, allow_stale=allow_stale)
        return self._finish(self._replay_last((stage,)))

    def read(self, output: str) -> Array:
        """A host copy of an output window."""
        spec = self.contract.output(output)
        self.engine.admit(self)
        return self.engine.device.read(self.buffers[spec.buffer])

    def snapshot(self, name: str) -> CapsuleInfo:
        """Save the retained state under ``name``; see :meth:`CapsuleStore.save` for errors."""
        engine = self.engine
        copier = engine.admit(self).copier
        return engine.capsules.save(name, self.name, self.host_state(), copier)

    def restore(self, name: str) -> CapsuleInfo:
        """Resume from a capsule of this session: state, prompt, decision index.

        The input windows count as unwritten afterwards: ``act`` may follow at once, a new context
        needs a new observation. CapsuleError when unknown or foreign; nothing changes then.
        """
        engine = self.engine
        held = engine.store.find(name, self.name)
        engine.admit(self, held)
        self.resume(held.host)
        return held.info()

    def export(self) -> Export:
        """Let a host of this process drive this session through the C interface.

        Until the export is closed, all sessions of the engine are the C interface's: whatever would
        use or change their state here raises SessionError. ContractError or DeviceError where the
        plan or this installation cannot be exported; nothing changes then.
        """
        return self.engine.export(self).open(self)

    def host_state(self) -> HostState:
        """The host's part of the state, with the lineage of what is retained."""
        host = self._host
        if self.ledger.told is not host.lineage:
            host = self._host = replace(host, lineage=self.ledger.lineage())
        return host

    def resume(self, host: HostState) -> None:
        """Take over ``host``; the engine has put the matching regions in place."""
        self._host = host
        self.ledger.restore(host.lineage)

    def take_over(self, host: HostState, page: Page) -> None:
        """Go on from what the C interface left; the engine knows where the regions are."""
        self._host = host
        self.ledger.turn_to(page)

    def _shape(self) -> ShapeKey:
        if self._host.shape is None:
            raise InputError(
                f"session {self.name!r}",
                expected="an observation",
                got="none yet",
                remedy="observe() first",
            )
        return self._host.shape

    def _checked(self, values: Mapping[str, Array]) -> dict[str, Array]:
        return {
            name: checked_value(self.contract.input(name), value) for name, value in values.items()
        }

    def _write(self, values: Mapping[str, Array], shape: ShapeKey) -> None:
        self.select_shape(shape)
        transforms: dict[str, list[str]] = {}
        for name, value in values.items():
            spec = self.contract.input(name)
            if spec.update is Update.STAGED:
                transforms.setdefault(str(spec.transform), []).append(name)
            else:
                self._fill(spec, value)
        for transform, names in transforms.items():
            self._stage(self.contract.stage(transform), names, values)

    def _stage(self, transform: StageSpec, names: list[str], values: Mapping[str, Array]) -> None:
        staged = self._host.staged
        same = all(
            name in staged and staged[name].tobytes() == values[name].tobytes() for name in names
        )
        if same and self.ledger.is_made(transform.name) and not self.ledger.announced(names):
            return  # the retained product is already that of these values
        # Until the transform has run, the retained product is that of neither value.
        others = {name: value for name, value in staged.items() if name not in names}
        self._host = replace(self._host, staged=others)
        for name in names:
            self._fill(self.contract.input(name), values[name])
        self.ledger.check(transform)
        self.engine.replay(self, (transform,), self._shape())
        kept = {name: frozen(values[name]) for name in names}
        self._host = replace(self._host, staged={**others, **kept})

    def _replay_last(self, stages: tuple[StageSpec, ...]) -> dict[str, float]:
        """Replay the stages that end in actions; meanwhile the next decision's noise is drawn."""
        host, shape = self._host, self.contract.input(NOISE).shape
        return self.engine.replay(
            self,
            stages,
            self._shape(),
            outputs=(self.contract.output(ACTIONS).buffer,),
            meanwhile=partial(_drawn, host.seed, host.decisions + 1, shape),
        )

    def _write_noise(self, noise: Array | None) -> None:
        spec = self.contract.input(NOISE)
        if noise is None:
            noise = _drawn(self._host.seed, self._host.decisions, spec.shape)
        self._fill(spec, checked_value(spec, noise))

    def _write_guidance(self, previous: Previous | None) -> None:
        """Every decision says anew what guides it: what guided the last one is past."""
        for name, value in self.engine.guide.windows(previous, self._host.robot_state).items():
            self._fill(self.contract.input(name), value)

    def _finish(self, timings: dict[str, float]) -> Decision:
        raw = self.engine.device.read(self.buffers[self.contract.output(ACTIONS).buffer])
        if not np.isfinite(raw).all():
            row, column = np.argwhere(~np.isfinite(raw))[0]
            raise NumericsError(
                f"actions of session {self.name!r}",
                expected="finite values",
                got=f"{raw[row, column]} at row {row}, dimension {column}",
                remedy="check the weights and the precision plan",
            )
        host = self._host
        # With its lineage: a snapshot that follows has nothing left to put together.
        self._host = replace(host, decisions=host.decisions + 1, lineage=self.ledger.lineage())
        return Decision(
            index=host.decisions,
            actions=self.processor.decode(raw, host.robot_state),
            raw=raw,
            stage_ms=timings,
            stamp_ns=host.stamp_ns,
        )

    def _fill(self, spec: InputSpec, value: Array) -> None:
        self.engine.device.write(self.buffers[spec.buffer], value)
        self.ledger.written([spec.name])


def noise_for(seed: int, index: int, shape: tuple[int, ...]) -> Array:
    """Standard normal float32 noise of decision ``index``: a pure function of its arguments."""
    bits = np.random.Philox(key=seed, counter=[0, 0, 0, index])
    return np.random.Generator(bits).standard_normal(shape, dtype=np.float32)


#: Keeps what was drawn ahead of its decision, for the sessions of a process.
_drawn = lru_cache(maxsize=64)(noise_for)


def checked_value(spec: InputSpec, value: Array) -> Array:
    """``value`` as an array; InputError on a wrong shape or dtype, or a value not finite."""
    value = as_array(f"input {spec.name!r}", value)
    expected = NUMPY_DTYPES[spec.dtype]
    fits = value.shape == spec.shape or (
        spec.shorter and value.ndim == 1 and 0 < value.size <= spec.shape[0]
    )
    if not fits or value.dtype != expected:
        most = "at most " if spec.shorter else ""
        raise InputError(
            f"input {spec.name!r}",
            expected=f"{most}{list(spec.shape)} {expected}",
            got=f"{list(value.shape)} {value.dtype}",
        )
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        raise InputError(f"input {spec.name!r}", expected="finite values", got="NaN or infinity")
    return value
