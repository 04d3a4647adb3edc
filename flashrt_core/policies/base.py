"""What a policy is to the package: a folder whose ``POLICY`` fulfils :class:`Policy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from ..contract import Contract, ShapeKey
from ..errors import InputError
from ..images import Frame
from ..kernels.op import Lane
from ..precision import Precision, Site
from ..tensors import TensorSource, TensorSpec, WeightsPart
from .measures import Measures

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Prepared:
    """An image of a camera and what its windows hold of it, made before the rest was there.

    Attributes:
        view: name of the camera.
        image: [H, W, 3] uint8 RGB, or a raw image; it must not change any more.
        values: input name -> window value, as :meth:`Processor.encode` makes them.
    """

    view: str
    image: Array | Frame
    values: Mapping[str, Array]


@dataclass(frozen=True)
class Observation:
    """What the robot saw and felt at one moment.

    Attributes:
        images: view name -> [H, W, 3] uint8 RGB of any size, or a raw image as its camera sent it;
            or either of them prepared (:meth:`Processor.prepare`). A view may be absent, masked,
            where the plan was loaded for that.
        state: [state_dim] float32 in robot units, or None for a policy that takes none.
        stamp_ns: time of the newest part, nanoseconds.
        stamps_ns: time of each part, by whatever names the host has for them, none of them later
            than ``stamp_ns``. They go where the context goes, into capsules and forks; empty: how
            old each part is will be unknown there.
    """

    images: Mapping[str, Array | Frame | Prepared]
    state: Array | None = None
    stamp_ns: int = 0
    stamps_ns: Mapping[str, int] = field(default_factory=dict)


def as_array(what: str, value: object) -> Array:
    """``value`` as an array, itself if it is one; InputError where NumPy makes none of it."""
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            what, expected="an array", got=f"{type(value).__name__}: {error}"
        ) from error


@dataclass(frozen=True)
class Deployment:
    """What a checkpoint says beside its weights.

    Attributes:
        origin: "random", or the implementation whose format it is.
        overrides: values of the policy's configuration that it fixes; options still override them.
        cameras: its own names of the cameras, in the order of the policy's slots.
        state_dim, action_dim: numbers of the robot it was trained with; None where it does not say.
        details: whatever else the policy's processor needs of it.
        preset: whose sizes its tensors have; None where they are of none.
        parts: files that the weights lie in, where it is not the folder's one file or list.
    """

    origin: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    cameras: tuple[str, ...] = ()
    state_dim: int | None = None
    action_dim: int | None = None
    details: Any = None
    preset: str | None = None
    parts: tuple[WeightsPart, ...] = ()


@dataclass(frozen=True)
class ProcessorOptions:
    """What a deployment tells the host-side transforms.

    Attributes:
        views: names of the cameras in use (a subset of the policy's slots).
        state_dim: numbers in the robot's state.
        action_dim: numbers in one action row of the robot.
        norm_stats: file with normalisation statistics; None means those of the deployment.
        tokenizer: file of the text encoding; None means the deployment's, or for random weights
            the small one that ships.
        deployment: what the checkpoint says; None means random weights.
        delta_actions: for each action dimension whether the network's value is to be added to the
            state; None means as the deployment says.
        absent_views: how many of ``views`` an observation may lack.
    """

    views: tuple[str, ...]
    state_dim: int
    action_dim: int
    norm_stats: Path | None = None
    tokenizer: Path | None = None
    deployment: Deployment | None = None
    delta_actions: tuple[bool, ...] | None = None
    absent_views: int = 0


class Processor(Protocol):
    """Host-side transforms between robot units and the policy's windows. Stateless.

    Attributes:
        views: names of the cameras in use, in slot order.
        state_dim, action_dim: numbers of the robot.
        relative: actions, by index, that decode() adds the state to.
        square: whether a camera's picture has to be as high as it is wide.
        identity: what the transforms are, part by part in readable text that holds digests of
            statistics and of the text encoding. State saved under one does not fit another.
    """

    views: tuple[str, ...]
    state_dim: int
    action_dim: int
    relative: tuple[int, ...]
    square: bool
    identity: Mapping[str, str]

    @property
    def encoding(self) -> Mapping[str, str]:
        """The parts of ``identity`` that :meth:`encode` depends on: what the network reads."""

    def check_prompt(self, text: str) -> None:
        """InputError when ``text`` is empty or cannot fit the largest bucket."""

    def checked_state(self, state: Array | None) -> Array | None:
        """[state_dim] float64; InputError on what is no state of the robot, and on None where the
        network reads it.
        """

    def encode(self, observation: Observation, prompt: str) -> dict[str, Array]:
        """Input name -> window value. InputError names what is wrong with the observation.

        Values may share memory with the observation.
        """

    def prepare(self, view: str, image: Array | Frame) -> Array | Frame | Prepared:
        """Do now for one image what :meth:`encode` would do, where the policy can; errors as there.

        What it gives stands for the image in an observation, which must not change any more.
        """

    def check_windows(self, values: Mapping[str, Array]) -> None:
        """InputError where values of a host that encodes on its own contradict each other.

        Each has the type and shape of its input; what :meth:`encode` made is not asked about.
        """

    def prompt_tokens(self, values: Mapping[str, Array]) -> int:
        """Prompt rows that encoded ``values`` need; picks the bucket."""

    def decode(self, actions: Array, state: Array | None) -> Array:
        """Raw actions [H, padded] -> [H, action_dim] float32 in robot units."""

    def encode_actions(self, actions: Array, state: Array | None) -> Array:
        """The inverse of :meth:`decode`: [n, action_dim] in robot units -> [n, padded] float32.

        NaN where the network has no number for an action, the padded columns among them. Asked only
        where plans have guidance.
        """


class HistoryProcessor(Processor, Protocol):
    """Of a policy whose decisions build on each other.

    What :meth:`Processor.encode` makes of an observation's images is one picture a camera, where
    the window takes several.
    """

    def encode_pictures(self, images: Mapping[str, Array | Frame | Prepared]) -> dict[str, Array]:
        """Input name -> one picture, of every camera; InputError names what is wrong."""


@dataclass(frozen=True)
class Product:
    """What a stage made, beside what it should have made; both [rows, columns] float32.

    The last product of a decision is its actions.
    """

    stage: str
    name: str
    found: Array
    expected: Array


class Qualifier(Protocol):
    """A policy's slow reference on the weights of a plan."""

    def products(
        self,
        read: Callable[[str], Array],
        values: Mapping[str, Array],
        noise: Any,
        actions: Array,
    ) -> list[Product]:
        """The products of one decision, in stage order.

        ``read`` gives a buffer by name as it is after the decision, ``values`` are the windows it
        was made from, raw ``actions`` those of the decision, ``noise`` its noise: [H, A] float32,
        or arrays by input where several take some. With a history it is an episode's first one.
        """

    def actions(self, values: Mapping[str, Array], noise: Any, turn: int = 0) -> Array:
        """The raw actions [H, padded action dim] float32 alone, of windows and noise.

        With a history: of decision ``turn`` of an episode; those before were asked for in order.
        """


class Policy(Protocol):
    """One policy family."""

    name: str
    presets: tuple[str, ...]
    slots: tuple[str, ...]  # camera names it knows, in order
    masks_views: bool  # whether a decision may do without some of its cameras
    continues_chunks: bool  # whether one may be guided towards the chunk before it
    looks_back: bool  # whether decisions build on each other: the contract has a history
    sites: Mapping[str, Site]  # its dense products
    measures: Measures  # how it is measured

    def deployment(self, checkpoint: Path | None, norm_stats: Path | None) -> Deployment:
        """What a checkpoint says beside its weights; None for random ones.

        WeightsError when it is none of this policy's, OptionError on unusable statistics.
        """

    def config(self, preset: str, **overrides: Any) -> Any:
        """A frozen dataclass of sizes; OptionError on an unknown preset, name or bad value."""

    def of_activations(self, config: Any) -> Any:
        """The configuration without what no activation depends on."""

    def precision(self, value: str | Path) -> Precision:
        """The plan of a preset's name or of a YAML file; OptionError on anything else."""

    def shapes(self, config: Any, views: int) -> tuple[ShapeKey, ...]:
        """The shapes to capture, one a prompt bucket."""

    def contract(
        self,
        config: Any,
        shapes: tuple[ShapeKey, ...],
        views: tuple[str, ...],
        precision: str | Precision,
    ) -> Contract:
        """The execution contract; OptionError on an unknown precision plan."""

    def tensors(self, config: Any) -> dict[str, TensorSpec]:
        """Checkpoint tensor names, shapes and the statistics of a random stand-in."""

    def pack(self, config: Any, source: TensorSource, buffers: Mapping[str, Tensor]) -> None:
        """Fill the static buffers from checkpoint tensors."""

    @property
    def body(self) -> Callable[..., Callable[[Lane, Mapping[str, Tensor]], None]]:
        """A method that makes the body of a stage, of configuration, contract, name and shape.

        Where the contract has a history it takes the number of a variant, too.
        """

    def processor(self, config: Any, options: ProcessorOptions) -> Processor:
        """Host-side transforms; OptionError when the options do not fit the policy."""

    def qualifier(self, config: Any, source: TensorSource, place: str) -> Qualifier:
        """The reference to compare a plan with; torch computes it at ``place``."""
