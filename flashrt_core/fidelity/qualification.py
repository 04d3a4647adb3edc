"""A pipeline against its reference: error of each stage and joint, and gates that it must pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import inf
from typing import Any

import numpy as np

from ..errors import InputError, OptionError
from ..observations import Sample, naming, number_of, require_apart
from ..policies.base import Product, Qualifier
from ..scales import Calibration
from ..session import NOISE, Session

Array = np.ndarray[Any, Any]

PERCENTILES = (0, 0.1, 1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9, 100)


@dataclass(frozen=True)
class Gates:
    """Limits that a qualified pipeline keeps.

    Attributes:
        min_cosine: between a row of actions and the reference's, the least over all rows.
        max_error: largest absolute difference of an action, in the network's units (about [-1, 1]).
        max_stage_error: root mean square of a stage's error over that of what was expected.
        mean_cosine: as ``min_cosine``, the mean over all rows; -1 is no limit.
    """

    min_cosine: float
    max_error: float
    max_stage_error: float
    mean_cosine: float = -1.0


#: By the tier of a precision plan. float32 leaves only the order of summation. bfloat16 keeps 8
#: bits (2e-3 a rounding); over the depth that grew to 7e-3 of keys and values at full depth and
#: narrow width. E4M3 keeps 4 bits (2.6 % a rounding, root mean square, of weights and inputs each).
#: Weights of 4 bits keep a third of that (8 % a weight).
GATES: Mapping[str, Gates] = {
    "fp32": Gates(0.999999, max_error=1e-4, max_stage_error=1e-4, mean_cosine=0.999999),
    "bf16": Gates(0.999, max_error=0.1, max_stage_error=0.03, mean_cosine=0.9995),
    "fp8": Gates(0.995, max_error=0.5, max_stage_error=0.15, mean_cosine=0.999),
    "int4": Gates(0.98, max_error=1.0, max_stage_error=0.2, mean_cosine=0.99),
}


@dataclass(frozen=True)
class Error:
    """How far something is from what was expected, over all decisions.

    Attributes:
        max_abs: largest absolute difference.
        rms: root mean square of the difference.
        relative: ``rms`` over the root mean square of what was expected.
        min_cosine: least cosine between a row and the expected row.
        mean_cosine: mean of those cosines.
        cosines: percentile ("1") -> their value there.
        errors: percentile -> absolute difference there.
    """

    max_abs: float
    rms: float
    relative: float
    min_cosine: float
    mean_cosine: float
    cosines: Mapping[str, float]
    errors: Mapping[str, float]


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
        precision: the plan.
        calibration: digest of its scales; "none" without.
        decisions: pairs of observation and noise that were compared.
        stages: "stage: product" -> its error, network units.
        joints: error of each action dimension, robot units.
        gates: the checks.
        fingerprint: digest of the plan.
        transforms: identity of its host-side transforms.
    """

    precision: str
    calibration: str
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
        """Plain values for JSON; ``fidelity`` is the decision in three numbers."""
        *_, decision = self.stages.values()
        fidelity = {
            "cosine_mean": decision.mean_cosine,
            "cosine_min_row": decision.min_cosine,
            "pairs": self.decisions,
        }
        return {**asdict(self), "fidelity": fidelity, "passed": self.passed}


#: What a limit may be.
_LIMITS = {
    "min_cosine": (-1.0, 1.0),
    "mean_cosine": (-1.0, 1.0),
    "max_error": (0.0, inf),
    "max_stage_error": (0.0, inf),
}


def gates_for(tier: str, **changes: float | None) -> Gates:
    """The gates of a tier of precision plans with single limits replaced; None keeps a limit.

    OptionError on a limit that none can be, and on a tier without gates when not every limit is
    given.
    """
    for name, limit in changes.items():
        least, most = _LIMITS[name]
        if limit is not None and not least <= limit <= most:  # and NaN, which nothing would pass
            raise OptionError(
                f"option {name!r}",
                expected=f"a number of {least:g} to {most:g}" if most < inf else "0 or more",
                got=limit,
            )
    given = {name: value for name, value in changes.items() if value is not None}
    if tier in GATES:
        return replace(GATES[tier], **given)
    try:
        return Gates(**given)
    except TypeError as error:
        raise OptionError(
            f"gates of precision {tier!r}",
            expected=f"one of {sorted(GATES)}, or every limit",
            got=f"limits {sorted(given)}",
        ) from error


def qualify(
    session: Session,
    qualifier: Qualifier,
    gates: Gates,
    observations: Iterable[Sample],
    progress: Callable[[int], None] | None = None,
    *,
    noises: int = 1,
    calibration: Calibration | None = None,
    origin: str = "",
) -> Report:
    """Decide on each observation, with so many noises, and compare with the reference.

    Args:
        session: the pipeline.
        qualifier: its reference, on the same weights.
        gates: what it must keep.
        observations: prompt and observation of each decision, at least one.
        progress: told how many decisions are done.
        noises: decisions an observation.
        calibration: of the pipeline, where it has one.
        origin: where the observations come from, for messages.

    Raises:
        InputError: an observation does not fit, is one of the calibration's, or there is none.
    """
    products: dict[str, list[Product]] = {}
    joints: list[Product] = []
    used = frozenset(calibration.observations if calibration else ())
    for count, sample in enumerate(observations, 1):
        seen = sample[1]
        require_apart(sample, used, number_of(count, origin))
        with naming(number_of(count, origin)):
            values = _encoded(session, sample)
        for index in range(noises):
            noise = _noise(session, count, index)
            # On the retained context a decision has the same bits as from the images. Where
            # decisions build on each other, an episode's first is compared.
            again = bool(index) and session.contract.history is None
            session.restart()
            decision = session.act(noise=noise) if again else session.decide(seen, noise=noise)
            found = qualifier.products(partial(_read, session), values, noise, decision.raw)
            for product in found:
                products.setdefault(f"{product.stage}: {product.name}", []).append(product)
            joints.append(_in_robot_units(session, found[-1], decision.actions, seen.state))
            if progress is not None:
                progress(len(joints))
    if not joints:
        raise InputError("observations", expected="at least one", got="none")
    stages = {name: error_of(each) for name, each in products.items()}
    return Report(
        precision=session.fingerprint.parts["precision"],
        calibration=session.fingerprint.parts["calibration"],
        decisions=len(joints),
        stages=stages,
        joints=[_joint(joints, index) for index in range(session.processor.action_dim)],
        gates=list(_check(stages, gates)),
        fingerprint=session.fingerprint.digest,
        transforms=session.processor.identity,
    )


def _encoded(session: Session, sample: Sample) -> dict[str, Any]:
    """What the network's inputs are given, under that prompt."""
    prompt, observation = sample
    session.set_prompt(prompt)
    return session.processor.encode(observation, prompt)


def _in_robot_units(session: Session, last: Product, actions: Any, state: Any) -> Product:
    """What the robot is told, and what it would be told by the reference."""
    expected = session.processor.decode(last.expected, state)
    return Product("robot", "actions", actions, expected[-len(actions) :])


def _noise(session: Session, count: int, index: int) -> Any:
    """Of one pair: an array, or arrays by input where several take some."""
    drawn = session.engine.noise.drawn(count, index)
    return drawn if len(drawn) > 1 else drawn[NOISE]


def error_of(products: list[Product]) -> Error:
    """Error over several products of one name."""
    found = np.concatenate([product.found.astype(np.float64) for product in products])
    expected = np.concatenate([product.expected.astype(np.float64) for product in products])
    difference = found - expected
    rms = float(np.sqrt(np.mean(difference**2)))
    scale = float(np.sqrt(np.mean(expected**2)))
    cosines = row_cosines(found, expected)
    return Error(
        max_abs=float(np.abs(difference).max()),
        rms=rms,
        relative=rms / scale if scale else float(rms > 0.0),
        min_cosine=float(cosines.min()),
        mean_cosine=float(cosines.mean()),
        cosines=_percentiles(cosines),
        errors=_percentiles(np.abs(difference)),
    )


def _percentiles(values: Array) -> dict[str, float]:
    points = np.percentile(values, PERCENTILES)
    return {str(name): float(point) for name, point in zip(PERCENTILES, points, strict=True)}


def row_cosines(found: Array, expected: Array) -> Array:
    """Cosine of each pair of rows; two rows of zeros are equal, one of them is orthogonal."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(expected, axis=1)
    both_zero = ~(found.any(axis=1) | expected.any(axis=1))
    products = (found * expected).sum(axis=1)
    cosines: Array = np.array(both_zero, dtype=np.float64)
    np.divide(products, lengths, out=cosines, where=lengths > 0)
    return np.minimum(cosines, 1.0)


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
    for which, limit, cosine in (
        ("mean", gates.mean_cosine, decision.mean_cosine),
        ("least", gates.min_cosine, decision.min_cosine),
    ):
        yield Gate(f"{which} cosine of action rows", limit, cosine, cosine >= limit)
    error = decision.max_abs
    yield Gate("largest action error", gates.max_error, error, error <= gates.max_error)
    for name, stage in stages.items():
        limit, found = gates.max_stage_error, stage.relative
        yield Gate(f"relative error of {name}", limit, found, found <= limit)


def _read(session: Session, name: str) -> Array:
    return session.engine.device.read(session.buffers[name])
