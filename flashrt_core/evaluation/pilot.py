"""Who decides in an episode: a pipeline of the engine, or the policy's reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from ..errors import OptionError
from ..load import LoadOptions, describe, load, processor_of, qualifier
from ..policies.base import Observation
from ..session import NOISE, Session, noise_for

Array = np.ndarray[Any, Any]
_BRANCH = 1 << 32  # between the seeds of the branches of a start; starts are fewer


class Pilot(Protocol):
    """Makes chunks of observations.

    Attributes:
        name: as it stands in results.
        noise_shape: of a decision's noise.
        fingerprint: digest of the plan; empty for a reference.
    """

    name: str
    noise_shape: tuple[int, ...]
    fingerprint: str

    def begin(self, instruction: str) -> None:
        """An episode with this instruction begins; InputError where it cannot be one."""

    def decide(self, observation: Observation, noise: Array | None) -> Array:
        """[H, action_dim] float32, robot units; noise None: as the session's own seed says."""

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
        self.noise_shape = self.session.contract.input(NOISE).shape
        self.fingerprint = self.session.fingerprint.digest

    def begin(self, instruction: str) -> None:
        """Set the prompt."""
        self.session.set_prompt(instruction)

    def decide(self, observation: Observation, noise: Array | None) -> Array:
        """One whole decision."""
        return self.session.decide(observation, noise=noise).actions

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
        self.noise_shape = describe(plain).contract.input(NOISE).shape
        self._processor = processor_of(plain)
        self._qualifier = qualifier(plain, place)
        self._prompt = ""

    def begin(self, instruction: str) -> None:
        """Remember the prompt."""
        self._processor.check_prompt(instruction)
        self._prompt = instruction

    def decide(self, observation: Observation, noise: Array | None) -> Array:
        """One decision; OptionError without noise, as a reference has no seed."""
        if noise is None:
            raise OptionError("noise of the reference", expected="an array", got="none")
        values = self._processor.encode(observation, self._prompt)
        actions = self._qualifier.actions(values, noise)
        return self._processor.decode(actions, observation.state)

    def close(self) -> None:
        """It holds nothing that has to be given back."""


def paired_noise(seed: int, index: int, shape: tuple[int, ...], branch: int = 0) -> Array:
    """Noise of decision ``index`` from the start ``seed``: the same whoever decides."""
    return noise_for(seed + branch * _BRANCH, index, shape)
