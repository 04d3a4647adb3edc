"""Latency of whole decisions, with a fresh observation every time.

Two clocks: events inside the replayed graph (what the GPU takes), and the wall clock around
``Session.decide`` (host images in, host actions out). Weights are packed once and copied from case
to case on the device.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from ..checkpoint import file_of
from ..contract import Role, ShapeKey
from ..devices.cuda import CudaDevice, CudaProgram
from ..engine import Plan
from ..errors import OptionError
from ..fingerprint import Fingerprint
from ..load import LoadOptions, configuration, make_plan, precision_of, start
from ..policies import find_policy
from ..policies.base import Observation
from ..session import Session
from ..weights import checkpoint_path, open_weights
from .case import Case, percentiles
from .layers import LayerTrace, layer_traces
from .machine import gpu_state
from .roofline import CEILINGS, floor_ms
from .scene import OBSERVATIONS, PROMPT, STATE_DIM, look_back, observations
from .trace import KernelTime, totals, trace

_WARM_UP = 30
#: What is measured when nothing is said.
PLAN = LoadOptions(preset="base", device="cuda", precision="bf16")


@dataclass
class CaseResult:
    """What was measured of one case; times in milliseconds."""

    case: Case
    replay: np.ndarray[Any, Any]
    call: np.ndarray[Any, Any]
    stages: dict[str, np.ndarray[Any, Any]]
    kernels: int
    stage_kernels: dict[str, int]
    expert_layer_us: float
    floor: dict[str, float]
    fingerprint: Fingerprint
    actions: np.ndarray[Any, Any] = field(repr=False)

    def to_json(self, precision: str) -> dict[str, Any]:
        """The case as it goes into a result file, as long as it is not traced."""
        floor = sum(self.floor.values())
        return {
            "views": self.case.views,
            "prompt_tokens": self.case.prompt_tokens,
            "horizon": self.case.horizon,
            "steps": self.case.steps,
            "precision": precision,
            "fingerprint": self.fingerprint.digest,
            "calibration": self.fingerprint.parts["calibration"],
            "replay_ms": percentiles(self.replay),
            "call_ms": percentiles(self.call),
            "samples": len(self.replay),
            "kernels": self.kernels,
            "stage_kernels": self.stage_kernels,
            "stage_ms": {name: percentiles(times)["p50"] for name, times in self.stages.items()},
            "expert_layer_us": round(self.expert_layer_us, 2),
            "roofline_ms": {name: round(value, 3) for name, value in self.floor.items()},
            "share_of_roofline": round(floor / percentiles(self.replay)["p50"], 3)
            if floor
            else None,
            **CaseTrace().to_json(),
        }


@dataclass
class CaseTrace:
    """Every kernel of a case's decision, and a typical layer of each part of the network."""

    kernels: list[KernelTime] = field(default_factory=list)
    layers: dict[str, LayerTrace] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What a result file says of it in the line of its case."""
        return {
            "kernel_totals": totals(self.kernels),
            "layers": {name: layer.to_json() for name, layer in self.layers.items()},
        }


class Bench:
    """Runs cases of one policy on the CUDA device.

    The engine of the first case stays until :meth:`close`, as the others copy its weights; so the
    first case is the one with the most prefix rows. A bench that was closed packs them again.

    Args:
        plan: what is measured, but for the sizes that a case has.

    Attributes:
        plan: as it was given.
        library: digest of the kernels that ran; None before the first case.
        gpu: what nvidia-smi tells, read right behind the timed decisions of the latest case.
    """

    def __init__(self, plan: LoadOptions) -> None:
        self.plan = plan
        self.library: str | None = None
        self.gpu: dict[str, str] = {}
        self._options = replace(plan, max_sessions=1, capsule_slots=0)
        self._packed: Session | None = None
        self._packed_for: tuple[Case, str] | None = None

    def run(
        self, cases: Sequence[Case], samples: int, *, overlap: str = "on"
    ) -> Iterator[CaseResult]:
        """Measures each case with that overlap of kernels."""
        for case in cases:
            with self._session(case, overlap) as session:
                result = _measure(session, case, samples, self._options)
                self.gpu = gpu_state()
                yield result

    def traces(self, cases: Sequence[Case], *, overlap: str = "on") -> Iterator[CaseTrace]:
        """The kernels of each case, to be asked for behind all that is timed in this process: where
        a profiler ran once, later replays take some percent longer.
        """
        for case in cases:
            with self._session(case, overlap) as session:
                _warm_up(session, observations(session, case))
                yield _trace(session, shaped(self._options, case))

    def close(self) -> None:
        """Release what is still on the device."""
        if self._packed is not None:
            self._packed.engine.close()
        self._packed = self._packed_for = None

    @contextmanager
    def _session(self, case: Case, overlap: str) -> Iterator[Session]:
        """A session of that case; on the device no longer than needed, as two may not fit."""
        asked = (case, overlap)
        session = self._packed if asked == self._packed_for else None
        session = session or self._start(case, overlap)
        try:
            yield session
        finally:
            if session is not self._packed:
                session.engine.close()
                gc.collect()

    def _start(self, case: Case, overlap: str) -> Session:
        options = replace(shaped(self._options, case), overlap=overlap)
        device = CudaDevice(overlap=overlap)
        try:
            plan = make_plan(options, device)
            packed = self._packed
            if packed is not None:
                plan = replace(
                    plan, pack=lambda buffers: _copy_static(plan, packed, buffers, options)
                )
            session = start(plan, device, options)
        except BaseException:
            device.close()
            raise
        if packed is None:
            self._packed, self._packed_for = session, (case, overlap)
        self.library = device.library
        return session


def check_options(case: Case, plan: LoadOptions) -> None:
    """What loading would refuse of a case: OptionError or WeightsError, before a device is opened.

    Args: as of :class:`Bench`.
    """
    configuration(shaped(plan, case))
    if (path := checkpoint_path(plan.checkpoint)) is None:
        open_weights(plan.checkpoint, {})  # a seed that is none
    else:
        file_of(path)


def shaped(options: LoadOptions, case: Case) -> LoadOptions:
    """A plan of that case's sizes."""
    unknown = options.state_dim is None and checkpoint_path(options.checkpoint) is None
    return replace(
        options,
        state_dim=STATE_DIM if unknown else options.state_dim,
        views=find_policy(options.policy).slots[: case.views],
        horizon=case.horizon,
        steps=case.steps,
        prompt_buckets=(case.prompt_tokens,),
    )


def _warm_up(session: Session, seen: Sequence[Observation]) -> None:
    session.set_prompt(PROMPT)
    for index in range(_WARM_UP + session.contract.ages - 1):  # a history is full then
        look_back(session, seen[index % OBSERVATIONS])
        session.decide(seen[index % OBSERVATIONS])


def _measure(session: Session, case: Case, samples: int, options: LoadOptions) -> CaseResult:
    device = session.engine.device
    assert isinstance(device, CudaDevice)
    seen = observations(session, case)
    _warm_up(session, seen)
    shape, names = session.shape, tuple(s.name for s in session.contract.decision_stages)
    assert shape is not None
    replay, call = np.empty(samples), np.empty(samples)
    stages = {name: np.empty(samples) for name in names}
    for index in range(samples):
        observation = seen[index % OBSERVATIONS]
        look_back(session, observation)  # while a chunk is executed: no part of a decision
        began = perf_counter()
        decision = session.decide(observation)
        call[index] = (perf_counter() - began) * 1e3
        for name in names:
            stages[name][index] = decision.stage_ms[name]
        replay[index] = sum(decision.stage_ms.values())
    own = {stage.name: stage.variants for stage in session.contract.decision_stages}
    parts = {name: session.engine.program(shape, (name,), own[name] - 1) for name in names}
    kernels = {name: getattr(part, "kernels", 0) for name, part in parts.items()}
    _, config = configuration(shaped(options, case))
    layers = find_policy(options.policy).measures.action_layers(config, shape.steps)
    return CaseResult(
        case=case,
        replay=replay,
        call=call,
        stages=stages,
        kernels=_kernels(session, shape, names, kernels),
        stage_kernels=kernels,
        # The two ends of a step are counted in: an upper bound of what a layer takes.
        expert_layer_us=float(np.median(stages["action"])) * 1e3 / layers,
        floor=_floor(device, shape, options, config),
        fingerprint=session.fingerprint,
        actions=_compared(session, seen[0]),
    )


def _kernels(
    session: Session, shape: ShapeKey, names: tuple[str, ...], parts: Mapping[str, int]
) -> int:
    """Of a whole decision: one program, or one a stage."""
    if session.contract.history is not None:
        return sum(parts.values())
    program = session.engine.program(shape, names)
    assert isinstance(program, CudaProgram)
    return program.kernels


def _compared(session: Session, observation: Observation) -> np.ndarray[Any, Any]:
    """Raw actions that other plans' are compared with; of an episode's first decision."""
    session.restart()
    return session.decide(observation, noise=_noise(session)).raw


def _trace(session: Session, options: LoadOptions) -> CaseTrace:
    """Every kernel of a decision; where it is a program a stage, of one stage behind the other."""
    device, shape = session.engine.device, session.shape
    assert isinstance(device, CudaDevice) and shape is not None
    names = tuple(stage.name for stage in session.contract.decision_stages)
    apart = session.contract.history is not None
    _, config = configuration(options)
    depths = dict(find_policy(options.policy).measures.depths(config))
    found = CaseTrace()
    for group in [(name,) for name in names] if apart else [names]:
        last = session.contract.stage(group[-1]).variants - 1
        kernels = trace(device, session.engine.program(shape, group, last))
        found.kernels += kernels
        for part, layer in layer_traces(kernels, depths).items():
            # Those of the last stage have the part's own name.
            name = part if group[-1] == names[-1] else f"{part}.{group[-1]}"
            found.layers[name] = layer
    return found


def _copy_static(
    plan: Plan, before: Session, buffers: dict[str, Tensor], options: LoadOptions
) -> None:
    """Fills the static buffers from those of an engine with the same weights and more rows."""
    _, config = configuration(options)
    measures = find_policy(options.policy).measures
    measures.fill_shaped(config, buffers)
    for spec in plan.contract.buffers:
        if spec.role is Role.STATIC and spec.name not in measures.shaped:
            source = before.engine.buffers[spec.name]
            if source.shape[0] < spec.shape[0] or source.shape[1:] != spec.shape[1:]:
                raise OptionError(
                    "order of the cases", expected="the one with the most prefix rows first"
                )
            buffers[spec.name].copy_(source[: spec.shape[0]])


def _noise(session: Session) -> np.ndarray[Any, Any]:
    shape = session.contract.input("noise").shape
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def _floor(
    device: CudaDevice, shape: ShapeKey, options: LoadOptions, config: Any
) -> dict[str, float]:
    ceiling = CEILINGS.get(device.driver.name)
    if ceiling is None:
        return {}
    products = find_policy(options.policy).measures.products(config, shape)
    return floor_ms(products, ceiling, precision_of(options))
