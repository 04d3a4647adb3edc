"""A pipeline against its reference: error of each stage and joint, and gates that it must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from .errors import InputError, OptionError
from .policies.base import Observation, Product, Qualifier
from .session import NOISE, Session, noise_for

Array = np.ndarray[Any, Any]

_PROMPTS = ("pick up the red block", "open the upper drawer slowly", "wipe the table")
_CAMERA = (240, 320)  # pixels of a made-up camera image: not the network's size


@dataclass(frozen=True)
class Gates:
    """Limits that a qualified pipeline keeps.

    Attributes:
        min_cosine: between a row of actions and the reference's, the least over all rows.
        max_error: largest absolute difference of an action, in the network's units (about [-1, 1]).
        max_stage_error: root mean square of a stage's error over that of what was expected.
    """

    min_cosine: float
    max_error: float
    max_stage_error: float


#: By precision plan. float32 leaves only the order of summation. bfloat16 keeps 8 bits (2e-3 a
#: rounding); over the depth that grew to 7e-3 of keys and values at full depth and narrow width.
GATES: Mapping[str, Gates] = {
    "fp32": Gates(min_cosine=0.999999, max_error=1e-4, max_stage_error=1e-4),
    "bf16": Gates(min_cosine=0.999, max_error=0.1, max_stage_error=0.03),
}


@dataclass(frozen=True)
class Error:
    """How far something is from what was expected, over all decisions.

    Attributes:
        max_abs: largest absolute difference.
        rms: root mean square of the difference.
        relative: ``rms`` over the root mean square of what was expected.
        min_cosine: least cosine between a row and the expected row.
    """

    max_abs: float
    rms: float
    relative: float
    min_cosine: float


@dataclass(frozen=True)
class Gate:
    """One check."""

    name: str
    limit: float
    found: float
    passed: bool


@dataclass(frozen=True)
class Report:
    """What :func:`qualify` found.

    Attributes:
        decisions: how many were compared.
        stages: "stage: product" -> its error, network units.
        joints: error of each action dimension, robot units.
        gates: the checks.
        fingerprint: digest of the plan.
        transforms: identity of its host-side transforms.
    """

    decisions: int
    stages: dict[str, Error]
    joints: list[Error]
    gates: list[Gate]
    fingerprint: str
    transforms: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether every gate was passed."""
        return all(gate.passed for gate in self.gates)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "passed": self.passed}


def gates_for(precision: str, **changes: float | None) -> Gates:
    """The gates of a precision plan with single limits replaced; None keeps a limit.

    OptionError on a plan without gates when not every limit is given.
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if precision in GATES:
        return replace(GATES[precision], **given)
    try:
        return Gates(**given)
    except TypeError as error:
        raise OptionError(
            f"gates of precision {precision!r}",
            expected=f"one of {sorted(GATES)}, or every limit",
            got=f"limits {sorted(given)}",
        ) from error


def qualify(
    session: Session,
    qualifier: Qualifier,
    gates: Gates,
    observations: Iterable[tuple[str, Observation]],
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Decide on each observation and compare with the reference.

    Args:
        session: the pipeline.
        qualifier: its reference, on the same weights.
        gates: what it must keep.
        observations: prompt and observation of each decision, at least one.
        progress: told how many decisions are done.

    Raises:
        InputError: an observation does not fit, or there is none.
    """
    products: dict[str, list[Product]] = {}
    joints: list[Product] = []
    for count, (prompt, observation) in enumerate(observations, 1):
        session.set_prompt(prompt)
        noise = noise_for(count, 0, session.contract.input(NOISE).shape)
        decision = session.decide(observation, noise=noise)
        values = session.processor.encode(observation, prompt)
        found = qualifier.products(lambda name: _read(session, name), values, noise, decision.raw)
        for product in found:
            products.setdefault(f"{product.stage}: {product.name}", []).append(product)
        expected = session.processor.decode(found[-1].expected, observation.state)
        joints.append(Product("robot", "actions", decision.actions, expected))
        if progress is not None:
            progress(count)
    if not joints:
        raise InputError("observations", expected="at least one", got="none")
    stages = {name: error_of(each) for name, each in products.items()}
    return Report(
        decisions=len(joints),
        stages=stages,
        joints=[_joint(joints, index) for index in range(session.processor.action_dim)],
        gates=list(_check(stages, gates)),
        fingerprint=session.fingerprint.digest,
        transforms=session.processor.identity,
    )


def made_up_observations(
    views: tuple[str, ...], state_dim: int, count: int, seed: int = 0
) -> Iterator[tuple[str, Observation]]:
    """Prompts with random scenes: coarse patches and noise, states in [-1, 1]."""
    height, width = _CAMERA
    for index in range(count):
        draw = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, 0, index]))
        images = {}
        for view in views:
            coarse = draw.integers(0, 200, (height // 40, width // 40, 3))
            grain = draw.integers(0, 56, (height, width, 3))
            blocks = coarse.repeat(40, axis=0).repeat(40, axis=1)
            images[view] = (blocks + grain).astype(np.uint8)
        state = draw.uniform(-1.0, 1.0, state_dim).astype(np.float32)
        yield _PROMPTS[index % len(_PROMPTS)], Observation(images, state)


def error_of(products: list[Product]) -> Error:
    """Error over several products of one name."""
    found = np.concatenate([product.found.astype(np.float64) for product in products])
    expected = np.concatenate([product.expected.astype(np.float64) for product in products])
    difference = found - expected
    rms = float(np.sqrt(np.mean(difference**2)))
    scale = float(np.sqrt(np.mean(expected**2)))
    return Error(
        max_abs=float(np.abs(difference).max()),
        rms=rms,
        relative=rms / scale if scale else float(rms > 0.0),
        min_cosine=_min_cosine(found, expected),
    )


def _min_cosine(found: Array, expected: Array) -> float:
    """Least cosine of two rows; two rows of zeros are equal, one of them is orthogonal."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    both_zero = ~(found.any(axis=1) | expected.any(axis=1))
    products = (found * expected).sum(axis=1)
    cosines: Array = np.array(both_zero, dtype=np.float64)
    np.divide(products, lengths, out=cosines, where=lengths > 0)
    return float(np.minimum(cosines, 1.0).min())


def _joint(products: list[Product], index: int) -> Error:
    column = slice(index, index + 1)
    return error_of(
        [
            replace(each, found=each.found[:, column].T, expected=each.expected[:, column].T)
            for each in products
        ]
    )


def _check(stages: Mapping[str, Error], gates: Gates) -> Iterator[Gate]:
    *_, decision = stages.values()
    cosine = decision.min_cosine
    yield Gate("cosine of action rows", gates.min_cosine, cosine, cosine >= gates.min_cosine)
    error = decision.max_abs
    yield Gate("largest action error", gates.max_error, error, error <= gates.max_error)
    for name, stage in stages.items():
        limit, found = gates.max_stage_error, stage.relative
        yield Gate(f"relative error of {name}", limit, found, found <= limit)


def _read(session: Session, name: str) -> Array:
    return session.engine.device.read(session.engine.buffers[name])
