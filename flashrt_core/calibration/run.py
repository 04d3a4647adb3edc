"""Observes a policy's activations in bf16, on the references, and makes a scale table of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from ..checkpoint import Progress
from ..devices import REFERENCE_CUDA, Device, open_device
from ..errors import InputError, OptionError
from ..load import LoadOptions, configuration, make_plan, precision_of, start
from ..observations import Sample, digest_of, naming, number_of
from ..policies import find_policy
from ..policies.base import Processor
from ..scales import METHODS, Calibration, key_of
from ..weights import checkpoint_path
from .observer import Observer

DEVICES = ("cpu", REFERENCE_CUDA)


def calibrate(
    options: LoadOptions,
    samples: Callable[[Processor], Iterable[Sample]],
    *,
    origin: str,
    method: str = "amax",
    percentile: float = 99.99,
    told: Progress | None = None,
    decided: Callable[[int], None] | None = None,
) -> Calibration:
    """Decides on every observation in bf16, each with other noise, and keeps what products read.

    Args:
        options: the plan that the scales are for; a quantised one, on a device of ``DEVICES``.
        samples: the observations, for that processor.
        origin: where they come from, for the file.
        method: "amax": no observed number is clipped; "percentile": so many are not.
        percentile: in (0, 100].
        told, decided: told how far a checkpoint file is read, and how many observations are done.

    Raises:
        OptionError: a plan without scales, another device or method, or unusable options.
        InputError: an observation does not fit, or there is none.
        NumericsError: a product's input is not finite.
    """
    plan_for = precision_of(options)
    _check(options, bool(plan_for.observed), method, percentile)
    wide = replace(options, precision=str(plan_for.base), max_sessions=1, capsule_slots=0)
    policy = find_policy(options.policy)
    config = policy.of_activations(configuration(options)[1])
    observer = Observer(policy.sites)
    device = open_device(options.device, threads=options.threads)
    try:
        plan = make_plan(wide, device, told)
        body, shapes, encoding = plan.body, plan.contract.shapes, plan.processor.encoding
        watched = replace(plan, body=lambda *which: observer.watch(body(*which), which[0]))
        session = start(watched, device, wide)
        observer.active = True
        digests = []
        for count, sample in enumerate(samples(session.processor), 1):
            session.restart()
            with naming(number_of(count, origin)):
                session.set_prompt(sample[0])
                session.decide(sample[1])
            digests.append(digest_of(sample))
            if decided is not None:
                decided(count)
        if not digests:
            raise InputError("observations", expected="at least one", got="none")
        return Calibration(
            key=key_of(plan.fingerprint, plan_for, shapes=shapes, config=config, encoding=encoding),
            recorder=_recorder(device, options.checkpoint, origin),
            observations=tuple(digests),
            method=method,
            percentile=percentile,
            sites=observer.ranges(percentile),
            inputs=observer.inputs(),
        )
    finally:
        device.close()


def _check(options: LoadOptions, calibrated: bool, method: str, percentile: float) -> None:
    if not calibrated:
        raise OptionError(
            "option 'precision'",
            expected="a plan with fp8 products, which need scales, or with weights of four bits",
            got=repr(str(options.precision)),
        )
    if options.device not in DEVICES:
        raise OptionError(
            "option 'device'",
            expected=f"one of {list(DEVICES)}: calibration runs on the references",
            got=repr(options.device),
        )
    if method not in METHODS:
        raise OptionError("option 'method'", expected=f"one of {list(METHODS)}", got=repr(method))
    if not 0.0 < percentile <= 100.0:
        raise OptionError(
            "option 'percentile'", expected="more than 0 and at most 100", got=percentile
        )


def _recorder(device: Device, checkpoint: str | Path, origin: str) -> dict[str, str]:
    """Who made it of what, for people; of a checkpoint the path, the home folder as ``~``."""
    named, path = str(checkpoint), checkpoint_path(checkpoint)
    if path is not None:
        whole, home = path.absolute(), Path.home()
        named = f"~/{whole.relative_to(home)}" if whole.is_relative_to(home) else str(whole)
    return {
        "arch": device.arch,
        "library": device.library,
        "checkpoint": named,
        "observations": origin,
    }
