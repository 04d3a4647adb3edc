"""Qualification: what it measures, and that each gate can fail."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from flashrt_core.errors import InputError, OptionError
from flashrt_core.fidelity.qualification import (
    Gates,
    Report,
    error_of,
    gates_for,
    qualify,
)
from flashrt_core.load import LoadOptions, load, qualifier
from flashrt_core.observations import made_up_observations
from flashrt_core.policies.base import Product
from flashrt_core.session import Session

OPTIONS = LoadOptions(max_sessions=1, capsule_slots=0, threads=1)


def open_session(options: LoadOptions = OPTIONS) -> Session:
    return load(options)


def run(
    session: Session,
    options: LoadOptions = OPTIONS,
    gates: Gates | None = None,
    count: int = 2,
    noises: int = 1,
) -> Report:
    observations = made_up_observations(session.processor.views, session.processor.state_dim, count)
    limits = gates or gates_for(options.precision)
    return qualify(session, qualifier(options), limits, observations, noises=noises)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("numerics", ["openpi", "lerobot_bf16"])
def test_the_cpu_pipeline_qualifies(precision: str, numerics: str) -> None:
    options = replace(OPTIONS, precision=precision, numerics=numerics)
    report = run(open_session(options), options)
    assert report.passed
    assert report.decisions == 2
    assert len(report.joints) == 7
    assert next(iter(report.stages)).startswith("prompt")
    assert list(report.stages)[-1] == "decision: actions"
    assert json.loads(json.dumps(report.as_dict()))["passed"] is True
    if precision == "fp32":
        assert report.stages["decision: actions"].max_abs < 2e-5


def spoil(session: Session, buffer: str) -> None:
    """One weight is wrong by a few per cent, as a packing mistake would make it."""
    session.engine.buffers[buffer].mul_(1.03)


@pytest.mark.parametrize(
    ("buffer", "stages"),
    [
        ("trunk.embedding", {"prompt", "context", "decision"}),
        ("vision.fc1_weight", {"context", "decision"}),
        ("trunk.last_kv_weight", {"context", "decision"}),
        ("expert.out_weight", {"action", "decision"}),
    ],
)
def test_a_fault_is_seen_in_its_stage(buffer: str, stages: set[str]) -> None:
    """The action stage is judged on the context as found: a fault before it is not its own."""
    session = open_session()
    spoil(session, buffer)
    report = run(session)
    assert not report.passed
    failed = {gate.name.split(": ")[0] for gate in report.gates if not gate.passed}
    blamed = {name.removeprefix("relative error of ") for name in failed if "relative" in name}
    assert blamed == stages


def test_each_gate_can_fail() -> None:
    session = open_session()
    passing = Gates(min_cosine=0.5, max_error=1.0, max_stage_error=1.0)
    assert run(session, gates=passing).passed
    for change, name in (
        ({"mean_cosine": 1.1}, "mean cosine of action rows"),
        ({"min_cosine": 1.1}, "least cosine of action rows"),
        ({"max_error": 0.0}, "largest action error"),
    ):
        report = run(session, gates=replace(passing, **change))
        assert [gate.name for gate in report.gates if not gate.passed] == [name]
    report = run(session, gates=replace(passing, max_stage_error=0.0))
    assert not report.passed


def test_joints_are_in_robot_units() -> None:
    """Statistics stretch the second joint: its error grows with them, the network's does not."""
    session = open_session()
    spoil(session, "expert.action_out_weight")
    plain = run(session)
    processor = session.processor

    class Stretched:
        def __getattr__(self, name: str) -> object:
            return getattr(processor, name)

        def decode(self, actions: np.ndarray, state: np.ndarray | None) -> np.ndarray:
            robot = processor.decode(actions, state)
            robot[:, 1] *= 100.0
            return robot

    session.engine.processor = Stretched()  # type: ignore[assignment]
    stretched = run(session)
    assert stretched.stages == plain.stages
    assert stretched.joints[1].max_abs == pytest.approx(100 * plain.joints[1].max_abs, rel=1e-5)
    assert stretched.joints[0] == plain.joints[0]


def product(found: list[list[float]], expected: list[list[float]]) -> Product:
    return Product("s", "p", np.array(found, np.float32), np.array(expected, np.float32))


def test_errors_by_hand() -> None:
    error = error_of([product([[3, 4]], [[3, 4]]), product([[0, 2]], [[1, 0]])])
    assert error.max_abs == 2.0
    assert error.rms == pytest.approx((5 / 4) ** 0.5)
    assert error.relative == pytest.approx((5 / 26) ** 0.5)
    assert error.min_cosine == 0.0 and error.mean_cosine == 0.5
    assert error.cosines["0"] == 0.0 and error.cosines["50"] == 0.5 and error.cosines["100"] == 1.0
    assert error.errors["0"] == 0.0 and error.errors["100"] == 2.0
    assert error_of([product([[0, 0]], [[0, 0]])]).min_cosine == 1.0
    assert error_of([product([[1, 0]], [[0, 0]])]).min_cosine == 0.0


def test_gates_of_unknown_plans() -> None:
    with pytest.raises(OptionError, match="gates of precision 'int1'.*or every limit"):
        gates_for("int1", min_cosine=0.9)
    every = {"min_cosine": 0.9, "max_error": 1.0, "max_stage_error": 1.0}
    assert gates_for("int1", **every).max_error == 1.0
    assert gates_for("fp32", min_cosine=0.5).min_cosine == 0.5


@pytest.mark.parametrize("name", ["min_cosine", "mean_cosine", "max_error", "max_stage_error"])
def test_limits_that_nothing_or_everything_would_pass(name: str) -> None:
    cosine = name.endswith("cosine")
    for value in (float("nan"), -2.0, *((2.0, float("inf")) if cosine else (-0.1,))):
        with pytest.raises(OptionError, match=f"option '{name}': expected .*got {value}") as error:
            gates_for("fp32", **{name: value})
        assert ("-1 to 1" if cosine else "0 or more") in str(error.value)
    for value in (1.0, 0.0, *((-1.0,) if cosine else (7.0, float("inf")))):
        assert getattr(gates_for("fp32", **{name: value}), name) == value


def test_more_noises_an_observation_are_more_decisions_of_it() -> None:
    """The context is that of one noise; the actions are others."""
    session = open_session()
    one, three = run(session), run(session, noises=3)
    assert (one.decisions, three.decisions) == (2, 6)
    contexts = [name for name in one.stages if name.startswith("context")]
    for name in contexts:
        assert one.stages[name].rms == pytest.approx(three.stages[name].rms)
    assert contexts and one.joints != three.joints and three.passed


def test_nothing_to_compare() -> None:
    session = open_session()
    with pytest.raises(InputError, match="at least one"):
        qualify(session, qualifier(OPTIONS), gates_for("fp32"), [])


def test_reference_device() -> None:
    with pytest.raises(OptionError, match="cpu or cuda"):
        qualifier(OPTIONS, "tpu")
    if not torch.cuda.is_available():
        with pytest.raises(Exception, match="a GPU that torch can use"):
            qualifier(OPTIONS, "cuda")
