"""Who decides in an episode: a pipeline of the engine, or the policy's reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from ..capsule.state import HostState
from ..contract import Contract
from ..drawing import Noise, NoiseInputs
from ..errors import OptionError
from ..load import LoadOptions, describe, load, processor_of, qualifier
from ..past import Past
from ..policies.base import Observation
from ..session import NOISE, Session, noise_for

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...] | Mapping[str, tuple[int, ...]]
_BRANCH = 1 << 32  # between the seeds of the branches of a start; starts are fewer


class Pilot(Protocol):
    """Makes chunks of observations.

    Attributes:
        name: as it stands in results.
        noise_shape: of a decision's noise; by input where several take some.
        fingerprint: digest of the plan; empty for a reference.
        stride: rows between two pictures that are kept while a chunk is executed, all of it; 0:
            decisions stand alone.
    """

    name: str
    noise_shape: Shape
    fingerprint: str
    stride: int

    def begin(self, instruction: str) -> None:
        """An episode with this instruction begins; InputError where it cannot be one."""

    def look(self, images: Mapping[str, Any]) -> None:
        """Keep a picture of every camera, on the way through a chunk."""

    def decide(
        self, observation: Observation, noise: Noise | None, executed: Array | None = None
    ) -> Array:
        """[H, action_dim] float32, robot units; noise None: as the session's own seed says.

        ``executed``: [rows, action_dim], where another chunk than the last one was executed.
        """

    def close(self) -> None:
        """Release what it runs on."""


class EnginePilot:
    """A plan on the engine.

    Args:
        options: what to load; errors as :func:`~flashrt_core.load.load`.
        sessions: how many sessions may exist at once, each branch being one.
    """

    def __init__(self, options: LoadOptions, sessions: int = 1) -> None:
        self.name = f"{options.device} {options.precision}"
        self.session: Session = load(replace(options, max_sessions=sessions, capsule_slots=1))
        self.noise_shape = noise_shape(self.session.contract)
        self.fingerprint = self.session.fingerprint.digest
        self.stride = stride(self.session.contract)
        self.pictures: list[Mapping[str, Any]] = []  #: on the way through the chunk under way

    def begin(self, instruction: str) -> None:
        """Set the prompt; a new episode."""
        self.session.set_prompt(instruction)
        if self.stride:
            self.session.restart()
            self.pictures.clear()

    def look(self, images: Mapping[str, Any]) -> None:
        """Keep it in the session."""
        self.session.record(images)
        self.pictures.append(images)

    def decide(
        self, observation: Observation, noise: Noise | None, executed: Array | None = None
    ) -> Array:
        """One whole decision."""
        made = self.session.decide(observation, noise=noise, executed=executed)
        self.pictures.clear()
        return made.actions

    def close(self) -> None:
        """Close the engine."""
        self.session.engine.close()


class ReferencePilot:
    """The policy's reference in float32 on torch, with the pipeline's host-side transforms.

    Args:
        options: whose weights; device and precision plan do not count.
        place: where torch computes, ``cpu`` or ``cuda``.
    """

    def __init__(self, options: LoadOptions, place: str = "cpu") -> None:
        plain = replace(options, device="cpu", precision="fp32", calibration=None)
        self.name, self.fingerprint = "reference", ""
        if options.threads:
            torch.set_num_threads(options.threads)
        contract = describe(plain).contract
        self.noise_shape, self.stride = noise_shape(contract), stride(contract)
        self._contract = contract
        self._processor = processor_of(plain)
        self._past = Past(contract, self._processor)
        self._host = HostState()
        self._qualifier = qualifier(plain, place)
        self._prompt = ""

    def begin(self, instruction: str) -> None:
        """Remember the prompt; a new episode."""
        self._processor.check_prompt(instruction)
        self._prompt = instruction
        self._past.clear()
        self._host = HostState()

    def look(self, images: Mapping[str, Any]) -> None:
        """Keep it for the next decision."""
        self._past.record(images, self._host.turn, self.name)

    def decide(
        self, observation: Observation, noise: Noise | None, executed: Array | None = None
    ) -> Array:
        """One decision; OptionError without noise, as a reference has no seed."""
        if noise is None:
            raise OptionError("noise of the reference", expected="an array", got="none")
        values = self._processor.encode(observation, self._prompt)
        history, turn = self._contract.history, self._host.turn
        if history is None:
            actions = self._qualifier.actions(values, noise)
            return self._processor.decode(actions, observation.state)
        values = self._past.windows(values, self._host, executed)
        actions = self._qualifier.actions(values, noise, turn)
        self._past.clear()
        self._host = HostState(turn=turn + 1, raw=actions, robot_state=observation.state)
        return self._processor.decode(actions, observation.state)[
            -history.rows[history.variant(turn)] :
        ]

    def close(self) -> None:
        """It holds nothing that has to be given back."""


def noise_shape(contract: Contract) -> Shape:
    """Of the noise of a decision: [H, A], or by input where several take some."""
    shapes = NoiseInputs(contract).shapes
    return shapes if len(shapes) > 1 else shapes[NOISE]


def stride(contract: Contract) -> int:
    """Executed rows between two pictures; 0 where decisions stand alone."""
    return 0 if contract.history is None else contract.history.stride


def paired_noise(seed: int, index: int, shape: Shape, branch: int = 0) -> Any:
    """Noise of decision ``index`` from the start ``seed``: the same whoever decides."""
    key = seed + branch * _BRANCH
    if isinstance(shape, tuple):
        return noise_for(key, index, shape)
    return {
        name: noise_for(key, index, each, stream)
        for stream, (name, each) in enumerate(shape.items())
    }
